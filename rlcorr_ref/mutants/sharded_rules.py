"""Token-level rules of the sharded implementation: surrogate, weight and gate factors, modelled masses. float32 throughout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .sharded_vocabulary import Array, F

Record = Mapping[str, Any]


class Rules:
    """Rules of the definition `d` on slots of any shape; `a` advantages of the batch's tokens, `divisor` of the weights."""

    d: Record
    a: Array
    divisor: Any

    def surrogate(self, logp: Array, old: Array) -> tuple[Array, Array]:
        """Value and slope by log p of the batch's tokens; `old` is the ratio's denominator."""
        rule, a = {"kind": "reinforce", **(self.d.get("surrogate") or {})}, self.a
        if rule["kind"] == "reinforce":
            return -a * logp, -a
        r, (low, high) = np.exp(logp - old), self.clip(rule)
        if rule["kind"] == "cispo":
            held = np.minimum(np.maximum(r, low), high)
            return -held * a * logp, -held * a
        bounded = np.where(a > 0, np.minimum(r, high), np.maximum(r, low))
        if rule.get("dual"):
            bounded = np.where(a < 0, np.minimum(bounded, F(rule["dual"])), bounded)
        return -a * bounded, np.where(self.free(rule, r, a), -a * r, 0)

    @staticmethod
    def clip(rule: Record) -> tuple[Any, Any]:
        """The surrogate's band; an absent side is unbounded."""
        low = rule.get("eps_low", None if rule["kind"] == "cispo" else 0.2)
        high = rule.get("eps_high", 0.2)
        return F(-np.inf if low is None else 1 - low), F(np.inf if high is None else 1 + high)

    def free(self, rule: Record, r: Array, a: Array) -> Array:
        """Where no bound of ppo_clip holds."""
        low, high = self.clip(rule)
        return ~(((a > 0) & (r > high)) | ((a < 0) & ((r < low) | (r > F(rule.get("dual") or np.inf)))))

    def factor(self, logp: Array, logq: Array, logo: Array | None, a: Array) -> tuple[Array, Array]:
        """f times gate at any slots, and where f is the unclamped ratio itself."""
        shape = np.broadcast(logq, a).shape
        f, same = np.ones(shape, dtype=F), np.zeros(shape, dtype=bool)
        rule, gate = self.d.get("weight"), self.d.get("gate")
        if rule is not None:
            n, d, rho, keep, exempt, (low, high) = self.band(rule, logp, logq, logo, a)
            one = rule.get("inside", "ratio") == "one"
            outside = {"zero": F(0), "clip": np.where(rho <= low, low, high), None: rho}[rule.get("outside")]
            f = np.where(exempt, 1, np.where(keep, F(1) if one else rho, outside)).astype(F)
            clamp = rule.get("log_clamp")
            same = keep & ~exempt & (not one) & (clamp is None or np.abs(d) < clamp)
        if gate is not None:
            _, _, _, keep, exempt, _ = self.band(gate, logp, logq, logo, a)
            f = np.where(keep | exempt, f, 0)
        return f, same

    def band(self, rule: Record, logp: Array, logq: Array, logo: Array | None, a: Array) -> tuple:
        """(log n, log-ratio, clamped ratio, inside the band, exempt by sign, bounds) of a weight or a gate."""
        n = logp if logo is None or rule.get("numerator") == "trainer" else logo
        d = np.where(np.isneginf(n) & np.isneginf(logq), F(0), n - logq)
        clamp, name = rule.get("log_clamp"), rule.get("statistic", "ratio")
        rho = np.exp(d if clamp is None else np.clip(d, -clamp, clamp))
        seen = rho if name == "ratio" else np.exp(n) - np.exp(logq)
        seen = np.abs(seen) if name == "tv" else seen
        low, high = self.bounds(rule, a)
        keep = (seen >= low) & (seen <= high)
        if not rule.get("closed", True):
            keep = ((seen > low) | (low == -np.inf)) & ((seen < high) | (high == np.inf))
        sign = rule.get("sign", "both")
        exempt = a < 0 if sign == "positive" else (a >= 0) & (sign == "negative")
        return n, d, rho, keep, exempt, (low, high)

    @staticmethod
    def bounds(rule: Record, a: Array) -> tuple[Array, Array]:
        """Lower and upper bound per token by the sign of A."""

        def side(key: str) -> tuple[float, float]:
            own = rule.get(key) or rule
            low, high = own.get("low", 0.0), own.get("high")
            return -np.inf if low is None else low, np.inf if high is None else high

        up, down = side("positive"), side("negative")
        return np.where(a >= 0, up[0], down[0]).astype(F), np.where(a >= 0, up[1], down[1]).astype(F)

    def mass(self, logq: Array, logp: Array, logo: Array | None, a: Array) -> Array:
        """q g(v), formed so that cancelling ratios are never taken: q (o/q)(p/o) is p."""
        f, same = self.factor(logp, logq, logo, a)
        rule = self.d.get("weight")
        gated = (f == 0) & (self.d.get("gate") is not None)
        frozen = rule is not None and logo is not None and rule.get("numerator") != "trainer"
        base = np.where(same, logo if frozen else logp, logq)  # log of q f, where f is the ratio
        factor = np.where(same, F(1), f) / (self.divisor if rule is not None else F(1))
        surrogate = {"kind": "reinforce", **(self.d.get("surrogate") or {})}
        if surrogate["kind"] != "reinforce":
            old = logq if logo is None else logo
            r = np.exp(np.where(np.isneginf(logp) & np.isneginf(old), F(0), logp - old))
            low, high = self.clip(surrogate)
            if surrogate["kind"] == "ppo_clip":
                free, bound = self.free(surrogate, r, a), r
                factor = np.where(free, factor, 0)
            else:
                free, bound = (r >= low) & (r <= high), np.minimum(np.maximum(r, low), high)
            cancels = free & (base == old)
            factor = np.where(cancels | (factor == 0), factor, factor * bound)
            base = np.where(cancels, logp, base)
        size = np.exp(base)
        return np.where(gated | (factor == 0) | (size == 0), 0, factor * size)
