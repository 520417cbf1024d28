"""Sums over many numbers with few distinct values, at 50 digits: a table per distinct value, counts in place of terms.

    sum_v f(x_v) = sum over distinct x of count(x) f(x)

151,936 logits on a grid of 1/16 have at most 512 distinct values: the whole row costs 512 exponentials, and nothing is rounded
until the answer is stored as a double.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpmath import mp, mpf

DIGITS = 50


class Counted:
    """Integers k [N] (any shape, flattened) standing for x = k/per: distinct values, their counts, and where they are."""

    def __init__(self, k: np.ndarray, per: int) -> None:
        distinct, where, counts = np.unique(np.asarray(k).ravel(), return_inverse=True, return_counts=True)
        self.shape = np.shape(k)
        self.where = where
        self.counts = [int(n) for n in counts]
        self.x = [mpf(int(value)) / per for value in distinct]
        self.size = sum(self.counts)

    def sum(self, f: Callable[[mpf], mpf]) -> mpf:
        """sum of f(x) over all N numbers."""
        return mp.fsum(n * f(x) for n, x in zip(self.counts, self.x, strict=True))

    def mean(self, f: Callable[[mpf], mpf]) -> mpf:
        """mean of f(x) over all N numbers."""
        return self.sum(f) / self.size

    def spread(self, f: Callable[[mpf], mpf]) -> np.ndarray:
        """f(x) of every number, in the original shape, each rounded once to the nearest double."""
        return nearest([f(x) for x in self.x])[self.where].reshape(self.shape)


def nearest(values: Sequence[mpf]) -> np.ndarray:
    """Nearest doubles [n]; -0 is written 0."""
    return np.array([float(value) + 0.0 for value in values], dtype=np.float64)


def upward(err: np.ndarray | float) -> np.ndarray:
    """Error scales as float32, any shape, rounded up to 8 significant bits: short in a compressed file.

    The factor just below 1 keeps a scale that is 8 bits long already where it is, whatever the last bit of a platform's exp.
    """
    mantissa, exponent = np.frexp(np.asarray(err, dtype=np.float64) * (1.0 - 2.0**-30))
    return np.ldexp(np.ceil(mantissa * 256.0), exponent - 8).astype(np.float32)
