"""Verdicts on data whose window means are known."""

from __future__ import annotations

import pandas as pd
import pytest

from repro import captions, claims, manifest
from repro.claims import FAIL, PASS, UNDERPOWERED
from repro.manifest import Above, Check


def table(ends: dict[str, list[float]], steps: int = 8, start: float = 0.25) -> pd.DataFrame:
    """Accuracy is ``start`` in the first half of the steps and the given number, per arm and seed, in the second."""
    rows = [
        {"arm": arm, "seed": seed, "step": step, "accuracy": start if step <= steps // 2 else end}
        for arm, seeds in ends.items()
        for seed, end in enumerate(seeds)
        for step in range(1, steps + 1)
    ]
    return pd.DataFrame(rows).sample(frac=1.0, random_state=0)  # the order of rows in a file means nothing


def check(*above: Above, improves: tuple[str, ...] = (), window: int = 4) -> Check:
    return Check("accuracy", window, above, improves)


@pytest.mark.parametrize(
    ("sc", "pg", "margin", "state"),
    [
        ([0.5, 0.625, 0.5], [0.25, 0.25, 0.375], 0.1, PASS),
        ([0.5, 0.625, 0.5], [0.25, 0.25, 0.375], 0.125, UNDERPOWERED),  # the third seed is not above the margin
        ([0.5, 0.625, 0.125], [0.25, 0.25, 0.375], 0.0, UNDERPOWERED),  # the mean agrees, one seed does not
        ([0.5, 0.625], [0.25, 0.25], 0.1, UNDERPOWERED),  # two seeds
        ([0.25, 0.25, 0.25], [0.25, 0.25, 0.25], 0.0, FAIL),  # equal is not above
        ([0.25, 0.25, 0.25], [0.5, 0.5, 0.5], 0.0, FAIL),
        ([0.125], [0.5], 0.0, FAIL),  # one seed can contradict a claim, though it cannot support one
    ],
)
def test_comparison_of_two_arms(sc, pg, margin, state):
    (verdict,) = claims.evaluate(check(Above("sc", "pg", margin)), table({"sc": sc, "pg": pg}))
    assert verdict.state == state
    assert str(verdict).startswith(
        f"{state}: sc ends above pg by more than {margin:g} in accuracy, last 4 steps (mean "
    )
    assert f"by seed {sc[0] - pg[0]:+.3f}" in verdict.detail
    assert claims.overall([verdict]) == state


def test_improvement_compares_an_arm_with_its_own_start():
    rising, falling = table({"onpolicy": [0.5, 0.375, 0.5]}), table({"onpolicy": [0.125, 0.125, 0.25]})
    assert claims.evaluate(check(improves=("onpolicy",)), rising)[0].state == PASS
    assert claims.evaluate(check(improves=("onpolicy",)), falling)[0].state == FAIL


def test_missing_arms_steps_and_common_seeds_are_named():
    data = table({"sc": [0.5] * 3, "pg": [0.25] * 3})
    lacking = claims.evaluate(check(Above("sc", "tis", 0.0), improves=("onpolicy",)), data)
    assert [v.state for v in lacking] == [UNDERPOWERED] * 2
    assert "not run: tis" in lacking[0].detail and "not run: onpolicy" in lacking[1].detail
    (short,) = claims.evaluate(check(Above("sc", "pg", 0.0), window=9), data)
    assert "needs 9 steps, the shortest run has 8" in short.detail
    (overlap,) = claims.evaluate(check(improves=("sc",), window=5), data)
    assert "needs 10 steps" in overlap.detail
    apart = data[((data["arm"] == "sc") & (data["seed"] == 0)) | ((data["arm"] == "pg") & (data["seed"] == 1))]
    assert "no seed in common" in claims.evaluate(check(Above("sc", "pg", 0.0)), apart)[0].detail


def test_a_file_without_the_metric_is_broken():
    with pytest.raises(KeyError, match="accuracy: expected a column"):
        claims.evaluate(
            check(Above("sc", "pg", 0.0)), table({"sc": [1.0], "pg": [0.0]}).rename(columns={"accuracy": "x"})
        )


def test_one_failure_fails_the_claim():
    verdicts = [claims.Verdict("", state, "") for state in (PASS, UNDERPOWERED, FAIL)]
    assert claims.overall(verdicts) == FAIL
    assert claims.overall(verdicts[:2]) == UNDERPOWERED
    assert claims.overall(verdicts[:1]) == PASS


def test_ordering_is_the_one_that_came_out():
    data = table({"sc": [0.25, 0.375, 0.5], "pg": [0.5, 0.5, 0.5], "tis": [0.125, 0.125, 0.125]})
    order = claims.ordering(data, "accuracy", 4)
    assert [arm for arm, _ in order] == ["pg", "sc", "tis"]
    assert [interval.mean for _, interval in order] == pytest.approx([0.5, 0.375, 0.125])
    assert 0.25 <= order[1][1].low < 0.375 < order[1][1].high <= 0.5
    text = captions.describe_ordering(data, "accuracy", 4)
    assert text.index("PG 0.500") < text.index("SC 0.375") < text.index("TIS (cap 2) 0.125")
    assert captions.describe_ordering(data, "accuracy", 9) == "No ordering: the shortest run has 8 steps, the window 9."


def test_the_caption_follows_its_data():
    row = manifest.load()["countdown-fig4"]
    (cell, *_) = row.cells("tiny")
    meta = {"tier": "tiny", "arms": ["sc", "pg"], "steps": 60, "settings": cell.config}
    data = table({"sc": [0.5] * 3, "pg": [0.25] * 3}, steps=60).rename(columns={"accuracy": "train_accuracy"})
    data["oracle_error"] = [3e-6] + [None] * (len(data) - 1)
    text = captions.caption(row, data, meta)
    assert "SC 0.500 [0.500, 0.500]; PG 0.250" in text
    assert "2 arms x 3 seeds x 60 steps" in text and "steps: 60 instead of 1200" in text
    assert "simulated" in text and "3e-06, limit 2e-05, on the 1 steps" in text
    assert "PASS: sc ends above pg by more than 0.1" in text and "**UNDERPOWERED**" in text
    assert "p of 0.25" in text and "{" not in text
    data["oracle_error"] = None
    swapped = data.assign(arm=data["arm"].map({"sc": "pg", "pg": "sc"}))
    text = captions.caption(row, swapped, meta)
    assert "PG 0.500 [0.500, 0.500]; SC 0.250" in text and "FAIL: sc ends above pg" in text and "**FAIL**" in text
    assert "no step was compared" in text
