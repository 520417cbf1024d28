"""Importance log-ratios and the levels at which they are formed.

    d_t = log n(y_t) - log q(y_t)        n the numerator (trainer or anchor), q the sampler; nats
    token      d_t
    sequence   sum over the row's valid tokens of d                 (the product of token ratios)
    geometric  mean over the row's valid tokens of d                (the geometric mean of token ratios)
    segment    mean over the contiguous run of valid tokens that holds t

"sequence" is the product in verl, TRL and SkyRL and the geometric mean in ms-swift and AReaL; here each has its own name.
All arrays are packed: valid tokens only, in row order, with the segment they belong to.
"""

from __future__ import annotations

import numpy as np

from .errors import ContractError


def log_ratio(logp_numerator: np.ndarray, logp_sampler: np.ndarray) -> np.ndarray:
    """d = log n - log q in nats, elementwise; two zero probabilities (-inf both) give 0, they carry no mass."""
    with np.errstate(invalid="ignore"):
        d = logp_numerator - logp_sampler
    both = np.isneginf(logp_numerator) & np.isneginf(logp_sampler)
    return np.where(both, 0.0, d)


class Segments:
    """Rows (or runs) of a packed batch: `starts` [R] offsets of non-empty segments, `index` [N] segment of each token."""

    def __init__(self, key: np.ndarray) -> None:
        """`key` [N] names the segment of each token; equal neighbours belong together."""
        change = np.ones(key.size, dtype=bool)
        change[1:] = key[1:] != key[:-1]
        self.starts = np.flatnonzero(change)
        self.index = np.cumsum(change) - 1
        self.lengths = np.diff(np.append(self.starts, key.size))

    @classmethod
    def rows(cls, b: np.ndarray) -> Segments:
        """Non-empty rows."""
        return cls(b)

    @classmethod
    def runs(cls, b: np.ndarray, t: np.ndarray) -> Segments:
        """Contiguous runs of valid tokens within a row."""
        return cls(b * (int(t.max(initial=0)) + 2) + t - np.arange(t.size))  # constant exactly along a run

    @property
    def count(self) -> int:
        return self.starts.size

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum of `values` [N] over each segment [R]."""
        if not self.count:
            return np.zeros(0)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.add.reduceat(values, self.starts)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Mean of `values` [N] over each segment [R]."""
        return self.sum(values) / self.lengths

    def max(self, values: np.ndarray) -> np.ndarray:
        """Maximum of `values` [N] over each segment [R]."""
        return np.maximum.reduceat(values, self.starts) if self.count else np.zeros(0)

    def spread(self, per_segment: np.ndarray) -> np.ndarray:
        """One value per segment [R] back to its tokens [N]."""
        return per_segment[self.index]


def clamp(d: np.ndarray, bound: float | None) -> np.ndarray:
    """Safety clamp of a log-ratio (elementwise, nats) to +-bound; None leaves it alone. verl and ms-swift use 20."""
    return d if bound is None else np.clip(d, -bound, bound)


def level_log_ratio(
    d: np.ndarray,
    level: str,
    rows: Segments,
    runs: Segments,
    log_clamp: float | None = None,
    clamp_order: str = "aggregate",
) -> np.ndarray:
    """Log-ratio of each token at `level` [N], in nats, from token log-ratios d [N].

    `log_clamp` c clamps the level's log-ratio to [-c, c]; with clamp_order "token" each d_t is clamped first as well.
    The order matters: d = (25, -22) summed and clamped at 20 gives 3, clamped and summed gives 0. verl 0.9.1 uses the
    first for weights and the second for rejection (`rollout_corr_helper.py`); ms-swift 4.6 clamps tokens.
    Raises `ContractError` for an unknown level.
    """
    if clamp_order == "token":
        d = clamp(d, log_clamp)
    if level == "token":
        out = d
    elif level == "sequence":
        out = rows.spread(rows.sum(d))
    elif level == "geometric":
        out = rows.spread(rows.mean(d))
    elif level == "segment":
        out = runs.spread(runs.mean(d))
    else:
        raise ContractError(f"level: expected token, sequence, geometric or segment, got {level!r}")
    return clamp(out, log_clamp)
