"""Numbers for the cases: values on the bf16 grid, small policies with a ragged mask, and the field's usual rules.

Random numbers come from `random.Random(seed).random()`, whose stream Python guarantees, and are rounded to the grid at once,
so that the inputs are the same bytes everywhere. Logits are multiples of 1/8; sampler log-probs are rounded *down* to the
bf16 grid, so that no head's mass exceeds 1 by rounding.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

TIS = {"level": "token", "high": 2.0, "outside": "clip"}
TWO_SIDED = {"level": "token", "low": 0.5, "high": 5.0, "outside": "clip"}
MIS = {"level": "token", "low": 0.5, "high": 5.0, "outside": "zero"}
ICEPOP_ONE = {**MIS, "inside": "one"}
PPO_BAND = {"level": "token", "outside": "zero", "positive": {"high": 1.2}, "negative": {"low": 0.8, "high": 3.0}}
SEQ_TIS = {"level": "sequence", "high": 2.0, "outside": "clip"}
SEQ_MIS = {"level": "sequence", "low": 0.5, "high": 2.0, "outside": "zero"}
GEO_TIS = {"level": "geometric", "high": 2.0, "outside": "clip"}
TOPR = {"level": "sequence", "high": 1.0, "outside": "clip", "sign": "negative"}
DPPO_TV = {
    "level": "token",
    "statistic": "tv_signed",
    "outside": "zero",
    "low": None,
    "positive": {"low": None, "high": 0.2},
    "negative": {"low": -0.2, "high": None},
}

PAPER = "arXiv 2609.20807"
NAN, INF = "NaN", "Infinity"

# Two small distributions with every kind of ratio between them: 1.33, 6.25, 0.42, 0.56, 1.2, 0.57 (as probabilities).
P6 = (0.40, 0.25, 0.15, 0.10, 0.06, 0.04)
Q6 = (0.30, 0.04, 0.36, 0.18, 0.05, 0.07)


def bf16(x: Any, down: bool = False) -> Any:
    """The nearest (or next lower) value on the bf16 grid, elementwise; lists in, lists out."""
    array = np.asarray(x, dtype=np.float64)
    single = array.astype(np.float32)
    bits = single.view(np.uint32)
    near = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
    near = np.where(np.isfinite(array), near, array)
    if down:
        step = np.where(near > array, np.ldexp(1.0, np.frexp(np.where(np.isfinite(near), near, 1.0))[1] - 8), 0.0)
        near = near - step
    return near.tolist() if near.ndim else float(near)


def fp32(x: Any) -> Any:
    """The nearest value on the float32 grid, elementwise."""
    array = np.asarray(x, dtype=np.float64).astype(np.float32).astype(np.float64)
    return array.tolist() if array.ndim else float(array)


def log_softmax(z: np.ndarray) -> np.ndarray:
    """Plain log-softmax over the last axis."""
    s = z - z.max(-1, keepdims=True)
    return s - np.log(np.exp(s).sum(-1, keepdims=True))


class Numbers:
    """A reproducible source of numbers on coarse grids."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def uniform(self, low: float, high: float, *shape: int, step: float = 0.125) -> np.ndarray:
        """Multiples of `step` in [low, high]."""
        count = int(np.prod(shape)) if shape else 1
        values = [low + (high - low) * self.random.random() for _ in range(count)]
        return (np.round(np.array(values) / step) * step).reshape(shape)

    def below(self, n: int) -> int:
        return int(self.random.random() * n)


def ragged(lengths: list[int], width: int | None = None) -> list[list[int]]:
    """A 0/1 mask [B, T] from row lengths."""
    width = max(lengths) if width is None else width
    return [[int(t < n) for t in range(width)] for n in lengths]


