"""Arithmetic in characters: the task of the learning-rate experiment, graded by math-verify.

A problem is an expression of six one-digit numbers, ``7*8-9+4*3+5``, with the usual precedence; every intermediate
result lies in 0..99. The prompt is ``BOS 7*8-9+4*3+5 =`` (13 tokens). A response is the working, one operation a step
(products from the left, then sums from the left), each step the whole remaining expression::

    56-9+4*3+5=56-9+12+5=47+12+5=59+5=64 EOS

``?`` drops what was written and starts again. Only the answer is judged: the text after the last ``=`` or ``?`` before
EOS. Demonstrations hold up to two abandoned attempts with a slip in them. At most 66 tokens, about 45 on average, most
of them emitted before the outcome is known - the regime in which an uncentred update drifts.

Reward 1 for a correct answer, else 0, with a response that does not end in time counting as wrong: the values of
UniRL's math-verify reward and its default for truncated responses. ``countdown_tiny`` gives +1 and -1; with
advantages ``r - mean(r)`` the same learning rate here makes steps half as long.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from repro import checkers

CHARACTERS = "0123456789+-*=?"
SYMBOLS = (*CHARACTERS, "<BOS>", "<EOS>", "<PAD>")
VOCABULARY = len(SYMBOLS)
EQUALS, RETRY = CHARACTERS.index("="), CHARACTERS.index("?")
BOS, EOS, PAD = range(len(CHARACTERS), VOCABULARY)
OPERATORS = "+-*"
OPERANDS = 6
LARGEST_OPERAND = 9
LARGEST_RESULT = 99
EXPRESSION_LENGTH = 2 * OPERANDS - 1
PROMPT_LENGTH = EXPRESSION_LENGTH + 2
MAX_RESPONSE = 66
MAX_SLIPS = 2
SLIP_PROBABILITY = 0.7
HELD_OUT_SHARE = 8  # one problem in eight belongs to the held-out side
HELD_OUT_SEED = 30_000
EVALUATION_SAMPLES = 4  # responses to each held-out problem: the held-out accuracy is avg@4

_PART = re.compile(r"[0-9]+|[-+*]")


class Problem(NamedTuple):
    """The expression as shown, and its value."""

    expression: str
    answer: int


class Verdict(NamedTuple):
    """What the checker found: ``correct`` decides the reward; ``reason`` says why not."""

    correct: bool
    reason: str


def apply(operator: str, left: int, right: int) -> int:
    """``left operator right``; the caller checks the range of the result."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    raise ValueError(f"operator: expected one of {OPERATORS}, got {operator!r}")


def reduce_once(parts: Sequence[str]) -> list[str]:
    """One step of the working: the leftmost product or, without one, the leftmost sum replaced by its value."""
    at = parts.index("*") if "*" in parts else 1
    value = apply(parts[at], int(parts[at - 1]), int(parts[at + 1]))
    return [*parts[: at - 1], str(value), *parts[at + 2 :]]


