"""The training losses: ordinary float32 torch code for the policies' rollout corrections.

``correction_loss`` computes the scalar that the trainer differentiates: REINFORCE or PPO-clip, importance weights (truncated
or masked, per token or per row, bands by the advantage's sign, gates; see ``repro.loss_rules``), and exact or head-only
score centering. It takes the same definition dict as ``rlcorr_ref.Objective.from_dict`` and the tests hold its gradient
against that float64 reference; a key it does not cover is an error, never ignored.

One log-softmax serves the sampled token and the head. Weights, ratios inside coefficients, centering coefficients and
advantages are detached: gradients flow through the final log-probs only.

Score centering is written over the whole vocabulary, with the modelled sampler q_hat explicit on the tail
(``alpha p_v``), and the trainer's tail mass is summed over the tail itself. The head-only form ``q_v - alpha p_v``
is the same function, but in float32 it loses about 1e-7 times the tail ratio (a sampler tail of 0.3 over a trainer tail
of 1e-5 costs 2.6e-4 of the gradient); this form stays at rounding level for every tail ratio. The price is that an
on-policy head leaves the gradient unchanged to rounding, not bit for bit. ``repro.head_only`` is the same gradient without
arrays over the vocabulary, for large ones.

Sources: arXiv 2609.20807 (score centering, tail model, composition with token weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repro.loss_rules import (
    AGGREGATIONS,
    SURROGATE_DEFAULTS,
    aggregation_coefficient,
    check_definition,
    clipped_value,
    token_weights,
)
from repro.loss_rules import effective_mass as _effective_mass

__all__ = ["AGGREGATIONS", "LossBatch", "check_definition", "correction_loss"]


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


def correction_loss(logits: Tensor, batch: LossBatch, definition: Mapping[str, Any]) -> Tensor:
    """The scalar loss for trainer ``logits`` [B, T, V] (row t predicts token t, before temperature), differentiable.

    Value: sum over valid tokens of coef * (w s + W A sum_v sg(q_hat_v g(v)) log p_v), the second term with centering only;
    W is the weight or gate of a row (1 where they are the token's, then they are part of g).
    It equals ``Evaluation.loss_dense`` of the reference, and its gradient on ``logits`` equals ``grad_logits``.
    Raises ValueError for a definition that is not covered or that needs a field the batch does not have.
    """
    check_definition(definition)
    surrogate = {**SURROGATE_DEFAULTS, **(definition.get("surrogate") or {})}
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

    w, row = token_weights(logp.detach() if logo is None else logo, logq, advantages, mask, definition)
    if clipped:
        ratio = (logp - (logq if logo is None else logo)).exp()
        term = w * clipped_value(ratio, advantages, surrogate)
    else:
        term = -w * advantages * logp
    if centering is not None:
        centering = {"tail": "rescaled", **centering}
        coefficients = _centering_coefficients(logp_full.detach(), batch, weight, centering, surrogate)
        coefficients = (row * advantages)[..., None] * coefficients
        # log p may be -inf where the coefficient is 0 (a token outside the sampler's and the trainer's support).
        term = term + (coefficients * logp_full.masked_fill(coefficients == 0, 0.0)).sum(-1)
    return (aggregation_coefficient(mask, definition.get("aggregation") or {}) * term).where(mask, 0.0).sum()


def _centering_coefficients(
    logp: Tensor,
    batch: LossBatch,
    weight: Mapping[str, Any] | None,
    centering: Mapping[str, Any],
    surrogate: Mapping[str, Any],
) -> Tensor:
    """Detached coefficients q_hat_v g(v) [B, T, V] of log p_v, from the trainer's log-probs ``logp`` [B, T, V]."""
    mask, three = batch.mask[..., None], needs_anchor(batch, weight, surrogate)
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


def needs_anchor(batch: LossBatch, weight: Mapping[str, Any] | None, surrogate: Mapping[str, Any]) -> bool:
    """Whether g(v) involves the anchor at other tokens than the sampled one: not for weights of whole rows."""
    per_token = weight is not None and weight.get("level", "token") == "token"
    return batch.logp_anchor is not None and (per_token or surrogate["kind"] == "ppo_clip")


def _floored(mass: Tensor, floor: float | None) -> Tensor:
    """A tail mass not below its floor; without one, not below the smallest positive number (the tail is empty then)."""
    return mass.clamp_min(torch.finfo(torch.float32).tiny if floor is None else floor)