def policy(
    seed: int,
    lengths: list[int],
    v: int = 5,
    k: int = 3,
    *,
    spread: float = 2.0,
    drift: float = 1.0,
    anchor: bool = False,
    full: bool = False,
    reference: bool = False,
    mask: list[list[int]] | None = None,
    head: bool = True,
) -> dict[str, Any]:
    """Inputs of an objective: trainer logits, tokens drawn from a drifted sampler, and what the sampler recorded.

    `spread` scales the logits, `drift` the sampler's departure from them. The head holds the sampler's `k` most likely ids.
    With `full` whole sampler (and anchor) rows are given, on the float32 grid because they have to sum to 1.
    """
    n = Numbers(seed)
    mask = ragged(lengths) if mask is None else mask
    b, t = len(mask), len(mask[0])
    z = n.uniform(-spread, spread, b, t, v)
    logq = log_softmax(z + n.uniform(-drift, drift, b, t, v))
    logo = log_softmax(z + n.uniform(-drift / 2, drift / 2, b, t, v))
    tokens = [[_draw(n, np.exp(logq[i, j])) for j in range(t)] for i in range(b)]
    take = fp32 if full else lambda x: bf16(x, down=True)

    def chosen(rows: np.ndarray) -> list:
        return take(np.take_along_axis(rows, np.array(tokens)[..., None], -1)[..., 0])

    out: dict[str, Any] = {
        "logits": z.tolist(),
        "tokens": tokens,
        "mask": mask,
        "advantages": n.uniform(-2, 2, b, t, step=0.25).tolist(),
        "logp_sampler": chosen(logq),
    }
    ids = np.argsort(-logq, axis=-1, kind="stable")[..., :k]
    if anchor:
        out["logp_anchor"] = chosen(logo)
    if head:
        out["head_ids"] = ids.tolist()
        out["head_logp_sampler"] = take(np.take_along_axis(logq, ids, -1))
        if anchor:
            out["head_logp_anchor"] = take(np.take_along_axis(logo, ids, -1))
    if full:
        out["logp_sampler_full"] = fp32(logq)
        if anchor:
            out["logp_anchor_full"] = fp32(logo)
    if reference:
        logr = log_softmax(z + n.uniform(-1, 1, b, t, v))
        out["logp_reference"] = chosen(logr)
    return out


def _draw(n: Numbers, p: np.ndarray) -> int:
    x = n.random.random()
    return int(min(np.searchsorted(np.cumsum(p), x), p.size - 1))


def one_token(
    p: Any, q: Any, y: int, advantage: float, head: list[int] | None = None, *, exact: bool = False, **more: Any
) -> dict[str, Any]:
    """One token: trainer probabilities p (as logits log p on the grid), sampler probabilities q, sampled id y.

    With `exact` sampler log-probs lie on the float32 grid instead of bf16.
    """
    take = fp32 if exact else lambda x: bf16(x, down=True)
    logq = take(np.log(np.asarray(q, dtype=np.float64)))
    out: dict[str, Any] = {
        "logits": [[fp32(np.log(p)) if exact else bf16(np.log(p))]],
        "tokens": [[y]],
        "mask": [[1]],
        "advantages": [[advantage]],
        "logp_sampler": [[logq[y]]],
    }
    if head is not None:
        out["head_ids"] = [[head]]
        out["head_logp_sampler"] = [[[logq[i] for i in head]]]
    out.update(more)
    return out


def log_probs(d: list[list[float]], logq: list[list[float]] | float = -2.0, **more: Any) -> dict[str, Any]:
    """Inputs of the stages that start at log-probs: trainer = sampler + d, both on the grid; `more` overrides.

    The default sampler log-prob -2 leaves room for d up to 2; the mask is all ones unless given.
    """
    d_array = np.array(d, dtype=np.float64)
    q = np.broadcast_to(np.array(logq, dtype=np.float64), d_array.shape)
    return {
        "logp_trainer": (q + d_array).tolist(),
        "logp_sampler": q.tolist(),
        "mask": np.ones(d_array.shape, dtype=int).tolist(),
        **more,
    }
