"""Plain implementation: score centering over padded arrays. Steps that a mutant may replace.

    loss term per token   + coef A W sum_v sg(c_v) log p_v,   c_v = q_hat_v g(v)

Everything is taken as a mass per vocabulary entry, m_v = q_hat_v g(v), formed in log space: an in-band ratio replaces log q
by log n, so that nothing overflows. On the rescaled tail m_v = alpha p_v, alpha the tail slot's mass over its trainer mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract import Objective
from .arrays import gather, log_difference, scatter, times

Array = np.ndarray


@dataclass
class Term:
    """Masses [B, T, V] over the vocabulary (well-conditioned form) and what a head-only form reports.

    `head` [B, T, K] c_v = q g - alpha p or None, `alpha`, `ratio` [B, T] of the tail, `wide` whether the vocabulary is the head.
    """

    mass: Array
    head: Array | None
    alpha: Array
    ratio: Array
    wide: bool


class Centering:
    """Coefficients of the centering term."""

    dtype: type

    def log_mass(self, o: Objective, logq: Array, logp: Array, logo: Array | None, a: Array, divisor: Any) -> Array:
        """log(q g(v)) for slots of any shape; `a` [.., 1] advantages, `logo` None without an anchor."""
        out, scale = logq, np.zeros_like(logq)
        rule = o.weight
        if rule is not None and rule.level == "token":
            logn = logp if logo is None or rule.numerator == "trainer" else logo
            d = self.clamp(log_difference(logn, logq), rule.log_clamp)
            f, same = self.center_weight(rule, d, a, logn, logq)
            out = np.where(same, logn, logq + np.where(same, 0, np.log(f)))
            scale = scale - np.log(divisor)
        gate = o.gate
        if gate is not None and gate.level == "token":
            logn = logp if logo is None or gate.numerator == "trainer" else logo
            scale = scale + np.log(self.gate(gate, log_difference(logn, logq), a))
        if o.surrogate.kind in ("ppo_clip", "cispo"):
            out = self.times_ratio(o, out, logq if logo is None else logo, logp, a)
        return np.where(np.isneginf(out), -np.inf, out + scale)

    def center_weight(self, rule: Any, d: Array, a: Array, logn: Array, logq: Array) -> tuple[Array, Array]:
        """f and where it is the ratio, inside the expectation."""
        return self.weight(rule, d, a, logn, logq)

    def times_ratio(self, o: Objective, out: Array, old: Array, logp: Array, a: Array) -> Array:
        """log of q f r 1[unclipped] (ppo_clip) or q f clip(r) (cispo), r = p/old."""
        a = np.broadcast_to(a, out.shape)
        log_r = log_difference(logp, old)
        r = self.ratio(log_r)
        low, high = self.clip_range(o.surrogate)
        raw = np.where(out == old, logp, np.where(np.isneginf(out), -np.inf, out + log_r))
        if o.surrogate.kind == "ppo_clip":
            return np.where(self.active(o.surrogate, r, a), raw, -np.inf)
        return np.where((r >= low) & (r <= high), raw, out + np.log(np.clip(r, low, high)))

    # the tail

    def floored(self, mass: Array, floor: float | None) -> Array:
        return np.maximum(mass, self.dtype(floor or 0))

    def tail_masses(self, s: Any, rule: Any) -> tuple[Array, Array, Array | None]:
        """Mass off the head under sampler, trainer and anchor (or None), floored; the trainer's is summed directly."""
        q = self.floored(1 - np.exp(s.head_q).sum(-1), rule.floor_sampler)
        p = self.floored(np.exp(s.log_tail), rule.floor_trainer)
        o = None if s.head_o is None else self.floored(1 - np.exp(s.head_o).sum(-1), rule.floor_trainer)
        return q, p, o

    def tail(self, s: Any, o: Objective, divisor: Any) -> tuple[Array, Array]:
        """alpha and rho of the rescaled tail [B, T]: alpha = rho g(tail), g taken at the tail masses."""
        q, p, anchor = self.tail_masses(s, o.centering)
        slot = self.log_mass(
            o,
            np.log(q)[..., None],
            np.log(p)[..., None],
            None if anchor is None else np.log(anchor)[..., None],
            s.advantages[..., None],
            divisor,
        )[..., 0]
        return np.exp(log_difference(slot, np.log(p))), q / p

    def head_log_sampler(self, s: Any, o: Objective) -> Array:
        """log q_hat on the head."""
        if o.centering.tail != "renormalised":
            return s.head_q
        return s.head_q - np.log(np.exp(s.head_q).sum(-1, keepdims=True))

    def uniform_rows(self, s: Any) -> Array:
        """log q_hat [B, T, V]: the head's own, (1 - Q)/(tail tokens) elsewhere on the support."""
        on_head = scatter(np.ones(s.head_ids.shape), s.head_ids, s.rows_p.shape[-1]) > 0
        tail = s.inside & ~on_head
        share = np.maximum(1 - np.exp(s.head_q).sum(-1), 0) / np.maximum(tail.sum(-1), 1)
        rows = np.where(tail, np.log(share)[..., None], -np.inf)
        b, t, k = np.nonzero(s.head_ids >= 0)
        rows[b, t, s.head_ids[b, t, k]] = s.head_q[b, t, k]
        return rows.astype(self.dtype)

    def sampler_rows(self, s: Any, o: Objective) -> Array:
        return self.uniform_rows(s) if o.centering.tail == "uniform" else s.rows_q

    def center(self, s: Any, o: Objective, divisor: Any) -> Term:
        """The modelled sampler's masses, without A, weights of rows and reduction."""
        tail = o.centering.tail
        a, zero = s.advantages[..., None], np.zeros(s.mask.shape, dtype=self.dtype)
        if tail in ("exact", "uniform") or (tail == "support" and s.rows_q is not None):
            logq = self.sampler_rows(s, o)
            mass = np.exp(self.log_mass(o, logq, s.rows_p, s.rows_o, a, divisor))
            return Term(mass, None, zero, zero, True)
        on_head = np.exp(self.log_mass(o, self.head_log_sampler(s, o), s.head_p, s.head_o, a, divisor))
        mass = scatter(on_head, s.head_ids, s.rows_p.shape[-1])
        if tail != "rescaled":
            return Term(mass, on_head, zero, zero, False)
        alpha, ratio = self.tail(s, o, divisor)
        p = np.exp(s.rows_p)
        off = scatter(np.ones(s.head_ids.shape, dtype=self.dtype), s.head_ids, p.shape[-1]) == 0
        mass = mass + np.where(off, times(p, alpha[..., None]), 0)
        return Term(mass, on_head - times(np.exp(s.head_p), alpha[..., None]), alpha, ratio, False)

    def center_scale(self, s: Any, weights: Array, row: Array) -> Array:
        """What multiplies the centering term besides the reduction: A times the row-level weight."""
        return times(s.advantages, row)

    def center_value(self, s: Any, term: Term) -> tuple[Array, Array]:
        """sum_v c_v log p_v as the head-only form has it, and over the whole vocabulary [B, T]."""
        dense = times(term.mass, s.rows_p).sum(-1)
        return dense if term.wide else times(term.head, s.head_p).sum(-1), dense

    def head_gather(self, rows: Array, ids: Array) -> Array:
        """Trainer (or anchor) log-probs on the head ids."""
        return gather(rows, ids)
