"""The arithmetic task: generator, working, demonstrations, split and verdicts."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

from repro.tasks import arithmetic as task

PROBLEM = task.Problem("7*8-9+4-2-1", 48)
WORKING = "56-9+4-2-1=47+4-2-1=51-2-1=49-1=48"


def response(text: str) -> list[int]:
    """Token ids of a text in which ``<...>`` is one symbol."""
    return [task.SYMBOLS.index(part) for part in re.findall(r"<[A-Z]+>|.", text)]


def python_value(expression: str) -> int:
    """The value by Python's own parser and arithmetic."""
    return eval(compile(ast.parse(expression, mode="eval"), "<expression>", "eval"), {"__builtins__": {}})


def integer_verdict(problem: task.Problem, tokens: list[int]) -> bool:
    """The rule of the reward without math-verify: digits only after the last ``=`` or ``?``, exact integers."""
    head = tokens[: task.MAX_RESPONSE]
    if task.EOS not in head:
        return False
    answer = []
    for token in reversed(head[: head.index(task.EOS)]):
        if token in (task.EQUALS, task.RETRY):
            break
        answer.insert(0, token)
    if answer == [task.CHARACTERS.index("-"), 0]:
        return problem.answer == 0
    if not answer or max(answer) > 9:
        return False
    return sum(digit * 10**place for place, digit in enumerate(reversed(answer))) == problem.answer


def test_vocabulary_and_lengths():
    assert (task.VOCABULARY, task.PROMPT_LENGTH, task.MAX_RESPONSE) == (18, 13, 66)
    assert task.PROMPT_LENGTH + task.MAX_RESPONSE <= 128
    prompt = task.prompt(PROBLEM)
    assert len(prompt) == task.PROMPT_LENGTH
    assert task.decode(prompt) == "<BOS>7*8-9+4-2-1="
    assert task.decode(response("3?<EOS><PAD>")) == "3?<EOS><PAD>"
    assert task.encode("09+-*=?") == [0, 9, 10, 11, 12, 13, 14]
    with pytest.raises(ValueError, match=r"\[0, 18\)"):
        task.decode([18])
    with pytest.raises(ValueError, match="text: expected characters of"):
        task.encode("1/2")
    with pytest.raises(ValueError, match="operator: expected one of"):
        task.apply("/", 4, 2)


def test_working_does_products_then_sums_from_the_left():
    assert "=".join(task.working(PROBLEM.expression)) == WORKING
    assert task.working("1+2*3*4-9*1") == ["1+6*4-9*1", "1+24-9*1", "1+24-9", "25-9", "16"]
    assert task.working("9-8+2", slip=(0, 5)) == ["6+2", "8"]
    with pytest.raises(ValueError, match=r"leaves 0\.\.99 at step 0: -1"):
        task.working("1-2+9")
    with pytest.raises(ValueError, match=r"leaves 0\.\.99 at step 1: 729"):
        task.working("9*9*9")


def test_every_step_of_a_problem_has_the_value_of_the_whole():
    for problem in task.training_problems(np.random.default_rng(3), 200):
        assert len(problem.expression) == task.EXPRESSION_LENGTH
        steps = task.working(problem.expression)
        assert len(steps) == task.OPERANDS - 1
        assert {python_value(step) for step in (problem.expression, *steps)} == {problem.answer}
        assert len("=".join(steps)) < 40


