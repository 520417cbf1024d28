"""Mutants of rejection: denominators, what a dropped token still contributes, statistics over the wrong tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import times
from .edits import EditedSettings
from .plain import Plain
from .registry import METRIC, OBJECTIVE, REJECT, Smallest, mutant
from .smallest import chosen, logps

Array = np.ndarray
K1_TOKEN = {"statistic": "k1", "reduce": "token", "high": 1.0}
K1_MEAN = {"statistic": "k1", "reduce": "mean", "high": 0.25}
RATIO_TOKEN = {"statistic": "ratio", "reduce": "token", "high": 2.0}
K2_TOKEN = {"statistic": "k2", "reduce": "token", "high": 9.0}


@mutant(
    "kept-read-as-shrunk", [55], "verl #3915, slime #657", "semantics", OBJECTIVE,
    Smallest(
        chosen([[-1.0, -1.0]], [[-1.0, -3.0]],
               rejection=[RATIO_TOKEN]),
        "grad_logp", [[-0.5, 0.0]], [[-1.0, 0.0]],
    ),
)  # fmt: skip
class KeptReadAsShrunk(Plain):
    """Dropped tokens leave the denominator: sum(keep w l)/sum(keep) in place of /sum(mask)."""

    def counted(self, s: Any, rules: tuple, keep: Array) -> Array:
        return keep


@mutant(
    "shrunk-read-as-kept", [55, 77], "AReaL #1088, mlcommons/training #905, TRL #6439", "semantics", OBJECTIVE,
    Smallest(
        chosen([[-1.0, -1.0]], [[-1.0, -3.0]],
               rejection=[{"statistic": "ratio", "reduce": "token", "high": 2.0, "denominator": "shrunk"}]),
        "grad_logp", [[-1.0, 0.0]], [[-0.5, 0.0]],
    ),
)  # fmt: skip
class ShrunkReadAsKept(Plain):
    """Dropped tokens stay in the denominator although the rule takes them out."""

    def counted(self, s: Any, rules: tuple, keep: Array) -> Array:
        return s.mask


@mutant(
    "everything-rejected-divides-by-zero", [57], "verl #6485", "reduction", OBJECTIVE,
    Smallest(
        chosen([[-1.0]], [[-3.0]], rejection=[RATIO_TOKEN]), "loss", 0.0, "NaN"
    ),
)  # fmt: skip
class EverythingRejected(Plain):
    """A batch of which nothing survives divides 0 by 0."""

    def objective_case(self, x: dict[str, Array], definition: Any) -> dict[str, Any]:
        out = super().objective_case(x, definition)
        if (x["mask"] != 0).any() and not out["mask"].any():
            out["loss"], out["grad_logp"] = np.nan, np.full_like(out["grad_logp"], np.nan)
        return out


@mutant(
    "rejected-tokens-keep-their-terms", [], "", "mask", OBJECTIVE,
    Smallest(
        chosen([[-1.0, -1.0]], [[-1.0, -3.0]], a=[[0.0, 0.0]], ref=[[-2.0, -2.0]], kl={"kind": "k1", "beta": 1.0},
               rejection=[RATIO_TOKEN]),
        "loss", 0.5, 1.0,
    ),
)  # fmt: skip
class RejectedKeepTerms(Plain):
    """Rejection removes the surrogate only: KL, entropy and centering of a dropped token stay in the loss."""

    def objective_case(self, x: dict[str, Array], definition: Any) -> dict[str, Any]:
        out = super().objective_case(x, definition)
        if not definition.get("rejection"):
            return out
        rest = super().objective_case(
            {**x, "advantages": x["advantages"] if definition.get("centering") is not None else 0 * x["advantages"]},
            {key: value for key, value in definition.items() if key != "rejection"},
        )
        dropped = (x["mask"] != 0) & (out["mask"] == 0)
        out["loss"] = out["loss"] + times(dropped, rest["token_loss"]).sum() / max((x["mask"] != 0).sum(), 1)
        out["grad_logits"] = np.where(dropped[..., None], rest["grad_logits"], out["grad_logits"])
        return out


@mutant(
    "row-veto-drops-tokens", [], "", "semantics", REJECT,
    Smallest(
        logps("reject", [[-10.0, -1.0]], [[-1.0, -1.0]], statistic="k1", reduce="max", high=5.0),
        "mask", [[0, 0]], [[0, 1]],
    ),
)  # fmt: skip
class VetoDropsTokens(Plain):
    """A rule on the row's maximum drops the offending token in place of the row."""

    def reduced(self, rule: Any, value: Array, mask: Array) -> Array:
        return value if rule.reduce == "max" else super().reduced(rule, value, mask)


@mutant(
    "token-rule-drops-rows", [], "", "semantics", REJECT,
    Smallest(
        logps("reject", [[-1.0, -1.0]], [[-3.0, -1.0]], statistic="ratio", reduce="token", high=2.0),
        "mask", [[0, 1]], [[0, 0]],
    ),
)  # fmt: skip
class TokenRuleDropsRows(Plain):
    """A token rule drops the whole row as soon as one of its tokens falls."""

    def keeps(self, rule: Any, s: Any, mask: Array) -> Array:
        keep = super().keeps(rule, s, mask)
        fallen = (mask & ~keep).any(axis=1, keepdims=True)
        return keep & ~fallen if rule.reduce == "token" else keep


