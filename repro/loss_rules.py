"""The rules inside the training losses: what a definition may say, importance weights and gates, PPO's clip, reductions.

    d = log n - log q           n the numerator (anchor where one is given, else trainer), q the sampler; nats
    level                       token d; sequence sum of d, geometric mean of d over the row's valid tokens
    w = f(exp d)                inside the band the ratio (or 1), outside the nearest bound (clip) or 0 (zero)

The band may differ for A >= 0 and A < 0, and may hold n - q instead of the ratio (statistic tv_signed). Everything here is
detached and elementwise, in the dtype of its arguments: float32 for the dense loss, float64 on the head.

Sources: arXiv 2609.20807, Table 1 (the grid of rules) and Sec. 3 (composition with centering).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

COVERED = {
    "temperature": None,
    "surrogate": {"kind", "eps_low", "eps_high", "dual"},
    "weight": {
        "level", "low", "high", "positive", "negative", "outside", "inside", "sign", "statistic", "log_clamp", "clamp_order",
    },
    "gate": {"level", "low", "high"},
    "centering": {"tail", "floor_sampler", "floor_trainer"},
    "aggregation": {"kind", "length", "tokens", "sequences"},
}  # fmt: skip
SURROGATES = ("reinforce", "ppo_clip")
TAILS = ("exact", "rescaled")
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LEVELS = ("token", "sequence", "geometric")
SURROGATE_DEFAULTS = {"kind": "reinforce", "eps_low": 0.2, "eps_high": 0.2, "dual": None}


def check_definition(definition: Mapping[str, Any]) -> None:
    """Raise ValueError for a key or value that the training losses do not cover; the message says what they do."""
    for key, value in definition.items():
        if key not in COVERED:
            raise ValueError(f"{key}: not covered by the training loss (covered: {', '.join(COVERED)}); use rlcorr_ref")
        if isinstance(value, Mapping) and (unknown := sorted(set(value) - COVERED[key])):
            raise ValueError(f"{key}.{unknown[0]}: not covered by the training loss (covered: {sorted(COVERED[key])})")
    weight = definition.get("weight") or {}
    centering = definition.get("centering") or {}
    gate_level = "sequence" if definition.get("gate") is None else definition["gate"].get("level", "token")
    choices = {
        "surrogate.kind": ((definition.get("surrogate") or {}).get("kind", "reinforce"), SURROGATES),
        "weight.level": (weight.get("level", "token"), LEVELS),
        "weight.inside": (weight.get("inside", "ratio"), ("ratio", "one")),
        "weight.outside": (weight.get("outside") or "clip", ("clip", "zero")),
        "weight.sign": (weight.get("sign", "both"), ("both", "positive", "negative")),
        "weight.statistic": (weight.get("statistic", "ratio"), ("ratio", "tv_signed")),
        "weight.clamp_order": (weight.get("clamp_order", "aggregate"), ("aggregate", "token")),
        "gate.level": (gate_level, LEVELS[1:]),
        "centering.tail": (centering.get("tail", "rescaled"), TAILS),
        "aggregation.kind": ((definition.get("aggregation") or {}).get("kind", "token-mean"), AGGREGATIONS),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
    if not definition.get("temperature", 1.0) > 0:
        raise ValueError(f"temperature: expected a positive number, got {definition['temperature']!r}")
    signed = weight.get("statistic", "ratio") == "tv_signed"
    bounds = [band(weight, positive) for positive in (True, False)]
    if weight.get("outside") is None and any(
        high is not None or (low or 0) > 0 or (signed and low is not None) for low, high in bounds
    ):
        raise ValueError("weight.outside: required ('clip' or 'zero') when a bound is finite")
    if signed:
        _check_difference(weight, centering if definition.get("centering") is not None else None)


def _check_difference(weight: Mapping[str, Any], centering: Mapping[str, Any] | None) -> None:
    """Where a band on n - q makes no sense."""
    if weight.get("level", "token") != "token":
        raise ValueError("weight.statistic and weight.level: 'tv_signed' exists at level 'token' only")
    if weight.get("outside", "zero") != "zero":
        raise ValueError("weight.statistic and weight.outside: 'tv_signed' goes with outside 'zero' only")
    if centering is not None and centering.get("tail", "rescaled") != "exact":
        raise ValueError(
            "weight.statistic and centering.tail: 'tv_signed' has no constant value on a modelled tail; 'exact'"
        )


def band(rule: Mapping[str, Any], positive: bool) -> tuple[float | None, float | None]:
    """Lower and upper bound for A >= 0 (``positive``) or A < 0; None means unbounded on that side."""
    own = rule.get("positive" if positive else "negative")
    own = rule if own is None else own
    return own.get("low", 0.0), own.get("high")


def log_ratio(logn: Tensor, logq: Tensor) -> Tensor:
    """log n - log q in nats, elementwise; two zero probabilities (-inf both) give 0."""
    return (logn - logq).nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


def factor(logn: Tensor, logq: Tensor, d: Tensor, advantages: Tensor, rule: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """f and where f is the unclamped ratio itself (bool), at the levelled and clamped log-ratio ``d``, any shape.

    ``advantages`` broadcasts against d; ``logn`` and ``logq`` are read by statistic tv_signed only.
    """
    ratio = d.exp()
    statistic = ratio
    if rule.get("statistic", "ratio") == "tv_signed":
        # q expm1(d) keeps the digits where n and q are close; it overflows only where n - q does not cancel.
        close = logq.exp() * torch.expm1(d)
        statistic = torch.where(close.isfinite(), close, logn.exp() - logq.exp())
    up = advantages >= 0
    (low_up, high_up), (low_down, high_down) = band(rule, True), band(rule, False)

    def bound(above: float | None, below: float | None, absent: float) -> Tensor | float:
        above, below = absent if above is None else above, absent if below is None else below
        if above == below:
            return above
        # Filled in the dtype of d: a bound of 1.0004 in float32 is another number than in float64.
        return torch.where(up, torch.full_like(advantages, above, dtype=d.dtype), below)

    low, high = bound(low_up, low_down, -torch.inf), bound(high_up, high_down, torch.inf)
    below, above = statistic < low, statistic > high
    keep = ~(below | above)
    one = rule.get("inside", "ratio") == "one"
    value = torch.ones_like(ratio) if one else ratio
    if rule.get("outside") == "zero":
        value = value.masked_fill(~keep, 0.0)
    elif rule.get("outside") == "clip":
        value = torch.where(below, low, torch.where(above, high, value))
    same = torch.zeros_like(keep) if one else keep
    if rule.get("log_clamp") is not None:  # a ratio at the clamp is no longer the ratio
        same = same & (d.abs() < rule["log_clamp"])
    if rule.get("sign", "both") != "both":
        on = up if rule["sign"] == "positive" else ~up
        value, same = value.where(on, 1.0), same & on
    return value, same


def level_log_ratio(d: Tensor, mask: Tensor, rule: Mapping[str, Any]) -> Tensor:
    """Log-ratio [B, T] of each token at the rule's level, in nats, from token log-ratios d [B, T]; 0 off the mask."""
    clamp = rule.get("log_clamp")
    if clamp is not None and rule.get("clamp_order", "aggregate") == "token":
        d = d.clamp(-clamp, clamp)
    if (level := rule.get("level", "token")) != "token":
        # In float64: a band 1 +- 4e-4 around the geometric mean leaves no room for float32 sums over a row.
        total = d.double().where(mask, 0.0).sum(-1, keepdim=True)
        if level == "geometric":
            total = total / mask.sum(-1, keepdim=True).clamp_min(1)
        d = total.expand(mask.shape).where(mask, 0.0)
    return d if clamp is None else d.clamp(-clamp, clamp)


