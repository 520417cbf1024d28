"""A plain float32 implementation of the objective, on top of `plain_rules` and `plain_centering`."""

from __future__ import annotations

import numpy as np
from plain_centering import centred
from plain_rules import (
    GATE,
    SURROGATES,
    WEIGHT,
    F,
    array,
    gate_of,
    levelled,
    log_softmax,
    normalise,
    rejected,
    surrogate_of,
    weight_of,
)


def coefficients(rule, mask, counted):
    kind = rule.get("kind", "token-mean")
    n = F(rule.get("tokens") or counted.sum())
    rows = F(rule.get("sequences") or (counted.sum(1) > 0).sum())
    lengths = np.maximum(counted.sum(1, keepdims=True), 1).astype(F)
    one = np.ones(mask.shape, F)
    return {
        "token-mean": lambda: one / n,
        "token-sum": lambda: one,
        "seq-mean-token-sum": lambda: one / rows,
        "seq-mean-token-mean": lambda: one / (rows * lengths),
        "seq-mean-token-sum-norm": lambda: one / (rows * F(rule["length"])),
    }[kind]()


def clean(x: dict) -> dict:
    """Float32 arrays with everything under the mask replaced by harmless numbers."""
    mask = np.array(x["mask"]) != 0
    out = {"mask": mask}
    for name, value in x.items():
        if value is None or name == "mask":
            continue
        v = array(value)
        where = mask.reshape(mask.shape + (1,) * (v.ndim - 2))
        out[name] = np.where(where, v, F(-1 if name == "head_ids" else 0))
    for name in ("tokens", "head_ids"):
        if name in out:
            out[name] = out[name].astype(int)
    out.setdefault("advantages", np.ones(mask.shape, F))
    return out


def times(c, x):
    return np.where(c == 0, F(0), c * np.where(c == 0, F(0), x))


