"""Centering over the whole vocabulary, assembled for a batch: tails "exact", "support" (whole rows) and "uniform".

    c_v = q_hat_v g(v) for every v of the support;   gradient (c - (sum c) p)/temperature
    exact, without a weight: the sampled token's term and this one together move z along A (e_y - q)/temperature (eq-centered)

Source: arXiv 2609.20807, Eq. 8 (exact centering); slime PR #2406 (recorded support). The gradient is taken with c - f(1) p in
place of c: a multiple of p changes nothing, and on-policy every coefficient then vanishes to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import vocabulary
from .centering import Slots, slot_factor, slot_mass
from .numerics import dot, times

if TYPE_CHECKING:
    from .objective import State


def full_centering(state: State, full: np.ndarray) -> tuple[np.ndarray, dict]:
    """Add the gradient of the centering term; return (centered value [N], statistics). `full` receives d loss/d log p."""
    from .objective import needs_anchor

    objective, packed = state.objective, state.packed
    scale = times(packed.advantages, state.weights.row_factor)
    k = times(state.coef, scale)
    zeros = np.zeros((packed.count, 1))
    anchored = packed.logp_anchor is not None and needs_anchor(objective)
    _, on_policy = slot_factor(
        objective, Slots(zeros, zeros, zeros if anchored else None, packed.advantages[:, None]), state.weights.divisor
    )
    value, l1 = np.zeros(packed.count), np.zeros(packed.count)
    uniform = objective.centering.tail == "uniform"

    def rows(piece: slice, logp: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        where = (packed.b[piece], packed.t[piece])
        logq = _uniform_rows(state, piece, logp) if uniform else packed.batch.logp_sampler_full[where]
        logo = packed.batch.logp_anchor_full[where] if anchored else None
        advantages = packed.advantages[piece, None]
        base, factor = slot_factor(objective, Slots(logq, logp, logo, advantages), state.weights.divisor)
        mass = slot_mass(base, factor, np.exp(logq), p, None if logo is None else np.exp(logo))
        value[piece] = times(scale[piece], dot(mass, logp))
        l1[piece] = np.abs(mass).sum(-1)
        kk = k[piece, None]
        return times(kk, mass - on_policy[piece] * p), times(kk, mass)

    fwd = state.fwd
    vocabulary.add_coefficients(packed, fwd.grad, objective.temperature, state.support, fwd.lse, rows, full)
    return value, {"centering_l1": l1}


def _uniform_rows(state: State, piece: slice, logp: np.ndarray) -> np.ndarray:
    """log q_hat [n, V] of the uniform tail: q on the head, (1 - Q)/(number of tail tokens) off it, 0 off the support."""
    packed = state.packed
    ids, logq = packed.head_ids[piece], packed.head_logp_sampler[piece]
    inside = vocabulary.support_rows(packed, piece, state.support)
    tail = np.ones(logp.shape, dtype=bool) if inside is None else inside.copy()
    r, c = np.nonzero(ids >= 0)
    tail[r, ids[r, c]] = False
    rest = np.maximum(1.0 - np.exp(logq).sum(-1), 0.0)
    with np.errstate(divide="ignore"):
        share = np.log(rest / np.maximum(tail.sum(-1), 1))
    out = np.where(tail, share[:, None], -np.inf)
    out[r, ids[r, c]] = logq[r, c]
    return out
