"""Diagnostics of mismatch and correction, over the valid tokens of the original mask and the non-empty rows.

With d = log n - log q (n the weight's numerator: anchor where given, else trainer) and w the applied weight:

    kl_k1 mean(-d)    kl_k2 mean(d^2/2)    kl_k3 mean(expm1(d) - d)    kl_k3_reverse mean(expm1(-d) + d)
    ppl_* mean over rows of exp(-row mean log-prob)    ppl_ratio mean over rows of exp(row mean (log q - log n))
    chi2_token mean(exp(2d)) - 1    chi2_sequence mean over rows of exp(2 sum d) - 1
    ess (sum w)^2/(N sum w^2), in (0, 1], 0 when every weight is 0

Sources: verl 0.9.1 `compute_offpolicy_metrics` (names, pooling); J. Schulman, "Approximating KL divergence" (2020); arXiv
2602.17616 (ESS on max-shifted weights). Token-pooled unless said. expm1 keeps k3 and chi-square exact near 0 (the naive
float32 k3 turns negative). Null where a quantity does not exist for the objective.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .contract import WeightRule
from .ratios import log_ratio
from .tokens import TokenLogProbs
from .weights import applies, band_limits


def ess(w: np.ndarray) -> float:
    """Effective sample size as a fraction, (sum w)^2/(N sum w^2); 0 when all weights are 0, NaN for an empty array."""
    if w.size == 0:
        return float("nan")
    top = w.max()
    if top == 0.0:
        return 0.0
    if np.isinf(top):  # infinitely many times heavier than the rest
        w = np.isinf(w).astype(np.float64)
        top = 1.0
    w = w / top
    return float(w.sum() ** 2 / (w.size * (w * w).sum()))


def ess_from_log(log_w: np.ndarray) -> float:
    """`ess` of exp(log_w), log_w [N] in nats, shifted by its maximum first: finite for log-ratios of any size."""
    if log_w.size == 0:
        return float("nan")
    return ess(np.exp(log_w - log_w.max())) if np.isfinite(log_w.max()) else ess(np.exp(log_w))


def ess_of_shards(log_w: Sequence[np.ndarray]) -> dict[str, float]:
    """Global and micro-local ESS of a batch that is split into shards; log_w holds one array [N] (nats) per shard.

    "global" (sum w)^2/(N sum w^2) over all tokens, from each shard's maximum, sums and count only: what ranks have to
    all-reduce (the maximum first, then the sums). "mean_of_local" averages the shards' own ESS, which is what UniRL and ms-swift
    report: it is blind to shards whose weights differ in scale, and never the global one unless they agree.
    """
    filled = [part for part in log_w if part.size]
    if not filled:
        return {"global": float("nan"), "mean_of_local": float("nan")}
    top = max(float(part.max()) for part in filled)
    if not np.isfinite(top):  # every weight 0, or an infinite one
        everything = ess_from_log(np.concatenate(filled))
    else:
        sums = [(np.exp(part - top).sum(), np.exp(2.0 * (part - top)).sum(), part.size) for part in filled]
        first, second, count = (sum(column) for column in zip(*sums, strict=True))
        everything = float(first**2 / (count * second))
    return {"global": everything, "mean_of_local": float(np.mean([ess_from_log(part) for part in filled]))}


def diagnostics(
    tokens: TokenLogProbs,
    rule: WeightRule | None,
    w: np.ndarray,
    keep: np.ndarray,
    clipped: np.ndarray,
    stats: dict[str, np.ndarray],
) -> dict[str, float | None]:
    """All diagnostics by name, from applied weights w [N], kept tokens [N] and tokens with an active surrogate bound [N].

    `stats` holds per-token arrays of the centering stage (head masses, tail ratio, coefficient norm) where they exist.
    """
    rows, n = tokens.rows, tokens.count
    if n == 0:
        return {"valid_tokens": 0.0, "valid_rows": 0.0}
    numerator = None if rule is None else rule.numerator
    logn, logq = tokens.numerator(numerator), tokens.logp_sampler
    d = log_ratio(logn, logq)
    with np.errstate(over="ignore", invalid="ignore"):
        row_n, row_q, row_d = rows.mean(logn), rows.mean(logq), rows.mean(-d)
        level = tokens.level(numerator, "token" if rule is None else rule.level)
        ratio = np.exp(level)
        out: dict[str, float | None] = {
            "valid_tokens": float(n),
            "valid_rows": float(rows.count),
            "kl_k1": float(np.mean(-d)),
            "kl_k2": float(np.mean(0.5 * d * d)),
            "kl_k3": float(np.mean(np.expm1(d) - d)),
            "kl_k3_reverse": float(np.mean(np.expm1(-d) + d)),
            "ppl_trainer": float(np.mean(np.exp(-row_n))),
            "ppl_sampler": float(np.mean(np.exp(-row_q))),
            "log_ppl_diff_mean": float(np.mean(row_d)),
            "log_ppl_diff_abs": float(np.mean(np.abs(row_d))),
            "log_ppl_diff_min": float(row_d.min()),
            "log_ppl_diff_max": float(row_d.max()),
            "ppl_ratio": float(np.mean(np.exp(row_d))),
            "chi2_token": float(np.mean(np.expm1(2.0 * d))),
            "chi2_sequence": float(np.mean(np.expm1(2.0 * rows.sum(d)))),
        }
        for name, values in (("ratio", ratio), ("weight", w)):
            out[f"{name}_mean"] = float(values.mean())
            out[f"{name}_std"] = float(values.std())
            out[f"{name}_min"] = float(values.min())
            out[f"{name}_max"] = float(values.max())
    out["ess"], out["ess_raw"] = ess(w), ess_from_log(level)
    out["fraction_high"], out["fraction_low"] = _beyond(tokens, rule, ratio)
    out["fraction_zero"] = float(np.mean(w == 0.0))
    out["fraction_rejected_tokens"] = float(np.mean(~keep))
    out["fraction_rejected_rows"] = float(np.mean(rows.sum(keep.astype(np.float64)) == 0.0))
    out["clip_fraction"] = float(np.mean(clipped))
    out["zero_advantage_fraction"] = float(np.mean(tokens.advantages == 0.0))
    for name in ("head_mass_sampler", "head_mass_trainer", "centering_l1"):
        out[name] = float(np.mean(stats[name])) if name in stats else None
    tail = stats.get("tail_ratio")
    out["tail_ratio_mean"] = None if tail is None else float(np.mean(tail))
    out["tail_ratio_max"] = None if tail is None else float(np.max(tail))
    return out


def _beyond(tokens: TokenLogProbs, rule: WeightRule | None, ratio: np.ndarray) -> tuple[float, float]:
    """Fractions of tokens whose raw ratio (at the weight's level) lies above and below the bounds that hold for them."""
    if rule is None or rule.statistic != "ratio":
        return 0.0, 0.0
    low, high = band_limits(rule.band(True), rule.band(False), tokens.advantages)
    on = applies(rule.sign, tokens.advantages)
    above = ratio > high if rule.closed else (ratio >= high) & np.isfinite(high)
    below = ratio < low if rule.closed else (ratio <= low) & np.isfinite(low)
    return float(np.mean(above & on)), float(np.mean(below & on))
