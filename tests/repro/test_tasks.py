"""Countdown, official and tiny: generators, prompts, parsers, rewards."""

from __future__ import annotations

import random
import time
from collections import Counter

import numpy as np
import pytest

from repro.tasks import countdown
from repro.tasks import countdown_tiny as tiny

ROW = countdown.Row((3, 5, 7, 2), 24, "((3 * 7) + (5 - 2))")


def answer(text: str) -> float:
    return countdown.reward(ROW, f"<think>so</think><answer>{text}</answer>")


# --- official ---------------------------------------------------------------------------------------------------------


def test_first_rows_are_those_of_the_published_generator():
    # Row values from an independent re-implementation of the published generator (arXiv 2609.20807), Python 3.11.
    first = [(row.numbers, row.target) for row in countdown.rows(4)]
    assert first == [((37, 18, 97, 13), 139), ((91, 86, 81, 1), 95), ((43, 55, 8, 13), 103), ((51, 12, 48, 15), 126)]
    evaluation = [(row.numbers, row.target) for row in countdown.rows(2, countdown.EVALUATION_SEED)]
    assert evaluation == [((74, 7, 90, 100), 109), ((14, 55, 79, 71), 33)]


@pytest.mark.slow
def test_the_data_set_has_the_published_statistics_and_every_solution_scores():
    data = countdown.rows()
    targets = [row.target for row in data]
    assert len(data) == 20_000
    assert round(np.mean(targets)) == 206
    assert np.median(targets) == 124
    assert max(targets) == 1000
    problems = Counter((tuple(sorted(row.numbers)), row.target) for row in data)
    assert sum(count - 1 for count in problems.values()) == 3
    assert all(countdown.reward(row, f"<answer>{row.solution}</answer>") == 1.0 for row in data)


def test_split_holds_out_the_first_rows_of_the_seeded_shuffle():
    data = countdown.rows(50)
    train, held_out = countdown.split(data, seed=3, held_out=8)
    order = list(data)
    random.Random(3).shuffle(order)
    assert held_out == order[:8]
    assert train == order[8:]
    with pytest.raises(ValueError, match="held_out"):
        countdown.split(data, seed=3, held_out=50)


def test_prompt_names_numbers_target_and_both_tags():
    system, user = countdown.messages(ROW)
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"].startswith(" ")
    for part in ("[3, 5, 7, 2]", "24", "<think> </think>", "<answer> </answer>", "(1 + 2) / 3", "only be used once"):
        assert part in user["content"]


@pytest.mark.parametrize("text", ["3*7 + (5-2)", " (5 - 2) + 7 * 3 ", "+3*7+5-2", "--3*7+5-2", "3*7\t+5-2"])
def test_correct_answers_score(text):
    assert answer(text) == 1.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3*7+5-1", "a number that was not given"),
        ("3*7+5-2-0", "an extra number"),
        ("3*7+3", "reuse of 3 and a missing 5 and 2"),
        ("(3+5)*(5-2)", "reuse of 5, 7 missing"),
        ("3*(5+2)", "7 missing"),
        ("3*7+5+2", "wrong value"),
        ("3**7+5-2", "power"),
        ("7//3+5*2", "floor division"),
        ("3*7+5-2=24", "equals sign"),
        ("24", "the target itself"),
        ("3x7+5-2", "letters"),
        ("3*7+(5-2", "unbalanced"),
        ("3 7 5 2", "no operators"),
        ("(3)(7)+5-2", "juxtaposition is a call in Python"),
        ("7/(5-3-2)", "division by zero"),
        ("", "empty"),
        ("...", "an ellipsis is made of allowed characters"),
        ("__import__('os')", "code"),
        ("03*7+5-2", "a leading zero is not a Python number"),
    ],
)
def test_wrong_answers_do_not_score(text, why):
    assert answer(text) == 0.0, why


def test_decimal_points_split_into_whole_numbers():
    row = countdown.Row((1, 5, 4, 2), 8, "")
    assert countdown.reward(row, "<answer>1.5*4+2</answer>") == 1.0  # reads as 1, 5, 4, 2 and is worth 8
    assert countdown.reward(row, "<answer>1.54+2</answer>") == 0.0


def test_true_division_within_the_tolerance():
    row = countdown.Row((1, 3, 3, 1), 2, "")
    assert countdown.reward(row, "<answer>1/3*3+1</answer>") == 1.0
    assert countdown.reward(countdown.Row((8, 3, 8, 3), 24, ""), "<answer>8/(3-8/3)</answer>") == 1.0


def test_only_the_last_complete_answer_counts():
    good, bad = "<answer>3*7+5-2</answer>", "<answer>3+7+5+2</answer>"
    assert countdown.reward(ROW, bad + good) == 1.0
    assert countdown.reward(ROW, good + bad) == 0.0
    assert countdown.reward(ROW, good + "<answer>3*7+5") == 1.0
    assert countdown.reward(ROW, "<answer>3*7+5-2") == 0.0
    assert countdown.reward(ROW, "3*7+5-2") == 0.0


