"""The other wire functions in plain float32, on top of `plain_float32`."""

from __future__ import annotations

import numpy as np
from plain_centering import factor
from plain_float32 import clean, coefficients, objective, stages
from plain_rules import GATE, RULE, SURROGATES, WEIGHT, F, array, levelled, log_softmax, rejected, surrogate_of

EMPTY = {"weight": None, "gate": None, "rejection": []}


def blocks(settings: dict) -> dict:
    """weight, gate and rejection with defaults filled in."""
    out = {**EMPTY, **settings}
    for name, defaults in (("weight", WEIGHT), ("gate", GATE)):
        if out[name] is not None:
            out[name] = {**defaults, **out[name]}
    return out


def log_softmax_stage(inputs, settings):
    support = None if "support" not in inputs else np.array(inputs["support"]) != 0
    T = F(settings.get("temperature", 1.0))
    logp = log_softmax(array(inputs["logits"]), support, T)
    out = {"logp": logp}
    if "tokens" in inputs:
        y = np.array(inputs["tokens"])[..., None]
        p = np.exp(logp)
        hit = (np.arange(p.shape[-1]) == y).astype(F)
        out |= {"logp_token": np.take_along_axis(logp, y, -1)[..., 0], "score": (hit - p) / T}
    return out


def ratio(inputs, settings):
    x = clean(inputs)
    anchored = "logp_anchor" in x and settings.get("numerator") != "trainer"
    d = np.where(x["mask"], x["logp_anchor" if anchored else "logp_trainer"] - x["logp_sampler"], F(0))
    order = settings.get("clamp_order", "aggregate")
    d = levelled(d, x["mask"], settings.get("level", "token"), settings.get("log_clamp"), order)
    return {"log_ratio": np.where(x["mask"], d, F(0)), "ratio": np.where(x["mask"], np.exp(d), F(0))}


def weight(inputs, settings):
    x, given = clean(inputs), dict(settings)
    gate = given.pop("gate", None)
    out = stages(blocks({"weight": given, "gate": gate}), x, x["logp_trainer"])
    return {"weights": np.where(x["mask"], out["weights"], F(0)), "divisor": out["divisor"]}


def reject(inputs, settings):
    x = clean(inputs)
    rules = settings.get("rejection", [settings])
    logn = x.get("logp_anchor", x["logp_trainer"])

    def d_of(numerator):
        return (x["logp_trainer"] if numerator == "trainer" else logn) - x["logp_sampler"]

    keep = rejected([{**RULE, **rule} for rule in rules], d_of, x["logp_sampler"], x["advantages"], x["mask"])
    return {"mask": keep.astype(F)}


def surrogate(inputs, settings):
    x = clean(inputs)
    kind = settings.get("kind", "reinforce")
    rule = {"kind": kind, **SURROGATES[kind], **settings}
    log_r = x["logp_trainer"] - x.get("logp_anchor", x["logp_sampler"])
    s, slope, clipped = surrogate_of(rule, x["logp_trainer"], log_r, x["advantages"], x["mask"])
    named = {"value": s, "slope": slope, "clipped": clipped.astype(F)}
    return {name: np.where(x["mask"], value, F(0)) for name, value in named.items()}


