"""Score centering in plain float32: q g(v), the tails, coefficients on the whole vocabulary and on the head."""

from __future__ import annotations

import numpy as np
from plain_rules import F, acts, clamp, gate_of, surrogate_of, weight_of


def factor(definition, logq, logp, logo, a, divisor):
    """q g(v) in float32, the ratio's denominators cancelled where the rule is the plain ratio."""
    weight, gate, s = definition["weight"], definition["gate"], definition["surrogate"]
    q, p = np.exp(logq), np.exp(logp)
    o = None if logo is None else np.exp(logo)

    def numerator(rule):
        return (logp, p) if logo is None or rule["numerator"] == "trainer" else (logo, o)

    def log_ratio(logn):
        return np.where(np.isneginf(logn) & np.isneginf(logq), F(0), logn - logq)

    mass = q
    if weight is not None and weight["level"] == "token":
        logn, n = numerator(weight)
        d = clamp(log_ratio(logn), weight["log_clamp"])
        f = weight_of(weight, d, n, q, a)
        plain = np.isneginf(logq) | (f == np.exp(d))
        plain &= (weight["inside"] == "ratio") & acts(weight["sign"], a)
        if weight["log_clamp"] is not None:
            plain &= np.abs(d) < F(weight["log_clamp"])
        mass = (
            np.where(plain & (f != 0) & (f >= np.exp(d)), n, np.where(q == 0, F(0), q * np.where(q == 0, F(0), f)))
            / divisor
        )
    if gate is not None and gate["level"] == "token":
        mass = mass * gate_of(gate, log_ratio(numerator(gate)[0]), a)
    if s["kind"] == "reinforce":
        return mass
    base = logq if logo is None else logo
    r = np.exp(logp - base)
    if s["kind"] == "cispo":
        low = -np.inf if s["eps_low"] is None else 1 - s["eps_low"]
        high = np.inf if s["eps_high"] is None else 1 + s["eps_high"]
        return mass * np.clip(r, F(low), F(high))
    stop = surrogate_of(s, logp, logp - base, a, None)[2]
    return np.where(stop, F(0), mass * np.where(stop, F(0), r))


def centred(definition, x, logp):
    """Dense coefficients q_hat g [B, T, V], head-only ones [B, T, K] or None, alpha [B, T]."""
    rule = {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6, **definition["centering"]}
    a, tail, p = x["advantages"][..., None], rule["tail"], np.exp(logp)
    divisor = x["divisor"]
    anchor = x.get("logp_anchor") is not None
    shape = logp.shape
    if tail == "exact" or (tail == "support" and "logp_sampler_full" in x):
        wide = np.broadcast_to(a, shape)
        c = factor(
            definition, x["logp_sampler_full"], logp, x.get("logp_anchor_full") if anchor else None, wide, divisor
        )
        return np.where(x["inside"], c, F(0)), None, np.zeros(shape[:2], F)
    ids, logq = x["head_ids"], np.where(x["head_ids"] >= 0, x["head_logp_sampler"], F(-np.inf))
    there = ids >= 0
    head_p = np.where(there, np.take_along_axis(logp, np.maximum(ids, 0), -1), F(-np.inf))
    head_o = None
    if anchor:
        head_o = x.get("head_logp_anchor")
        head_o = np.take_along_axis(x["logp_anchor_full"], np.maximum(ids, 0), -1) if head_o is None else head_o
    q_mass = np.exp(logq).sum(-1)
    member = np.zeros(shape, bool)
    for b, t, k in np.argwhere(there):
        member[b, t, ids[b, t, k]] = True
    outside = ~member & x["inside"]
    q_used = logq - np.log(q_mass)[..., None] if tail == "renormalised" else logq
    wide = np.broadcast_to(a, ids.shape)
    head = np.where(there, factor(definition, q_used, head_p, head_o, wide, divisor), F(0))
    dense = np.zeros(shape, F)
    for b, t, k in np.argwhere(there):
        dense[b, t, ids[b, t, k]] = head[b, t, k]
    alpha = np.zeros(shape[:2], F)
    if tail == "uniform":
        share = np.maximum(F(1) - q_mass, F(0))[..., None] / np.maximum(outside.sum(-1, keepdims=True), 1).astype(F)
        full_o = x.get("logp_anchor_full") if anchor else None
        c = factor(definition, np.log(np.broadcast_to(share, shape)), logp, full_o, np.broadcast_to(a, shape), divisor)
        return dense + np.where(outside, c, F(0)), None, alpha
    if tail == "rescaled":
        p_tail = np.where(outside, p, F(0)).sum(-1)  # summed, not 1 - P: the tail may be tiny
        q_t = np.maximum(F(1) - q_mass, F(rule["floor_sampler"] or 0))
        p_t = np.maximum(p_tail, F(rule["floor_trainer"] or 0))
        o_t = (
            None if head_o is None else np.log(np.maximum(F(1) - np.exp(head_o).sum(-1), F(rule["floor_trainer"] or 0)))
        )
        one = None if o_t is None else o_t[..., None]
        grown = factor(definition, np.log(q_t)[..., None], np.log(p_t)[..., None], one, a, divisor)[..., 0]
        alpha = grown / p_t
        dense = dense + np.where(outside, alpha[..., None] * p, F(0))
        head = head - alpha[..., None] * np.where(there, np.exp(head_p), F(0))
    return dense, np.where(there, head, F(0)), alpha
