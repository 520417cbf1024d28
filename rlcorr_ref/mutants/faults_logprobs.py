"""Mutants of log-probs: temperature, support, vocabulary tiles, precision of the softmax."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import State, scatter
from .faults_reductions import to_bf16
from .plain import Plain
from .registry import LOGITS, OBJECTIVE, Smallest, mutant
from .smallest import softmax

Array = np.ndarray
THREE = [2.0, 1.0, 0.0]


def sampled(y: int, logq: float, **definition: Any) -> dict:
    """One token over the logits (2, 1, 0)."""
    inputs = {"logits": [[THREE]], "tokens": [[y]], "mask": [[1]], "advantages": [[1.0]], "logp_sampler": [[logq]]}
    return {"function": "objective", "inputs": inputs, "definition": definition}


@mutant(
    "ratio-at-temperature-one", [84, 91],
    "TRL #4159, #4163, vime #64, #69, open-instruct #1678, verl #6240", "semantics", OBJECTIVE,
    Smallest(sampled(1, -2.1429, temperature=0.5, weight={}), "weights", [[1.0]], [[2.0862]]),
)  # fmt: skip
class RatioAtTemperatureOne(Plain):
    """One side of the ratio is log softmax(z), the other log softmax(z/T): spurious ratios with identical weights."""

    def _raw(self, s: Any) -> Any:
        if s.logits is None or s.temperature == 1:
            return s
        rows = self.log_softmax_rows(s.logits, 1.0, s.inside)
        return replace(s, logp=self.clean(self.sampled(rows, s.tokens), s.mask))

    def log_ratio(self, s: Any, numerator: str | None) -> Array:
        return super().log_ratio(self._raw(s), numerator)

    def surrogate_ratio(self, s: Any, rule: Any) -> Array:
        return super().surrogate_ratio(self._raw(s), rule)


@mutant(
    "log-prob-over-temperature", [85], "prime-rl #697", "formula", LOGITS,
    Smallest(softmax(THREE, 0, temperature=0.5), "logp_token", [[-0.1429]], [[-0.8152]]),
)  # fmt: skip
class LogProbOverTemperature(Plain):
    """log softmax(z)/T in place of log softmax(z/T): no longer a distribution."""

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        return super().log_softmax_rows(z, 1.0, inside) / self.dtype(temperature)


@mutant(
    "temperature-forgotten", [86], "NeMo-RL #316, #902, #935, verl #3133, OpenRLHF #853", "semantics", LOGITS,
    Smallest(softmax(THREE, 0, temperature=0.5), "logp_token", [[-0.1429]], [[-0.4076]]),
)  # fmt: skip
class TemperatureForgotten(Plain):
    """The trainer's forward pass runs at T = 1."""

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        return super().log_softmax_rows(z, 1.0, inside)

    def gradient_temperature(self, s: Any) -> Any:
        return self.dtype(1)

    def score_temperature(self, temperature: float) -> Any:
        return self.dtype(1)


@mutant(
    "head-scored-at-temperature-one", [87], "slime #2085, #2319, #2325, miles #1345, sglang #36213", "semantics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[THREE]], "tokens": [[0]], "mask": [[1]], "advantages": [[1.0]], "logp_sampler": [[-0.2601]],
                       "head_ids": [[[0]]], "head_logp_sampler": [[[-0.2601]]]},
            "definition": {"temperature": 0.7, "centering": {"tail": "dropped"}, "weight": {}},
        },
        "grad_head_logp", [[[0.7710]]], [[[0.6652]]],
    ),
)  # fmt: skip
class HeadAtTemperatureOne(Plain):
    """The head is scored at T = 1 while the sampled token is scored at T."""

    def prepare(self, x: dict[str, Array], o: Any) -> State:
        s = super().prepare(x, o)
        if s.head_ids is None or o.temperature == 1:
            return s
        rows = self.log_softmax_rows(s.logits, 1.0, s.inside)
        s = replace(s, head_p=self.head_gather(rows, s.head_ids))
        return replace(s, log_tail=self.log_tail(replace(s, rows_p=rows)))


@mutant(
    "advantages-over-temperature", [88], "slime #1928", "semantics", OBJECTIVE,
    Smallest(sampled(0, -0.1429, temperature=0.5), "grad_logp", [[-1.0]], [[-2.0]]),
)  # fmt: skip
class AdvantagesOverTemperature(Plain):
    """One function divides any [B, T] output by T, values (advantages) included."""

    def prepare(self, x: dict[str, Array], o: Any) -> State:
        s = super().prepare(x, o)
        return replace(s, advantages=s.advantages / self.dtype(o.temperature))


@mutant(
    "gradient-without-temperature", [], "", "formula", LOGITS,
    Smallest(softmax(THREE, 0, temperature=0.5), "score", [[[0.26623, -0.23461, -0.03163]]], [[[0.13312, -0.1173, -0.01582]]]),
)  # fmt: skip
class GradientWithoutTemperature(Plain):
    """The chain rule's 1/T is missing: gradient on z/T in place of z."""

    def gradient_temperature(self, s: Any) -> Any:
        return self.dtype(1)

    def score_temperature(self, temperature: float) -> Any:
        return self.dtype(1)


@mutant(
    "temperature-multiplies", [], "", "formula", LOGITS,
    Smallest(softmax(THREE, 0, temperature=0.5), "logp_token", [[-0.1429]], [[-0.6803]]),
)  # fmt: skip
class TemperatureMultiplies(Plain):
    """softmax(z T) in place of softmax(z/T)."""

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        return super().log_softmax_rows(z, 1 / temperature, inside)