def head_coefficients(inputs, settings):
    x = clean(inputs)
    definition = blocks({key: settings.get(key) for key in ("weight", "gate")})
    kind = settings.get("surrogate", {}).get("kind", "reinforce")
    definition["surrogate"] = {"kind": kind, **SURROGATES[kind], **settings.get("surrogate", {})}
    rule = {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6, **settings.get("centering", {})}
    logq, logp, logo = x["head_logp_sampler"], x["head_logp_trainer"], x.get("head_logp_anchor")
    q, p = np.exp(logq).sum(-1), np.exp(logp).sum(-1)
    a = np.broadcast_to(x["advantages"][..., None], logq.shape)
    used = logq - np.log(q)[..., None] if rule["tail"] == "renormalised" else logq
    c = factor(definition, used, logp, logo, a, F(1))
    alpha = rho = np.zeros(q.shape, F)
    if rule["tail"] == "rescaled":
        floors = F(rule["floor_sampler"] or 0), F(rule["floor_trainer"] or 0)
        q_t, p_t = np.maximum(F(1) - q, floors[0]), np.maximum(F(1) - p, floors[1])
        o_t = None if logo is None else np.log(np.maximum(F(1) - np.exp(logo).sum(-1), floors[1]))[..., None]
        grown = factor(definition, np.log(q_t)[..., None], np.log(p_t)[..., None], o_t, a[..., :1], F(1))[..., 0]
        alpha, rho = grown / p_t, q_t / p_t
        c = c - alpha[..., None] * np.exp(logp)
    mask = x["mask"]
    out = {"alpha": alpha, "tail_ratio": rho, "head_mass_sampler": q, "head_mass_trainer": p}
    return {"coefficients": np.where(mask[..., None], c, F(0)), **{k: np.where(mask, v, F(0)) for k, v in out.items()}}


def aggregate(inputs, settings):
    x = clean(inputs)
    with np.errstate(divide="ignore", invalid="ignore"):
        c = coefficients(settings, x["mask"], x["mask"])
    c = np.where(x["mask"], c, F(0))
    return {"value": (c * x["values"]).sum(), "coefficients": c}


def advantages(inputs, settings):
    r, groups = array(inputs["rewards"]), np.array(inputs["groups"])
    out = np.zeros_like(r)
    for group in set(groups.tolist()):
        at = groups == group
        n, centered = int(at.sum()), r[at] - r[at].mean()
        if settings.get("kind", "mean") == "leave_one_out":
            out[at] = r[at] if n == 1 else centered * F(n) / F(n - 1)
        elif settings.get("kind", "mean") == "mean_std":
            std = np.sqrt((centered**2).sum() / F(max(n - settings.get("ddof", 1), 1)))
            below = std + F(settings.get("eps", 1e-6))
            out[at] = np.where(centered == 0, F(0), centered / (below if below else F(1)))
        else:
            out[at] = centered
    return {"advantages": out}


def quantise(inputs, settings):
    mantissa, lowest, top = {
        "fp8_e4m3": (3, -6, 448), "fp8_e5m2": (2, -14, 57344), "fp4_e2m1": (1, 0, 6), "int8": (None, 0, 127), "int4": (None, 0, 7)
    }[settings["format"]]  # fmt: skip
    x, mode = array(inputs["values"]), settings.get("scale", "unit")
    size = np.abs(x).max(-1, keepdims=True) if mode == "row" else np.abs(x).max()
    s = np.ones((), F) if mode == "unit" else np.where(size > 0, size / F(top), F(1))
    y = x / s
    step = F(1)
    if mantissa is not None:
        step = np.exp2((np.maximum(np.frexp(y)[1] - 1, lowest) - mantissa).astype(F))
    return {"values": np.clip(np.rint(y / step) * step, F(-top), F(top)) * s, "scale": s}


def shard(inputs, settings):
    definition, mask = dict(settings.get("definition") or {}), np.array(inputs["mask"])
    rule = {"kind": "token-mean", **definition.get("aggregation", {})}
    local = settings.get("denominators") == "local"
    if not local and rule["kind"] == "token-mean":
        rule["tokens"] = int(mask.sum())
    elif not local:
        rule["sequences"] = int((mask.sum(1) > 0).sum())
    share = F(1.0 / len(settings["shards"])) if local else F(1)
    losses, grad = [], [None] * len(mask)
    for rows in settings["shards"]:
        part = {key: [value[b] for b in rows] for key, value in inputs.items()}
        own = {"kind": "token-sum"} if not np.any(part["mask"]) else rule
        out = objective(part, {**definition, "aggregation": own})
        losses.append(out["loss"])
        for b, g in zip(rows, out["grad_logits"], strict=True):
            grad[b] = share * g
    return {"losses": np.array(losses, F), "loss": share * np.array(losses, F).sum(), "grad_logits": np.array(grad, F)}


