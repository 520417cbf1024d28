"""Bulk cases over a batch of 64 x 4,096: reductions and diagnostics, as sums over counted distinct values.

Error scales: the size of the terms (as in the core set) with the inputs' own errors, and sqrt(N) times the mean absolute term
for the accumulator.
"""

from __future__ import annotations

import math

import numpy as np
from mpmath import mp, mpf

from .exact import DIGITS, Counted
from .grid import drifting, integers, mask_with_gaps
from .lengths import PER, segments
from .model import BulkCase, Output

B, T = 64, 4096
LOW, HIGH = 0.875, 1.125
INPUTS = "bulk.b64.inputs.safetensors"


def lengths() -> list[int]:
    """Row lengths [B]: from 1 to 4,096, one row empty."""
    n = [int(x) for x in integers(1001, 1, T, B)]
    n[0], n[1], n[2] = T, 1, 0
    return n


def mean(terms: Counted, f, slope, error: float) -> Output:
    """mean of f(x) with the error of its inputs, `slope` |f'(x)| times `error` u, of its terms and of the sum."""
    value = terms.mean(f)
    size = float(terms.mean(lambda x: abs(f(x))))
    moved = float(terms.mean(lambda x: abs(slope(x)))) * error
    return Output(np.asarray(float(value)), 4.0 * size + moved, math.sqrt(terms.size) * size)


def aggregate_case(mask: np.ndarray, kind: str, name: str, title: str, says: str, flags: tuple[str, ...]) -> BulkCase:
    """bulk.0008 and bulk.0009: `values` in 1/64 under the mask [B, T]."""
    k = integers(1011, -100, 156, B, T) * mask
    counts = mask.sum(1, dtype=np.int64)
    sums, sizes = k.sum(1), np.abs(k).sum(1)
    rows = np.flatnonzero(counts)
    per_row = len(rows) * np.maximum(counts, 1) if kind == "seq-mean-token-mean" else np.full(B, counts.sum())
    with mp.workdps(DIGITS):
        value = mp.fsum(mpf(int(sums[b])) / 64 / int(per_row[b]) for b in rows)
    size = float((sizes / 64 / per_row).sum())
    coefficients = np.where(mask, 1.0 / per_row[:, None], 0.0)
    return BulkCase(
        name,
        f"aggregate-{kind}-batch",
        title,
        f"64 rows of up to 4,096 tokens with gaps, one of them empty; NaN off the mask. {says}",
        "aggregate",
        {"kind": kind},
        "bulk.b64.values.inputs.safetensors",
        {"values": np.where(mask, k / 64, np.nan).astype(np.float32), "mask": mask},
        {
            "value": Output(np.asarray(float(value)), 4.0 * size, math.sqrt(counts.sum()) * size),
            "coefficients": Output(coefficients, 4.0 * coefficients),
        },
        ("value",),
        flags,
        "08#reductions",
    )


