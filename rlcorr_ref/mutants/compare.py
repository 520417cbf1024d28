"""How far an answer lies from a case, as a share of the tolerance: the rule of the vectors, on arrays, for many answers.

    tol = m (u err_scale + u_acc acc_scale) + eta        used = max over judged entries of |got - wanted|/tol

A mutant counts as rejected only where used >= SHARPNESS (or an exact entry, a non-finite entry or a shape differs, or it
raises): a case that catches it by a hair would not catch it on other hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..vectors.judge import MULTIPLE, SMALLEST_NORMAL
from ..vectors.model import ACCUMULATOR_ROUNDOFF, LEVELS, UNIT_ROUNDOFF

SHARPNESS = 16.0


@dataclass
class Wanted:
    """One judged output: value, tolerance per entry (0 where it must match exactly), and where it is finite."""

    name: str
    value: np.ndarray
    tolerance: np.ndarray
    finite: np.ndarray


def as_array(value: Any) -> np.ndarray:
    """Nested wire values as float64; null becomes NaN."""
    return np.array(_plain(value), dtype=np.float64)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return np.nan if value is None else float(value)


def wanted(case: Mapping[str, Any], dtype: str = "fp32", multiple: float = MULTIPLE) -> list[Wanted]:
    """The judged outputs of a case at its first level, with tolerances for `dtype`."""
    level = case["levels"][next(name for name in LEVELS if name in case["levels"])]
    out = []
    for name in (*level["required"], *level.get("optional", ())):
        record = case["expected"][name]
        value = as_array(record["data"])
        tolerance = np.zeros(value.shape)
        if record["kind"] != "exact":
            err = np.broadcast_to(as_array(record.get("err_scale", 0.0)), value.shape)
            accumulated = ACCUMULATOR_ROUNDOFF[dtype] * record.get("acc_scale", 0.0)
            tolerance = multiple * (UNIT_ROUNDOFF[dtype] * err + accumulated) + SMALLEST_NORMAL[dtype]
        out.append(Wanted(name, value, tolerance, np.isfinite(value)))
    return out


def share_used(targets: list[Wanted], outputs: Mapping[str, Any]) -> float:
    """The largest share of a tolerance that `outputs` uses; inf where something must match and does not."""
    worst = 0.0
    for target in targets:
        got: Any = outputs
        for key in target.name.split("."):
            got = got.get(key) if isinstance(got, Mapping) else None
        if got is None:
            return np.inf
        got = as_array(got) if isinstance(got, (list, str)) else np.asarray(got, dtype=np.float64)
        if got.shape != target.value.shape:
            return np.inf
        gap = np.abs(np.where(target.finite, got, 0.0) - np.where(target.finite, target.value, 0.0))
        others = ~target.finite
        if others.any() and not np.array_equal(got[others], target.value[others], equal_nan=True):
            return np.inf
        if not (gap <= np.finfo(np.float64).max).all():
            return np.inf
        exact = target.tolerance == 0.0
        if (exact & (gap > 0)).any():
            return np.inf
        worst = max(worst, float((gap / np.where(exact, 1.0, target.tolerance)).max(initial=0.0, where=~exact)))
    return worst
