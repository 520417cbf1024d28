"""Batch + Objective -> Evaluation: loss, gradient on the logits, weights and diagnostics, written out in float64.

The stages of the contract in order, each in its own module (which names its papers) and testable alone:

    categorical (log p) -> ratios (level) -> weights (detached) -> rejection (mask) -> surrogates (value, slope)
    -> centering (coefficients) -> aggregation (coefficient per token) -> vocabulary (gradient)

    loss = sum coef * (w * s + centering + beta * kl [* w] - entropy coef * H)
    d loss / d logits = (c - (sum_v c_v) p)/temperature    with c all coefficients on log p of the row
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import vocabulary
from .aggregation import token_coefficients
from .batch import Batch, Packed
from .contract import Centering, Objective
from .diagnostics import diagnostics
from .errors import ContractError
from .full_centering import full_centering
from .head_centering import head_centering
from .numerics import times
from .ratios import log_ratio
from .rejection import reject
from .surrogates import kl_term, surrogate
from .tokens import TokenLogProbs
from .weights import Weights, weigh


@dataclass(frozen=True)
class Evaluation:
    """Outputs of the contract; padded shapes, 0 off the mask, all float64.

    loss and loss_dense (head-only and well-conditioned value); grad_logits [B, T, V]; grad_logp [B, T] of the sampled-token
    term (surrogate and KL); grad_head_logp [B, T, K] or None; grad_logp_full [B, T, V] or None; weights, mask, token_loss
    [B, T]; diagnostics by name (see `rlcorr_ref.diagnostics`).
    """

    loss: float
    loss_dense: float
    grad_logits: np.ndarray
    grad_logp: np.ndarray
    grad_head_logp: np.ndarray | None
    grad_logp_full: np.ndarray | None
    weights: np.ndarray
    mask: np.ndarray
    token_loss: np.ndarray
    diagnostics: dict[str, float | None] = field(default_factory=dict)


@dataclass
class State:
    """What the centering stages share: the packed batch, its forward pass, weights and aggregation coefficients [N]."""

    objective: Objective
    packed: Packed
    support: np.ndarray | None
    fwd: vocabulary.Forward
    weights: Weights
    coef: np.ndarray


def evaluate(objective: Objective, batch: Batch) -> Evaluation:
    """Evaluate `objective` on `batch`. Inputs are never changed; errors are `ContractError` and name the argument."""
    packed = batch.packed()
    _check_together(objective, packed)
    support = _support(objective, packed)
    centering = objective.centering
    fwd = vocabulary.forward(
        packed,
        objective.temperature,
        support,
        packed.head_ids,
        want_tail=centering is not None and centering.tail == "rescaled",
        want_entropy=objective.entropy is not None,
    )
    tokens = TokenLogProbs(packed.b, packed.t, fwd.logp, packed.logp_sampler, packed.logp_anchor, packed.advantages)
    weights = weigh(tokens, objective.weight, objective.gate)
    keep = reject(tokens, objective.rejection)
    shrunk = any(rule.denominator == "shrunk" for rule in objective.rejection)
    counted = keep if shrunk else np.ones(packed.count, dtype=bool)
    coef = np.where(keep, token_coefficients(objective.aggregation, packed.b, counted), 0.0)
    state = State(objective, packed, support, fwd, weights, coef)

    old = packed.logp_sampler if packed.logp_anchor is None else packed.logp_anchor
    value, slope, clipped = surrogate(
        objective.surrogate, fwd.logp, log_ratio(fwd.logp, old), packed.advantages, tokens.rows
    )
    token_loss = _zero_times(value, weights.applied)
    grad_logp = _zero_times(slope, weights.applied)
    if objective.kl is not None:
        kl, kl_slope = kl_term(objective.kl, fwd.logp, packed.logp_reference)
        factor = objective.kl.beta * (weights.applied if objective.kl.weighted else np.ones(packed.count))
        token_loss = token_loss + times(factor, kl)
        grad_logp = grad_logp + times(factor, kl_slope)
    if objective.entropy is not None:
        token_loss = token_loss - objective.entropy * fwd.entropy
    grad_logp = times(coef, grad_logp)

    full = None
    if objective.entropy is not None or (centering is not None and _vocabulary_wide(objective, packed)):
        full = np.zeros_like(fwd.grad)
    head = None
    centered = dense = np.zeros(packed.count)
    stats: dict[str, Any] = {}
    if packed.head_ids is not None:
        stats = _head_statistics(objective, packed.head_logp_sampler, fwd.head_logp)
    if centering is None:
        vocabulary.backward(packed, fwd.grad, objective.temperature, grad_logp, 0.0 - grad_logp)
    elif _vocabulary_wide(objective, packed):
        vocabulary.backward(packed, fwd.grad, objective.temperature, grad_logp, 0.0 - grad_logp)
        centered, more = full_centering(state, full)
        dense = centered
        stats.update(more)
    else:
        centered, dense, head, more = head_centering(state, grad_logp, full)
        stats.update(more)
    if objective.entropy is not None:
        _entropy(state, full)

    with np.errstate(invalid="ignore"):  # infinite terms of opposite sign: the loss is NaN, the gradient stands
        loss_dense = float(times(coef, token_loss + dense).sum())
        token_loss = token_loss + centered
        loss = float(times(coef, token_loss).sum())
    out = {
        "loss": loss,
        "loss_dense": loss_dense,
        "grad_logits": fwd.grad,
        "grad_logp": _padded(packed, grad_logp),
        "grad_head_logp": None if head is None or full is not None else _padded(packed, head),
        "grad_logp_full": full,
        "weights": _padded(packed, weights.applied),
        "mask": _padded(packed, keep.astype(np.float64)),
        "token_loss": _padded(packed, np.where(keep, token_loss, 0.0)),
    }
    return Evaluation(**out, diagnostics=diagnostics(tokens, objective.weight, weights.applied, keep, clipped, stats))


def _head_statistics(objective: Objective, logq: np.ndarray, logp: np.ndarray) -> dict[str, np.ndarray]:
    """Head masses and tail ratio per token [N]; the floors are the centering's, or the contract's defaults."""
    q, p = np.exp(logq).sum(-1), np.exp(logp).sum(-1)
    floors = objective.centering or Centering()
    top = np.maximum(1.0 - q, floors.floor_sampler or 0.0)
    bottom = np.maximum(1.0 - p, floors.floor_trainer or 0.0)
    with np.errstate(divide="ignore"):
        ratio = np.where(top == bottom, 1.0, top / np.where(top == bottom, 1.0, bottom))
    return {"head_mass_sampler": q, "head_mass_trainer": p, "tail_ratio": ratio}


def _entropy(state: State, full: np.ndarray) -> None:
    """Add the entropy bonus: -coef e H has the gradient coef e p (log p + H)/temperature on the logits.

    Reported in grad_logp_full as the partial derivative by log p_v: coef e p_v (log p_v + 1).
    """
    scale = state.coef * state.objective.entropy

    def rows(piece: slice, logp: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        c = scale[piece, None] * times(p, logp)
        return c, c + scale[piece, None] * p

    fwd = state.fwd
    vocabulary.add_coefficients(state.packed, fwd.grad, state.objective.temperature, state.support, fwd.lse, rows, full)


def _vocabulary_wide(objective: Objective, packed: Packed) -> bool:
    """Whether centering needs whole rows: exact and uniform always, support when the sampler's rows are given."""
    tail = objective.centering.tail
    return tail in ("exact", "uniform") or (tail == "support" and packed.batch.logp_sampler_full is not None)


