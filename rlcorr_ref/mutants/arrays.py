"""Padded arrays of one batch, and the arithmetic on them that a plain implementation repeats everywhere.

Unlike the packed reference this works on [B, T] arrays with a boolean mask, as most trainers do: values off the mask are
replaced before any arithmetic, never multiplied away afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract import Objective

INTEGERS = ("tokens", "head_ids", "mask", "support", "groups")


@dataclass
class State:
    """One batch after the forward pass; shapes [B, T], [B, T, K], [B, T, V], log-probs in nats, `dtype` of the computation.

    logp, logq, logo trainer, sampler and anchor (or None) on the sampled token; rows_* whole rows; head_* on the head ids.
    `inside` marks the trainer's support, `temperature` divides the logits.
    """

    objective: Objective
    mask: np.ndarray
    advantages: np.ndarray
    logp: np.ndarray
    logq: np.ndarray
    logo: np.ndarray | None
    temperature: float = 1.0
    tokens: np.ndarray | None = None
    logr: np.ndarray | None = None
    logits: np.ndarray | None = None
    inside: np.ndarray | None = None
    rows_p: np.ndarray | None = None
    rows_q: np.ndarray | None = None
    rows_o: np.ndarray | None = None
    head_ids: np.ndarray | None = None
    head_p: np.ndarray | None = None
    head_q: np.ndarray | None = None
    head_o: np.ndarray | None = None
    log_tail: np.ndarray | None = None

    def numerator(self, name: str | None) -> np.ndarray:
        """log n [B, T]: the anchor where one is given and not overruled, else the trainer."""
        return self.logp if name == "trainer" or self.logo is None else self.logo


def read(inputs: Mapping[str, Any], dtype: type) -> dict[str, np.ndarray]:
    """Wire inputs as arrays of `dtype` (ids and masks int64); "NaN", "Infinity" and "-Infinity" are read as numbers."""
    out = {}
    for name, value in inputs.items():
        if value is None:
            continue
        array = np.asarray(_numbers(value), dtype=np.float64)
        if name in INTEGERS:
            out[name] = np.nan_to_num(array, nan=-1.0).astype(np.int64)
        else:
            with np.errstate(over="ignore"):
                out[name] = array.astype(dtype)
    return out


def _numbers(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) else value


def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a * b, 0 wherever a is 0 (also against inf and NaN)."""
    return np.where(a == 0, 0, a * b)


def log_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b of log-probs; -inf - (-inf) is 0, two absent tokens do not differ."""
    both = np.isneginf(a) & np.isneginf(b)
    return np.where(both, 0, np.where(both, 0, a) - np.where(both, 0, b))


def in_band(x: np.ndarray, low: np.ndarray | float, high: np.ndarray | float, closed: bool) -> np.ndarray:
    """Whether x lies in [low, high], or in (low, high); an infinite bound excludes nothing."""
    if closed:
        return (x >= low) & (x <= high)
    return ((x > low) | np.isneginf(low)) & ((x < high) | np.isposinf(high))


def acts_on(sign: str, advantages: np.ndarray) -> np.ndarray:
    """Tokens that a rule with this `sign` concerns: all, A >= 0, or A < 0."""
    if sign == "positive":
        return advantages >= 0
    return advantages < 0 if sign == "negative" else np.ones(advantages.shape, dtype=bool)


def runs(mask: np.ndarray) -> np.ndarray:
    """Number of the contiguous run of valid tokens that holds each position [B, T], counted over the whole batch."""
    before = np.zeros_like(mask)
    before[:, 1:] = mask[:, :-1]
    return np.cumsum((mask & ~before).ravel()).reshape(mask.shape)


def gather(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """rows [B, T, V] at ids [B, T, K]; an id of -1 reads log-prob -inf."""
    taken = np.take_along_axis(rows, np.maximum(ids, 0), axis=-1)
    return np.where(ids >= 0, taken, -np.inf)


def scatter(values: np.ndarray, ids: np.ndarray, width: int) -> np.ndarray:
    """values [B, T, K] added up at ids [B, T, K] of zeros [B, T, width]; slots with id -1 are left out."""
    out = np.zeros((*ids.shape[:2], width), dtype=values.dtype)
    b, t, k = np.nonzero(ids >= 0)
    np.add.at(out, (b, t, ids[b, t, k]), values[b, t, k])
    return out
