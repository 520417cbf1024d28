"""Mutants of the importance ratio: its direction, its policies, whether and how often it is applied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import State, log_difference
from .edits import EditedSettings, EditedState
from .plain import Plain
from .registry import LOG_PROBS, OBJECTIVE, RATIO, REJECT, SURROGATE, WEIGHT, Smallest, mutant
from .smallest import chosen, logps

Array = np.ndarray
PPO = {"kind": "ppo_clip"}
TIS = {"high": 2.0, "outside": "clip"}


@mutant(
    "ratio-inverted", [], "", "formula", LOG_PROBS,
    Smallest(logps("ratio", [[-1.0]], [[-1.5]]), "ratio", [[1.6487]], [[0.6065]]),
)  # fmt: skip
class RatioInverted(Plain):
    """d = log q - log p in place of log p - log q."""

    def log_ratio(self, s: Any, numerator: str | None) -> Array:
        return -super().log_ratio(s, numerator)


@mutant(
    "unweighted-policy-term-is-constant", [2], "mlx-lm-lora #55, #50, #49", "formula", OBJECTIVE,
    Smallest(chosen([[-1.0, -2.0]], a=[[1.0, -1.0]]), "grad_logp", [[-0.5, 0.5]], [[0.0, 0.0]]),
)  # fmt: skip
class UnweightedIsConstant(Plain):
    """Without a weight level the coefficient is exp(0) = 1, a constant: value kept, d loss/d log p = 0."""

    def surrogate_terms(self, s: Any, rule: Any) -> tuple[Array, Array, Array]:
        value, slope, clipped = super().surrogate_terms(s, rule)
        dead = rule.kind == "reinforce" and s.objective.weight is None and s.logits is not None
        return value, np.zeros_like(slope) if dead else slope, clipped


@mutant(
    "sampler-is-current-policy", [3], "torchforge #571", "formula", LOG_PROBS,
    Smallest(logps("surrogate", [[-1.0]], [[-1.5]], **PPO), "slope", [[0.0]], [[-1.0]]),
)  # fmt: skip
class SamplerIsCurrent(EditedState):
    """Two policies: exp(log p - sg(log p)) = 1 in place of exp(log p - log q); stale data looks on-policy."""

    def edit(self, s: State) -> State:
        return replace(s, logq=s.logp) if s.logo is None else s


@mutant(
    "anchor-is-current-policy", [4, 123], "prime-rl 413cf0d1d, tt-blacksmith #731", "formula", LOG_PROBS,
    Smallest(logps("surrogate", [[-1.0]], [[-2.0]], o=[[-2.0]], **PPO), "slope", [[0.0]], [[-1.0]]),
)  # fmt: skip
class AnchorIsCurrent(EditedState):
    """o := sg(p), refreshed before the update: p/o = 1 for ever and clipping never binds."""

    def edit(self, s: State) -> State:
        return s if s.logo is None else replace(s, logo=s.logp)


@mutant(
    "weight-from-current-policy", [5], "slime #179", "formula", WEIGHT,
    Smallest(logps("weight", [[-1.0]], [[-1.5]], o=[[-1.2]]), "weights", [[1.3499]], [[1.6487]]),
)  # fmt: skip
class WeightFromCurrent(Plain):
    """w = p/q in place of o/q although an anchor is given: with p/o in the surrogate the update counts twice."""

    def leveled(self, s: Any, rule: Any) -> Array:
        return super().leveled(s, replace(rule, numerator="trainer"))


@mutant(
    "trainer-numerator-ignored", [], "", "semantics", RATIO,
    Smallest(
        logps("ratio", [[-1.0]], [[-1.5]], o=[[-1.2]], numerator="trainer"), "log_ratio", [[0.5]], [[0.3]]
    ),
)  # fmt: skip
class TrainerNumeratorIgnored(Plain):
    """numerator "trainer" has no effect: o/q in place of p/q."""

    def leveled(self, s: Any, rule: Any) -> Array:
        return super().leveled(s, replace(rule, numerator=None))


@mutant(
    "drift-against-anchor", [6], "TRL #4857", "semantics", REJECT,
    Smallest(
        logps("reject", [[-2.0, -2.0]], [[-1.0, -1.0]], o=[[-2.0, -2.0]], a=[[-1.0, -1.0]],
              statistic="k1", reduce="mean", high=0.5),
        "mask", [[0, 0]], [[1, 1]],
    ),
)  # fmt: skip
class DriftAgainstAnchor(Plain):
    """Rejection measures mean(log o - log p), both recomputed by the trainer, in place of log q against them."""

    def reject(self, s: Any, rules: tuple) -> Array:
        return super().reject(s if s.logo is None else replace(s, logq=s.logo, logo=None), rules)


@mutant(
    "weight-never-applied", [8], "Liger-Kernel #1082, #1088, TRL #5031", "formula", OBJECTIVE,
    Smallest(chosen([[-5.0]], [[-0.3948298]], weight={}), "grad_logp", [[-0.01]], [[-1.0]]),
)  # fmt: skip
class WeightNeverApplied(Plain):
    """The fused path accepts w and multiplies by 1."""

    def loss_weights(self, w: Array) -> Array:
        return np.ones_like(w)


@mutant(
    "anchor-reaches-ppo-only", [12], "verl #3274, #5615", "semantics", SURROGATE,
    Smallest(
        logps("surrogate", [[-1.0]], [[-2.0]], o=[[-1.0]], kind="cispo"), "slope", [[-1.0]], [[-1.2]]
    ),
)  # fmt: skip
class AnchorReachesPpoOnly(Plain):
    """cispo and gspo ignore the anchor's log-probs: r = p/q in place of p/o."""

    def surrogate_ratio(self, s: Any, rule: Any) -> Array:
        return super().surrogate_ratio(s if rule.kind == "ppo_clip" else replace(s, logo=None), rule)


