"""Countdown with fewer attempts: lengths of demonstrations, the limit of the checker, the rest as the long form."""

from __future__ import annotations

import numpy as np
import pytest

from repro.tasks import countdown_tiny
from repro.tasks.countdown_short import Short


@pytest.mark.parametrize(("attempts", "mean"), [(1, 11.0), (3, 11 * 2.4), (6, 11 * 4.5)])
def test_demonstrations_are_correct_and_as_long_as_said(attempts, mean):
    task, rng = Short(attempts), np.random.default_rng(0)
    examples = [task.demonstration(rng) for _ in range(400)]
    assert all(task.check(problem, response).correct for problem, response in examples)
    lengths = [len(response) for _, response in examples]
    assert max(lengths) == task.MAX_RESPONSE == 11 * attempts
    assert np.mean(lengths) == pytest.approx(mean, abs=2.0)


def test_a_response_beyond_the_limit_is_wrong_and_earns_minus_one():
    task = Short(1)
    problem, response = countdown_tiny.Problem((3, 4, 2), 14), [3, countdown_tiny.ADD, 4, countdown_tiny.EQUALS, 7]
    response += [7, countdown_tiny.MUL, 2, countdown_tiny.EQUALS, 14]
    first = [*response, countdown_tiny.EOS]
    second = [*response, countdown_tiny.RETRY, *first]
    assert task.reward(problem, first) == 1.0 == countdown_tiny.reward(problem, second)
    assert task.reward(problem, second) == -1.0 and task.check(problem, second).reason == "no EOS"


def test_everything_else_is_that_of_the_long_form_and_bad_numbers_are_named():
    task = Short(3)
    assert task.VOCABULARY == countdown_tiny.VOCABULARY and task.held_out_problems is countdown_tiny.held_out_problems
    for attempts in (0, 7):
        with pytest.raises(ValueError, match=f"attempts: expected 1..6, got {attempts}"):
            Short(attempts)
