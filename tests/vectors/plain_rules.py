"""Levels, weights, gates, rejection and surrogates in plain float32, written from the contract: what a consumer may write.

Padded arrays, one NumPy float32 operation after the other, no care beyond the usual (subtract the maximum, select before
multiplying). It shares nothing with the package. The vectors have to accept it at float32 tolerance: a case that fails a
correct float32 implementation is a wrong case.
"""

from __future__ import annotations

import numpy as np

F = np.float32
WEIGHT = dict(
    level="token", low=0.0, high=None, positive=None, negative=None, outside=None, inside="ratio", sign="both",
    statistic="ratio", numerator=None, log_clamp=None, clamp_order="aggregate", closed=True, normalise=None,
)  # fmt: skip
GATE = dict(level="token", low=0.0, high=None, closed=True, sign="both", numerator=None)
RULE = dict(low=None, high=None, closed=True, sign="both", log_clamp=None, numerator=None, denominator="kept")
SURROGATES = {
    "reinforce": {},
    "ppo_clip": dict(eps_low=0.2, eps_high=0.2, dual=None),
    "cispo": dict(eps_low=None, eps_high=0.2),
    "gspo": dict(eps_low=3e-4, eps_high=4e-4),
}


def array(value) -> np.ndarray:
    """Wire values as float32."""
    return np.array(value, dtype=object).astype(np.float64).astype(F)


def log_softmax(z, support=None, temperature=1.0):
    z = z / F(temperature)
    if support is not None:
        z = np.where(support, z, F(-np.inf))
    s = z - z.max(-1, keepdims=True)
    return s - np.log(np.exp(s).sum(-1, keepdims=True))


def spans(mask, kind):
    """Segment number of every valid token: rows or contiguous runs."""
    out = np.full(mask.shape, -1)
    number = -1
    for b, row in enumerate(mask):
        fresh = True
        for t, valid in enumerate(row):
            if valid:
                number += fresh
                out[b, t] = number
                fresh = False
            elif kind == "runs":
                fresh = True
    return out


def per_span(values, mask, kind, how):
    """Sum, mean or max of each span, spread back over its tokens."""
    label, out = spans(mask, kind), np.zeros_like(values)
    for i in range(label.max(initial=-1) + 1):
        part = values[label == i]
        out[label == i] = (
            {"sum": part.sum, "mean": part.mean, "max": part.max}[how](dtype=F) if how != "max" else part.max()
        )
    return out


def clamp(d, c):
    return d if c is None else np.clip(d, F(-c), F(c))


def levelled(d, mask, level, c=None, order="aggregate"):
    if order == "token":
        d = clamp(d, c)
    if level == "sequence":
        d = per_span(d, mask, "rows", "sum")
    elif level == "geometric":
        d = per_span(d, mask, "rows", "mean")
    elif level == "segment":
        d = per_span(d, mask, "runs", "mean")
    return clamp(d, c)


def inside(x, low, high, closed):
    ok = np.ones(x.shape, bool)
    if low is not None:
        ok &= (x >= F(low)) if closed else (x > F(low))
    if high is not None:
        ok &= (x <= F(high)) if closed else (x < F(high))
    return ok


def acts(sign, a):
    return {"both": np.ones(a.shape, bool), "positive": a >= 0, "negative": a < 0}[sign]


def weight_of(rule, d, n, q, a):
    """f at log-ratio d for tokens with probabilities n, q; everything broadcast to one shape."""
    rho = np.exp(d)
    out = np.empty_like(rho)
    for up in (True, False):
        own = rule["positive"] if up else rule["negative"]
        low, high = (rule["low"], rule["high"]) if own is None else (own.get("low", 0.0), own.get("high"))
        signed = rule["statistic"] == "tv_signed"
        low = None if low is None or (low <= 0 and not signed) else low
        x = {"ratio": rho, "tv": np.abs(n - q), "tv_signed": n - q}[rule["statistic"]]
        ok = inside(x, low, high, rule["closed"])
        value = rho if rule["inside"] == "ratio" else np.ones_like(rho)
        if rule["outside"] == "clip":
            edge = np.full_like(rho, high if high is not None else 0)
            if low is not None:
                edge = np.where(rho <= F(low), F(low), edge)
            value = np.where(ok, value, edge)
        elif rule["outside"] == "zero":
            value = np.where(ok, value, F(0))
        side = (a >= 0) == up
        out[side] = value[side]
    return np.where(acts(rule["sign"], a), out, F(1))


def gate_of(rule, d, a):
    low = None if not rule["low"] else rule["low"]
    return (inside(np.exp(d), low, rule["high"], rule["closed"]) | ~acts(rule["sign"], a)).astype(F)


def normalise(w, mask, mode):
    if mode is None:
        return w, F(1)
    rows = mask.sum(1) > 0
    mean = w[mask].mean() if mode == "tokens" else (w.sum(1)[rows] / mask.sum(1)[rows].astype(F)).mean()
    mean = mean if mean else F(1)
    return w / mean, F(mean)


def surrogate_of(rule, logp, log_r, a, mask):
    """(value, slope, clipped) per token."""
    kind = rule["kind"]
    if kind == "reinforce":
        return -a * logp, -a, np.zeros(a.shape, bool)
    low = -np.inf if rule["eps_low"] is None else 1 - rule["eps_low"]
    high = np.inf if rule["eps_high"] is None else 1 + rule["eps_high"]
    if kind == "gspo":
        log_r = per_span(log_r, mask, "rows", "mean")
    r = np.exp(log_r)
    c = np.clip(r, F(low), F(high))
    if kind == "cispo":
        return -c * a * logp, -c * a, c != r
    stop = ((a > 0) & (r > F(high))) | ((a < 0) & (r < F(low)))
    if rule.get("dual") is not None:
        stop |= (a < 0) & (r > F(rule["dual"]))
    bounded = np.where((a < 0) & (r > F(rule["dual"] if rule.get("dual") else np.inf)), F(rule.get("dual") or 0), c)
    s = np.where(stop, -bounded * a, -np.where(stop | (a == 0), F(0), r) * a)
    return s, np.where(stop, F(0), s), stop


def rejected(rules, d_of, q_log, a, mask):
    keep = mask.copy()
    for rule in rules:
        rule = {**RULE, **rule}
        d = clamp(d_of(rule["numerator"]), rule["log_clamp"])
        q, n = np.exp(q_log), np.exp(q_log + d)
        x = {
            "ratio": lambda d=d: d,
            "k1": lambda d=d: -d,
            "k2": lambda d=d: d * d / F(2),
            "k3": lambda d=d: np.exp(d) - F(1) - d,
            "tv": lambda n=n, q=q: np.abs(n - q),
            "binary_kl": lambda d=d, n=n, q=q: -q * d + (F(1) - q) * np.log((F(1) - q) / (F(1) - n)),
        }[rule["statistic"]]()
        x = np.where(mask, x, F(0))
        if rule["reduce"] != "token":
            x = per_span(x, mask, "rows", rule["reduce"])
        if rule["statistic"] == "ratio":
            x = np.exp(x)
        keep &= inside(x, rule["low"], rule["high"], rule["closed"]) | ~acts(rule["sign"], a)
    return keep
