"""Plain implementation: diagnostics over padded arrays. Steps that a mutant may replace."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contract import Objective
from .arrays import acts_on

Array = np.ndarray


class Metrics:
    """Every diagnostic of the contract; token means run over the original mask, row means over non-empty rows."""

    dtype: type

    def token_mean(self, values: Array, mask: Array) -> Any:
        """Mean over valid tokens."""
        return self.select(values, mask).sum() / max(mask.sum(), 1)

    def over_rows(self, per_row: Array, mask: Array) -> Any:
        """Mean over non-empty rows of per-row values [B]."""
        return per_row[mask.any(axis=1)].mean()

    def extremes(self, values: Array, mask: Array) -> tuple[Any, Any]:
        """Smallest and largest value on the mask."""
        return values[mask].min(), values[mask].max()

    def metric_log_ratio(self, s: Any, rule: Any) -> Array:
        """d that the mismatch metrics are made of: raw, never clamped."""
        return self.log_ratio(s, None if rule is None else rule.numerator)

    def metric_ratio(self, s: Any, rule: Any, weights: Array) -> Array:
        """Ratio at the weight's level that ratio statistics and fractions are made of: before truncation."""
        d = self.metric_log_ratio(s, rule)
        return self.ratio(self.level(d, "token" if rule is None else rule.level, s.mask))

    def kl_estimates(self, d: Array, mask: Array) -> dict[str, Any]:
        return {
            "kl_k1": self.token_mean(-d, mask),
            "kl_k2": self.token_mean(d * d / 2, mask),
            "kl_k3": self.token_mean(self.k3(d), mask),
            "kl_k3_reverse": self.token_mean(self.k3(-d), mask),
        }

    def chi_square(self, log_ratio: Array) -> Array:
        """exp(2 log ratio) - 1 elementwise."""
        return np.expm1(2 * log_ratio)

    def ess(self, w: Array) -> Any:
        """(sum w)^2/(N sum w^2) of the valid tokens' weights; 0 when all are 0. Scaled by the maximum first."""
        top = w.max(initial=0)
        if top == 0:
            return self.dtype(0)
        w = np.isinf(w).astype(self.dtype) if np.isinf(top) else w / top
        return w.sum() ** 2 / (w.size * (w * w).sum())

    def ess_weights(self, weights: Array, rule: Any) -> Array:
        """The weights whose effective sample size is reported: the applied ones."""
        return weights

    def clipped_tokens(self, s: Any, o: Objective, clipped: Array) -> Array:
        """Tokens that count in the clip fraction."""
        return clipped

    def beyond(self, s: Any, rule: Any, ratio: Array) -> tuple[Array, Array]:
        """Tokens whose raw ratio lies above and below the bounds that hold for them."""
        if rule is None or rule.statistic != "ratio":
            none = np.zeros(ratio.shape, dtype=bool)
            return none, none
        low, high = self.bounds(rule, s.advantages)
        on = acts_on(rule.sign, s.advantages)
        if rule.closed:
            return (ratio > high) & on, (ratio < low) & on
        return (ratio >= high) & np.isfinite(high) & on, (ratio <= low) & np.isfinite(low) & on

    def rejected_rows(self, s: Any, keep: Array) -> Array:
        """Rows [B] of which nothing is left."""
        return ~keep.any(axis=1)

    def diagnostics_of(
        self, s: Any, o: Objective, weights: Array, keep: Array, clipped: Array, term: Any = None, coef: Any = None
    ) -> dict[str, Any]:
        """All diagnostics by name; `term` is the centering term where there is one, `coef` the loss's reduction."""
        mask, rule = s.mask, o.weight
        if not mask.any():
            return {"valid_tokens": 0.0, "valid_rows": 0.0}
        d = self.metric_log_ratio(s, rule)
        logn = s.numerator(None if rule is None else rule.numerator)
        row_d = self.row_mean(-d, mask)
        ratio = self.metric_ratio(s, rule, weights)
        rows = row_d[mask.any(axis=1)]
        out = {
            "valid_tokens": float(mask.sum()),
            "valid_rows": float(mask.any(axis=1).sum()),
            **self.kl_estimates(d, mask),
            "ppl_trainer": self.over_rows(np.exp(-self.row_mean(logn, mask)), mask),
            "ppl_sampler": self.over_rows(np.exp(-self.row_mean(s.logq, mask)), mask),
            "log_ppl_diff_mean": self.over_rows(row_d, mask),
            "log_ppl_diff_abs": self.over_rows(np.abs(row_d), mask),
            "log_ppl_diff_min": rows.min(),
            "log_ppl_diff_max": rows.max(),
            "ppl_ratio": self.over_rows(np.exp(row_d), mask),
            "chi2_token": self.token_mean(self.chi_square(d), mask),
            "chi2_sequence": self.over_rows(self.chi_square(self.row_sum(d, mask)), mask),
        }
        for name, values in (("ratio", ratio), ("weight", weights)):
            mean = self.token_mean(values, mask)
            out[f"{name}_mean"] = mean
            out[f"{name}_std"] = np.sqrt(self.token_mean((values - mean) ** 2, mask))
            out[f"{name}_min"], out[f"{name}_max"] = self.extremes(values, mask)
        level = self.level(d, "token" if rule is None else rule.level, mask)[mask]
        out["ess"] = self.ess(self.ess_weights(weights, rule)[mask])
        out["ess_raw"] = self.ess(np.exp(level - level.max())) if np.isfinite(level.max()) else self.ess(np.exp(level))
        high, low = self.beyond(s, rule, ratio)
        out["fraction_high"], out["fraction_low"] = self.token_mean(high, mask), self.token_mean(low, mask)
        out["fraction_zero"] = self.token_mean(weights == 0, mask)
        out["fraction_rejected_tokens"] = self.token_mean(~keep, mask)
        out["fraction_rejected_rows"] = self.over_rows(self.rejected_rows(s, keep).astype(np.float64), mask)
        out["clip_fraction"] = self.token_mean(self.clipped_tokens(s, o, clipped), mask)
        out["zero_advantage_fraction"] = self.token_mean(s.advantages == 0, mask)
        out.update(self.head_metrics(s, o, term))
        return out

    def head_metrics(self, s: Any, o: Objective, term: Any) -> dict[str, Any]:
        """Head masses, tail ratio and the norm of the coefficients, where they exist."""
        names = ("head_mass_sampler", "head_mass_trainer", "centering_l1", "tail_ratio_mean", "tail_ratio_max")
        out: dict[str, Any] = dict.fromkeys(names)
        mask = s.mask
        if s.head_q is not None:
            q, p = np.exp(s.head_q).sum(-1), np.exp(s.head_p).sum(-1)
            out["head_mass_sampler"], out["head_mass_trainer"] = self.token_mean(q, mask), self.token_mean(p, mask)
            rule = o.centering
            if term is not None and rule.tail == "rescaled":
                ratio = term.ratio
            else:
                floors = (1e-6, 1e-6) if rule is None else (rule.floor_sampler or 0, rule.floor_trainer or 0)
                top, bottom = np.maximum(1 - q, floors[0]), np.maximum(1 - p, floors[1])
                ratio = np.where(top == bottom, 1, top / np.where(top == bottom, 1, bottom))
            out["tail_ratio_mean"], out["tail_ratio_max"] = self.token_mean(ratio, mask), self.extremes(ratio, mask)[1]
        if term is not None:
            reported = term.mass if term.wide else term.head
            out["centering_l1"] = self.token_mean(np.abs(reported).sum(-1), mask)
        return out
