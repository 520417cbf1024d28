"""Torch side of the second witness: diagnostics over the original mask."""

from __future__ import annotations

import torch
from witness_torch_rules import bounds_for, level_log_ratio, row_mean, row_sum


def spread(name, x):
    values = {"mean": x.mean(), "std": x.std(correction=0), "min": x.min(), "max": x.max()}
    return {f"{name}_{key}": value for key, value in values.items()}


def ess(w):
    """(sum w)^2 / (N sum w^2) on weights scaled by their maximum; 0 when all are 0."""
    w = w / w.max() if w.max() > 0 else w
    return w.sum() ** 2 / (len(w) * w.square().sum()) if w.max() > 0 else w.sum()


def diagnostics(batch, definition, w, kept, clipped, center):
    mask, weight = batch["mask"], definition["weight"]
    if not mask.any():
        return {}
    numerator = weight["numerator"] if weight else None
    level = weight["level"] if weight else "token"
    d = batch["log_n"](numerator) - batch["log_q"]
    rows = mask.any(1)
    gap = -row_mean(d, mask)[rows, 0]
    raw = level_log_ratio(d, mask, level).exp()
    x, ratio, applied = d[mask], raw[mask], w[mask]
    out = {
        "kl_k1": -x.mean(),
        "kl_k2": x.square().mean() / 2,
        "kl_k3": (x.expm1() - x).mean(),
        "kl_k3_reverse": ((-x).expm1() + x).mean(),
        "ppl_sampler": (-row_mean(batch["log_q"], mask)[rows, 0]).exp().mean(),
        "log_ppl_diff_mean": gap.mean(),
        "log_ppl_diff_abs": gap.abs().mean(),
        "log_ppl_diff_min": gap.min(),
        "log_ppl_diff_max": gap.max(),
        "ppl_ratio": gap.exp().mean(),
        "chi2_token": (2 * x).expm1().mean(),
        "chi2_sequence": (2 * row_sum(d, mask)[rows, 0]).expm1().mean(),
        **spread("ratio", ratio),
        **spread("weight", applied),
        "fraction_zero": (applied == 0).double().mean(),
        "fraction_rejected_tokens": 1 - kept[mask].double().mean(),
        "fraction_rejected_rows": (~kept.any(1))[rows].double().mean(),
        "ess": ess(applied),
        "ess_raw": ess(ratio),
        "clip_fraction": clipped[mask].double().mean(),
        "zero_advantage_fraction": (batch["advantages"][mask] == 0).double().mean(),
    }
    plain = weight is not None and weight["sign"] == "both" and weight["log_clamp"] is None
    if plain and weight["statistic"] == "ratio":
        high, low = torch.zeros_like(raw), torch.zeros_like(raw)
        for side, lower, upper in bounds_for(weight, batch["advantages"]):
            # "beyond" a closed band is strict, beyond an open one includes the end
            above = torch.zeros_like(mask) if upper is None else raw > upper if weight["closed"] else raw >= upper
            below = torch.zeros_like(mask) if lower is None else raw < lower if weight["closed"] else raw <= lower
            high, low = torch.where(side, above.double(), high), torch.where(side, below.double(), low)
        out["fraction_high"], out["fraction_low"] = high[mask].mean(), low[mask].mean()
    if center is not None:
        if "Q" in center:
            out["head_mass_sampler"], out["head_mass_trainer"] = center["Q"][mask].mean(), center["P"][mask].mean()
            out["tail_ratio_mean"] = center["tail_ratio"][mask].mean()
            out["tail_ratio_max"] = center["tail_ratio"][mask].max()
        c = center["dense"] if center["head"] is None else center["head"]
        out["centering_l1"] = c.abs().sum(-1)[mask].mean()
    return {key: float(value) for key, value in out.items()}
