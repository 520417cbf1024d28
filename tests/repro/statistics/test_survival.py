"""Collapse against step, on curves whose trailing means are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from repro.rows import Check
from repro.statistics.claims import NotComparable
from repro.statistics.inference import Replicate
from repro.statistics.survival import survival, survivals, trailing_mean

CHECK = Check("accuracy", window=2, collapse=0.3, comparisons=(), improves=(), not_tested=())


def table(runs: dict[tuple[str, int], list[float]], arm: str = "sc") -> pd.DataFrame:
    """(checkpoint, seed) -> accuracy at steps 1, 2, ..."""
    rows = [
        {"variant": "base", "arm": arm, "checkpoint": k, "seed": seed, "step": step, "accuracy": value}
        for (k, seed), values in runs.items()
        for step, value in enumerate(values, start=1)
    ]
    return pd.DataFrame(rows).sample(frac=1.0, random_state=1)


def test_trailing_mean_starts_with_the_first_whole_window():
    means = trailing_mean(pd.Series([1.0, 2.0, 3.0, 8.0], [1, 2, 3, 4]), 3)
    assert means.to_dict() == {3: 2.0, 4: pytest.approx(13 / 3)}
    assert trailing_mean(pd.Series([1.0], [1]), 3).empty
    with pytest.raises(ValueError, match="window: expected at least 1"):
        trailing_mean(pd.Series([1.0]), 0)
    with pytest.raises(ValueError, match="got nan at step 2"):
        trailing_mean(pd.Series([1.0, np.nan], [1, 2]), 1)


def test_fraction_and_first_step_by_hand():
    data = table(
        {
            ("a", 0): [0.5, 0.5, 0.5, 0.5, 0.5],
            ("a", 1): [0.5, 0.5, 0.0, 0.0, 0.9],  # trailing means .5 .25 0 .45: collapses at step 3, recovers at 5
            ("b", 0): [0.5, 0.1, 0.1, 0.1, 0.1],  # .3 .1 .1 .1: at the threshold at step 2, below it from step 3
        }
    )
    one = survival(data, "sc", CHECK)
    np.testing.assert_array_equal(one.steps, [2, 3, 4, 5])
    np.testing.assert_array_equal(one.fraction, [1.0, 0.25, 0.25, 0.5])  # a and b have one share each
    assert one.first_below == {Replicate("a", 0): None, Replicate("a", 1): 3, Replicate("b", 0): 3}
    assert one.first_steps == [3, 3]
    assert (one.low <= one.fraction).all() and (one.fraction <= one.high).all()
    assert one.low[0] < 0.5 and one.high[0] == pytest.approx(1.0)  # Wilson's width where all agree
    assert one.low[1] == 0.0 and one.high[3] == pytest.approx(1.0)


def test_twelve_collapsed_runs_do_not_exclude_survivors():
    one = survival(table({(k, seed): [0.1] * 2 for k in "abc" for seed in range(4)}), "sc", CHECK)
    assert one.fraction[0] == one.low[0] == 0.0
    assert one.high[0] == pytest.approx(1.95996**2 / (12 + 1.95996**2), rel=1e-4)  # Wilson's upper end at 0 of n


def test_the_interval_is_as_wide_as_disagreeing_checkpoints_make_it():
    whole = {(k, seed): [float(k == "a")] * 3 for k in "ab" for seed in range(40)}
    mixed = {(k, seed): [float(seed % 2)] * 3 for k in "ab" for seed in range(40)}
    apart, alike = (survival(table(runs), "sc", CHECK) for runs in (whole, mixed))
    assert apart.fraction[0] == alike.fraction[0] == 0.5
    assert (apart.low[0], apart.high[0]) == (0.0, 1.0)  # the bootstrap's end: a or b alone
    assert 0.3 < alike.low[0] < 0.42 and 0.58 < alike.high[0] < 0.7


def test_the_curve_ends_with_the_shortest_run_but_first_steps_do_not():
    one = survival(table({("a", 0): [0.5] * 3, ("a", 1): [0.5] * 4 + [0.0, 0.0]}), "sc", CHECK)
    np.testing.assert_array_equal(one.steps, [2, 3])
    assert one.first_below[Replicate("a", 1)] == 5


def test_what_cannot_be_computed_is_named():
    data = table({("a", 0): [0.5]})
    with pytest.raises(NotComparable, match="not run: pg"):
        survival(data, "pg", CHECK)
    with pytest.raises(NotComparable, match="needs 2 steps, the shortest run of sc has 1"):
        survival(data, "sc", CHECK)


def test_every_condition_gets_a_curve_and_the_same_one_each_time():
    runs = {("a", seed): [0.5, 0.5, 0.1 * seed] for seed in range(4)}
    data = pd.concat([table(runs), table(runs, arm="pg")])
    first, again = survivals(data, CHECK), survivals(data, CHECK)
    assert list(first) == ["sc", "pg"]
    for name in first:
        np.testing.assert_array_equal(first[name].low, again[name].low)
    np.testing.assert_array_equal(first["sc"].high, first["pg"].high)
