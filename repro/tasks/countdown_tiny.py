"""Countdown with retries over 73 whole-number tokens: the task of the CPU-sized runs.

A problem is three numbers from 1..12 and a target. All three numbers are used once, with ``+``, ``-`` and ``x``, and
every intermediate result lies in 0..63. The prompt is ``n1 n2 n3 TGT target BOS`` (6 tokens). A response holds up to
six attempts of ten tokens, ``a op b = c d op e = f``, separated by ``?`` and ended by ``EOS``: at most 66 tokens.
Only the last attempt is judged, so most tokens of a long response are emitted after its outcome has been decided or
before it is known - the regime in which an uncentred update drifts.

Numbers are their own token ids (0..63); the nine other symbols follow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NUMBERS = 64
SYMBOLS = ("+", "-", "x", "=", "?", "TGT", "BOS", "EOS", "PAD")
ADD, SUB, MUL, EQUALS, RETRY, TGT, BOS, EOS, PAD = range(NUMBERS, NUMBERS + len(SYMBOLS))
VOCABULARY = NUMBERS + len(SYMBOLS)
OPERANDS = 3
LARGEST_OPERAND = 12
PROMPT_LENGTH = OPERANDS + 3
ATTEMPT_LENGTH = 10
MAX_ATTEMPTS = 6
MAX_RESPONSE = MAX_ATTEMPTS * (ATTEMPT_LENGTH + 1)  # every attempt is followed by RETRY or EOS
HELD_OUT_SHARE = 8  # one problem in eight belongs to the held-out side
HELD_OUT_SEED = 20_000
EVALUATION_SAMPLES = 1  # responses to each held-out problem
WRONG_ATTEMPT_PROBABILITY = 0.7


class Problem(NamedTuple):
    """Three operands, in the order shown, and the target."""

    numbers: tuple[int, int, int]
    target: int


class Verdict(NamedTuple):
    """What the checker found: ``correct`` decides the reward; ``reason`` says why not."""

    correct: bool
    reason: str


def apply(op: int, left: int, right: int) -> int:
    """``left op right`` for an operator token; the caller checks the range of the result."""
    if op == ADD:
        return left + right
    if op == SUB:
        return left - right
    if op == MUL:
        return left * right
    raise ValueError(f"op: expected one of the operator tokens {ADD}, {SUB}, {MUL}, got {op}")


def random_attempt(rng: np.random.Generator, numbers: Sequence[int]) -> list[int]:
    """A random valid derivation over ``numbers`` as its ten tokens. Draws that leave 0..63 are redrawn whole."""
    while True:
        order = rng.permutation(OPERANDS)
        ops = rng.integers(ADD, MUL + 1, size=2)
        a, b, third = (int(numbers[i]) for i in order)
        first = apply(int(ops[0]), a, b)
        if not 0 <= first < NUMBERS:
            continue
        d, e = (first, third) if rng.random() < 0.5 else (third, first)
        last = apply(int(ops[1]), d, e)
        if 0 <= last < NUMBERS:
            return [a, int(ops[0]), b, EQUALS, first, d, int(ops[1]), e, EQUALS, last]


def is_held_out(problem: Problem) -> bool:
    """Which side of the split a problem lies on: a hash of its sorted numbers and target, so order cannot leak."""
    text = " ".join(map(str, (*sorted(problem.numbers), problem.target)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT_SHARE == 0


def _draw(rng: np.random.Generator, held_out: bool) -> tuple[Problem, list[int]]:
    while True:
        numbers = tuple(int(n) for n in rng.integers(1, LARGEST_OPERAND + 1, size=OPERANDS))
        solution = random_attempt(rng, numbers)
        problem = Problem(numbers, solution[-1])
        if is_held_out(problem) == held_out:
            return problem, solution


def training_problems(rng: np.random.Generator, count: int) -> list[Problem]:
    """``count`` solvable problems from the training side of the split (repeats are possible)."""
    return [_draw(rng, held_out=False)[0] for _ in range(count)]


def held_out_problems(count: int = 256) -> list[Problem]:
    """The fixed evaluation set: ``count`` distinct problems of the held-out side, always the same ones."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    chosen: dict[tuple, Problem] = {}
    while len(chosen) < count:
        problem = _draw(rng, held_out=True)[0]
        chosen.setdefault((tuple(sorted(problem.numbers)), problem.target), problem)
    return list(chosen.values())


