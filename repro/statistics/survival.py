"""Fraction of replicates that have not collapsed, against the optimizer step.

A replicate counts as collapsed at step t when the mean of the metric over its trailing ``window`` steps, t included, is
below ``collapse``. That is a state, not an event: a run may leave it again, and then the fraction rises. The first
step below is recorded per replicate beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from repro.rows import Check
from repro.statistics.claims import BOOTSTRAP_SEED, NotComparable, conditions, curves
from repro.statistics.inference import Replicate, hierarchical_weights, wilson_interval


@dataclass(frozen=True)
class Survival:
    """One condition. ``steps``, ``fraction``, ``low`` and ``high`` are ``[T]``; ``first_below`` is None for a replicate
    that was below the threshold at none of its own steps (its run may be longer than the T common ones)."""

    steps: np.ndarray
    fraction: np.ndarray
    low: np.ndarray
    high: np.ndarray
    first_below: dict[Replicate, int | None]

    @property
    def first_steps(self) -> list[int]:
        """The first steps below of the replicates that have one, in increasing order."""
        return sorted(step for step in self.first_below.values() if step is not None)


def trailing_mean(values: pd.Series, window: int) -> pd.Series:
    """Mean over each step and the ``window - 1`` before it; the first ``window - 1`` steps have none and are left out.

    Raises ``ValueError`` for a window below 1 and for a missing value: a threshold crossing must not hide in a gap.
    """
    if window < 1:
        raise ValueError(f"window: expected at least 1 step, got {window}")
    if not np.isfinite(values).all():
        where = values.index[~np.isfinite(values)][0]
        raise ValueError(f"values: expected a finite number at every step, got {values[where]} at step {where}")
    if len(values) < window:
        return values.iloc[:0]
    means = np.lib.stride_tricks.sliding_window_view(values.to_numpy(), window).mean(axis=1)
    return pd.Series(means, values.index[window - 1 :])


def survival(data: pd.DataFrame, condition: str, check: Check, level: float = 0.95) -> Survival:
    """The fraction of ``condition``'s replicates not collapsed at each step that all of them have.

    The fraction is the mean over checkpoints of the share of seeds. Its interval reaches to the outer ends of two:
    Wilson's, which has width when all replicates agree but takes them as independent, and the hierarchical bootstrap's,
    which resamples checkpoints but has no width when all agree. Raises `NotComparable` when the condition was not run
    or when a run is shorter than the window.
    """
    runs = curves(data, condition, check.metric)
    if not runs:
        raise NotComparable(f"not run: {condition}")
    trailing = {replicate: trailing_mean(run, check.window) for replicate, run in runs.items()}
    common = pd.concat(trailing, axis=1, join="inner").sort_index()
    if common.empty:
        shortest = min(len(run) for run in runs.values())
        raise NotComparable(f"needs {check.window} steps, the shortest run of {condition} has {shortest}")
    alive = (common.to_numpy() >= check.collapse).T.astype(np.float64)  # [R, T]
    weights = hierarchical_weights(list(runs), np.random.default_rng(BOOTSTRAP_SEED))
    # a run's state changes at few steps: only the different columns are resampled
    different, place = np.unique(alive, axis=1, return_inverse=True)
    place = place.ravel()
    fraction = pd.DataFrame(different).groupby([replicate.checkpoint for replicate in runs]).mean().mean().to_numpy()
    resampled = np.quantile(weights @ different, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
    low, high = wilson_interval(fraction, len(runs), level)
    first = {
        replicate: next(iter(means.index[means < check.collapse].tolist()), None)
        for replicate, means in trailing.items()
    }
    return Survival(
        common.index.to_numpy(),
        fraction[place],
        np.minimum(low, resampled[0])[place],
        np.minimum(np.maximum(high, resampled[1]), 1.0)[place],
        first,
    )


def survivals(data: pd.DataFrame, check: Check, level: float = 0.95) -> dict[str, Survival]:
    """Condition -> `Survival` for every condition of ``data`` in order of appearance."""
    return {condition: survival(data, condition, check, level) for condition in conditions(data)}
