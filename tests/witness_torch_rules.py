"""Torch side of the second witness: bands, levels, weights, rejection and masses q f(n/q), as whole-tensor operations.

Everything here is detached. A weight never appears inside centering as a quotient: `mass` returns q f(n/q) in closed
form (n inside an unclamped band, q times the bound outside it), which needs no special case at q = 0.
"""

from __future__ import annotations

import torch


class Margins:
    """Collects the distance of every compared quantity to its threshold, relative to the threshold."""

    def __init__(self):
        self.smallest = float("inf")

    def see(self, x, bound, where):
        if bound is None:
            return
        gap = (x - bound).abs() / max(abs(bound), 1e-3)
        gap = torch.where(where & ~gap.isnan(), gap, torch.inf)
        if gap.numel():
            self.smallest = min(self.smallest, gap.min().item())


def in_band(x, low, high, closed, margins, where):
    """Boolean: x within [low, high], or the open interval. A low of 0 counts as no margin: a ratio never comes near."""
    keep = torch.ones_like(x, dtype=torch.bool)
    if low is not None:
        keep &= (x >= low) if closed else (x > low)
        margins.see(x, low if low != 0 else None, where)
    if high is not None:
        keep &= (x <= high) if closed else (x < high)
        margins.see(x, high, where)
    return keep


def sign_applies(sign, advantages):
    return {"both": torch.ones_like(advantages, dtype=torch.bool), "positive": advantages >= 0,
            "negative": advantages < 0}[sign]  # fmt: skip


def row_sum(x, mask):
    return torch.where(mask, x, 0.0).sum(-1, keepdim=True).expand_as(x)


def row_mean(x, mask):
    return row_sum(x, mask) / row_sum(torch.ones_like(x), mask).clamp(min=1)


def segment_mean(x, mask):
    """Mean over the contiguous run of valid tokens that holds each position."""
    previous = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], dim=1)
    run = (mask & ~previous).long().cumsum(1)
    values, ones = torch.where(mask, x, 0.0), mask.to(x.dtype)
    slots = torch.zeros(x.shape[0], x.shape[1] + 1, dtype=x.dtype)
    total = slots.scatter_add(1, run, values).gather(1, run)
    count = slots.scatter_add(1, run, ones).gather(1, run)
    return total / count.clamp(min=1)


LEVELS = {"token": lambda x, mask: x, "sequence": row_sum, "geometric": row_mean, "segment": segment_mean}


def level_log_ratio(d, mask, level, clamp=None, order="aggregate"):
    if clamp is not None and order == "token":
        d = d.clamp(-clamp, clamp)
    d = LEVELS[level](d, mask)
    return d if clamp is None else d.clamp(-clamp, clamp)


def bounds_for(rule, advantages):
    """[(where, low, high)]: the bounds that hold on each side of the advantage's sign."""
    sides = [(advantages >= 0, rule["positive"]), (advantages < 0, rule["negative"])]
    sides = [(where, rule if band is None else band) for where, band in sides]
    return [(where, band.get("low", 0.0), band.get("high")) for where, band in sides]


def mass(rule, log_n, log_q, advantages, margins, where):
    """q f(n/q) for a token-level weight rule and log-probs of any shape; `advantages` broadcasts."""
    n, q = log_n.exp(), log_q.exp()
    log_ratio = log_n - log_q
    log_ratio = torch.where(log_ratio.isnan(), -torch.inf, log_ratio)
    kept = n
    if rule["log_clamp"] is not None:
        log_ratio = log_ratio.clamp(-rule["log_clamp"], rule["log_clamp"])
        kept = q * log_ratio.exp()
    ratio = log_ratio.exp()
    kept = kept if rule["inside"] == "ratio" else q
    statistic = {"ratio": ratio, "tv": (n - q).abs(), "tv_signed": n - q}[rule["statistic"]]
    advantages = advantages.expand_as(ratio)
    exempt = ~sign_applies(rule["sign"], advantages)
    out = torch.zeros_like(ratio)
    for side, low, high in bounds_for(rule, advantages):
        live = where & side & ~exempt
        keep = in_band(statistic, low, high, rule["closed"], margins, live)
        value = torch.where(keep, kept, 0.0)
        if rule["outside"] == "clip":
            over = torch.full_like(q, 0.0 if high is None else high)
            under = torch.full_like(q, low or 0.0)
            is_over = torch.zeros_like(keep) if high is None else statistic >= high
            value = torch.where(keep, kept, q * torch.where(is_over, over, under))
        out = torch.where(side, value, out)
    return torch.where(exempt, q, out)