def objective(inputs: dict, definition: dict, head_only: bool = False) -> dict:
    """Every output of the contract's objective, float32 throughout.

    With `head_only` the gradient is taken through the head coefficients q g - alpha p alone, as most published code does: the
    same number in exact arithmetic, but it loses digits in proportion to the tail ratio.
    """
    definition = {"temperature": 1.0, "surrogate": {"kind": "reinforce"}, "weight": None, "gate": None, "rejection": [],
                  "centering": None, "kl": None, "entropy": None, "aggregation": {}} | definition  # fmt: skip
    definition["surrogate"] = {**SURROGATES[definition["surrogate"]["kind"]], **definition["surrogate"]}
    for name, defaults in (("weight", WEIGHT), ("gate", GATE)):
        if definition[name] is not None:
            definition[name] = {**defaults, **definition[name]}
    x, T = clean(inputs), F(definition["temperature"])
    mask, a = x["mask"], x["advantages"]
    support = x["support"] != 0 if "support" in x else np.ones(x["logits"].shape, bool)
    head_support = definition["centering"] is not None and definition["centering"].get("tail") == "support"
    if head_support and "logp_sampler_full" not in x and "support" not in x:
        support = np.zeros(x["logits"].shape, bool)
        for b, t, k in np.argwhere(x["head_ids"] >= 0):
            support[b, t, x["head_ids"][b, t, k]] = True
    support |= ~mask[..., None]
    x["inside"] = support
    logp = log_softmax(x["logits"], support, T)
    p, y = np.exp(logp), np.where(mask, x["tokens"], 0)[..., None]
    own, logq, logo = np.take_along_axis(logp, y, -1)[..., 0], x["logp_sampler"], x.get("logp_anchor")
    out = stages(definition, x, own)
    s, slope, _ = surrogate_of(definition["surrogate"], own, own - (logq if logo is None else logo), a, mask)
    w, keep = out["weights"], out["keep"]
    shrunk = any(rule.get("denominator") == "shrunk" for rule in definition["rejection"])
    coef = np.where(keep, coefficients(definition["aggregation"], mask, keep if shrunk else mask), F(0))
    value, g = times(w, s), times(w, slope)
    if definition["kl"] is not None:
        kl = definition["kl"]
        d, scale = x["logp_reference"] - own, F(kl["beta"]) * (w if kl.get("weighted") else F(1))
        k3 = np.exp(d) - F(1) - d
        term = {"k1": (-d, np.ones_like(d)), "k2": (d * d / F(2), -d), "k3": (k3, F(1) - np.exp(d)), "k3+": (k3, -d)}[
            kl["kind"]
        ]
        value, g = value + scale * term[0], g + scale * term[1]
    grad_logp = times(coef, g)
    wide = np.zeros(logp.shape, F)
    if definition["entropy"] is not None:
        e, plogp = F(definition["entropy"]["coef"]), times(p, logp)
        value = value + e * plogp.sum(-1)
        wide = times(coef[..., None], e * (plogp + p))
    head_value = dense_value = np.zeros(mask.shape, F)
    c = np.zeros(logp.shape, F)
    head = None
    if definition["centering"] is not None:
        x["divisor"] = out["divisor"] if definition["weight"] and definition["weight"]["level"] == "token" else F(1)
        dense, head, _ = centred(definition, x, logp)
        outer = (a * out["row"])[..., None]
        c = times(coef[..., None], times(outer, dense))
        dense_value = times(outer, times(dense, logp)).sum(-1)
        head_value = dense_value
        if head is not None:
            on_head = np.take_along_axis(logp, np.maximum(x["head_ids"], 0), -1)
            head_value = times(outer, times(head, on_head)).sum(-1)
            head = times(coef[..., None], times(outer, head))
    total = c + wide
    if head_only and head is not None:
        total = scattered(wide, head, x["head_ids"])
    np.put_along_axis(total, y, np.take_along_axis(total, y, -1) + grad_logp[..., None], -1)
    grad = (total - total.sum(-1, keepdims=True) * p) / T
    full = c + wide if head is None else scattered(wide, head, x["head_ids"])
    return {
        "loss": times(coef, value + head_value).sum(),
        "loss_dense": times(coef, value + dense_value).sum(),
        "grad_logits": np.where(mask[..., None], grad, F(0)),
        "grad_logp": grad_logp,
        "grad_head_logp": head,
        "grad_logp_full": full,
        "weights": np.where(mask, w, F(0)),
        "mask": keep.astype(F),
        "token_loss": np.where(keep, value + head_value, F(0)),
    }


def scattered(wide, head, ids):
    """`wide` [B, T, V] with the head's entries added at their ids."""
    out = wide.copy()
    for b, t, k in np.argwhere(ids >= 0):
        out[b, t, ids[b, t, k]] += head[b, t, k]
    return out


def stages(definition, x, logp):
    """Weights, their row-level part, the divisor and the kept mask, from log-probs."""
    mask, a, logq, logo = x["mask"], x["advantages"], x["logp_sampler"], x.get("logp_anchor")

    def logn(numerator):
        return logp if logo is None or numerator == "trainer" else logo

    one = np.ones(mask.shape, F)
    w, g, row = one, one, one
    weight, gate = definition["weight"], definition["gate"]
    if weight is not None:
        n = logn(weight["numerator"])
        d = levelled(n - logq, mask, weight["level"], weight["log_clamp"], weight["clamp_order"])
        w = np.where(mask, weight_of(weight, d, np.exp(n), np.exp(logq), a), F(0))
        row = w if weight["level"] != "token" else row
    if gate is not None:
        g = gate_of(gate, levelled(logn(gate["numerator"]) - logq, mask, gate["level"]), a)
        row = row * g if gate["level"] != "token" else row
    w, divisor = normalise(np.where(mask, w * g, F(0)), mask, weight["normalise"] if weight else None)
    row = row / divisor if weight is not None and weight["level"] != "token" else row
    keep = rejected(definition["rejection"], lambda numerator: logn(numerator) - logq, logq, a, mask)
    return {"weights": w, "row": row, "divisor": divisor, "keep": keep}
