"""Streaks without reward or gradient, and the table of both ends."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from repro.statistics import streaks


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], 0), ([False], 0), ([True], 1), ([True, False, True, True], 2), ([True, True, True, False, True], 3)],
)
def test_the_longest_streak(values, expected):
    assert streaks.longest_streak(values) == expected


def runs() -> pd.DataFrame:
    """Two seeds of one arm: one dies at step 3, the other has one step without reward and never a zero gradient."""
    frames = []
    for seed, accuracy, norm in (
        (10, [0.5, 0.25, 0, 0, 0], [1, 1, 0, 0, 0]),
        (11, [0.5, 0.0, 0.5, 0.75, 1], [1, 1, 1, 1, 1]),
    ):
        frames.append(
            pd.DataFrame(
                {
                    "variant": "base", "arm": "pg", "checkpoint": "a", "seed": seed, "step": range(1, 6),
                    "train_accuracy": np.array(accuracy, float), "grad_norm": np.array(norm, float),
                    "reward_mean": 2 * np.array(accuracy) - 1, "oracle_error": np.nan,
                    "heldout_accuracy_trainer": [0.4, np.nan, np.nan, np.nan, 0.2 if seed == 10 else 0.8],
                    "weights_read_back": [1.0, np.nan, 2.0, np.nan, 3.0],
                }
            )
        )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def test_streaks_of_every_replicate():
    assert list(streaks.streaks(runs(), "pg").values()) == [(3, 3), (1, 0)]


def test_the_table_has_both_ends_and_the_worst_replicate(monkeypatch):
    monkeypatch.setattr(streaks, "WINDOW", 2)
    line = streaks.table(runs(), str.upper).splitlines()[-1]
    # rewards: first two steps (0, -.5; 0, -1), last two (-1, -1; .5, 1); held out .4, .4 and .2, .8
    assert line == "| PG | -0.375 | -0.125 | 0.400 | 0.500 | 3 | 3 |"


def test_transfers_are_counted_where_they_are_recorded():
    assert "after each of 6 transfers in 2 runs" in streaks.transfers(runs())
    assert streaks.transfers(runs().drop(columns="weights_read_back")) == ""