def diagnostics_case(mask: np.ndarray) -> BulkCase:
    """bulk.0010: the diagnostics of 64 rows, under a two-sided token TIS."""
    d, logq = drifting(1021, mask, integers(1031, 0, 320, B))
    valid = mask != 0
    error = 4.0 + 2.0 * float(np.abs(logq).max()) / PER + 1.0  # a given log-prob errs by (2 + |log p|) u, two of them
    one, count = mpf(1), int(valid.sum())
    with mp.workdps(DIGITS):
        x = Counted(d[valid], PER)
        low, high = mpf(LOW), mpf(HIGH)

        def weight(v: mpf) -> mpf:
            return min(max(mp.exp(v), low), high)

        def slope(v: mpf) -> mpf:
            return mp.exp(v) if low <= mp.exp(v) <= high else mpf(0)

        out = {
            "kl_k1": mean(x, lambda v: -v, lambda v: one, error),
            "kl_k2": mean(x, lambda v: v * v / 2, lambda v: v, error),
            "kl_k3": mean(x, lambda v: mp.exp(v) - 1 - v, lambda v: mp.exp(v) - 1, error),
            "kl_k3_reverse": mean(x, lambda v: mp.exp(-v) - 1 + v, lambda v: 1 - mp.exp(-v), error),
            "chi2_token": mean(x, lambda v: mp.exp(2 * v) - 1, lambda v: 2 * mp.exp(2 * v), error),
            "ratio_mean": mean(x, mp.exp, mp.exp, error),
            "weight_mean": mean(x, weight, slope, error),
            "fraction_high": mean(x, lambda v: mpf(mp.exp(v) > high), lambda v: mpf(0), 0.0),
            "fraction_low": mean(x, lambda v: mpf(mp.exp(v) < low), lambda v: mpf(0), 0.0),
        }
        for name in ("kl_k3", "kl_k3_reverse"):  # formed as a difference of numbers near 1, expm1 or not
            out[name].err += 8.0
        w, w2 = x.mean(weight), x.mean(lambda v: weight(v) ** 2)
        moved = (error + 8.0) * float(x.mean(slope)) + 2.0 * math.sqrt(count) * float(w)
        spread = mp.sqrt(w2 - w * w)
        out["weight_std"] = Output(np.asarray(float(spread)), 4.0 * HIGH + moved)
        out["ess"] = Output(np.asarray(float(w * w / w2)), 4.0 * moved)
        top = mp.exp(max(x.x))
        out["ratio_max"] = Output(np.asarray(float(top)), float(top) * (error + 4.0))
        rows = segments(mask, "geometric")
        gaps = [-mpf(int(d[b, t].sum())) / PER / t.size for b, t in rows]
        summed = [float(np.abs(logq[b, t]).mean()) / PER * t.size**0.5 for b, t in rows]
        row_error = error + max(summed)  # row means may be taken of each log-prob apart
        for name, f in (("mean", lambda g: g), ("abs", abs)):
            value = mp.fsum(f(g) for g in gaps) / len(rows)
            out[f"log_ppl_diff_{name}"] = Output(np.asarray(float(value)), row_error + 4.0)
        out["log_ppl_diff_max"] = Output(np.asarray(float(max(gaps))), row_error + 4.0)
        ratio = mp.fsum(mp.exp(g) for g in gaps) / len(rows)
        out["ppl_ratio"] = Output(np.asarray(float(ratio)), float(ratio) * (row_error + 4.0))
        sampler = [mp.exp(-mpf(int(logq[b, t].sum())) / PER / t.size) for b, t in rows]
        total = mp.fsum(sampler) / len(rows)
        out["ppl_sampler"] = Output(np.asarray(float(total)), float(total) * (row_error + 4.0))
        margin = float(min(abs(v - mp.log(bound)) for v in x.x for bound in (low, high)))
    out["valid_tokens"] = Output(np.asarray(float(count)), kind="exact")
    out["valid_rows"] = Output(np.asarray(float(len(rows))), kind="exact")
    return BulkCase(
        "bulk.0010",
        "diagnostics-batch",
        "Diagnostics of a batch of 64 x 4,096",
        "Token metrics pool tokens, perplexities pool rows of very different lengths, one of them empty; k3 is a hundredth of "
        "the numbers that it is the difference of. NaN and 1e10 off the mask.",
        "diagnostics",
        {"weight": {"level": "token", "low": LOW, "high": HIGH, "outside": "clip"}},
        INPUTS,
        {
            "logp_trainer": np.where(valid, (logq + d) / PER, 1e10).astype(np.float32),
            "logp_sampler": np.where(valid, logq / PER, np.nan).astype(np.float32),
            "mask": mask,
        },
        out,
        tuple(out),
        ("MetricPooling", "MetricEss", "MetricKL", "K3Formula", "PadSentinel"),
        "09#estimators",
        margin,
        2.0 * 2.0**-24 * error,
    )


def batch_cases() -> list[BulkCase]:
    """bulk.0008 to bulk.0010, over one mask."""
    mask = mask_with_gaps(991, lengths(), T)
    return [
        aggregate_case(
            mask,
            "token-mean",
            "bulk.0008",
            "Token mean over 64 x 4,096",
            "N counts valid tokens, not positions, and they are more than int16 or float16 can count.",
            ("AggDenominator", "EmptyRow", "PadSentinel"),
        ),
        aggregate_case(
            mask,
            "seq-mean-token-mean",
            "bulk.0009",
            "Mean of row means over 64 x 4,096",
            "R counts the rows that have a token.",
            ("AggDenominator", "EmptyRow", "PadSentinel"),
        ),
        diagnostics_case(mask),
    ]
