"""Centering on recorded heads, assembled for a batch: tails "rescaled", "dropped", "renormalised", "support" (head as S).

centered term per token = A W sum_v c_v log p_v      (W the row-level weight and gate, 1 otherwise)

Source: arXiv 2609.20807, Eqs. 12 and 14 (head-only loss with alpha), App. A.3 (floors).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import vocabulary
from .centering import HEAD_ONLY_LIMIT, head_term
from .numerics import dot, times

if TYPE_CHECKING:
    from .objective import State


def head_centering(
    state: State, token_coef: np.ndarray, full: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict]:
    """Write the gradient of sampled-token and centering terms, and return

    (head-only value [N], dense value [N], d loss/d log p(head) [N, K], statistics).
    Where `full` [B, T, V] is given the head's derivatives are added there.
    """
    from .objective import needs_anchor

    objective, packed, fwd = state.objective, state.packed, state.fwd
    ids = packed.head_ids
    logo = None
    if packed.logp_anchor is not None and needs_anchor(objective):
        logo = packed.head_logp_anchor
        if logo is None:
            logo = packed.batch.logp_anchor_full[packed.b[:, None], packed.t[:, None], ids]
        logo = np.where(ids >= 0, logo, -np.inf)
    term = head_term(
        objective, packed.head_logp_sampler, fwd.head_logp, logo, packed.advantages, fwd.log_tail, state.weights.divisor
    )
    scale = times(packed.advantages, state.weights.row_factor)  # A W, without the aggregation coefficient
    k = times(state.coef, scale)
    off = k == 0.0
    head_add = np.where(off[:, None], 0.0, times(k[:, None], term.coefficient))
    dense = ~off & ~((term.alpha <= HEAD_ONLY_LIMIT) | (term.ratio == 1.0))
    p_factor = 0.0 - (token_coef + head_add.sum(-1))
    head_set = None
    lost = np.zeros(packed.count, dtype=bool)
    if dense.any():
        p_head = np.exp(fwd.head_logp)
        total = token_coef + times(k, term.mass.sum(-1) + term.tail_mass)
        head_set = times(k[:, None], term.mass) - total[:, None] * p_head
        lost = dense & (fwd.log_tail < np.log(vocabulary.TINY_TAIL))  # p underflows on the whole tail
        through_alpha = times(np.where(lost, 0.0, k), np.where(lost, 0.0, term.alpha))
        p_factor = np.where(dense, through_alpha - total, p_factor)
        head_add = np.where(dense[:, None], 0.0, head_add)
    vocabulary.backward(
        packed,
        fwd.grad,
        objective.temperature,
        token_coef,
        p_factor,
        ids,
        head_add,
        head_set,
        dense if head_set is not None else None,
    )
    value = times(scale, dot(term.coefficient, fwd.head_logp))
    dense_value = dot(term.mass, fwd.head_logp) + times(
        term.alpha, np.where(fwd.tail_plogp == 0.0, 0.0, fwd.tail_plogp)
    )
    for i in np.flatnonzero(lost):
        pi = vocabulary.tail_softmax(packed, i, objective.temperature, state.support, ids[i], fwd.lse[i])
        where = (packed.b[i], packed.t[i])
        fwd.grad[where] += k[i] * term.tail_mass[i] * pi / objective.temperature
        one = slice(i, i + 1)
        logp = vocabulary.logp_rows(packed, one, objective.temperature, state.support, fwd.lse[one])[0]
        dense_value[i] = dot(term.mass[i], fwd.head_logp[i]) + term.tail_mass[i] * dot(pi, logp)
    head_coef = np.where(off[:, None], 0.0, times(k[:, None], term.coefficient))
    if full is not None:
        r, c = np.nonzero(ids >= 0)
        full[packed.b[r], packed.t[r], ids[r, c]] += head_coef[r, c]
    stats = {"centering_l1": np.abs(term.coefficient).sum(-1)}
    if objective.centering.tail == "rescaled":
        stats["tail_ratio"] = term.ratio
    return value, times(scale, dense_value), head_coef, stats
