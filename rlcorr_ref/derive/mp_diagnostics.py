"""Multi-precision diagnostics over the original mask: pooled over tokens, or averaged over the non-empty rows."""

from __future__ import annotations

from mpmath import mp, mpf

from .mp_inputs import Case
from .mp_weights import Band, level_log_ratio


def mean(values: list) -> mpf:
    """Arithmetic mean of a non-empty list of numbers."""
    return mp.fsum(values) / len(values)


def summary(name: str, values: list) -> dict:
    """Mean, population standard deviation, minimum and maximum."""
    centre = mean(values)
    spread = mp.sqrt(mean([(value - centre) ** 2 for value in values]))
    return {f"{name}_mean": centre, f"{name}_std": spread, f"{name}_min": min(values), f"{name}_max": max(values)}


def effective_sample_size(weights: list) -> mpf:
    """(sum w)^2 / (N sum w^2) in [0, 1]; 0 when all weights are 0."""
    squares = mp.fsum(w * w for w in weights)
    return mp.fsum(weights) ** 2 / (len(weights) * squares) if squares > 0 else mpf(0)


def diagnose(case: Case, definition: dict) -> dict:
    """The diagnostics dict as mpf; empty when there is no valid token. Ratios use the weight rule's numerator."""
    tokens = case.tokens
    if not tokens:
        return {}
    weight = definition["weight"]
    numerator = case.numerator(weight["numerator"] if weight else None)
    level = weight["level"] if weight else "token"
    each = [token.d(numerator) for token in tokens]
    rows = [row for row in case.rows if row]
    totals = [mp.fsum(token.d(numerator) for token in row) for row in rows]
    gaps = [-total / len(row) for total, row in zip(totals, rows, strict=True)]
    raw = [mp.exp(level_log_ratio(case.rows[t.b], t, level, numerator, None, "aggregate")) for t in tokens]
    applied = [token.extra["weight"] for token in tokens]
    out = {
        "kl_k1": mean([-d for d in each]),
        "kl_k2": mean([d * d / 2 for d in each]),
        "kl_k3": mean([mp.expm1(d) - d for d in each]),
        "kl_k3_reverse": mean([mp.expm1(-d) + d for d in each]),
        "ppl_sampler": mean([mp.exp(-mean([token.logq for token in row])) for row in rows]),
        "log_ppl_diff_mean": mean(gaps),
        "log_ppl_diff_abs": mean([abs(gap) for gap in gaps]),
        "log_ppl_diff_min": min(gaps),
        "log_ppl_diff_max": max(gaps),
        "ppl_ratio": mean([mp.exp(gap) for gap in gaps]),
        "chi2_token": mean([mp.exp(2 * d) for d in each]) - 1,
        "chi2_sequence": mean([mp.exp(2 * total) for total in totals]) - 1,
        **summary("ratio", raw),
        **summary("weight", applied),
        "fraction_zero": mean([mpf(w == 0) for w in applied]),
        "fraction_rejected_tokens": mean([mpf(not token.kept) for token in tokens]),
        "fraction_rejected_rows": mean([mpf(not any(token.kept for token in row)) for row in rows]),
        "ess": effective_sample_size(applied),
        "ess_raw": effective_sample_size(raw),
        "clip_fraction": mean([mpf(token.extra["clipped"]) for token in tokens]),
        "zero_advantage_fraction": mean([mpf(token.advantage == 0) for token in tokens]),
    }
    # with a sign or a log clamp it is open which tokens and which ratio "beyond the bounds" is about
    plain = weight is not None and weight["sign"] == "both" and weight["log_clamp"] is None
    if plain and weight["statistic"] == "ratio":
        bands = []
        for token in tokens:
            own = weight["positive"] if token.advantage >= 0 else weight["negative"]
            own = weight if own is None else own
            bands.append(Band.of(own.get("low", 0.0), own.get("high"), weight["closed"]))
        out["fraction_low"] = mean([mpf(band.below(x)) for band, x in zip(bands, raw, strict=True)])
        out["fraction_high"] = mean([mpf(band.above(x)) for band, x in zip(bands, raw, strict=True)])
    centers = [token.extra["center"] for token in tokens]
    if centers[0] is not None:
        if all(c.head_mass_sampler is not None for c in centers):
            ratios = [c.tail_ratio for c in centers]
            out["head_mass_sampler"] = mean([c.head_mass_sampler for c in centers])
            out["head_mass_trainer"] = mean([c.head_mass_trainer for c in centers])
            out["tail_ratio_mean"], out["tail_ratio_max"] = mean(ratios), max(ratios)
        lists = [c.dense if c.head is None else c.head for c in centers]
        out["centering_l1"] = mean([mp.fsum(abs(c) for c in values) for values in lists])
    return out