def _support(objective: Objective, packed: Packed) -> np.ndarray | None:
    """The support that restricts p: the recorded one, or for tail "support" without whole rows the head's ids."""
    batch = packed.batch
    if objective.centering is None or objective.centering.tail != "support" or batch.logp_sampler_full is not None:
        return batch.support
    mass = np.exp(packed.head_logp_sampler).sum(-1)
    packed.fail(
        "head_logp_sampler",
        np.abs(mass - 1.0) > 1e-4,
        "tail 'support' takes the head as the support, so its mass must be 1 within 1e-4",
        mass,
    )
    ids = packed.head_ids
    if batch.support is None:
        packed.fail(
            "tokens",
            ~(ids == packed.tokens[:, None]).any(-1),
            "the sampled token lies outside the support",
            packed.tokens,
        )
        support = np.zeros(batch.logits.shape, dtype=np.uint8)
        r, c = np.nonzero(ids >= 0)
        support[packed.b[r], packed.t[r], ids[r, c]] = 1
        return support
    inside = batch.support[packed.b[:, None], packed.t[:, None], ids] != 0
    packed.fail("head_ids", (ids >= 0) & ~inside, "head id outside the support", ids)
    return batch.support


def _check_together(objective: Objective, packed: Packed) -> None:
    """Pairs of definition and data that make no sense, each named."""
    batch, kind = packed.batch, objective.surrogate.kind
    anchor = packed.logp_anchor is not None
    if objective.weight is not None and kind != "reinforce" and not anchor and not objective.allow_double_ratio:
        raise ContractError(
            f"weight and surrogate: {kind!r} without logp_anchor already holds the ratio p/q, a weight squares it; give "
            "logp_anchor, drop the weight, or set allow_double_ratio"
        )
    for where, rule in (
        ("weight", objective.weight),
        ("gate", objective.gate),
        *(("rejection", r) for r in objective.rejection),
    ):
        if rule is not None and rule.numerator == "anchor" and not anchor:
            raise ContractError(
                f"{where}.numerator and logp_anchor: the numerator is 'anchor' but logp_anchor is not given"
            )
    if objective.kl is not None and packed.logp_reference is None:
        raise ContractError("kl and logp_reference: a KL term needs the reference policy's log-probs")
    if objective.centering is None:
        return
    tail = objective.centering.tail
    whole = batch.logp_sampler_full is not None
    if tail == "exact" and not whole:
        raise ContractError("centering.tail and logp_sampler_full: 'exact' needs the sampler's whole rows")
    if tail != "exact" and packed.head_ids is None and not (tail == "support" and whole):
        raise ContractError(f"centering.tail and head_ids: {tail!r} needs head_ids and head_logp_sampler")
    if anchor and needs_anchor(objective):
        if _vocabulary_wide(objective, packed):
            if batch.logp_anchor_full is None:
                raise ContractError(
                    f"centering.tail and logp_anchor_full: with an anchor, {tail!r} needs the anchor's whole rows"
                )
        elif packed.head_logp_anchor is None and batch.logp_anchor_full is None:
            raise ContractError(
                f"centering.tail and head_logp_anchor: with an anchor, {tail!r} needs the anchor on the head"
            )


def needs_anchor(objective: Objective) -> bool:
    """Whether the token factor g(v) involves the anchor at tokens other than the sampled one."""
    if objective.surrogate.kind in ("ppo_clip", "cispo"):
        return True
    rules = (objective.weight, objective.gate)
    return any(rule is not None and rule.level == "token" and rule.numerator != "trainer" for rule in rules)


def _zero_times(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    """a * w where either being 0 removes the term; a * 1 is a, bit for bit."""
    return np.where((a == 0.0) | (w == 0.0), 0.0, times(a, w))


def _padded(packed: Packed, values: np.ndarray) -> np.ndarray:
    """Packed values [N, ...] as [B, T, ...], 0 off the mask."""
    out = np.zeros((*packed.batch.mask.shape, *values.shape[1:]))
    out[packed.b, packed.t] = values
    return out