def working(expression: str, slip: tuple[int, int] | None = None) -> list[str]:
    """The steps of the working as texts, the last one the value.

    ``slip = (step, offset)`` adds ``offset`` to the number computed at that step (counted from 0) and carries on with
    it. A number outside 0..99 anywhere is a ValueError.
    """
    parts = _PART.findall(expression)
    steps = []
    for step in range(len(parts) // 2):
        at = parts.index("*") if "*" in parts else 1
        parts = reduce_once(parts)
        if slip is not None and step == slip[0]:
            parts[at - 1] = str(int(parts[at - 1]) + slip[1])
        if not 0 <= int(parts[at - 1]) <= LARGEST_RESULT:
            raise ValueError(f"expression: {expression} leaves 0..{LARGEST_RESULT} at step {step}: {parts[at - 1]}")
        steps.append("".join(parts))
    return steps


def canonical(expression: str) -> str:
    """The expression with factors and signed terms sorted: equal for expressions that differ in order only."""
    terms = re.findall(r"[-+][^-+]+", expression if expression[0] == "-" else f"+{expression}")
    return "".join(sorted(term[0] + "*".join(sorted(term[1:].split("*"))) for term in terms))


def is_held_out(problem: Problem) -> bool:
    """Which side of the split a problem lies on: a hash of its canonical expression, so order cannot leak."""
    digest = hashlib.sha256(canonical(problem.expression).encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


def _draw(rng: np.random.Generator, held_out: bool) -> Problem:
    while True:
        numbers = rng.integers(1, LARGEST_OPERAND + 1, size=OPERANDS)
        operators = rng.integers(len(OPERATORS), size=OPERANDS - 1)
        expression = str(numbers[0]) + "".join(
            f"{OPERATORS[operator]}{number}" for operator, number in zip(operators, numbers[1:], strict=True)
        )
        try:
            problem = Problem(expression, int(working(expression)[-1]))
        except ValueError:
            continue
        if is_held_out(problem) == held_out:
            return problem


def training_problems(rng: np.random.Generator, count: int) -> list[Problem]:
    """``count`` problems from the training side of the split (repeats are possible)."""
    return [_draw(rng, held_out=False) for _ in range(count)]


def held_out_problems(count: int = 256) -> list[Problem]:
    """The fixed evaluation set: ``count`` distinct problems of the held-out side, always the same ones."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    chosen: dict[str, Problem] = {}
    while len(chosen) < count:
        problem = _draw(rng, held_out=True)
        chosen.setdefault(canonical(problem.expression), problem)
    return list(chosen.values())


def _abandoned(rng: np.random.Generator, expression: str) -> str:
    """An attempt with a slip at a random step, abandoned there or later: its text and ``?``."""
    while True:
        step = int(rng.integers(OPERANDS - 1))
        offset = int(rng.choice((-10, -2, -1, 1, 2, 10)))
        try:
            steps = working(expression, (step, offset))
        except ValueError:
            continue
        noticed = int(rng.integers(step, OPERANDS - 1))
        return "=".join(steps[: noticed + 1]) + "?"


def demonstration(rng: np.random.Generator) -> tuple[Problem, list[int]]:
    """One supervised example of the training side: (problem, response tokens ending in EOS).

    Two draws of an abandoned attempt, each kept with probability 0.7 if it fits, come before the right working: the
    policy learns to go on after a slip and to stop at a result, which gives long responses.
    """
    problem = _draw(rng, held_out=False)
    solution = "=".join(working(problem.expression))
    text = ""
    for _ in range(MAX_SLIPS):
        if rng.random() < SLIP_PROBABILITY:
            attempt = _abandoned(rng, problem.expression)
            if len(text) + len(attempt) + len(solution) < MAX_RESPONSE:
                text += attempt
    return problem, [*encode(text + solution), EOS]


def prompt(problem: Problem) -> list[int]:
    """``BOS expression =``: 13 token ids."""
    return [BOS, *encode(problem.expression), EQUALS]


def check(problem: Problem, response: Sequence[int]) -> Verdict:
    """Judge a response (token ids). Everything after the first EOS is ignored; no EOS within the limit is a failure.

    Correct means: the text after the last ``=`` or ``?`` is a whole number that math-verify finds equal to the value of
    the expression (:func:`repro.checkers.equals`). The working itself is not judged.
    """
    response = [int(token) for token in response]
    if EOS not in response[:MAX_RESPONSE]:
        return Verdict(False, "no EOS")
    answer = re.split(r"[=?]", decode(response[: response.index(EOS)]))[-1]
    if checkers.equals(problem.answer, answer):
        return Verdict(True, "correct")
    return Verdict(False, f"answers {answer!r}, not {problem.answer}")


def reward(problem: Problem, response: Sequence[int]) -> float:
    """1 for a correct response, else 0."""
    return 1.0 if check(problem, response).correct else 0.0


def encode(text: str) -> list[int]:
    """One token id per character; a character outside ``0123456789+-*=?`` is a ValueError."""
    for character in text:
        if character not in CHARACTERS:
            raise ValueError(f"text: expected characters of {CHARACTERS}, got {character!r}")
    return [CHARACTERS.index(character) for character in text]


def decode(tokens: Sequence[int]) -> str:
    """Tokens as text, without separators: ``56+4=60<EOS>``."""
    for token in tokens:
        if not 0 <= int(token) < VOCABULARY:
            raise ValueError(f"tokens: ids must lie in [0, {VOCABULARY}), got {int(token)}")
    return "".join(SYMBOLS[int(token)] for token in tokens)
