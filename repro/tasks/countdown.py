"""Countdown as posed in the score-centering experiments: four numbers, a target, an expression in answer tags.

Follows the task definition of arXiv 2609.20807's released experiments: the order of random draws, the acceptance rule,
the 20,000-row data set from ``random.Random(0)`` and the reward are theirs, so the same rows come out. The prompt asks
for the same things in this project's own words.

Reward: the last ``<answer>...</answer>`` counts. It may contain digits, white space and ``+ - * / ( ) .`` only, neither
``**`` nor ``//``; the whole numbers in its text must be the given ones, each exactly once (so ``1.5`` reads as 1 and 5);
its value, with Python's precedence and true division, must lie within 1e-9 of the target. Anything else scores 0.
"""

from __future__ import annotations

import ast
import operator
import random
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

OPERANDS = 4
LARGEST_OPERAND = 100
LARGEST_TARGET = 1000
TRIES = 200
ROWS = 20_000
DATA_SEED, EVALUATION_SEED = 0, 999
TOLERANCE = 1e-9
# An honest answer over four numbers has some 30 characters. The bound keeps parsing cheap and shallow.
LONGEST_ANSWER = 500

SYSTEM = "You are a helpful assistant who first thinks a problem through step by step and then gives the answer."
USER = (
    " Build an arithmetic expression from the numbers {numbers} whose value is {target}. The operations + - * / are "
    "allowed and each number can only be used once. Write your reasoning inside <think> </think> tags and the final "
    "expression inside <answer> </answer> tags, for instance <answer> (1 + 2) / 3 </answer>."
)

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ALLOWED = re.compile(r"[\d\s+\-*/().]+", re.ASCII)
_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_UNARY = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class Row(NamedTuple):
    """Four numbers in the order shown, the target, and one expression that reaches it."""

    numbers: tuple[int, int, int, int]
    target: int
    solution: str


def _combine(op: str, left: Fraction, right: Fraction) -> tuple[str, Fraction]:
    if op == "/" and right == 0:
        op = "+"
    value = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[op](left, right)
    return op, value


def draw_row(rng: random.Random) -> Row:
    """One row. Per try: four ``randint(1, 100)``; per merge ``sample(range(n), 2)``, then ``choice`` of ``+ - * /``.

    The merged value goes to the end of the list; a division by zero becomes an addition; the try is accepted when the
    value is a whole number from 1 to 1000. A rejected try keeps consuming the same stream. After 200 tries RuntimeError.
    """
    for _ in range(TRIES):
        numbers = tuple(rng.randint(1, LARGEST_OPERAND) for _ in range(OPERANDS))
        values = [(str(n), Fraction(n)) for n in numbers]
        while len(values) > 1:
            i, j = rng.sample(range(len(values)), 2)
            op, value = _combine(rng.choice(["+", "-", "*", "/"]), values[i][1], values[j][1])
            merged = (f"({values[i][0]} {op} {values[j][0]})", value)
            values = [v for k, v in enumerate(values) if k not in (i, j)] + [merged]
        solution, value = values[0]
        if value.denominator == 1 and 1 <= value <= LARGEST_TARGET:
            return Row(numbers, int(value), solution)
    raise RuntimeError(f"no whole target from 1 to {LARGEST_TARGET} in {TRIES} tries; use another seed")


def rows(count: int = ROWS, seed: int = DATA_SEED) -> list[Row]:
    """The first ``count`` rows of the data set (seed 0) or of the environment's own evaluation split (seed 999)."""
    rng = random.Random(seed)
    return [draw_row(rng) for _ in range(count)]


def split(data: Sequence[Row], seed: int, held_out: int) -> tuple[list[Row], list[Row]]:
    """(training rows in training order, held-out rows): shuffled with the run's seed, the first ``held_out`` held out."""
    if not 0 <= held_out < len(data):
        raise ValueError(f"held_out: expected 0..{len(data) - 1} for {len(data)} rows, got {held_out}")
    order = list(data)
    random.Random(seed).shuffle(order)
    return order[held_out:], order[:held_out]


def messages(row: Row) -> list[dict[str, str]]:
    """The chat prompt (system and user message) for a tokenizer's chat template."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": USER.format(numbers=list(row.numbers), target=row.target)},
    ]


def parse(response: str) -> str | None:
    """The text of the last complete answer tag, stripped; None when there is none (a truncated response)."""
    found = _ANSWER.findall(response)
    return found[-1].strip() if found else None


def evaluate(expression: str) -> float | int | None:
    """The value of an arithmetic expression of allowed characters; None for anything that is not one.

    Parsed into a syntax tree of numbers, + - * / and signs only, and walked here: no text is ever executed.
    """
    if len(expression) > LONGEST_ANSWER or not _ALLOWED.fullmatch(expression):
        return None
    if "**" in expression or "//" in expression:
        return None
    try:
        return _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> float | int:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    raise ValueError(f"not arithmetic: {type(node).__name__}")


def reward(row: Row, response: str) -> float:
    """1.0 for a correct answer, else 0.0 (training maps it to +1 and -1)."""
    answer = parse(response)
    if answer is None:
        return 0.0
    value = evaluate(answer)
    if value is None or Counter(map(int, re.findall(r"\d+", answer))) != Counter(row.numbers):
        return 0.0
    return 1.0 if abs(value - row.target) <= TOLERANCE else 0.0