@mutant(
    "row-statistics-over-edited-mask", [], "", "mask", REJECT,
    Smallest(
        logps("reject", [[-2.25, -1.125, -1.0]], [[-1.0, -1.0, -1.0]],
              rejection=[K1_TOKEN, K1_MEAN]),
        "mask", [[0, 0, 0]], [[0, 1, 1]],
    ),
)  # fmt: skip
class StatisticsOverEditedMask(Plain):
    """A later rule's row statistic runs over what earlier rules have left."""

    def reject(self, s: Any, rules: tuple) -> Array:
        keep = s.mask.copy()
        for rule in rules:
            keep &= self.keeps(rule, s, keep)
        return keep


@mutant(
    "rejection-rules-ored", [], "", "semantics", REJECT,
    Smallest(
        logps("reject", [[-1.0, -1.0]], [[-3.0, -1.0]],
              rejection=[RATIO_TOKEN, K2_TOKEN]),
        "mask", [[0, 1]], [[1, 1]],
    ),
)  # fmt: skip
class RulesOred(Plain):
    """A token survives when any rule keeps it, in place of all."""

    def reject(self, s: Any, rules: tuple) -> Array:
        keep = np.zeros_like(s.mask) if rules else s.mask.copy()
        for rule in rules:
            keep |= self.keeps(rule, s, s.mask)
        return keep & s.mask


@mutant(
    "rejection-inverted", [], "", "formula", REJECT,
    Smallest(
        logps("reject", [[-1.0, -1.0]], [[-3.0, -1.0]], statistic="ratio", reduce="token", high=2.0),
        "mask", [[0, 1]], [[1, 0]],
    ),
)  # fmt: skip
class RejectionInverted(Plain):
    """Tokens inside the band are dropped and those outside kept."""

    def keeps(self, rule: Any, s: Any, mask: Array) -> Array:
        return ~super().keeps(rule, s, mask)


@mutant(
    "k2-without-half", [], "", "formula", ("reject", "diagnostics", *OBJECTIVE),
    Smallest(
        logps("reject", [[-1.0]], [[-1.5]], statistic="k2", reduce="token", high=0.2), "mask", [[1]], [[0]]
    ),
)  # fmt: skip
class K2WithoutHalf(Plain):
    """k2 = d^2 in place of d^2/2, in rules, metrics and the loss."""

    def statistic(self, name: str, d: Array, s: Any) -> Array:
        return super().statistic(name, d, s) * (2 if name == "k2" else 1)

    def kl_value(self, kind: str, x: Array) -> Array:
        return super().kl_value(kind, x) * (2 if kind == "k2" else 1)

    def kl_slope(self, kind: str, x: Array) -> Array:
        return super().kl_slope(kind, x) * (2 if kind == "k2" else 1)

    def kl_estimates(self, d: Array, mask: Array) -> dict[str, Any]:
        out = super().kl_estimates(d, mask)
        return {**out, "kl_k2": 2 * out["kl_k2"]}


@mutant(
    "bernoulli-pair-exchanged", [], "", "formula", REJECT,
    Smallest(
        logps("reject", [[math.log(0.01)]], [[math.log(0.1)]], statistic="binary_kl", reduce="token", high=0.1),
        "mask", [[0]], [[1]],
    ),
)  # fmt: skip
class BernoulliExchanged(Plain):
    """KL(n || q) of the sampled token's Bernoulli pair in place of KL(q || n)."""

    def statistic(self, name: str, d: Array, s: Any) -> Array:
        if name != "binary_kl":
            return super().statistic(name, d, s)
        return super().statistic(name, -d, replace(s, logq=s.logq + d))


@mutant(
    "rejection-denominator-of-rows", [], "", "reduction", METRIC,
    Smallest(
        logps("diagnostics", [[-1.0, -1.0], [-1.0, -1.0]], [[-3.0, -1.0], [-1.0, -1.0]], mask=[[1, 1], [1, 0]],
              rejection=[RATIO_TOKEN]),
        "diagnostics.fraction_rejected_tokens", 1 / 3, 0.25,
    ),
)  # fmt: skip
class RejectedOverPaddedSize(Plain):
    """Fractions divide by B T in place of the number of valid tokens."""

    def token_mean(self, values: Array, mask: Array) -> Any:
        mean = super().token_mean(values, mask)
        return mean * mask.sum() / mask.size if values.dtype == bool else mean


@mutant(
    "rejection-clamp-forgotten", [], "", "semantics", REJECT,
    Smallest(
        logps("reject", [[-26.0, -1.0]], [[-1.0, -23.0]], statistic="k1", reduce="sum", low=2.0, high=8.0, log_clamp=5.0),
        "mask", [[0, 0]], [[1, 1]],
    ),
)  # fmt: skip
class RejectionClampForgotten(EditedSettings):
    """The clamp of a rejection rule is not applied."""

    def edit(self, settings: dict[str, Any], function: str) -> None:
        rules = settings.get("rejection", [settings] if function == "reject" else [])
        for rule in rules:
            rule.pop("log_clamp", None)