@pytest.mark.parametrize(
    "text", [WORKING, "48", "048", "=48", "?48", "9=9=48", "57-9?" + WORKING, "48?" + WORKING, "<PAD>=48", "--=48"]
)
def test_correct(text):
    assert task.check(PROBLEM, response(text + "<EOS>")) == (True, "correct")
    assert task.reward(PROBLEM, response(text + "<EOS>47<PAD>")) == 1.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WORKING, "no EOS"),
        ("", "no EOS"),
        ("<EOS>", "answers '', not 48"),
        (WORKING + "?<EOS>", "answers ''"),
        (WORKING + "=<EOS>", "answers ''"),
        (WORKING + "?47<EOS>", "answers '47', not 48"),
        ("56-9+4-2-1=47+4-2-1=51-2-1=49-1<EOS>", "answers '49-1'"),
        ("=40+8<EOS>", r"answers '40+8'"),
        ("=-48<EOS>", "answers '-48'"),
        ("=+48<EOS>", "answers '+48'"),
        ("=48*<EOS>", "answers '48*'"),
        ("=4<PAD>8<EOS>", "answers '4<PAD>8'"),
        ("<BOS>48<EOS>", "answers '<BOS>48'"),
        ("=480<EOS>", "answers '480'"),
    ],
)
def test_wrong(text, reason):
    verdict = task.check(PROBLEM, response(text))
    assert not verdict.correct
    assert reason in verdict.reason
    assert task.reward(PROBLEM, response(text)) == 0.0


def test_an_eos_beyond_the_limit_does_not_count():
    for length, correct in ((task.MAX_RESPONSE, True), (task.MAX_RESPONSE + 1, False)):
        late = response("?" * (length - 3) + "48<EOS>")
        assert len(late) == length
        assert task.check(PROBLEM, late).correct is correct


def test_agrees_with_an_exact_integer_rule_on_random_and_damaged_responses():
    rng = np.random.default_rng(1)
    right = 0
    for _ in range(1200):
        problem, tokens = task.demonstration(rng)
        if rng.random() < 0.2:
            tokens = rng.integers(task.VOCABULARY, size=rng.integers(1, 70)).tolist()
        for _ in range(rng.integers(3)):  # damage, mostly near the answer
            at = max(0, len(tokens) - 1 - int(rng.geometric(0.3)))
            tokens[at : at + int(rng.integers(2))] = [int(rng.integers(task.VOCABULARY))]
        correct = task.check(problem, tokens).correct
        assert correct == integer_verdict(problem, tokens), (problem, task.decode(tokens))
        right += correct
    assert 400 < right < 1000


def test_demonstrations_are_correct_fit_the_budget_and_stay_on_the_training_side():
    rng = np.random.default_rng(0)
    lengths, attempts = [], []
    for _ in range(500):
        problem, tokens = task.demonstration(rng)
        assert task.check(problem, tokens).correct
        assert tokens.count(task.EOS) == 1 and tokens[-1] == task.EOS
        assert not task.is_held_out(problem)
        parts = task.decode(tokens[:-1]).split("?")
        assert parts[-1] == "=".join(task.working(problem.expression))
        for part in parts[:-1]:
            assert not parts[-1].startswith(part)  # a slip is in it
        lengths.append(len(tokens))
        attempts.append(len(parts))
    assert max(lengths) == task.MAX_RESPONSE and min(lengths) >= 30
    assert 42 < np.mean(lengths) < 54
    assert set(attempts) == {1, 2, 3}


def test_held_out_set_is_fixed_distinct_and_order_does_not_leak():
    problems = task.held_out_problems()
    assert problems == task.held_out_problems()
    assert len({task.canonical(p.expression) for p in problems}) == 256
    assert all(task.is_held_out(p) for p in problems)
    train = task.training_problems(np.random.default_rng(1), 400)
    assert not any(task.is_held_out(p) for p in train)
    share = np.mean([task.is_held_out(task.Problem(f"{a}+{b}*{c}", 0)) for a in range(40) for b, c in ((3, 5), (2, 9))])
    assert 0.03 < share < 0.25


def test_canonical_form_ignores_order_and_nothing_else():
    assert task.canonical("1+2*3-4") == task.canonical("3*2-4+1") != task.canonical("4-2*3+1")
    assert task.canonical("12+3") != task.canonical("1+23")
    for problem in task.training_problems(np.random.default_rng(2), 100):
        form = task.canonical(problem.expression)
        assert task.canonical(form) == form and python_value(form) == problem.answer
        assert task.is_held_out(problem) == task.is_held_out(task.Problem(form, problem.answer))


def test_same_seed_same_problems():
    draw = [task.training_problems(np.random.default_rng(seed), 20) for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]
