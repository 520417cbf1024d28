"""Plain implementation: surrogates, KL and entropy terms, reductions. Steps that a mutant may replace."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contract import KL, Aggregation, Surrogate
from .arrays import log_difference, times

Array = np.ndarray


class Losses:
    """Value and slope per token, and the coefficient that reduces them to a scalar."""

    dtype: type

    def surrogate_ratio(self, s: Any, rule: Surrogate) -> Array:
        """log r, r = p/o or p/q without an anchor; the row mean for gspo."""
        d = log_difference(s.logp, s.logq if s.logo is None else s.logo)
        return self.spread(self.row_mean(d, s.mask), s.mask) if rule.kind == "gspo" else d

    def clip_range(self, rule: Surrogate) -> tuple[float, float]:
        low = -np.inf if rule.eps_low is None else 1 - rule.eps_low
        high = np.inf if rule.eps_high is None else 1 + rule.eps_high
        return self.dtype(low), self.dtype(high)

    def active(self, rule: Surrogate, r: Array, advantages: Array) -> Array:
        """Where the unclipped branch rules; ties belong to it."""
        low, high = self.clip_range(rule)
        stopped = np.where(advantages > 0, r > high, (advantages < 0) & (r < low))
        if rule.dual is not None:
            stopped |= (advantages < 0) & (r > rule.dual)
        return ~stopped

    def clipped_objective(self, rule: Surrogate, r: Array, advantages: Array) -> Array:
        """min(r A, clip(r) A), for A < 0 at least dual A."""
        low, high = self.clip_range(rule)
        out = np.minimum(times(advantages, r), times(advantages, np.clip(r, low, high)))
        if rule.dual is not None:
            out = np.where(advantages < 0, np.maximum(out, rule.dual * advantages), out)
        return out

    def surrogate_terms(self, s: Any, rule: Surrogate) -> tuple[Array, Array, Array]:
        """Value, slope by log p, and whether a bound is active."""
        a = s.advantages
        if rule.kind == "reinforce":
            return -times(a, s.logp), -a, np.zeros(a.shape, dtype=bool)
        r = self.ratio(self.surrogate_ratio(s, rule))
        if rule.kind == "cispo":
            bounded = np.clip(r, *self.clip_range(rule))
            return -times(bounded * a, s.logp), -bounded * a, bounded != r
        active = self.active(rule, r, a)
        return -self.clipped_objective(rule, r, a), np.where(active, -times(a, r), 0), ~active

    def kl_value(self, kind: str, x: Array) -> Array:
        """KL estimate at x = log ref - log p."""
        if kind == "k1":
            return -x
        return x * x / 2 if kind == "k2" else self.k3(x)

    def kl_slope(self, kind: str, x: Array) -> Array:
        """Its slope by log p; "k3+" has k2's."""
        if kind == "k1":
            return np.ones_like(x)
        return -np.expm1(x) if kind == "k3" else -x

    def kl_factor(self, rule: KL, weights: Array) -> Array:
        """What multiplies the KL term: beta, times the weight where asked."""
        return rule.beta * weights if rule.weighted else np.full_like(weights, rule.beta)

    def entropy_rows(self, s: Any) -> tuple[Array, Array, Array]:
        """H [B, T], and per vocabulary entry p (log p + H) and p (log p + 1)."""
        p = np.exp(s.rows_p)
        plogp = times(p, s.rows_p)
        h = -plogp.sum(axis=-1)
        return h, plogp + p * h[..., None], plogp + p

    def entropy_factor(self, coef: float, weights: Array) -> Array:
        return np.full_like(weights, coef)

    # reductions

    def token_count(self, rule: Aggregation, counted: Array) -> Any:
        return rule.tokens if rule.tokens is not None else max(counted.sum(), 1)

    def row_total(self, rule: Aggregation, counted: Array) -> Any:
        """R: rows with a valid token, or the given number."""
        return rule.sequences if rule.sequences is not None else max(counted.any(axis=1).sum(), 1)

    def lengths(self, rule: Aggregation, counted: Array) -> Array:
        """n_b [B, 1]."""
        return np.maximum(counted.sum(axis=1, keepdims=True), 1)

    def coefficients(self, rule: Aggregation, counted: Array) -> Array:
        """Coefficient per token [B, T] before masking."""
        ones = np.ones(counted.shape, dtype=self.dtype)
        if rule.kind == "token-sum":
            return ones
        if rule.kind == "token-mean":
            return (ones / self.token_count(rule, counted)).astype(self.dtype)
        out = ones / self.row_total(rule, counted)
        if rule.kind == "seq-mean-token-mean":
            out = out / self.lengths(rule, counted)
        elif rule.kind == "seq-mean-token-sum-norm":
            out = out / rule.length
        return out.astype(self.dtype)
