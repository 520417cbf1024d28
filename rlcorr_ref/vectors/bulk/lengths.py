"""Bulk cases at 4,096 positions: ratios and weights at row and segment level, ragged rows with gaps.

Log-ratios are integers k/1024, so that row sums are exact integers; only exp is rounded, once. Error scales follow the core set:
an input log-prob errs by 2 u + |d| u, a sum adds these up, a mean divides them and adds sqrt(n) mean |d| for its own summation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpmath import mp, mpf

from .exact import DIGITS, nearest
from .grid import drifting, integers, mask_with_gaps
from .model import BulkCase, Output

PER = 1024
LENGTHS = [4096, 3001, 1538, 1]
BIAS = np.array([8, -6, 260, 300])  # row log-ratios of about 1.5, -0.7, 19 and 0.08 nats
INPUTS = "bulk.t4096.inputs.safetensors"


def segments(mask: np.ndarray, level: str) -> list[tuple[int, np.ndarray]]:
    """(row, positions) of every non-empty row, or of every contiguous run of valid tokens at level "segment"."""
    out = []
    for b, row in enumerate(mask):
        t = np.flatnonzero(row)
        parts = np.split(t, np.flatnonzero(np.diff(t) > 1) + 1) if level == "segment" else [t]
        out += [(b, part) for part in parts if part.size]
    return out


def inputs() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The shared inputs (NaN and 1e10 under the mask) and the log-ratios d [B, T] as integers in 1/1024 nat."""
    mask = mask_with_gaps(961, LENGTHS, 4096)
    d, logq = drifting(971, mask, BIAS)
    valid = mask != 0
    x = {
        "logp_trainer": np.where(valid, (logq + d) / PER, 1e10).astype(np.float32),
        "logp_sampler": np.where(valid, logq / PER, np.nan).astype(np.float32),
        "mask": mask,
        "advantages": np.where(valid, integers(981, -8, 8, *mask.shape) / 4, np.nan).astype(np.float32),
    }
    return x, d


def levelled(
    d: np.ndarray, mask: np.ndarray, level: str, rule: dict[str, Any] | None
) -> tuple[dict, float | None, float]:
    """Arrays [B, T] of log-ratio, ratio and weight with error scales, the margin in nats and its float32 tolerance."""
    names = ("log_ratio", "ratio", "weights")
    data = {name: np.zeros(mask.shape) for name in names}
    err = {name: np.zeros(mask.shape) for name in names}
    margin, worst = None, 0.0
    low, high = (rule.get("low", 0.0), rule.get("high")) if rule else (0.0, None)
    for b, t in segments(mask, level):
        n = mpf(1) if level == "sequence" else mpf(t.size)
        value = mpf(int(d[b, t].sum())) / PER / n
        size = np.abs(d[b, t]) / PER
        e = float((4.0 + 2.0 * size).sum() / float(n)) + (0.0 if level == "sequence" else t.size**0.5 * size.mean())
        ratio = mp.exp(value)
        weight = min(max(ratio, mpf(low)), mpf(high)) if high is not None else ratio
        for name, x in zip(names, nearest([value, ratio, weight]), strict=True):
            data[name][b, t] = x
        err["log_ratio"][b, t] = e + 4.0 * abs(float(value))
        err["ratio"][b, t] = float(ratio) * (e + 4.0)
        err["weights"][b, t] = float(weight) * (e + 4.0 if weight == ratio else 4.0)
        for bound in (low, high):
            if bound:
                gap = abs(float(value - mp.log(mpf(bound))))
                margin, worst = gap if margin is None else min(margin, gap), max(worst, e)
    return {name: Output(data[name], err[name]) for name in names}, margin, 2.0 * 2.0**-24 * worst


RULES: tuple[tuple[str, str, dict[str, Any] | None, str, str, tuple[str, ...]], ...] = (
    ("bulk.0004", "sequence", None, "Sequence ratios over 4,096 positions",
     "The row's log-ratio is the sum over its valid tokens, whatever lies in the gaps and after the end.",
     ("SeqProductVsGeomean", "MaskInRowSum", "PadSentinel")),
    ("bulk.0005", "sequence", {"high": 1.5, "low": 0.5, "outside": "clip"}, "Sequence weights over 4,096 positions",
     "Two rows are truncated, the others keep their product.", ("SeqProductVsGeomean", "MaskInRowSum", "PadSentinel")),
    ("bulk.0006", "geometric", {"high": 1.03125, "low": 0.9375, "outside": "clip"}, "Geometric weights over 4,096 positions",
     "The mean is over valid tokens: the padded width, or one token more or less, is seen at float32; one row is truncated.",
     ("SeqProductVsGeomean", "ArithmeticMeanRatio", "MaskInRowSum", "PadSentinel")),
    ("bulk.0007", "segment", {"high": 1.0625, "low": 0.9375, "outside": "clip"}, "Segment weights over 4,096 positions",
     "Hundreds of runs between gaps of eight positions, some of them truncated.", ("SegmentBoundary", "PadSentinel")),
)  # fmt: skip


def length_cases() -> list[BulkCase]:
    """bulk.0004 to bulk.0007."""
    x, d = inputs()
    out = []
    with mp.workdps(DIGITS):
        for name, level, rule, title, says, flags in RULES:
            outputs, margin, tolerance = levelled(d, x["mask"], level, rule)
            judged = ("log_ratio", "ratio") if rule is None else ("weights",)
            given = {key: x[key] for key in x if rule is not None or key != "advantages"}
            out.append(
                BulkCase(
                    name,
                    f"{level}-{'ratio' if rule is None else 'weight'}-long",
                    title,
                    f"Rows of 4,096, 3,001, 1,538 and 1 tokens with gaps; NaN and 1e10 off the mask. {says}",
                    "ratio" if rule is None else "weight",
                    {"level": level, **(rule or {})},
                    INPUTS,
                    given,
                    {key: outputs[key] for key in judged},
                    judged,
                    flags,
                    "04#levels" if rule is None else "03#truncation",
                    margin,
                    tolerance,
                )
            )
    return out
