"""The training losses: ordinary float32 torch code for the policies' rollout corrections.

``correction_loss`` computes the scalar that the trainer differentiates: REINFORCE or PPO-clip, token importance weights
(truncated, masked, either inside), and exact or head-only score centering. It takes the same definition dict as
``rlcorr_ref.Objective.from_dict`` and the tests hold its gradient against that float64 reference; a key it does not
cover is an error, never ignored.

One log-softmax serves the sampled token and the head. Weights, ratios inside coefficients, centering coefficients and
advantages are detached: gradients flow through the final log-probs only.

Score centering is written over the whole vocabulary, with the modelled sampler q_hat explicit on the tail
(``alpha p_v``), and the trainer's tail mass is summed over the tail itself. The head-only form ``q_v - alpha p_v``
is the same function, but in float32 it loses about 1e-7 times the tail ratio (a sampler tail of 0.3 over a trainer tail
of 1e-5 costs 2.6e-4 of the gradient); this form stays at rounding level for every tail ratio. The price is that an
on-policy head leaves the gradient unchanged to rounding, not bit for bit.

Sources: arXiv 2609.20807 (score centering, tail model, composition with token weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

COVERED = {
    "temperature": None,
    "surrogate": {"kind", "eps_low", "eps_high", "dual"},
    "weight": {"level", "low", "high", "outside", "inside"},
    "centering": {"tail", "floor_sampler", "floor_trainer"},
    "aggregation": {"kind", "length", "tokens", "sequences"},
}
SURROGATES = ("reinforce", "ppo_clip")
TAILS = ("exact", "rescaled")
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@dataclass(frozen=True)
class LossBatch:
    """What the loss needs beside the logits. B rows, T positions, V vocabulary, K head; log-probs in nats, float32.

    tokens [B, T] int64; mask [B, T] bool; advantages [B, T]; logp_sampler [B, T]; optional logp_anchor [B, T] (its
    presence means three policies); head_ids [B, T, K] with head_logp_sampler and head_logp_anchor [B, T, K]; whole rows
    logp_sampler_full, logp_anchor_full [B, T, V] for exact centering. Off the mask anything may lie.
    """

    tokens: Tensor
    mask: Tensor
    advantages: Tensor
    logp_sampler: Tensor
    logp_anchor: Tensor | None = None
    head_ids: Tensor | None = None
    head_logp_sampler: Tensor | None = None
    head_logp_anchor: Tensor | None = None
    logp_sampler_full: Tensor | None = None
    logp_anchor_full: Tensor | None = None

    def rows(self, index: Tensor | slice, length: int | None = None) -> LossBatch:
        """The same fields for a choice of rows, cut to the first ``length`` positions."""
        return LossBatch(
            **{name: None if value is None else value[index][:, :length] for name, value in vars(self).items()}
        )


def check_definition(definition: Mapping[str, Any]) -> None:
    """Raise ValueError for a key or value that ``correction_loss`` does not cover; the message says what it does."""
    for key, value in definition.items():
        if key not in COVERED:
            raise ValueError(f"{key}: not covered by the training loss (covered: {', '.join(COVERED)}); use rlcorr_ref")
        if isinstance(value, Mapping) and (unknown := sorted(set(value) - COVERED[key])):
            raise ValueError(f"{key}.{unknown[0]}: not covered by the training loss (covered: {sorted(COVERED[key])})")
    weight = definition.get("weight") or {}
    centering = definition.get("centering") or {}
    choices = {
        "surrogate.kind": ((definition.get("surrogate") or {}).get("kind", "reinforce"), SURROGATES),
        "weight.level": (weight.get("level", "token"), ("token",)),
        "weight.inside": (weight.get("inside", "ratio"), ("ratio", "one")),
        "weight.outside": (weight.get("outside", "clip"), ("clip", "zero")),
        "centering.tail": (centering.get("tail", "rescaled"), TAILS),
        "aggregation.kind": ((definition.get("aggregation") or {}).get("kind", "token-mean"), AGGREGATIONS),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
    if not definition.get("temperature", 1.0) > 0:
        raise ValueError(f"temperature: expected a positive number, got {definition['temperature']!r}")
    if "outside" not in weight and ((weight.get("low") or 0.0) > 0 or weight.get("high") is not None):
        raise ValueError("weight.outside: required ('clip' or 'zero') when a bound is finite")


def correction_loss(logits: Tensor, batch: LossBatch, definition: Mapping[str, Any]) -> Tensor:
    """The scalar loss for trainer ``logits`` [B, T, V] (row t predicts token t, before temperature), differentiable.

    Value: sum over valid tokens of coef * (w s + A sum_v sg(q_hat_v g(v)) log p_v), the second term with centering only.
    It equals ``Evaluation.loss_dense`` of the reference, and its gradient on ``logits`` equals ``grad_logits``.
    Raises ValueError for a definition that is not covered or that needs a field the batch does not have.
    """
    check_definition(definition)
    surrogate = {
        "kind": "reinforce",
        "eps_low": 0.2,
        "eps_high": 0.2,
        "dual": None,
        **(definition.get("surrogate") or {}),
    }
    weight, centering = definition.get("weight"), definition.get("centering")
    clipped = surrogate["kind"] == "ppo_clip"
    if clipped and weight is not None and batch.logp_anchor is None:
        raise ValueError("weight with surrogate ppo_clip needs logp_anchor: without it p/q would be applied twice")
    mask = batch.mask
    tokens = batch.tokens.where(mask, 0)
    advantages = batch.advantages.where(mask, 0.0)
    logq = batch.logp_sampler.where(mask, 0.0)
    logo = None if batch.logp_anchor is None else batch.logp_anchor.where(mask, 0.0)
    # Junk logits off the mask would reach the gradient as 0 * NaN.
    logp_full = torch.log_softmax(logits.where(mask[..., None], 0.0) / definition.get("temperature", 1.0), dim=-1)
    logp = logp_full.gather(-1, tokens[..., None]).squeeze(-1)

    numerator = (logp.detach() if logo is None else logo) - logq
    w = torch.ones_like(logq) if weight is None else _rule(numerator.exp(), weight)
    if clipped:
        ratio = (logp - (logq if logo is None else logo)).exp()
        term = w * _clipped_value(ratio, advantages, surrogate)
    else:
        term = -w * advantages * logp
    if centering is not None:
        centering = {"tail": "rescaled", **centering}
        coefficients = _centering_coefficients(logp_full.detach(), batch, weight, centering, surrogate)
        coefficients = advantages[..., None] * coefficients
        # log p may be -inf where the coefficient is 0 (a token outside the sampler's and the trainer's support).
        term = term + (coefficients * logp_full.masked_fill(coefficients == 0, 0.0)).sum(-1)
    return (_aggregation(mask, definition.get("aggregation") or {}) * term).where(mask, 0.0).sum()


def _rule(ratio: Tensor, weight: Mapping[str, Any]) -> Tensor:
    """f(ratio): the ratio (or 1) inside the closed band, the nearest bound or 0 outside."""
    low, high = weight.get("low") or 0.0, weight.get("high")
    inside = torch.ones_like(ratio) if weight.get("inside", "ratio") == "one" else ratio
    below, above = ratio < low, torch.zeros_like(ratio, dtype=torch.bool) if high is None else ratio > high
    if weight.get("outside") == "zero":
        return inside.masked_fill(below | above, 0.0)
    inside = inside.masked_fill(below, low)
    return inside if high is None else inside.masked_fill(above, high)


def _mass(logq: Tensor, logn: Tensor, weight: Mapping[str, Any] | None) -> Tensor:
    """q f(n/q) without forming a ratio: q without a rule, n inside a band that keeps the ratio, a bound times q outside."""
    q = logq.exp()
    if weight is None:
        return q
    n = logn.exp()
    # The band is tested exactly as for the sampled token, on exp(log n - log q): log n against log q + log bound can fall on
    # the other side of the edge for the same token. An overflow to inf is above every bound, which is right.
    ratio = (logn - logq).exp()
    low, high = weight.get("low") or 0.0, weight.get("high")
    below = ratio < low
    above = torch.zeros_like(below) if high is None else ratio > high
    inside = q if weight.get("inside", "ratio") == "one" else n
    if weight.get("outside") == "zero":
        return inside.masked_fill(below | above, 0.0)
    inside = torch.where(below, low * q, inside)
    return inside if high is None else torch.where(above, high * q, inside)


def _clipped_value(ratio: Tensor, advantages: Tensor, surrogate: Mapping[str, Any]) -> Tensor:
    """-min(rA, clip(r)A), for A < 0 then -max(., dual A). Ties take the unclipped branch, as torch.where does here."""
    plain = ratio * advantages
    clip = ratio.clamp(1 - surrogate["eps_low"], 1 + surrogate["eps_high"]) * advantages
    value = torch.where(clip < plain, clip, plain)
    if surrogate["dual"] is not None:
        bound = surrogate["dual"] * advantages
        value = torch.where((advantages < 0) & (bound > value), bound, value)
    return -value


def _keeps_slope(ratio: Tensor, advantages: Tensor, surrogate: Mapping[str, Any]) -> Tensor:
    """1 where PPO's clip leaves the slope of ``ratio`` alive for this sign of the advantage, else 0."""
    positive = ratio <= 1 + surrogate["eps_high"]
    negative = ratio >= 1 - surrogate["eps_low"]
    if surrogate["dual"] is not None:
        negative &= ratio <= surrogate["dual"]
    return torch.where(advantages >= 0, positive, negative)