@mutant(
    "anchor-ratio-from-sampler", [], "", "formula", SURROGATE,
    Smallest(logps("surrogate", [[-1.0]], [[-2.0]], o=[[-1.0]], **PPO), "slope", [[-1.0]], [[0.0]]),
)  # fmt: skip
class AnchorRatioFromSampler(Plain):
    """The surrogate's ratio is p/q in place of p/o under three policies."""

    def surrogate_ratio(self, s: Any, rule: Any) -> Array:
        return super().surrogate_ratio(replace(s, logo=None), rule)


@mutant(
    "default-cap-when-disabled", [], "", "semantics", OBJECTIVE,
    Smallest(
        chosen([[-1.0]], [[-2.0]]), "grad_logp", [[-1.0]], [[-2.0]]
    ),
)  # fmt: skip
class DefaultCapWhenDisabled(EditedSettings):
    """No weight in the definition: a default truncation at 2 is applied all the same."""

    def edit(self, settings: dict[str, Any], function: str) -> None:
        if function == "objective" and settings.get("weight") is None and not settings.get("surrogate"):
            settings["weight"] = TIS


@mutant(
    "double-ratio", [], "", "formula", OBJECTIVE,
    Smallest(
        chosen([[-1.0]], [[-1.1]], surrogate=PPO), "grad_logp", [[-1.1052]], [[-1.2214]]
    ),
)  # fmt: skip
class DoubleRatio(Plain):
    """p/q multiplies a surrogate that already holds p/q: the ratio is squared."""

    def loss_weights(self, w: Array) -> Array:
        return w * self.extra

    def surrogate_terms(self, s: Any, rule: Any) -> tuple[Array, Array, Array]:
        squared = rule.kind != "reinforce" and s.logo is None and s.objective.weight is None
        self.extra = np.exp(log_difference(s.logp, s.logq)) if squared else np.ones_like(s.logp)
        return super().surrogate_terms(s, rule)