def diagnostics(inputs, settings):
    x, definition = clean(inputs), blocks({k: settings[k] for k in EMPTY if k in settings})
    mask, rows = x["mask"], x["mask"].sum(1) > 0
    rule = definition["weight"]
    anchored = "logp_anchor" in x and not (rule and rule["numerator"] == "trainer")
    logn, logq = x["logp_anchor" if anchored else "logp_trainer"], x["logp_sampler"]
    out = stages(definition, x, x["logp_trainer"])
    w, keep = out["weights"][mask], out["keep"]
    d = (logn - logq)[mask]
    n = mask.sum(1)[rows].astype(F)
    gaps = np.where(mask, logq - logn, F(0)).sum(1)[rows] / n
    level = np.exp(levelled(np.where(mask, logn - logq, F(0)), mask, rule["level"] if rule else "token")[mask])
    kind = settings.get("surrogate", {}).get("kind", "reinforce")
    surrogate_rule = {"kind": kind, **SURROGATES[kind], **settings.get("surrogate", {})}
    old = x.get("logp_anchor", logq)
    clipped = surrogate_of(surrogate_rule, x["logp_trainer"], x["logp_trainer"] - old, x["advantages"], mask)[2]

    def ess(v):
        return F(0) if not v.any() else (v / v.max()).sum() ** 2 / (F(v.size) * ((v / v.max()) ** 2).sum())

    named = {
        "kl_k1": (-d).mean(),
        "kl_k2": (d * d / F(2)).mean(),
        "kl_k3": (np.exp(d) - F(1) - d).mean(),
        "kl_k3_reverse": (np.exp(-d) - F(1) + d).mean(),
        "ppl_trainer": np.exp(-np.where(mask, logn, F(0)).sum(1)[rows] / n).mean(),
        "ppl_sampler": np.exp(-np.where(mask, logq, F(0)).sum(1)[rows] / n).mean(),
        "log_ppl_diff_mean": gaps.mean(),
        "log_ppl_diff_abs": np.abs(gaps).mean(),
        "log_ppl_diff_min": gaps.min(),
        "log_ppl_diff_max": gaps.max(),
        "ppl_ratio": np.exp(gaps).mean(),
        "chi2_token": np.exp(F(2) * d).mean() - F(1),
        "chi2_sequence": np.exp(F(-2) * gaps * n).mean() - F(1),
        "ess": ess(w),
        "ess_raw": ess(level),
        "fraction_zero": np.mean(w == 0),
        "fraction_rejected_tokens": np.mean(~keep[mask]),
        "fraction_rejected_rows": np.mean(keep[rows].sum(1) == 0),
        "clip_fraction": np.mean(clipped[mask]),
        "zero_advantage_fraction": np.mean(x["advantages"][mask] == 0),
    }
    for name, v in (("ratio", level), ("weight", w)):
        named |= {f"{name}_mean": v.mean(), f"{name}_std": v.std(), f"{name}_min": v.min(), f"{name}_max": v.max()}
    if rule is not None:
        named["fraction_high"] = np.mean(level > (np.inf if rule["high"] is None else rule["high"]))
        named["fraction_low"] = np.mean(level < (rule["low"] or 0))
    return {name: F(value) for name, value in named.items()}


FUNCTIONS = {
    "objective": objective,
    "log_softmax": log_softmax_stage,
    "ratio": ratio,
    "weight": weight,
    "reject": reject,
    "surrogate": surrogate,
    "head_coefficients": head_coefficients,
    "aggregate": aggregate,
    "advantages": advantages,
    "quantise": quantise,
    "shard": shard,
    "diagnostics": diagnostics,
}


def answer(case: dict) -> dict:
    """The float32 answer to a case, as plain numbers."""
    from rlcorr_ref.wire import to_wire

    settings = case.get("definition") or case.get("parameters") or {}
    with np.errstate(all="ignore"):
        out = FUNCTIONS[case["function"]](case["inputs"], settings)
    return to_wire({k: None if v is None else np.asarray(v, dtype=np.float64) for k, v in out.items()})
