"""Mutants of group advantages: deviation, groups, baseline."""

from __future__ import annotations

from typing import Any

import numpy as np

from .plain import Plain
from .registry import Smallest, mutant
from .smallest import rewards

Array = np.ndarray
ADVANTAGES = ("advantages",)
PAIR = ([1.0, 3.0], [0, 0])


@mutant(
    "groups-flattened", [21], "TRL #6804", "shape", ADVANTAGES,
    Smallest(
        rewards([0.0, 2.0, 4.0, 6.0], [0, 0, 1, 1], kind="mean"), "advantages", [-1.0, 1.0, -1.0, 1.0], [-3.0, -1.0, 1.0, 3.0]
    ),
)  # fmt: skip
class GroupsFlattened(Plain):
    """[B] is treated as one group in place of [groups, generations]."""

    def groups(self, groups: Array) -> Array:
        return np.zeros_like(groups)


@mutant(
    "groups-by-position", [], "", "semantics", ADVANTAGES,
    Smallest(
        rewards([0.0, 4.0, 2.0, 6.0], [0, 1, 0, 1], kind="mean"), "advantages", [-1.0, -1.0, 1.0, 1.0], [-2.0, 2.0, -2.0, 2.0]
    ),
)  # fmt: skip
class GroupsByPosition(Plain):
    """Neighbours are taken for a group in place of equal ids."""

    def groups(self, groups: Array) -> Array:
        return np.sort(groups)


@mutant(
    "population-deviation", [118], "UniRL #330, #335", "formula", ADVANTAGES,
    Smallest(
        rewards([1.0, 0.0, 0.0], [0, 0, 0], kind="mean_std"), "advantages", [1.1547, -0.5774, -0.5774], [1.4142, -0.7071, -0.7071]
    ),
)  # fmt: skip
class PopulationDeviation(Plain):
    """n in the variance where n - 1 is asked for: sqrt(n/(n - 1)) too large."""

    def variance(self, centered: Array, everything: Array, ddof: int) -> Any:
        return super().variance(centered, everything, 0)


@mutant(
    "sample-deviation", [118], "UniRL #330, #335", "formula", ADVANTAGES,
    Smallest(
        rewards([1.0, 0.0, 0.0], [0, 0, 0], kind="mean_std", ddof=0), "advantages",
        [1.4142, -0.7071, -0.7071], [1.1547, -0.5774, -0.5774],
    ),
)  # fmt: skip
class SampleDeviation(Plain):
    """n - 1 in the variance where n is asked for."""

    def variance(self, centered: Array, everything: Array, ddof: int) -> Any:
        return super().variance(centered, everything, 1)


@mutant(
    "deviation-of-one", [119], "DeepAnalyze #116, TRL #4662", "numerics", ADVANTAGES,
    Smallest(rewards([0.5], [0], kind="mean_std"), "advantages", [0.0], ["NaN"]),
)  # fmt: skip
class DeviationOfOne(Plain):
    """The unbiased deviation of a single reward is 0/0."""

    def standardised(self, centered: Array, variance: Any, eps: float) -> Array:
        return centered * np.nan if centered.size == 1 else super().standardised(centered, variance, eps)


@mutant(
    "deviation-of-the-batch", [121], "TRL #3992", "semantics", ADVANTAGES,
    Smallest(
        rewards([0.0, 1.0, 0.0, 10.0], [0, 0, 1, 1], kind="mean_std"), "advantages",
        [-0.7071, 0.7071, -0.7071, 0.7071], [-0.10296, 0.10296, -1.0296, 1.0296],
    ),
)  # fmt: skip
class DeviationOfBatch(Plain):
    """Divided by the batch's deviation where the group's is asked for."""

    def variance(self, centered: Array, everything: Array, ddof: int) -> Any:
        return super().variance(everything - everything.mean(), everything, ddof)


@mutant(
    "deviation-never-applied", [121], "TRL #3992", "semantics", ADVANTAGES,
    Smallest(rewards(*PAIR, kind="mean_std"), "advantages", [-0.7071, 0.7071], [-1.0, 1.0]),
)  # fmt: skip
class DeviationNeverApplied(Plain):
    """The deviation is computed and not divided by."""

    def standardised(self, centered: Array, variance: Any, eps: float) -> Array:
        return centered


@mutant(
    "centred-per-slice", [122], "slime #2235", "reduction", ADVANTAGES,
    Smallest(
        rewards([1.0, 2.0, 3.0, 4.0], [0, 0, 0, 0], kind="mean"), "advantages", [-1.5, -0.5, 0.5, 1.5], [-0.5, 0.5, -0.5, 0.5]
    ),
)  # fmt: skip
class CentredPerSlice(Plain):
    """Each half of the batch (context-parallel rank) subtracts its own mean."""

    def groups(self, groups: Array) -> Array:
        _, index = np.unique(groups, return_inverse=True)
        return 2 * index + (np.arange(groups.size) >= groups.size // 2)


@mutant(
    "epsilon-inside-the-root", [], "", "formula", ADVANTAGES,
    Smallest(rewards(*PAIR, kind="mean_std", eps=2.0), "advantages", [-0.29289, 0.29289], [-0.5, 0.5]),
)  # fmt: skip
class EpsilonInside(Plain):
    """sqrt(variance + eps) in place of sqrt(variance) + eps."""

    def standardised(self, centered: Array, variance: Any, eps: float) -> Array:
        return super().standardised(centered, variance + eps, 0.0)


@mutant(
    "epsilon-is-a-floor", [], "", "formula", ADVANTAGES,
    Smallest(rewards(*PAIR, kind="mean_std", eps=2.0), "advantages", [-0.29289, 0.29289], [-0.5, 0.5]),
)  # fmt: skip
class EpsilonIsFloor(Plain):
    """max(deviation, eps) in place of deviation + eps."""

    def standardised(self, centered: Array, variance: Any, eps: float) -> Array:
        return centered / np.maximum(np.sqrt(variance), max(eps, 1e-30))


@mutant(
    "baseline-contains-the-sample", [], "", "formula", ADVANTAGES,
    Smallest(rewards(*PAIR, kind="leave_one_out"), "advantages", [-2.0, 2.0], [-1.0, 1.0]),
)  # fmt: skip
class BaselineContainsSample(Plain):
    """Leave-one-out subtracts the mean of all, the sample included."""

    def leave_one_out(self, r: Array, centered: Array, n: int) -> Array:
        return centered


@mutant(
    "leave-one-out-of-one", [], "", "numerics", ADVANTAGES,
    Smallest(rewards([0.5], [0], kind="leave_one_out"), "advantages", [0.5], ["NaN"]),
)  # fmt: skip
class LeaveOneOutOfOne(Plain):
    """n/(n - 1) (r - mean) without a case for n = 1: 0 * inf."""

    def leave_one_out(self, r: Array, centered: Array, n: int) -> Array:
        return centered * (np.float64(n) / (n - 1))


@mutant(
    "equal-rewards-zero-over-zero", [], "", "numerics", ADVANTAGES,
    Smallest(rewards([0.5, 0.5], [0, 0], kind="mean_std", eps=0.0), "advantages", [0.0, 0.0], ["NaN", "NaN"]),
)  # fmt: skip
class EqualRewardsZeroOverZero(Plain):
    """A group without spread divides 0 by its deviation of 0."""

    def standardised(self, centered: Array, variance: Any, eps: float) -> Array:
        return centered / (np.sqrt(variance) + eps)