def demonstration(rng: np.random.Generator, attempts: int = MAX_ATTEMPTS) -> tuple[Problem, list[int]]:
    """One supervised example of the training side: (problem, response tokens ending in EOS).

    ``attempts`` - 1 draws of a wrong attempt, each kept with probability 0.7, come before the right one: the policy
    learns to try, to recognise a miss and to stop at a hit, which gives long responses (about 50 tokens on average).
    """
    problem, solution = _draw(rng, held_out=False)
    response: list[int] = []
    for _ in range(attempts - 1):
        if rng.random() >= WRONG_ATTEMPT_PROBABILITY:
            continue
        attempt = random_attempt(rng, problem.numbers)
        while attempt[-1] == problem.target:
            attempt = random_attempt(rng, problem.numbers)
        response += [*attempt, RETRY]
    return problem, [*response, *solution, EOS]


def prompt(problem: Problem) -> list[int]:
    """``n1 n2 n3 TGT target BOS``: 6 token ids."""
    return [*problem.numbers, TGT, problem.target, BOS]


def check(problem: Problem, response: Sequence[int], limit: int = MAX_RESPONSE) -> Verdict:
    """Judge a response (token ids). Everything after the first EOS is ignored; no EOS within ``limit`` is a failure.

    Correct means: the last attempt is a valid derivation that uses each number exactly once, computes both results
    correctly within 0..63, and ends in the target.
    """
    response = [int(token) for token in response]
    if EOS not in response[:limit]:
        return Verdict(False, "no EOS")
    body = response[: response.index(EOS)]
    attempt = body[len(body) - body[::-1].index(RETRY) :] if RETRY in body else body
    if len(attempt) != ATTEMPT_LENGTH:
        return Verdict(False, f"the last attempt has {len(attempt)} tokens, not {ATTEMPT_LENGTH}")
    a, op1, b, equals1, c, d, op2, e, equals2, f = attempt
    if equals1 != EQUALS or equals2 != EQUALS or op1 not in (ADD, SUB, MUL) or op2 not in (ADD, SUB, MUL):
        return Verdict(False, "the last attempt is not of the form a op b = c d op e = f")
    if any(token >= NUMBERS for token in (a, b, c, d, e, f)):
        return Verdict(False, "a symbol stands where a number belongs")
    remaining = sorted(problem.numbers)
    for operand in (a, b):
        if operand not in remaining:
            return Verdict(False, f"{operand} is not available")
        remaining.remove(operand)
    if sorted((d, e)) != sorted((c, remaining[0])):
        return Verdict(False, f"the second step must combine {c} and {remaining[0]}")
    if apply(op1, a, b) != c or apply(op2, d, e) != f:
        return Verdict(False, "a result is wrong")
    if f != problem.target:
        return Verdict(False, f"ends in {f}, not in {problem.target}")
    return Verdict(True, "correct")


def reward(problem: Problem, response: Sequence[int], limit: int = MAX_RESPONSE) -> float:
    """+1 for a correct response, else -1."""
    return 1.0 if check(problem, response, limit).correct else -1.0


def decode(tokens: Sequence[int]) -> str:
    """Tokens as text, for people: ``3 + 4 = 7 7 x 2 = 14 EOS``."""
    words = []
    for token in tokens:
        if not 0 <= int(token) < VOCABULARY:
            raise ValueError(f"tokens: ids must lie in [0, {VOCABULARY}), got {int(token)}")
        words.append(str(int(token)) if token < NUMBERS else SYMBOLS[int(token) - NUMBERS])
    return " ".join(words)
