"""Mutants that overflow, in float32 unless said: exp before the bound, 0 * inf, maxima not subtracted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .plain import Plain
from .registry import LOG_PROBS, LOGITS, OBJECTIVE, SURROGATE, WEIGHT, Smallest, mutant
from .smallest import chosen, logps, softmax

Array = np.ndarray
HALVES = [[[0.0, 0.0]]]


def two_logits(y: int, logq: float, a: float = 1.0, **definition: Any) -> dict:
    """One token over two equal logits."""
    inputs = {"logits": HALVES, "tokens": [[y]], "mask": [[1]], "advantages": [[a]], "logp_sampler": [[logq]]}
    return {"function": "objective", "inputs": inputs, "definition": definition}


@mutant(
    "kl-clamped-after-exp", [40], "OpenRLHF #1335, #1160", "numerics", OBJECTIVE,
    Smallest(
        chosen([[-101.0]], a=[[0.0]], ref=[[-1.0]], kl={"kind": "k3", "beta": 1.0}), "loss", 2.68812e43, 10.0
    ),
    dtype=np.float32,
)  # fmt: skip
class KlClampedAfterExp(Plain):
    """clamp(exp(x) - 1 - x, +-10): another value beyond x = 2.6, and a backward of 0 * inf = NaN where exp overflows."""

    def kl_value(self, kind: str, x: Array) -> Array:
        value = super().kl_value(kind, x)
        return np.clip(value, -10, 10) if kind in ("k3", "k3+") else value

    def kl_slope(self, kind: str, x: Array) -> Array:
        slope = super().kl_slope(kind, x)
        return slope if kind != "k3" else slope * (np.abs(super().kl_value(kind, x)) <= 10)


@mutant(
    "rejected-token-times-infinity", [41], "prime-rl #2084, #2085", "numerics", OBJECTIVE,
    Smallest(
        two_logits(0, -100.0, weight={}, rejection=[{"statistic": "ratio", "reduce": "token", "high": 2.0}]),
        "loss", 0.0, "NaN",
    ),
    dtype=np.float32,
)  # fmt: skip
class RejectedTimesInfinity(Plain):
    """keep * A * exp(d) with keep = 0 and exp(d) = inf in place of a selection."""

    def switched(self, coef: Array, values: Array) -> Array:
        return coef * values


@mutant(
    "unclipped-branch-times-zero", [45], "miles #1363", "numerics", SURROGATE,
    Smallest(
        logps("surrogate", [[-1.0]], [[-101.0]], a=[[0.0]], kind="ppo_clip"), "value", [[0.0]], [["NaN"]]
    ),
    dtype=np.float32,
)  # fmt: skip
class UnclippedTimesZero(Plain):
    """max(-rA, -clip(r)A) evaluates r A with r = inf and A = 0."""

    def clipped_objective(self, rule: Any, r: Array, advantages: Array) -> Array:
        return np.minimum(r * advantages, super().clipped_objective(rule, r, advantages))


@mutant(
    "entropy-zero-times-infinity", [46], "SkyRL #2259, VeOmni #720", "numerics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[1.0, 0.0, "-Infinity"]]], "tokens": [[0]], "mask": [[1]], "advantages": [[0.0]],
                       "logp_sampler": [[-1.0]]},
            "definition": {"entropy": {"coef": 1.0}},
        },
        "loss", -0.5822, "NaN",
    ),
)  # fmt: skip
class EntropyZeroTimesInfinity(Plain):
    """sum p log p with p = 0 and log p = -inf."""

    def entropy_rows(self, s: Any) -> tuple[Array, Array, Array]:
        p = np.exp(s.rows_p)
        plogp = p * s.rows_p
        h = -plogp.sum(axis=-1)
        return h, plogp + p * h[..., None], plogp + p


@mutant(
    "overflow-becomes-zero", [], "", "numerics", LOG_PROBS,
    Smallest(
        logps("weight", [[-1.0]], [[-101.0]], high=2.0, outside="clip"), "weights", [[2.0]], [[0.0]]
    ),
    dtype=np.float32,
)  # fmt: skip
class OverflowBecomesZero(Plain):
    """nan_to_num(exp(d), posinf=0) before the cap: the largest ratios get weight 0."""

    def ratio(self, d: Array) -> Array:
        return np.nan_to_num(np.exp(d), posinf=0.0)


@mutant(
    "mask-times-infinity", [], "", "numerics", WEIGHT,
    Smallest(
        logps("weight", [[-1.0]], [[-101.0]], high=2.0, outside="zero"), "weights", [[0.0]], [["NaN"]]
    ),
    dtype=np.float32,
)  # fmt: skip
class MaskTimesInfinity(Plain):
    """ratio * 1[in band] in place of a selection: inf * 0."""

    def outside(self, rule: Any, rho: Array, low: Array, high: Array) -> Array:
        return rho * 0 if rule.outside == "zero" else super().outside(rule, rho, low, high)


@mutant(
    "softmax-without-maximum", [], "", "numerics", LOGITS,
    Smallest(softmax([1000.0, 1000.0]), "logp", [[[-0.6931, -0.6931]]], [[["-Infinity", "-Infinity"]]]),
)  # fmt: skip
class SoftmaxWithoutMaximum(Plain):
    """z - log sum exp(z) without subtracting the maximum first."""

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        z = np.where(inside, z, -np.inf) / self.dtype(temperature)
        return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


@mutant(
    "maximum-off-the-support", [], "", "numerics", LOGITS,
    Smallest(
        softmax([200.0, 0.0, 0.0], support=[0, 1, 1]), "logp",
        [[["-Infinity", -math.log(2.0), -math.log(2.0)]]], [[["NaN", "Infinity", "Infinity"]]],
    ),
    dtype=np.float32,
)  # fmt: skip
class MaximumOffSupport(Plain):
    """The maximum is taken over the whole row and the support applied afterwards: everything underflows."""

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        shifted = (z - z.max(axis=-1, keepdims=True)) / self.dtype(temperature)
        shifted = np.where(inside, shifted, -np.inf)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
