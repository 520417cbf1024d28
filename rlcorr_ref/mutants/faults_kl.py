"""Mutants of KL and entropy terms in the loss: sign, direction, gradient, weighting, shared buffers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import scatter
from .plain import Plain
from .registry import OBJECTIVE, RAISES, Smallest, mutant
from .smallest import chosen, logps

Array = np.ndarray


def kl(kind: str, beta: float = 1.0, **more: Any) -> dict:
    """One token, log p = -1, log ref = -2, advantage 0 unless given."""
    return chosen([[-1.0]], a=[[0.0]], ref=[[-2.0]], kl={"kind": kind, "beta": beta}, **more)


def entropy(coef: float = 1.0, **definition: Any) -> dict:
    """Three logits (1, 0, -1), sampled id 0, advantage 1."""
    inputs = {
        "logits": [[[1.0, 0.0, -1.0]]],
        "tokens": [[0]],
        "mask": [[1]],
        "advantages": [[1.0]],
        "logp_sampler": [[-1.0]],
    }
    return {"function": "objective", "inputs": inputs, "definition": {"entropy": {"coef": coef}, **definition}}


@mutant(
    "kl-always-weighted", [7], "ms-swift #8321, Liger-Kernel #1088", "semantics", OBJECTIVE,
    Smallest(
        chosen([[-1.0]], [[-1.0 + math.log(2.0)]], ref=[[-3.0]], weight={}, kl={"kind": "k1", "beta": 0.1}),
        "grad_logp", [[-0.4]], [[-0.45]],
    ),
)  # fmt: skip
class KlAlwaysWeighted(Plain):
    """w (L + beta KL) in place of w L + beta KL."""

    def kl_factor(self, rule: Any, weights: Array) -> Array:
        return rule.beta * weights


@mutant(
    "kl-never-weighted", [], "ms-swift #8321", "semantics", OBJECTIVE,
    Smallest(
        chosen([[-1.0]], [[-1.0 + math.log(2.0)]], ref=[[-3.0]], weight={}, kl={"kind": "k1", "beta": 0.1, "weighted": True}),
        "grad_logp", [[-0.45]], [[-0.4]],
    ),
)  # fmt: skip
class KlNeverWeighted(Plain):
    """w L + beta KL where w (L + beta KL) is asked for."""

    def kl_factor(self, rule: Any, weights: Array) -> Array:
        return np.full_like(weights, rule.beta)


@mutant(
    "straight-through-name-unknown", [11], "verl #6058", "semantics", OBJECTIVE,
    Smallest(kl("k3+"), "loss", 0.3679, RAISES),
)  # fmt: skip
class StraightThroughUnknown(Plain):
    """The suffix of "k3+" is forwarded to the dispatcher, which knows no such estimator."""

    def kl_value(self, kind: str, x: Array) -> Array:
        return {"k1": -x, "k2": x * x / 2, "k3": self.k3(x)}[kind]


@mutant(
    "kl-maximised", [49], "verl #179, Logic-RL #58", "formula", OBJECTIVE,
    Smallest(kl("k3", 0.1), "loss", 0.0368, -0.0368),
)  # fmt: skip
class KlMaximised(Plain):
    """loss = L - beta KL."""

    def kl_factor(self, rule: Any, weights: Array) -> Array:
        return -super().kl_factor(rule, weights)


@mutant(
    "k3-exponentiates-twice", [51], "rocket-learn #12", "formula", ("reject", "diagnostics", *OBJECTIVE),
    Smallest(logps("diagnostics", [[-1.5]], [[-1.0]]), "diagnostics.kl_k3", 0.1065, 0.2275),
)  # fmt: skip
class K3ExponentiatesTwice(Plain):
    """exp(r) - 1 - r in place of r - 1 - log r: 0.718 at zero drift."""

    def k3(self, d: Array) -> Array:
        return super().k3(np.exp(d))


@mutant(
    "k3-without-minus-one", [], "", "formula", ("reject", "diagnostics", *OBJECTIVE),
    Smallest(logps("diagnostics", [[-1.0]], [[-1.0]]), "diagnostics.kl_k3", 0.0, 1.0),
)  # fmt: skip
class K3WithoutMinusOne(Plain):
    """exp(d) - d: 1 at zero drift."""

    def k3(self, d: Array) -> Array:
        return super().k3(d) + 1


@mutant(
    "k3-of-the-reciprocal", [], "AReaL", "formula", ("reject", *OBJECTIVE),
    Smallest(kl("k3"), "loss", 0.3679, 0.7183),
)  # fmt: skip
class K3Reciprocal(Plain):
    """exp(-d) - 1 + d: the other direction's estimator."""

    def k3(self, d: Array) -> Array:
        return super().k3(-d)

    def kl_slope(self, kind: str, x: Array) -> Array:
        return np.expm1(-x) if kind == "k3" else super().kl_slope(kind, x)


@mutant(
    "k3-plus-differentiates-its-value", [52], "verl #2953, TRL #4638", "formula", OBJECTIVE,
    Smallest(kl("k3+"), "grad_logp", [[1.0]], [[0.6321]]),
)  # fmt: skip
class K3PlusDifferentiated(Plain):
    """ "k3+" has k3's own gradient 1 - exp(x) in place of k2's -x."""

    def kl_slope(self, kind: str, x: Array) -> Array:
        return super().kl_slope("k3" if kind == "k3+" else kind, x)


