"""Products and sums in which a zero coefficient switches a term off, whatever stands beside it."""

from __future__ import annotations

import numpy as np


def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * b with 0 * inf = 0 (and 0 * nan = 0) for a zero in `a`: a zero coefficient removes its term."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(a == 0.0, 0.0, a * b)


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """sum over the last axis of `times(a, b)`."""
    with np.errstate(invalid="ignore", over="ignore"):
        return times(a, b).sum(axis=-1)
