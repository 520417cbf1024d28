"""Head-only score centering over a large vocabulary: one exponential per logit, the gradient written by hand, once.

Per valid token, with S the sampled token y together with the head, and R the rest of the vocabulary:

    lse_R, pi = softmax over R           the only pass of exponentials; pi lies where the gradient will be written
    lse       = log(exp lse_R + sum over S of exp z_v)      serves log p(y), the head's log p and the tail's mass
    G         = g_y + k (sum_v m_v + m_tail)                g_y = coef w s' on the sampled token, k = coef W A
    d loss / d z_v = 1/T * (g_y 1[v = y] + k m_v - G p_v)                on S      (m_v = q_v g(v) on the head)
                     1/T * (k m_tail / p_tail - G) p_R pi_v              on R

This is ``repro.losses.correction_loss`` with tail "rescaled" (or without centering): the same gradient. Beside the logits and
their gradient there is no array over the vocabulary; on S everything is [.., K + 1] and float64.

Accuracy. The tail's mass is p_tail = exp(lse_R - lse), a sum over the tail and never 1 - P, so a tail of 1e-6 keeps as many
digits as one of 0.5, a tail that underflows included (its share is m_tail pi_v). What is left is the float32 softmax over R,
whose sum runs over the whole vocabulary: at 151,936 entries it is off by about 2e-6 relative where R is flat (a head takes the
large entries out of it, and the gradient keeps 1e-7), by about 1e-5 without centering, where R holds the large ones too; p on R
and p_tail are off by as much, and torch.log_softmax by more.
The *value* is the head-only one, sum_v (q_v g(v) - alpha p_v) log p_v: like ``Evaluation.loss`` it is as ill-conditioned as
one over the tail's mass. Differentiate it; do not compare values. The recorded head is what it is: float32 log-probs leave
1 - Q uncertain by about 1e-7.

Source: arXiv 2609.20807, Eqs. 12 and 14 (head-only loss), App. A.3 (floors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from repro.loss_rules import (
    SURROGATE_DEFAULTS,
    aggregation_coefficient,
    check_definition,
    clipped_value,
    effective_mass,
    keeps_slope,
    token_weights,
)
from repro.losses import LossBatch, needs_anchor

PROBE = 1024  # entries of R among which one of ordinary size is looked for, to read lse_R off its softmax


def head_only_loss(logits: Tensor, batch: LossBatch, definition: Mapping[str, Any]) -> Tensor:
    """The scalar loss for trainer ``logits`` [B, T, V] float32, its gradient equal to that of ``correction_loss``.

    ``definition`` is as there, with centering absent or of tail "rescaled". Value: ``Evaluation.loss`` of the reference (the
    head-only one). While the softmax runs, the entries of S in ``logits`` are -inf; they are back, bit for bit, when the call
    returns or raises, so no other thread may read them meanwhile. One backward per call: its buffer becomes the gradient.
    Raises ValueError for a definition that is not covered, a field the batch lacks, or logits that are not float32 [B, T, V].
    """
    check_definition(definition)
    centering = definition.get("centering")
    if centering is not None and centering.get("tail", "rescaled") != "rescaled":
        raise ValueError(
            f"centering.tail: head_only_loss takes 'rescaled', got {centering['tail']!r}; use correction_loss"
        )
    if logits.dtype != torch.float32 or logits.ndim != 3 or logits.shape[:2] != batch.mask.shape:
        raise ValueError(
            f"logits: expected float32 [B, T, V] with B, T = {list(batch.mask.shape)} of the mask, "
            f"got {logits.dtype} {list(logits.shape)}"
        )
    surrogate = {**SURROGATE_DEFAULTS, **(definition.get("surrogate") or {})}
    if surrogate["kind"] == "ppo_clip" and definition.get("weight") is not None and batch.logp_anchor is None:
        raise ValueError("weight with surrogate ppo_clip needs logp_anchor: without it p/q would be applied twice")
    if centering is not None:
        names = ["head_ids", "head_logp_sampler"]
        names += ["head_logp_anchor"] if needs_anchor(batch, definition.get("weight"), surrogate) else []
        for name in names:
            if getattr(batch, name) is None:
                raise ValueError(f"{name}: centering 'rescaled' needs it and the batch has none")
    return _HeadOnly.apply(logits, batch, {**definition, "surrogate": surrogate})


class _HeadOnly(Function):
    """Forward: softmax over R and every coefficient. Backward: one scaling of it, and the entries of S."""

    @staticmethod
    def forward(ctx, logits: Tensor, batch: LossBatch, definition: Mapping[str, Any]) -> Tensor:
        temperature = definition.get("temperature", 1.0)
        mask = batch.mask
        tokens = batch.tokens.where(mask, 0)[..., None]
        if definition.get("centering") is None:
            ids, present = tokens, torch.zeros((*mask.shape, 0), dtype=torch.bool, device=mask.device)
        else:
            present = (batch.head_ids >= 0) & mask[..., None]
            # An absent slot repeats the sampled token: what is written there twice is the same number.
            ids = torch.cat([tokens, batch.head_ids.where(present, tokens)], -1)
        z, rest, log_rest = _rest_softmax(logits, ids, mask, temperature)
        # The head slot of the sampled token, where it has one: the token itself stands for it in S.
        seat = present & (ids[..., 1:] == tokens)
        distinct = torch.cat([torch.ones_like(tokens, dtype=torch.bool), present & ~seat], -1)
        total = torch.logsumexp(torch.cat([z.where(distinct, -torch.inf), log_rest], -1), -1, keepdim=True)
        own, tail, value = _coefficients(z - total, log_rest - total, distinct, seat, present, batch, definition)
        ctx.save_for_backward(mask, ids, own / temperature, tail / temperature)
        ctx.rest = rest
        return value.to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, None, None]:
        if ctx.rest is None:
            raise RuntimeError(
                "head_only_loss: its buffer has become the gradient already; call it again to differentiate"
            )
        mask, ids, own, tail = ctx.saved_tensors
        gradient, ctx.rest = ctx.rest, None
        gradient.mul_((tail * upstream).to(gradient.dtype))
        gradient.scatter_(-1, ids, (own * upstream).to(gradient.dtype))
        if not mask.all():
            gradient[~mask] = 0.0
        return gradient, None, None


def _rest_softmax(logits: Tensor, ids: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """z of S [.., S] float64, softmax over R [.., V] (0 on S; all 0 where R is empty), and lse_R [.., 1] float64."""
    raw = logits.gather(-1, ids)
    if temperature == 1.0:
        # Written through .data: the logits are whole again before anyone can look, so autograd need not count it as a change.
        whole = logits.data
        try:
            rest = torch.softmax(whole.scatter_(-1, ids, -torch.inf), -1)
            probe, at = rest[..., :PROBE].max(-1, keepdim=True)
            z_at = whole.gather(-1, at)
        finally:
            whole.scatter_(-1, ids, raw)
    else:
        scaled = (logits.data / temperature).scatter_(-1, ids, -torch.inf)
        rest = torch.softmax(scaled, -1)
        probe, at = rest[..., :PROBE].max(-1, keepdim=True)
        z_at = scaled.gather(-1, at)
    log_rest = z_at.double() - probe.double().log()
    # Below float32's normal numbers the probe has lost its digits; NaN means that R is empty (or has no finite logit).
    for b, t in (~(probe[..., 0] > 1e-30) & mask).nonzero().tolist():
        row = (logits.data[b, t].double() / temperature).scatter_(-1, ids[b, t], -torch.inf)
        log_rest[b, t] = torch.logsumexp(row, -1)
        rest[b, t].nan_to_num_(nan=0.0)
    return raw.double() / temperature, rest, log_rest


def _coefficients(
    logp: Tensor, log_rest: Tensor, distinct: Tensor, seat: Tensor, present: Tensor, batch: LossBatch, definition
) -> tuple[Tensor, Tensor, Tensor]:
    """d loss / d (z/T) on S [.., S], the factor of pi on R [.., 1], and the loss; float64, everything detached.

    ``logp`` [.., S] log p on S (first the sampled token), ``log_rest`` [.., 1] the log of p's mass on R.
    """
    mask, surrogate = batch.mask, definition["surrogate"]
    advantages = batch.advantages.where(mask, 0.0).double()
    logq = batch.logp_sampler.where(mask, 0.0).double()
    logo = None if batch.logp_anchor is None else batch.logp_anchor.where(mask, 0.0).double()
    own_logp = logp[..., 0].where(mask, 0.0)
    coef = (
        aggregation_coefficient(mask, definition.get("aggregation") or {}).double().to(mask.device).expand(mask.shape)
    )
    coef = coef.where(mask, 0.0)
    w, row = token_weights(own_logp if logo is None else logo, logq, advantages, mask, definition)
    if surrogate["kind"] == "ppo_clip":
        ratio = (own_logp - (logq if logo is None else logo)).exp()
        term = w * clipped_value(ratio, advantages, surrogate)
        slope = -w * advantages * ratio * keeps_slope(ratio, advantages, surrogate)
    else:
        term, slope = -w * advantages * own_logp, -w * advantages
    slope = (coef * slope)[..., None]
    p = logp.exp()
    if definition.get("centering") is None:
        return slope - slope * p, -slope * log_rest.exp(), (coef * term).sum()

    k = (coef * row * advantages)[..., None]
    head, tail, p_tail, on_tail, alpha = _head_masses(logp, log_rest, seat, present, batch, definition)
    total = slope + k * (head.sum(-1, keepdim=True) + tail)
    # The sampled token takes the mass of its head slot, or its share of the tail where the head lacks it.
    first = (head * seat).sum(-1, keepdim=True) + on_tail * tail
    own = torch.cat([slope + k * first, k * head], -1) - total * p
    own = own.where(distinct, own[..., :1])
    c = head - (alpha * p[..., 1:]).where(present, 0.0)
    centered = (c * logp[..., 1:].masked_fill(c == 0, 0.0)).sum(-1)
    rest = k * tail * _share(log_rest, p_tail) - total * log_rest.exp()
    return own, rest, (coef * (term + row * advantages * centered)).where(mask, 0.0).sum()


def _head_masses(
    logp: Tensor, log_rest: Tensor, seat: Tensor, present: Tensor, batch: LossBatch, definition: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q g on the head [.., K]; on the tail [.., 1]: its mass m_tail, log p_tail, the sampled token's share, and alpha."""
    surrogate, weight = definition["surrogate"], definition.get("weight")
    three = needs_anchor(batch, weight, surrogate)
    advantages = batch.advantages.where(batch.mask, 0.0).double()[..., None]
    # An absent slot stands for no token; any equal finite triple keeps its ratio harmless before it is zeroed below.
    logp_head = logp[..., 1:].where(present, 0.0)
    logq = batch.head_logp_sampler.where(present, 0.0).double()
    logn = batch.head_logp_anchor.where(present, 0.0).double() if three else None
    floor_p = _log_floor(definition["centering"].get("floor_trainer", 1e-6))
    floor_q = _log_floor(definition["centering"].get("floor_sampler", 1e-6))
    own = logp[..., :1].masked_fill(seat.any(-1, keepdim=True), -torch.inf)
    p_tail = torch.logaddexp(log_rest, own)
    p_floored = p_tail.clamp_min(floor_p)

    def outside(recorded: Tensor, floor: float) -> Tensor:
        return (1 - recorded.exp().where(present, 0.0).sum(-1, keepdim=True)).clamp_min(0.0).log().clamp_min(floor)

    # The modelled tail is one more slot: its ratio is constant.
    slots_q, slots_p = torch.cat([logq, outside(logq, floor_q)], -1), torch.cat([logp_head, p_floored], -1)
    slots_n = torch.cat([logn, outside(logn, floor_p)], -1) if three else slots_p
    masses = effective_mass(slots_q, slots_n, slots_p, advantages, weight, surrogate, three)
    head, modelled = masses[..., :-1].where(present, 0.0), masses[..., -1:]
    tail = modelled * _share(p_tail, p_floored)
    alpha = (modelled / p_floored.exp()).masked_fill(modelled == 0, 0.0)
    return head, tail, p_tail, _share(own, p_tail), alpha


def _log_floor(floor: float | None) -> float:
    return -torch.inf if floor is None else float(torch.tensor(floor, dtype=torch.float64).log())


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole), 0 for an empty part."""
    return (part - whole).exp().masked_fill(part == -torch.inf, 0.0)
