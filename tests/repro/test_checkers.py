"""The math-verify answer checker: its verdicts, its gate, its memo, and an exact integer rule beside it."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest

from repro import checkers


def integer_rule(gold: int, answer: str) -> bool:
    """The same question without math-verify or a regular expression: characters, then exact integers."""
    digits = answer[1:] if answer[:1] == "-" else answer
    if not 0 < len(answer) <= checkers.LONGEST_ANSWER or not digits or set(digits) - set("0123456789"):
        return False
    if answer[:2] == "-0" and answer != "-0":
        return False
    value = sum((ord(digit) - ord("0")) * 10**place for place, digit in enumerate(reversed(digits)))
    return (-value if answer[0] == "-" else value) == gold


@pytest.mark.parametrize(("gold", "answer"), [(64, "64"), (64, "064"), (0, "0"), (0, "00"), (0, "-0"), (-5, "-5")])
def test_equal_whole_numbers(gold, answer):
    assert checkers.equals(gold, answer)


@pytest.mark.parametrize(
    "answer",
    ["65", "", "-", "-64", "--64", "+64", "=64", "64=", "64*", "64.", "64.0", "6 4", " 64", "64\n", "6_4", "60+4"]
    + ["8*8", "2**6", "(64)", "64?", "?64", "6<PAD>4", "64<BOS>", "\\boxed{64}", "$64$", "64%", "6,4", "1e2", "six"]
    + ["٦٤", "６４", "²", "128/2", "64=64", "0x40", "-064", "64" * 60, "0" * 99 + "64"],
)
def test_anything_else_is_wrong_and_never_an_error(answer):
    assert checkers.equals(64, answer) is False


def test_long_numbers_are_compared_exactly():
    gold = int("9" * 60)
    assert checkers.equals(gold, "9" * 60)
    assert not checkers.equals(gold, "9" * 59 + "8")


def test_agrees_with_an_exact_integer_rule_on_random_strings():
    rng = np.random.default_rng(0)
    alphabet = list("0123456789" * 3 + "+-*=?. ") + ["<PAD>", "<BOS>"]
    right = 0
    for _ in range(4000):
        gold = int(rng.choice([-12, -9, 0, 7, 48, 99]))
        kind = rng.integers(4)
        if kind == 0:  # anything
            answer = "".join(rng.choice(alphabet, size=rng.integers(0, 7)))
        elif kind == 1:  # one character away from the right answer
            at = int(rng.integers(len(str(gold)) + 1))
            answer = str(gold)[:at] + str(rng.choice(alphabet)) + str(gold)[at:]
        elif kind == 2:  # a number near it
            answer = str(gold + int(rng.integers(-1, 2)))
        else:  # the right answer, written longer
            answer = ("-" if gold < 0 else "") + "0" * int(rng.integers(4)) + str(abs(gold))
        assert checkers.equals(gold, answer) == integer_rule(gold, answer), (gold, answer)
        right += integer_rule(gold, answer)
    assert 1000 < right < 2500  # neither verdict is rare


def test_the_verdict_comes_from_math_verify(monkeypatch):
    checkers._verify.cache_clear()
    monkeypatch.setattr(checkers._library(), "verify", lambda gold, found, **options: gold == found and gold[0] == 7)
    try:
        assert checkers.equals(7, "7") and not checkers.equals(8, "8")
    finally:
        checkers._verify.cache_clear()


def test_the_gate_is_stricter_than_math_verify():
    # What the library alone accepts, and what it fails to read; the gate is there because of both.
    assert not checkers._verify(-9, "-09")
    for answer in ("64*", "=64", "64.", "64=64"):
        assert checkers._verify(64, answer) and not checkers.equals(64, answer)


def test_repeated_questions_are_answered_from_the_memo():
    checkers._verify.cache_clear()
    for _ in range(5):
        assert checkers.equals(12, "12") and not checkers.equals(12, "13") and not checkers.equals(12, "x")
    assert checkers.memo_statistics() == {"hits": 8, "misses": 2, "size": 2}


def test_wrong_types_are_named():
    for gold in ("64", 64.0, True, None):
        with pytest.raises(TypeError, match="gold: expected an int"):
            checkers.equals(gold, "64")
    with pytest.raises(TypeError, match="answer: expected a str"):
        checkers.equals(64, 64)


def test_a_missing_library_is_named_with_its_requirement(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    checkers._library.cache_clear()
    checkers._verify.cache_clear()
    with pytest.raises(ImportError, match=r"math-verify\[antlr4_13_2\]"):
        checkers.equals(1, "1")


def test_the_notice_about_time_limits_stays_out_of_the_logs(caplog):
    checkers._verify.cache_clear()
    with caplog.at_level(logging.DEBUG):
        assert checkers.equals(41, "41")
    assert "Timeout is disabled" not in caplog.text