@mutant(
    "k3-has-the-gradient-of-k2", [], "verl #2953", "formula", OBJECTIVE,
    Smallest(kl("k3"), "grad_logp", [[0.6321]], [[1.0]]),
)  # fmt: skip
class K3HasK2Gradient(Plain):
    """k3's value with k2's gradient where plain k3 is asked for."""

    def kl_slope(self, kind: str, x: Array) -> Array:
        return -x if kind == "k3" else super().kl_slope(kind, x)


@mutant(
    "k1-slope-zero", [], "", "formula", OBJECTIVE,
    Smallest(kl("k1"), "grad_logp", [[1.0]], [[0.0]]),
)  # fmt: skip
class K1SlopeZero(Plain):
    """k1 is added as a constant: no gradient."""

    def kl_slope(self, kind: str, x: Array) -> Array:
        return np.zeros_like(x) if kind == "k1" else super().kl_slope(kind, x)


@mutant(
    "kl-overwrites-the-log-ratio", [54], "TRL #6637", "formula", OBJECTIVE,
    Smallest(
        chosen([[-1.0]], [[-1.0]], ref=[[-2.0]], weight={}, kl={"kind": "k1", "beta": 1e-9}), "grad_logp", [[-1.0]], [[-0.3679]]
    ),
)  # fmt: skip
class KlOverwritesLogRatio(Plain):
    """With beta != 0 the name log_ratio is reused: the policy weight becomes exp(log ref - log p)."""

    def log_ratio(self, s: Any, numerator: str | None) -> Array:
        if s.objective.kl is None or s.objective.kl.beta == 0 or s.logr is None:
            return super().log_ratio(s, numerator)
        return s.logr - s.logp


@mutant(
    "entropy-of-the-gradient-buffer", [68], "unsloth #5002, ms-swift #10129, #10130, Liger-Kernel #1251", "numerics", OBJECTIVE,
    Smallest(entropy(), "loss", -0.4248, -0.66401),
)  # fmt: skip
class EntropyOfGradientBuffer(Plain):
    """The cross-entropy backward writes p - e_y into the logits; the entropy reads them as logits."""

    def entropy_rows(self, s: Any) -> tuple[Array, Array, Array]:
        hit = np.arange(s.rows_p.shape[-1]) == s.tokens[..., None]
        buffer = np.exp(s.rows_p) - hit
        rows = self.log_softmax_rows(buffer.astype(self.dtype), s.temperature, s.inside)
        return super().entropy_rows(replace(s, rows_p=rows))


@mutant(
    "entropy-at-temperature-twice", [71], "TRL #7125, #5254, verl #6935", "numerics", OBJECTIVE,
    Smallest(entropy(temperature=0.5, surrogate={"kind": "reinforce"}), "loss", -0.29813, 0.04990),
)  # fmt: skip
class EntropyAtTemperatureTwice(Plain):
    """logits.div_(T) in place on a shared view: the entropy sees z/T^2."""

    def entropy_rows(self, s: Any) -> tuple[Array, Array, Array]:
        rows = self.log_softmax_rows(s.logits, s.temperature**2, s.inside)
        return super().entropy_rows(replace(s, rows_p=rows))


@mutant(
    "entropy-sign", [], "", "formula", OBJECTIVE,
    Smallest(entropy(), "loss", -0.4248, 1.2399),
)  # fmt: skip
class EntropySign(Plain):
    """loss + coef H."""

    def entropy_factor(self, coef: float, weights: Array) -> Array:
        return -super().entropy_factor(coef, weights)


@mutant(
    "entropy-weighted", [], "", "semantics", OBJECTIVE,
    Smallest(entropy(weight={}), "loss", -0.09532, -0.76815),
)  # fmt: skip
class EntropyWeighted(Plain):
    """The entropy bonus is multiplied by the importance weight."""

    def entropy_factor(self, coef: float, weights: Array) -> Array:
        return coef * weights


@mutant(
    "entropy-of-the-head", [], "", "semantics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[1.0, 0.0, -1.0]]], "tokens": [[0]], "mask": [[1]], "advantages": [[0.0]],
                       "logp_sampler": [[-1.0]], "head_ids": [[[0]]], "head_logp_sampler": [[[-1.0]]]},
            "definition": {"entropy": {"coef": 1.0}},
        },
        "loss", -0.8324, -0.2711,
    ),
)  # fmt: skip
class EntropyOfHead(Plain):
    """- sum over the head of p log p in place of the whole row."""

    def entropy_rows(self, s: Any) -> tuple[Array, Array, Array]:
        h, slope_z, slope_logp = super().entropy_rows(s)
        if s.head_ids is None:
            return h, slope_z, slope_logp
        on_head = scatter(np.ones(s.head_ids.shape), s.head_ids, slope_z.shape[-1]) > 0
        part = np.where(on_head, slope_logp - np.exp(s.rows_p), 0).sum(-1)
        return -part, np.where(on_head, slope_z, 0), np.where(on_head, slope_logp, 0)
