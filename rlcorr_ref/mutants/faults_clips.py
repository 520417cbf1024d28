"""Mutants of clipped surrogates: branches, dual bound, bounds, modes, ties."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import times
from .edits import EditedSettings
from .plain import Plain
from .registry import HEAD, OBJECTIVE, SURROGATE, Smallest, mutant
from .smallest import chosen, logps

Array = np.ndarray
PPO = {"kind": "ppo_clip"}
CLIP = ("surrogate", "head_coefficients", "diagnostics", *OBJECTIVE)


def ratios(r: list[float], a: list[float], **parameters: Any) -> dict:
    """A surrogate case of tokens with ratios r and advantages a."""
    return logps("surrogate", [[math.log(0.05 * x) for x in r]], [[math.log(0.05)] * len(r)], a=[a], **parameters)


@mutant(
    "dual-clip-not-forwarded", [9], "RLinf #316, #323, slime #2247", "semantics", CLIP,
    Smallest(
        ratios([2.0, 2.0, 0.5], [2.0, -2.0, 2.0], **PPO, dual=1.5), "value", [[-2.4, 3.0, -1.0]], [[-2.4, 4.0, -1.0]]
    ),
)  # fmt: skip
class DualNotForwarded(EditedSettings):
    """The dual-clip constant of the configuration never reaches the loss."""

    def edit(self, settings: dict[str, Any], function: str) -> None:
        target = settings if function == "surrogate" else settings.get("surrogate") or {}
        target.pop("dual", None)


@mutant(
    "modes-exchanged", [10], "TRL #4499", "semantics", CLIP,
    Smallest(ratios([1.5], [1.0], kind="cispo"), "slope", [[-1.2]], [[0.0]]),
)  # fmt: skip
class ModesExchanged(Plain):
    """The branch is inverted: ppo_clip runs the truncated-ratio loss and cispo the clipped objective."""

    def surrogate_terms(self, s: Any, rule: Any) -> tuple[Array, Array, Array]:
        other = {"ppo_clip": "cispo", "cispo": "ppo_clip"}.get(rule.kind, rule.kind)
        return super().surrogate_terms(s, replace(rule, kind=other, dual=None if other == "cispo" else rule.dual))


@mutant(
    "clip-not-reduced", [24], "rllm #81", "formula", SURROGATE,
    Smallest(ratios([1.5], [1.0], **PPO), "slope", [[0.0]], [[-1.5]]),
)  # fmt: skip
class ClipNotReduced(Plain):
    """max(L1, L2) is formed and L1 = -r A is reduced: clipping has no effect."""

    def surrogate_terms(self, s: Any, rule: Any) -> tuple[Array, Array, Array]:
        value, slope, clipped = super().surrogate_terms(s, rule)
        if rule.kind not in ("ppo_clip", "gspo"):
            return value, slope, clipped
        raw = -times(s.advantages, self.ratio(self.surrogate_ratio(s, rule)))
        return raw, raw, clipped


@mutant(
    "clip-takes-the-maximum", [], "", "formula", CLIP,
    Smallest(ratios([0.5], [1.0], **PPO), "value", [[-0.5]], [[-0.8]]),
)  # fmt: skip
class ClipTakesMaximum(Plain):
    """max(r A, clip(r) A) in place of min: the bound acts on the side where it must not."""

    def active(self, rule: Any, r: Array, advantages: Array) -> Array:
        low, high = self.clip_range(rule)
        return ~np.where(advantages > 0, r < low, (advantages < 0) & (r > high))

    def clipped_objective(self, rule: Any, r: Array, advantages: Array) -> Array:
        low, high = self.clip_range(rule)
        return np.maximum(times(advantages, r), times(advantages, np.clip(r, low, high)))


@mutant(
    "dual-clip-on-positive", [25], "tianshou #433, slime 2b10784d8", "formula", CLIP,
    Smallest(ratios([1.1, 10.0], [1.0, -1.0], **PPO, dual=3.0), "value", [[-1.1, 3.0]], [[-3.0, 3.0]]),
)  # fmt: skip
class DualOnPositive(Plain):
    """max(min(rA, clip(r)A), cA) for every sign of A: constant, without gradient, for A > 0."""

    def clipped_objective(self, rule: Any, r: Array, advantages: Array) -> Array:
        out = super().clipped_objective(rule, r, advantages)
        return out if rule.dual is None else np.maximum(out, rule.dual * advantages)

    def active(self, rule: Any, r: Array, advantages: Array) -> Array:
        active = super().active(rule, r, advantages)
        return active if rule.dual is None else active & ~((advantages > 0) & (r < rule.dual))


@mutant(
    "clip-sides-exchanged", [], "", "formula", CLIP,
    Smallest(ratios([1.25], [1.0], **PPO, eps_low=0.2, eps_high=0.5), "slope", [[-1.25]], [[0.0]]),
)  # fmt: skip
class ClipSidesExchanged(Plain):
    """eps_low and eps_high exchanged: band [1 - eps_high, 1 + eps_low]."""

    def clip_range(self, rule: Any) -> tuple[float, float]:
        return super().clip_range(replace(rule, eps_low=rule.eps_high, eps_high=rule.eps_low))


@mutant(
    "offset-is-the-cap", [], "", "semantics", CLIP,
    Smallest(ratios([5.5], [1.0], kind="cispo", eps_high=4.0), "slope", [[-5.0]], [[-4.0]]),
)  # fmt: skip
class OffsetIsCap(Plain):
    """cispo's eps_high is taken as the cap itself in place of 1 + eps_high."""

    def clip_range(self, rule: Any) -> tuple[float, float]:
        low, high = super().clip_range(rule)
        return (low, high - 1) if rule.kind == "cispo" else (low, high)