@pytest.mark.parametrize(
    "text", ["-" * 100_000 + "1", "(" * 5_000 + "1" + ")" * 5_000, "9" * 100_000, "9*" * 240 + "9", "9/" * 240 + "9"]
)
def test_hostile_expressions_neither_hang_nor_crash(text):
    started = time.perf_counter()
    assert answer(text) == 0.0
    assert time.perf_counter() - started < 30  # a hang, not a speed


# --- tiny -------------------------------------------------------------------------------------------------------------

PROBLEM = tiny.Problem((3, 4, 7), 14)


def tokens(text: str) -> list[int]:
    return [int(w) if w.isdigit() else tiny.NUMBERS + tiny.SYMBOLS.index(w) for w in text.split()]


GOOD = "3 + 4 = 7 7 + 7 = 14"
MISS = "3 + 4 = 7 7 x 7 = 49"


def test_vocabulary_and_lengths():
    assert (tiny.VOCABULARY, tiny.MAX_RESPONSE, tiny.PROMPT_LENGTH) == (73, 66, 6)
    assert tiny.prompt(PROBLEM) == [3, 4, 7, tiny.TGT, 14, tiny.BOS]
    assert tiny.decode(tokens(GOOD + " EOS")) == GOOD + " EOS"
    with pytest.raises(ValueError, match=r"\[0, 73\)"):
        tiny.decode([73])


@pytest.mark.parametrize(
    "text",
    [GOOD + " EOS", MISS + " ? " + GOOD + " EOS", "7 + 7 ? ? " + GOOD + " EOS 1 2", "4 + 3 = 7 7 + 7 = 14 EOS"],
)
def test_tiny_correct(text):
    assert tiny.check(PROBLEM, tokens(text)) == (True, "correct")
    assert tiny.reward(PROBLEM, tokens(text)) == 1.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD, "no EOS"),
        (GOOD + " ? " + MISS + " EOS", "ends in 49"),
        (GOOD + " ? EOS", "0 tokens"),
        (GOOD + " 1 EOS", "11 tokens"),
        ("3 + 4 = 7 7 + 7 = 13 EOS", "a result is wrong"),
        ("3 + 4 = 8 8 + 7 = 14 EOS", "a result is wrong"),
        ("3 + 3 = 6 6 + 7 = 14 EOS", "3 is not available"),
        ("3 + 4 = 7 4 + 7 = 14 EOS", "must combine 7 and 7"),
        ("3 + 4 = 7 7 = 7 = 14 EOS", "not of the form"),
        ("? + 4 = 7 7 + 7 = 14 EOS", "9 tokens"),
        ("TGT + 4 = 7 7 + 7 = 14 EOS", "a symbol stands"),
    ],
)
def test_tiny_wrong(text, reason):
    verdict = tiny.check(PROBLEM, tokens(text))
    assert not verdict.correct
    assert reason in verdict.reason
    assert tiny.reward(PROBLEM, tokens(text)) == -1.0


def test_an_eos_beyond_the_limit_does_not_count():
    late = tokens(" ".join([MISS, "?"] * 6) + " " + GOOD + " EOS")
    assert len(late) > tiny.MAX_RESPONSE
    assert tiny.check(PROBLEM, late).reason == "no EOS"


def test_demonstrations_are_correct_fit_the_budget_and_stay_on_the_training_side():
    rng = np.random.default_rng(0)
    lengths, kept = [], 0
    for _ in range(400):
        problem, response = tiny.demonstration(rng)
        assert tiny.check(problem, response).correct
        assert len(response) <= tiny.MAX_RESPONSE
        assert not tiny.is_held_out(problem)
        assert 0 <= problem.target < tiny.NUMBERS
        attempts = "".join(" ?"[t == tiny.RETRY] for t in response).count("?")
        kept += attempts
        lengths.append(len(response))
    assert abs(kept / 400 - 3.5) < 0.25  # five draws kept with probability 0.7
    assert max(lengths) == 66 and min(lengths) < 30


def test_held_out_set_is_fixed_distinct_and_order_does_not_leak():
    problems = tiny.held_out_problems()
    assert problems == tiny.held_out_problems()
    assert len({(tuple(sorted(p.numbers)), p.target) for p in problems}) == 256
    assert all(tiny.is_held_out(p) for p in problems)
    assert all(tiny.is_held_out(tiny.Problem(tuple(reversed(p.numbers)), p.target)) for p in problems)
    train = tiny.training_problems(np.random.default_rng(1), 400)
    assert not {(tuple(sorted(p.numbers)), p.target) for p in problems} & {
        (tuple(sorted(p.numbers)), p.target) for p in train
    }


def test_same_seed_same_problems():
    draw = [tiny.training_problems(np.random.default_rng(seed), 20) for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]


def test_attempts_stay_in_range_and_use_every_number():
    rng = np.random.default_rng(3)
    for _ in range(300):
        numbers = tuple(int(n) for n in rng.integers(1, 13, 3))
        attempt = tiny.random_attempt(rng, numbers)
        assert tiny.check(tiny.Problem(numbers, attempt[-1]), [*attempt, tiny.EOS]).correct
    with pytest.raises(ValueError, match="op:"):
        tiny.apply(tiny.EQUALS, 1, 2)