@mutant(
    "support-ignored", [89], "TRL #6789, #6945, #7269, ms-swift #8442, vllm #42259", "semantics", LOGITS,
    Smallest(
        softmax([math.log(x) for x in (0.5, 0.3, 0.15, 0.05)], 0, [1, 1, 0, 0]), "logp_token", [[-0.4700]], [[-0.6931]]
    ),
)  # fmt: skip
class SupportIgnored(Plain):
    """The sampler is normalised over its kept set, the trainer over the whole vocabulary: log-ratio = log S everywhere."""

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        return super().log_softmax_rows(z, temperature, np.ones_like(inside))


@mutant(
    "support-recomputed", [90], "prime-rl #2601, sglang #35966", "semantics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[math.log(x) for x in (0.4, 0.3, 0.3)]]], "tokens": [[2]], "mask": [[1]],
                       "advantages": [[1.0]], "logp_sampler": [[-0.8473]], "support": [[[1, 0, 1]]]},
            "definition": {"weight": {}},
        },
        "weights", [[1.0]], [[0.7]],
    ),
)  # fmt: skip
class SupportRecomputed(Plain):
    """The kept set is derived again from the trainer's own top probabilities, and the sampled token added to it."""

    def support(self, x: dict[str, Array], o: Any) -> Array:
        recorded = super().support(x, o)
        if x.get("support") is None:
            return recorded
        order = np.argsort(-x["logits"], axis=-1, kind="stable")
        rank = np.argsort(order, axis=-1, kind="stable")
        hit = np.arange(recorded.shape[-1]) == x["tokens"][..., None]
        return (rank < recorded.sum(-1, keepdims=True)) | hit


@mutant(
    "support-from-head-only", [], "", "semantics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[0.0, 0.0, 0.0]]], "tokens": [[0]], "mask": [[1]], "advantages": [[1.0]],
                       "logp_sampler": [[math.log(0.5)]], "head_ids": [[[0]]], "head_logp_sampler": [[[math.log(0.5)]]]},
            "definition": {"weight": {}},
        },
        "weights", [[0.6667]], [[2.0]],
    ),
)  # fmt: skip
class SupportFromHead(Plain):
    """Any recorded head is taken for the sampling support: the trainer is renormalised on it."""

    def support(self, x: dict[str, Array], o: Any) -> Array:
        if "head_ids" not in x or x.get("support") is not None:
            return super().support(x, o)
        ids = np.where((x["mask"] != 0)[..., None], x["head_ids"], -1)
        on_head = scatter(np.ones(ids.shape), ids, x["logits"].shape[-1]) > 0
        hit = np.arange(on_head.shape[-1]) == x["tokens"][..., None]
        return on_head | hit


@mutant(
    "zero-logits-in-the-last-tile", [109], "verl #5349", "numerics", LOGITS,
    Smallest(softmax([3.0, -15.0, -15.0, -15.0, -15.0], 0), "logp_token", [[0.0]], [[-0.139]]),
)  # fmt: skip
class ZeroLogitsInTile(Plain):
    """Columns beyond the vocabulary in the last tile of 4 are loaded as logit 0: each adds exp(0) to the denominator."""

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        missing = -z.shape[-1] % 4
        padded = np.concatenate([z, np.zeros((*z.shape[:-1], missing), dtype=z.dtype)], axis=-1)
        ends = np.concatenate([inside, np.ones((*z.shape[:-1], missing), dtype=bool)], axis=-1)
        return super().log_softmax_rows(padded, temperature, ends)[..., : z.shape[-1]]


@mutant(
    "log-softmax-in-bf16", [105], "TRL #7077", "numerics", LOGITS,
    Smallest(softmax([3.0, 0.0, -1.0], 1), "logp_token", [[-3.0659]], [[-3.0625]]),
)  # fmt: skip
class LogSoftmaxInBf16(Plain):
    """One pass runs outside the float32 region: exp, sum and log are rounded to bf16."""

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        z = np.where(inside, z, -np.inf)
        shifted = to_bf16((z - z.max(axis=-1, keepdims=True)) / self.dtype(temperature))
        total = to_bf16(to_bf16(np.exp(shifted)).sum(axis=-1, keepdims=True))
        return to_bf16(shifted - to_bf16(np.log(total)))


@mutant(
    "score-sign", [], "", "formula", ("log_softmax",),
    Smallest(softmax([0.0, 0.0], 0), "score", [[[0.5, -0.5]]], [[[-0.5, 0.5]]]),
)  # fmt: skip
class ScoreSign(Plain):
    """p - e_y in place of e_y - p."""

    def score(self, hit: Array, p: Array) -> Array:
        return p - hit


@mutant(
    "gradient-without-softmax-term", [], "", "formula", OBJECTIVE,
    Smallest(sampled(0, -0.4076), "grad_logits", [[[-0.3348, 0.2447, 0.0900]]], [[[-1.0, 0.0, 0.0]]]),
)  # fmt: skip
class GradientWithoutSoftmax(Plain):
    """grad = c e_y in place of c (e_y - p): the log-sum-exp is treated as a constant."""

    def to_logits(self, s: Any, grad_logp: Array, rows: Array) -> Array:
        c = rows.copy()
        here = np.take_along_axis(c, s.tokens[..., None], axis=-1)[..., 0]
        np.put_along_axis(c, s.tokens[..., None], (here + grad_logp)[..., None], axis=-1)
        return c / self.gradient_temperature(s)