def token_weights(
    logn: Tensor, logq: Tensor, advantages: Tensor, mask: Tensor, definition: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """The applied weight [B, T] = f times gate, and the row-level part of it (1 where the weight is token-level).

    The row-level part is kept apart because it is no function of the token: it multiplies the centered term as a whole.
    """
    d = log_ratio(logn, logq)
    w = row = torch.ones_like(d)
    if (rule := definition.get("weight")) is not None:
        w = factor(logn, logq, level_log_ratio(d, mask, rule), advantages, rule)[0].to(d.dtype)
        row = w if rule.get("level", "token") != "token" else row
    if (gate := definition.get("gate")) is not None:
        gate = {"inside": "one", "outside": "zero", **gate}
        keep = factor(logn, logq, level_log_ratio(d, mask, gate), advantages, gate)[0] > 0
        w, row = w.where(keep, 0.0), row.where(keep, 0.0)
    return w, row


def mass(
    logq: Tensor, logn: Tensor, advantages: Tensor, rule: Mapping[str, Any] | None
) -> tuple[Tensor, Tensor | None]:
    """q f(n/q) without forming q * (n/q), and where it is n itself (None without a token-level rule)."""
    q = logq.exp()
    if rule is None or rule.get("level", "token") != "token":
        return q, None
    # The band is tested exactly as for the sampled token, on exp(log n - log q): log n against log q + log bound can fall on
    # the other side of the edge for the same token. An overflow to inf is above every bound, which is right.
    d = log_ratio(logn, logq)
    if rule.get("log_clamp") is not None:
        d = d.clamp(-rule["log_clamp"], rule["log_clamp"])
    value, same = factor(logn, logq, d, advantages, rule)
    return torch.where(same, logn.exp(), value.masked_fill(same, 0.0) * q), same


def effective_mass(logq, logn, logp, advantages, weight, surrogate, three: bool) -> Tensor:
    """q g(v): the sampler's mass times everything that multiplies A * score for the token, from log q, log n, log p."""
    if surrogate["kind"] == "reinforce":
        return mass(logq, logn, advantages, weight)[0]
    if not three:
        # No weight is allowed here, so q g = q (p/q) = p where the clip leaves the slope alive.
        return logp.exp() * keeps_slope(log_ratio(logp, logq).exp(), advantages, surrogate)
    ratio = log_ratio(logp, logn).exp()
    q, same = mass(logq, logn, advantages, weight)
    product = q.masked_fill(~keeps_slope(ratio, advantages, surrogate), 0.0)
    through = (product * ratio).masked_fill(product == 0, 0.0)
    return through if same is None else torch.where(same & (product > 0), logp.exp(), through)


def clipped_value(ratio: Tensor, advantages: Tensor, surrogate: Mapping[str, Any]) -> Tensor:
    """-min(rA, clip(r)A), for A < 0 then -max(., dual A). Ties take the unclipped branch, as torch.where does here."""
    plain = ratio * advantages
    clip = ratio.clamp(1 - surrogate["eps_low"], 1 + surrogate["eps_high"]) * advantages
    value = torch.where(clip < plain, clip, plain)
    if surrogate["dual"] is not None:
        bound = surrogate["dual"] * advantages
        value = torch.where((advantages < 0) & (bound > value), bound, value)
    return -value


def keeps_slope(ratio: Tensor, advantages: Tensor, surrogate: Mapping[str, Any]) -> Tensor:
    """Where PPO's clip leaves the slope of ``ratio`` alive for this sign of the advantage (bool)."""
    positive = ratio <= 1 + surrogate["eps_high"]
    negative = ratio >= 1 - surrogate["eps_low"]
    if surrogate["dual"] is not None:
        negative &= ratio <= surrogate["dual"]
    return torch.where(advantages >= 0, positive, negative)


def aggregation_coefficient(mask: Tensor, aggregation: Mapping[str, Any]) -> Tensor:
    """Coefficient [B, 1] or scalar that each valid token's term is multiplied by."""
    kind = aggregation.get("kind", "token-mean")
    lengths = mask.sum(-1, keepdim=True)
    tokens = aggregation.get("tokens") or int(lengths.sum())
    sequences = aggregation.get("sequences") or int((lengths > 0).sum())
    if kind == "token-sum":
        return torch.ones(())
    if not (tokens if kind == "token-mean" else sequences):
        raise ValueError("mask: no valid token; give the aggregation an explicit denominator or drop the batch")
    if kind == "token-mean":
        return torch.tensor(1.0 / tokens)
    if kind == "seq-mean-token-sum":
        return torch.tensor(1.0 / sequences)
    if kind == "seq-mean-token-mean":
        return 1.0 / (sequences * lengths.clamp_min(1))
    if not aggregation.get("length") or aggregation["length"] <= 0:
        raise ValueError("aggregation.length: required and positive for seq-mean-token-sum-norm")
    return torch.tensor(1.0 / (sequences * aggregation["length"]))
