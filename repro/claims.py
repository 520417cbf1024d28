"""A row's claim, computed from its data: window means per arm and seed, paired comparisons, one verdict each.

PASS            the comparison holds in every seed, and there are at least three seeds
UNDERPOWERED    the mean agrees but not every seed does, there are fewer than three seeds, or the data lack the arms or
                steps that the comparison needs
FAIL            the mean over seeds contradicts the comparison

Verdicts are descriptive: with three seeds no comparison is statistically significant (see `statistics.sign_test_floor`).
Data are the long table of ``data.csv``: columns arm, seed, step and one per metric.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from repro.manifest import Check
from repro.statistics import Interval, bootstrap_interval, paired_differences, window_mean

PASS, UNDERPOWERED, FAIL = "PASS", "UNDERPOWERED", "FAIL"
MINIMUM_SEEDS = 3
BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class Verdict:
    """One comparison: what was compared, what came out (per seed), and the verdict."""

    statement: str
    state: str
    detail: str

    def __str__(self) -> str:
        return f"{self.state}: {self.statement} ({self.detail})"


def window_means(data: pd.DataFrame, arm: str, metric: str, window: int, *, first: bool = False) -> dict[int, float]:
    """Seed -> mean of ``metric`` over the last (or ``first``) ``window`` steps of ``arm``."""
    means = {}
    for seed, run in data[data["arm"] == arm].groupby("seed"):
        values = run.sort_values("step")[metric].to_numpy()
        means[int(seed)] = window_mean(values, window, end=window if first else None)
    return means


def ordering(data: pd.DataFrame, metric: str, window: int) -> list[tuple[str, Interval]]:
    """Arms from best to worst by the mean over seeds of the last-window mean, with bootstrap intervals over seeds."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    arms = [
        (arm, bootstrap_interval(list(window_means(data, arm, metric, window).values()), rng))
        for arm in dict.fromkeys(data["arm"])
    ]
    return sorted(arms, key=lambda item: item[1].mean, reverse=True)


def _judge(statement: str, better: dict[int, float], worse: dict[int, float], margin: float) -> Verdict:
    pairs = paired_differences(better, worse)
    listed = ", ".join(f"{d:+.3f}" for d in pairs.differences)
    detail = f"mean {pairs.mean:+.3f}; by seed {listed}"
    if pairs.mean <= margin:
        return Verdict(statement, FAIL, detail)
    if len(pairs.seeds) < MINIMUM_SEEDS:
        return Verdict(statement, UNDERPOWERED, f"{detail}; fewer than {MINIMUM_SEEDS} seeds")
    return Verdict(statement, PASS if pairs.unanimous(margin) else UNDERPOWERED, detail)


def evaluate(check: Check, data: pd.DataFrame) -> list[Verdict]:
    """One verdict per comparison of ``check``.

    Raises ``KeyError`` when the metric's column is absent: that is a broken file, not a missing run.
    """
    if check.metric not in data.columns:
        raise KeyError(f"{check.metric}: expected a column of the data, got {', '.join(data.columns)}")
    metric, window = check.metric, check.window
    present = set(data["arm"])
    steps = int(data.groupby(["arm", "seed"]).size().min())
    verdicts = []
    for pair in check.above:
        statement = (
            f"{pair.better} ends above {pair.worse} by more than {pair.margin:g} in {metric}, last {window} steps"
        )
        lacking = _lacking({pair.better, pair.worse} - present, steps, window)
        if lacking:
            verdicts.append(Verdict(statement, UNDERPOWERED, lacking))
            continue
        better, worse = (window_means(data, arm, metric, window) for arm in (pair.better, pair.worse))
        if not set(better) & set(worse):
            verdicts.append(Verdict(statement, UNDERPOWERED, "the arms have no seed in common"))
            continue
        verdicts.append(_judge(statement, better, worse, pair.margin))
    for arm in check.improves:
        statement = f"{arm} ends above its own first {window} steps in {metric}"
        lacking = _lacking({arm} - present, steps, 2 * window)
        if lacking:
            verdicts.append(Verdict(statement, UNDERPOWERED, lacking))
            continue
        start = window_means(data, arm, metric, window, first=True)
        verdicts.append(_judge(statement, window_means(data, arm, metric, window), start, 0.0))
    return verdicts


def _lacking(arms: set[str], steps: int, needed: int) -> str:
    if arms:
        return f"not run: {', '.join(sorted(arms))}"
    return f"needs {needed} steps, the shortest run has {steps}" if steps < needed else ""


def overall(verdicts: list[Verdict]) -> str:
    """FAIL if any comparison fails, else UNDERPOWERED if any is, else PASS."""
    states = {verdict.state for verdict in verdicts}
    return FAIL if FAIL in states else UNDERPOWERED if UNDERPOWERED in states else PASS
