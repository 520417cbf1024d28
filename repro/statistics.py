"""Seed-level statistics for training curves: windows, paired differences, bootstrap intervals, and what they can bear.

Every function is deterministic. The only random one takes its ``numpy.random.Generator`` as an argument, so that two
calls with equal generators return equal bits.

A run of this laboratory has few seeds (three, in the tiny tier). Three numbers carry no significance test: even when
all differences have the same sign, the two-sided sign test cannot go below ``2 * 0.5**3 = 0.25``. `sign_test_floor`
returns that number so that a caption can print it beside an interval instead of leaving it to the reader.

References: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (report
intervals and paired comparisons, show every seed); Efron and Tibshirani 1993, chapter 13 (percentile bootstrap).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A point estimate (the mean over seeds) and its percentile bootstrap interval, in the unit of the input."""

    mean: float
    low: float
    high: float
    count: int


class PairedDifferences(NamedTuple):
    """``a - b`` over the seeds that both arms have, sorted by seed."""

    seeds: tuple[int, ...]
    differences: np.ndarray

    @property
    def mean(self) -> float:
        """Mean difference over the common seeds."""
        return float(self.differences.mean())

    def unanimous(self, margin: float = 0.0) -> bool:
        """Whether every single seed's difference exceeds ``margin``."""
        return bool((self.differences > margin).all())


def _vector(name: str, values: object) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name}: expected a non-empty vector, got shape {array.shape}")
    if not np.isfinite(array).all():
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(
            f"{name}: expected finite numbers, got {array[where]} at position {where}; drop missing evaluations first"
        )
    return array


def window_mean(values: object, width: int, end: int | None = None) -> float:
    """Mean of the ``width`` values that end before position ``end`` (default: the end of the curve).

    values: ``[N]`` float; no NaN. Raises ``ValueError`` when the curve is shorter than the window, because a mean over
    fewer steps than a caption states is a different quantity.
    """
    array = _vector("values", values)
    if width < 1:
        raise ValueError(f"width: expected at least 1 step, got {width}")
    stop = array.size if end is None else end
    if not width <= stop <= array.size:
        raise ValueError(
            f"width: expected a window of {width} steps inside a curve of {array.size} steps ending before {stop}; "
            "run more steps or choose a shorter window"
        )
    return float(array[stop - width : stop].mean())


def moving_average(values: object, width: int) -> np.ndarray:
    """Centred moving average ``[N] -> [N]``; near the ends the window shrinks to the part inside the curve.

    Position i averages ``values[max(0, i - (width - 1)//2) : i + width//2 + 1]``. For drawing only: decisions use
    `window_mean` on the raw values.
    """
    array = _vector("values", values)
    if width < 1:
        raise ValueError(f"width: expected at least 1 step, got {width}")
    total = np.concatenate(([0.0], np.cumsum(array)))
    index = np.arange(array.size)
    start = np.maximum(index - (width - 1) // 2, 0)
    stop = np.minimum(index + width // 2 + 1, array.size)
    return (total[stop] - total[start]) / (stop - start)


def bootstrap_interval(
    values: object, rng: np.random.Generator, level: float = 0.95, resamples: int = 10_000
) -> Interval:
    """Percentile bootstrap interval of the mean over seeds.

    values: ``[S]``, one number per seed. Draws ``resamples`` samples of S seeds with replacement and returns the
    ``(1 - level)/2`` and ``(1 + level)/2`` quantiles of their means. With S = 3 there are only ten distinct resampled
    means: the interval lies between the smallest and the largest seed and covers less than ``level`` says.
    """
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng: expected a numpy.random.Generator, got {type(rng).__name__}")
    array = _vector("values", values)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level: expected a number between 0 and 1, got {level}")
    if resamples < 1:
        raise ValueError(f"resamples: expected at least 1, got {resamples}")
    means = array[rng.integers(0, array.size, size=(resamples, array.size))].mean(axis=1)
    low, high = np.quantile(means, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(float(array.mean()), float(low), float(high), array.size)


def paired_differences(a: Mapping[int, float], b: Mapping[int, float]) -> PairedDifferences:
    """``a[seed] - b[seed]`` over the seeds both arms have.

    Arms of one row share the task's random stream at equal seeds, so the pair is the unit of comparison. Raises
    ``ValueError`` when no seed is common.
    """
    seeds = sorted(set(a) & set(b))
    if not seeds:
        raise ValueError(f"a, b: expected at least one common seed, got {sorted(a)} and {sorted(b)}")
    return PairedDifferences(tuple(seeds), _vector("a - b", [a[seed] - b[seed] for seed in seeds]))


def sign_test_floor(count: int) -> float:
    """Smallest two-sided p-value that the sign test can give with ``count`` pairs: ``2 * 0.5**count``."""
    if count < 1:
        raise ValueError(f"count: expected at least one pair, got {count}")
    return min(1.0, 2.0 * 0.5**count)
