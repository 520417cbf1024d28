"""One rank's slice of the vocabulary in a tensor-parallel log-softmax: local maxima, sums, gathers and placements."""

from __future__ import annotations

import numpy as np

F = np.float32
Array = np.ndarray


class Half:
    """One rank's slice of the vocabulary: columns [start, stop) of the logits of n tokens."""

    def __init__(self, z: Array, inside: Array, start: int, temperature: float) -> None:
        self.z, self.start = np.where(inside, z, -np.inf).astype(F), start
        self.temperature = F(temperature)
        self.top = self.z.max(axis=1, initial=-np.inf)

    def normalise(self, top: Array, log_total: Array | None = None) -> Array:
        """Sum of exponentials against the common maximum, or log p [n, V/2] once the common total is known."""
        shifted = (self.z - top[:, None]) / self.temperature
        if log_total is None:
            return np.exp(shifted).sum(axis=1, dtype=F)
        self.logp = shifted - log_total[:, None]
        self.p = np.exp(self.logp)
        return self.logp

    def own(self, ids: Array) -> Array:
        return (ids >= self.start) & (ids < self.start + self.z.shape[1])

    def gather(self, ids: Array) -> Array:
        """log p at ids [n] or [n, k]; 0 where another rank owns the id."""
        if not self.z.shape[1]:
            return np.zeros(ids.shape, dtype=F)
        local = np.where(self.own(ids), ids - self.start, 0)
        rows = np.arange(ids.shape[0]).reshape(-1, *[1] * (ids.ndim - 1))
        return np.where(self.own(ids), self.logp[rows, local], F(0))

    def place(self, ids: Array, values: Array) -> Array:
        """values [n, k] added up in this slice's columns."""
        out = np.zeros_like(self.logp)
        for row, (where, what) in enumerate(zip(ids, values, strict=True)):
            for i, x in zip(where, what, strict=True):
                if self.start <= i < self.start + out.shape[1]:
                    out[row, i - self.start] += x
        return out