def gate_open(rule, log_ratio, advantages, margins, where):
    """Boolean: the gate's band holds the ratio, or the sign exempts the token."""
    advantages = advantages.expand_as(log_ratio)
    exempt = ~sign_applies(rule["sign"], advantages)
    log_ratio = torch.where(log_ratio.isnan(), -torch.inf, log_ratio)
    return exempt | in_band(log_ratio.exp(), rule["low"], rule["high"], rule["closed"], margins, where & ~exempt)


def sampled_weights(batch, definition, margins):
    """(w, row-level part, divisor of a token-level weight): [B, T], [B, T], scalar; both arrays 0 off the mask."""
    mask, ones = batch["mask"], torch.ones_like(batch["advantages"])
    w = rows = ones
    weight, gate = definition["weight"], definition["gate"]
    if weight is not None:
        log_n = batch["log_n"](weight["numerator"])
        if weight["level"] == "token":
            if weight["statistic"] == "ratio":
                # q f(n/q) at q = 1 is f itself
                part = mass(weight, log_n - batch["log_q"], torch.zeros_like(log_n), batch["advantages"], margins, mask)
            else:
                part = mass(weight, log_n, batch["log_q"], batch["advantages"], margins, mask) / batch["log_q"].exp()
        else:
            d = level_log_ratio(
                log_n - batch["log_q"], mask, weight["level"], weight["log_clamp"], weight["clamp_order"]
            )
            part = mass(weight, d, torch.zeros_like(d), batch["advantages"], margins, mask)
            rows = rows * part
        w = w * part
    if gate is not None:
        d = level_log_ratio(batch["log_n"](gate["numerator"]) - batch["log_q"], mask, gate["level"])
        part = gate_open(gate, d, batch["advantages"], margins, mask).to(w.dtype)
        w = w * part
        rows = rows if gate["level"] == "token" else rows * part
    divisor = 1.0
    if weight is not None and weight["normalise"] == "tokens":
        divisor = w[mask].mean()
    elif weight is not None and weight["normalise"] == "rows":
        divisor = row_mean(w, mask)[:, 0][mask.any(1)].mean()
    per_token = weight is not None and weight["level"] == "token"
    rows = rows if per_token else rows / divisor
    return torch.where(mask, w / divisor, 0.0), torch.where(mask, rows, 0.0), divisor if per_token else 1.0


def kept_mask(batch, definition, margins):
    """[B, T] boolean: the mask after every rejection rule."""
    mask, kept = batch["mask"], batch["mask"].clone()
    for rule in definition["rejection"]:
        log_n, log_q = batch["log_n"](rule["numerator"]), batch["log_q"]
        d = log_n - log_q
        d = d if rule["log_clamp"] is None else d.clamp(-rule["log_clamp"], rule["log_clamp"])
        n, q = log_n.exp(), log_q.exp()
        x = {
            "ratio": lambda d=d: d,
            "k1": lambda d=d: -d,
            "k2": lambda d=d: d.square() / 2,
            "k3": lambda d=d: d.expm1() - d,
            "tv": lambda n=n, q=q: (n - q).abs(),
            "binary_kl": lambda n=n, q=q, d=log_n - log_q: (
                torch.xlogy(1 - q, 1 - q) - torch.xlogy(1 - q, 1 - n) - q * d
            ),
        }[rule["statistic"]]()
        if rule["reduce"] == "max":
            x = torch.where(mask, x, -torch.inf).amax(-1, keepdim=True).expand_as(x)
        else:
            x = {"token": lambda x, m: x, "sum": row_sum, "mean": row_mean}[rule["reduce"]](x, mask)
        x = x.exp() if rule["statistic"] == "ratio" else x
        live = mask & sign_applies(rule["sign"], batch["advantages"])
        keep = in_band(x, rule["low"], rule["high"], rule["closed"], margins, live)
        kept &= keep | ~live
    return kept