def _effective_mass(logq, logn, logp, advantages, weight, surrogate, three: bool) -> Tensor:
    """q g(v): the sampler's mass times everything that multiplies A * score for the token, from log q, log n, log p."""
    if surrogate["kind"] == "reinforce":
        return _mass(logq, logn, weight)
    if not three:
        # No weight is allowed here, so q g = q (p/q) = p where the clip leaves the slope alive.
        return logp.exp() * _keeps_slope((logp - logq).exp(), advantages, surrogate)
    ratio = (logp - logn).exp()
    return torch.where(_keeps_slope(ratio, advantages, surrogate), _mass(logq, logn, weight) * ratio, 0.0)


def _centering_coefficients(
    logp: Tensor,
    batch: LossBatch,
    weight: Mapping[str, Any] | None,
    centering: Mapping[str, Any],
    surrogate: Mapping[str, Any],
) -> Tensor:
    """Detached coefficients q_hat_v g(v) [B, T, V] of log p_v, from the trainer's log-probs ``logp`` [B, T, V]."""
    mask, three = batch.mask[..., None], batch.logp_anchor is not None
    advantages = batch.advantages.where(batch.mask, 0.0)[..., None]

    def required(name: str) -> Tensor:
        value = getattr(batch, name)
        if value is None:
            raise ValueError(f"{name}: centering {centering['tail']!r} needs it and the batch has none")
        return value

    if centering["tail"] == "exact":
        logq = required("logp_sampler_full").where(mask, logp)
        logn = required("logp_anchor_full").where(mask, logp) if three else logp
        return _effective_mass(logq, logn, logp, advantages, weight, surrogate, three)

    present = (required("head_ids") >= 0) & mask
    ids = batch.head_ids.where(present, 0)
    head_logp = logp.gather(-1, ids).where(present, -torch.inf)
    # An absent slot stands for no token; any equal finite triple keeps its ratio harmless before it is zeroed below.
    logq = required("head_logp_sampler").where(present, 0.0)
    logn = required("head_logp_anchor").where(present, 0.0) if three else head_logp.where(present, 0.0)
    logp_head = head_logp.where(present, 0.0)
    head = _effective_mass(logq, logn, logp_head, advantages, weight, surrogate, three).where(present, 0.0)

    on_tail = torch.ones_like(logp).scatter_reduce(-1, ids, (~present).to(logp.dtype), "amin")
    p_tail = logp.exp() * on_tail
    p_mass = _floored(p_tail.sum(-1, keepdim=True), centering.get("floor_trainer", 1e-6))
    # 1 - Q cancels: float64 over K entries costs nothing and leaves only the rounding of the recorded log-probs.
    q_mass = 1 - logq.double().exp().where(present, 0.0).sum(-1, keepdim=True)
    q_mass = _floored(q_mass, centering.get("floor_sampler", 1e-6)).to(logp.dtype)
    if three:
        n_mass = 1 - logn.double().exp().where(present, 0.0).sum(-1, keepdim=True)
        n_mass = _floored(n_mass, centering.get("floor_trainer", 1e-6)).to(logp.dtype)
    else:
        n_mass = p_mass
    tail = _effective_mass(q_mass.log(), n_mass.log(), p_mass.log(), advantages, weight, surrogate, three)
    return (p_tail * (tail / p_mass)).scatter_add(-1, ids, head)


def _floored(mass: Tensor, floor: float | None) -> Tensor:
    """A tail mass not below its floor; without one, not below the smallest positive number (the tail is empty then)."""
    return mass.clamp_min(torch.finfo(torch.float32).tiny if floor is None else floor)


def _aggregation(mask: Tensor, aggregation: Mapping[str, Any]) -> Tensor:
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
