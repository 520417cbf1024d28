"""Mutants of masks: padding that leaks into values, means and metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..contract import Objective
from .arrays import State
from .edits import EditedState, Uncleaned
from .plain import Plain
from .registry import LOG_PROBS, OBJECTIVE, WEIGHT, Smallest, mutant
from .smallest import chosen, logps, values

Array = np.ndarray
SUM = {"kind": "token-sum"}


@mutant(
    "kl-at-masked-tokens", [28], "slime #1372", "mask", OBJECTIVE,
    Smallest(
        chosen([[-1.0, -1.0, -1.0]], a=[[0.0] * 3], mask=[[1, 0, 1]], ref=[[-1.1, -6.0, -1.1]],
               kl={"kind": "k1", "beta": 1.0}, aggregation=SUM),
        "loss", 0.2, 5.2,
    ),
)  # fmt: skip
class KlAtMaskedTokens(Plain):
    """The KL term is added at every position: beta sum_t kl_t in place of beta sum_t m_t kl_t."""

    def objective_case(self, x: dict[str, Array], definition: Any) -> dict[str, Any]:
        out = super().objective_case(x, definition)
        if not definition.get("kl"):
            return out
        everywhere = {**x, "mask": np.ones_like(x["mask"])}
        s = self.prepare(everywhere, Objective.from_dict(definition))
        off, coef = x["mask"] == 0, self.coefficients(s.objective.aggregation, x["mask"] != 0).max()
        rule = s.objective.kl
        outside = coef * rule.beta * self.kl_value(rule.kind, s.logr - s.logp)
        slope = np.where(off, coef * rule.beta * self.kl_slope(rule.kind, s.logr - s.logp), 0)
        out["loss"] = out["loss"] + outside[off].sum()
        out["grad_logits"] = out["grad_logits"] + self.to_logits(s, slope, np.zeros_like(s.rows_p))
        return out


@mutant(
    "padding-not-rezeroed", [29], "verl #1527", "mask", WEIGHT,
    Smallest(logps("weight", [[-1.0, -1.0]], [[-1.0, -1.0]], mask=[[1, 0]]), "weights", [[1.0, 0.0]], [[1.0, 1.0]]),
)  # fmt: skip
class PaddingNotRezeroed(Plain):
    """A map of the masked zeros, exp(0) or -mean/std, is not multiplied by the mask again: padding is not 0."""

    def weigh(self, s: Any, rule: Any, gate: Any) -> tuple[Array, Array, Any]:
        w, row, divisor = super().weigh(s, rule, gate)
        return np.where(s.mask, w, 1 / divisor), row, divisor


@mutant(
    "token-path-unguarded", [39], "TRL #5413", "mask", WEIGHT,
    Smallest(
        logps("weight", [[-1.0, -1.0]], [[-1.0, "NaN"]], mask=[[1, 0]]), "weights", [[1.0, 0.0]], [[1.0, "NaN"]]
    ),
)  # fmt: skip
class TokenPathUnguarded(Uncleaned):
    """The inlined token-level path multiplies exp(d) by the mask; the row-level path selects."""

    def weigh(self, s: Any, rule: Any, gate: Any) -> tuple[Array, Array, Any]:
        w, row, divisor = super().weigh(s, rule, gate)
        if rule is None or rule.level != "token" or rule.normalise is not None:
            return w, row, divisor
        f, _ = self.weight(rule, self.leveled(s, rule), s.advantages, s.numerator(rule.numerator), s.logq)
        return np.where(s.mask, w, f * 0), row, divisor


@mutant(
    "mask-after-arithmetic", [42], "NeMo-RL #4120, OpenRLHF #1240", "mask", ("aggregate", *LOG_PROBS),
    Smallest(
        logps("ratio", [[-1.0, -1.0]], [[-1.0, "NaN"]], mask=[[1, 0]]), "ratio", [[1.0, 0.0]], [[1.0, "NaN"]]
    ),
)  # fmt: skip
class MaskAfterArithmetic(Uncleaned):
    """exp(log p - log q) first, times the mask afterwards: NaN, inf and overflow under the mask survive x 0."""

    def select(self, values: Array, mask: Array) -> Array:
        return values * mask


@mutant(
    "row-reductions-multiply-by-mask", [43], "verl #6349, #2377", "mask", ("aggregate",),
    Smallest(
        values([[1.0, "NaN", 3.0]], [[1, 0, 1]], kind="seq-mean-token-sum"), "value", 4.0, "NaN"
    ),
)  # fmt: skip
class RowReductionsMultiply(Plain):
    """Token reductions select, row reductions compute sum(x * mask)."""

    def aggregate_case(self, x: dict[str, Array], settings: Any) -> dict[str, Any]:
        out = super().aggregate_case(x, settings)
        if str(settings.get("kind", "")).startswith("seq-mean"):
            out["value"] = (out["coefficients"] * x["values"]).sum()
        return out


@mutant(
    "kl-metric-times-mask", [44], "SkyRL #1633, ms-swift #9767", "mask", ("diagnostics",),
    Smallest(
        logps("diagnostics", [[-1.0, 0.0]], [[-1.0, -1e10]], mask=[[1, 0]]), "diagnostics.kl_k3", 0.0, "NaN"
    ),
)  # fmt: skip
class KlMetricTimesMask(Uncleaned):
    """k3 is formed at every position and multiplied by the mask: exp(1e10) * 0 = NaN."""

    def token_mean(self, values: Array, mask: Array) -> Any:
        return (values * mask).sum() / max(mask.sum(), 1)


@mutant(
    "zero-probability-shrinks-all-masks", [47], "NeMo-RL #3551", "mask", LOG_PROBS,
    Smallest(
        logps("diagnostics", [[-1.0, "-Infinity", -2.0]], [[-1.5, -1.0, -2.5]]), "diagnostics.ratio_mean", 1.09915, 1.64872
    ),
)  # fmt: skip
class ZeroProbabilityShrinksMasks(EditedState):
    """A token with log p = -inf leaves every mask: the denominators of loss, KL and metrics change."""

    def edit(self, s: State) -> State:
        return replace(s, mask=s.mask & np.isfinite(s.logp))