@mutant(
    "cispo-clipped-tokens-dead", [], "", "formula", SURROGATE,
    Smallest(ratios([1.5], [1.0], kind="cispo"), "slope", [[-1.2]], [[0.0]]),
)  # fmt: skip
class CispoDead(Plain):
    """Tokens whose ratio is clipped lose their gradient under cispo."""

    def surrogate_terms(self, s: Any, rule: Any) -> tuple[Array, Array, Array]:
        value, slope, clipped = super().surrogate_terms(s, rule)
        return value, np.where(clipped & (rule.kind == "cispo"), 0, slope), clipped


@mutant(
    "cispo-ratio-attached", [], "TRL #4499", "semantics", SURROGATE,
    Smallest(
        logps("surrogate", [[-2.0]], [[-2.1]], kind="cispo"), "slope", [[-1.1052]], [[1.1052]]
    ),
)  # fmt: skip
class CispoAttached(Plain):
    """-clip(r) A log p with r attached: slope -r A (1 + log p) where the ratio is not clipped."""

    def surrogate_terms(self, s: Any, rule: Any) -> tuple[Array, Array, Array]:
        value, slope, clipped = super().surrogate_terms(s, rule)
        attached = ~clipped & (rule.kind == "cispo")
        return value, np.where(attached, slope * (1 + s.logp), slope), clipped


@mutant(
    "tie-takes-clipped-branch", [], "", "semantics", CLIP,
    Smallest(logps("surrogate", [[-1.0]], [[-1.0]], **PPO, eps_high=0.0), "slope", [[-1.0]], [[0.0]]),
)  # fmt: skip
class TieTakesClipped(Plain):
    """A ratio exactly at the bound has slope 0."""

    def active(self, rule: Any, r: Array, advantages: Array) -> Array:
        low, high = self.clip_range(rule)
        tie = ((advantages > 0) & (r == high)) | ((advantages < 0) & (r == low))
        return super().active(rule, r, advantages) & ~tie


@mutant(
    "surrogate-sign", [], "", "formula", ("surrogate", *OBJECTIVE),
    Smallest(chosen([[-1.0]]), "grad_logp", [[-1.0]], [[1.0]]),
)  # fmt: skip
class SurrogateSign(Plain):
    """The objective is minimised: loss = + A log p."""

    def surrogate_terms(self, s: Any, rule: Any) -> tuple[Array, Array, Array]:
        value, slope, clipped = super().surrogate_terms(s, rule)
        return -value, -slope, clipped


@mutant(
    "clip-inside-centering-forgotten", [], "", "formula", HEAD,
    Smallest(
        {
            "function": "head_coefficients",
            "inputs": {
                "head_logp_sampler": [[[math.log(0.25), math.log(0.5)]]],
                "head_logp_trainer": [[[math.log(0.5), math.log(0.25)]]],
                "mask": [[1]],
            },
            "parameters": {"surrogate": PPO, "centering": {"tail": "dropped"}},
        },
        "coefficients", [[[0.0, 0.25]]], [[[0.5, 0.25]]],
    ),
)  # fmt: skip
class ClipInsideForgotten(Plain):
    """Centering uses g = r for every token, clipped ones included."""

    def times_ratio(self, o: Any, out: Array, old: Array, logp: Array, a: Array) -> Array:
        unclipped = replace(o.surrogate, kind="cispo", eps_low=None, eps_high=None, dual=None)
        return super().times_ratio(replace(o, surrogate=unclipped), out, old, logp, a)
