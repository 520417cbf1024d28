"""Plain implementation, first half of the pipeline: log-probs, ratio levels, weights, gates, rejection.

Every method is one step that a mutant may replace. Arrays are padded [B, T]; see `arrays.State`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contract import Gate, RejectionRule, WeightRule
from .arrays import acts_on, in_band, log_difference, runs, times

Array = np.ndarray


class Ratios:
    """From log-probs to applied weights and the mask after rejection."""

    dtype: type

    # masks and reductions over rows

    def select(self, values: Array, mask: Array) -> Array:
        """Values on the mask, 0 elsewhere, whatever lies there."""
        return np.where(mask, values, 0)

    def clean(self, values: Array, mask: Array) -> Array:
        """What enters the computation: 0 off the mask; [B, T] or [B, T, X]."""
        return np.where(mask if values.ndim == 2 else mask[..., None], values, 0)

    def row_sum(self, values: Array, mask: Array) -> Array:
        """Sum over valid tokens [B]."""
        return self.select(values, mask).sum(axis=1)

    def row_count(self, mask: Array) -> Array:
        """Valid tokens per row [B], at least 1 so that an empty row divides by something."""
        return np.maximum(mask.sum(axis=1), 1).astype(self.dtype)

    def row_mean(self, values: Array, mask: Array) -> Array:
        return self.row_sum(values, mask) / self.row_count(mask)

    def spread(self, per_row: Array, mask: Array) -> Array:
        """[B] -> [B, T]: the row's value on each of its valid tokens."""
        return self.select(np.broadcast_to(per_row[:, None], mask.shape), mask)

    # log-ratio at a level

    def log_ratio(self, s: Any, numerator: str | None) -> Array:
        """d = log n - log q per token."""
        return log_difference(s.numerator(numerator), s.logq)

    def clamp(self, d: Array, bound: float | None) -> Array:
        return d if bound is None else np.clip(d, -bound, bound)

    def level(self, d: Array, level: str, mask: Array) -> Array:
        """Token log-ratios d [B, T] at "token", "sequence" (sum), "geometric" (mean) or "segment" (mean over the run)."""
        if level == "sequence":
            return self.spread(self.row_sum(d, mask), mask)
        if level == "geometric":
            return self.spread(self.row_mean(d, mask), mask)
        if level == "segment":
            number = runs(mask)
            total = np.bincount(number[mask], weights=d[mask], minlength=number.max(initial=0) + 1)
            count = np.bincount(number[mask], minlength=number.max(initial=0) + 1)
            return self.select((total / np.maximum(count, 1))[number].astype(d.dtype), mask)
        return d

    def leveled(self, s: Any, rule: WeightRule | Gate) -> Array:
        """Clamped log-ratio at the rule's level; clamp_order "token" clamps the tokens first."""
        d = self.log_ratio(s, rule.numerator)
        bound = getattr(rule, "log_clamp", None)
        if bound is not None and rule.clamp_order == "token":
            d = self.clamp(d, bound)
        return self.clamp(self.level(d, rule.level, s.mask), bound)

    # weight and gate

    def bounds(self, rule: WeightRule | Gate, advantages: Array) -> tuple[Array, Array]:
        """Lower and upper bound per token; -inf and inf where there is none."""
        sides = []
        for up in (True, False):
            band = rule.band(up) if isinstance(rule, WeightRule) else rule
            sides.append((-np.inf if band.low is None else band.low, np.inf if band.high is None else band.high))
        up = advantages >= 0
        low = np.where(up, sides[0][0], sides[1][0]).astype(self.dtype)
        high = np.where(up, sides[0][1], sides[1][1]).astype(self.dtype)
        return low, high

    def band_statistic(self, rule: WeightRule, rho: Array, logn: Array, logq: Array) -> Array:
        if rule.statistic == "ratio":
            return rho
        difference = np.exp(logn) - np.exp(logq)
        return difference if rule.statistic == "tv_signed" else np.abs(difference)

    def ratio(self, d: Array) -> Array:
        """exp(d)."""
        return np.exp(d)

    def inside(self, rule: WeightRule, rho: Array) -> Array:
        return rho if rule.inside == "ratio" else np.ones_like(rho)

    def outside(self, rule: WeightRule, rho: Array, low: Array, high: Array) -> Array:
        if rule.outside == "zero":
            return np.zeros_like(rho)
        return np.where(rho <= low, low, high) if rule.outside == "clip" else rho

    def weight(self, rule: WeightRule, d: Array, advantages: Array, logn: Array, logq: Array) -> tuple[Array, Array]:
        """f at log-ratio d (any shape) and where it is the ratio itself, so that q f(n/q) is n."""
        advantages = np.broadcast_to(advantages, d.shape)
        rho = self.ratio(d)
        low, high = self.bounds(rule, advantages)
        keep = in_band(self.band_statistic(rule, rho, logn, logq), low, high, rule.closed)
        on = acts_on(rule.sign, advantages)
        w = np.where(keep, self.inside(rule, rho), self.outside(rule, rho, low, high))
        same = keep & on & (rule.inside == "ratio")
        if rule.log_clamp is not None:
            same &= np.abs(d) < rule.log_clamp
        return np.where(on, w, 1).astype(self.dtype), same

    def gate(self, rule: Gate, d: Array, advantages: Array) -> Array:
        """1 where the band holds exp(d) or the sign exempts the token, else 0."""
        advantages = np.broadcast_to(advantages, d.shape)
        low, high = self.bounds(rule, advantages)
        keep = in_band(self.ratio(d), low, high, rule.closed) | ~acts_on(rule.sign, advantages)
        return keep.astype(self.dtype)

    def divisor(self, w: Array, mode: str | None, mask: Array) -> Any:
        """Batch normaliser: mean of w over valid tokens, or over non-empty rows of the row's mean; 1 if that is 0."""
        if mode is None or not mask.any():
            return self.dtype(1)
        if mode == "tokens":
            mean = self.select(w, mask).sum() / mask.sum()
        else:
            mean = self.row_mean(w, mask)[mask.any(axis=1)].mean()
        return self.dtype(mean) if mean != 0 else self.dtype(1)

    def weigh(self, s: Any, rule: WeightRule | None, gate: Gate | None) -> tuple[Array, Array, Any]:
        """(applied weights, their row-level part, divisor); the row-level part multiplies a centering term as a whole."""
        ones = np.ones(s.mask.shape, dtype=self.dtype)
        f, g = ones, ones
        if rule is not None:
            f, _ = self.weight(rule, self.leveled(s, rule), s.advantages, s.numerator(rule.numerator), s.logq)
        if gate is not None:
            g = self.gate(gate, self.leveled(s, gate), s.advantages)
        w = times(g, f)
        divisor = self.divisor(w, None if rule is None else rule.normalise, s.mask)
        row = f / divisor if rule is not None and rule.level != "token" else ones
        if gate is not None and gate.level != "token":
            row = times(g, row)
        return self.select(w / divisor, s.mask), row, divisor

    # rejection

    def statistic(self, name: str, d: Array, s: Any) -> Array:
        """Rejection statistic per token; "ratio" stays in log space until it has been reduced."""
        if name == "k1":
            return -d
        if name == "k2":
            return d * d / 2
        if name == "k3":
            return self.k3(d)
        if name == "ratio":
            return d
        q, n = np.exp(s.logq), np.exp(s.logq + d)
        if name == "tv":
            return np.abs(n - q)
        rest_q, rest_n = -np.expm1(s.logq), -np.expm1(np.minimum(s.logq + d, 0))
        return times(q, -d) + times(rest_q, np.log(rest_q) - np.log(rest_n))

    def k3(self, d: Array) -> Array:
        return np.expm1(d) - d

    def row_max(self, values: Array, mask: Array) -> Array:
        return np.where(mask, values, -np.inf).max(axis=1, initial=-np.inf)

    def reduced(self, rule: RejectionRule, value: Array, mask: Array) -> Array:
        """The statistic per token, or of the token's row."""
        if rule.reduce == "token":
            return value
        per_row = {"sum": self.row_sum, "mean": self.row_mean, "max": self.row_max}[rule.reduce](value, mask)
        return np.broadcast_to(per_row[:, None], mask.shape)

    def keeps(self, rule: RejectionRule, s: Any, mask: Array) -> Array:
        """Tokens that one rule keeps [B, T]; `mask` is what row statistics run over."""
        d = self.clamp(self.log_ratio(s, rule.numerator), rule.log_clamp)
        value = self.reduced(rule, self.statistic(rule.statistic, d, s), mask)
        if rule.statistic == "ratio":
            value = np.exp(value)
        low = -np.inf if rule.low is None else rule.low
        high = np.inf if rule.high is None else rule.high
        return in_band(value, low, high, rule.closed) | ~acts_on(rule.sign, s.advantages)

    def reject(self, s: Any, rules: tuple[RejectionRule, ...]) -> Array:
        """The mask after all rules; each looks at the original mask."""
        keep = s.mask.copy()
        for rule in rules:
            keep &= self.keeps(rule, s, s.mask)
        return keep

    def counted(self, s: Any, rules: tuple[RejectionRule, ...], keep: Array) -> Array:
        """The mask that denominators count: the original one, or the edited one where a rule says "shrunk"."""
        return keep if any(rule.denominator == "shrunk" for rule in rules) else s.mask
