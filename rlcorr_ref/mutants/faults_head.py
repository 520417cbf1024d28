"""Mutants of recorded heads: lookups, widths, absent slots, the sampled token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import State
from .edits import EditedInputs
from .plain import Plain
from .registry import OBJECTIVE, Smallest, mutant
from .smallest import vocabulary

Array = np.ndarray
P = (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)
Q = (0.3, 0.04, 0.36, 0.18, 0.05, 0.07)
TIS = {"high": 2.0, "outside": "clip"}
FLAT = (0.4, 0.3, 0.2, 0.1)


@mutant(
    "sampled-token-counted-twice", [111], "vllm #36746", "formula", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.3, 0.15, 0.05), (0.4, 0.3, 0.2, 0.1), 0, head=[0, 1]), "diagnostics.head_mass_sampler", 0.7, 1.1
    ),
)  # fmt: skip
class SampledCountedTwice(Plain):
    """The sampled token is appended to the head that already holds it: head mass Q + q_y, tail 1 - Q - q_y."""

    def prepare(self, x: dict[str, Array], o: Any) -> State:
        s = super().prepare(x, o)
        if s.head_ids is None:
            return s
        ids = np.concatenate([s.head_ids, np.where(s.mask, s.tokens, -1)[..., None]], axis=-1)
        twice = (s.head_ids == s.tokens[..., None]).any(-1) & s.mask
        self.extra = np.where(twice, np.exp(s.logq), 0), np.where(twice, np.exp(s.logp), 0)
        self.width = ids.shape[-1]
        return s

    def tail_masses(self, s: Any, rule: Any) -> tuple[Array, Array, Array | None]:
        q, p, o = super().tail_masses(s, rule)
        return (
            self.floored(q - self.extra[0], rule.floor_sampler),
            self.floored(p - self.extra[1], rule.floor_trainer),
            o,
        )

    def head_metrics(self, s: Any, o: Any, term: Any) -> dict[str, Any]:
        out = super().head_metrics(s, o, term)
        if s.head_q is not None:
            out["head_mass_sampler"] += self.token_mean(self.extra[0], s.mask)
            out["head_mass_trainer"] += self.token_mean(self.extra[1], s.mask)
        return out


@mutant(
    "head-width-fixed", [112], "ms-swift #6698", "shape", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]], "tokens": [[0, 0]], "mask": [[1, 1]],
                       "advantages": [[1.0, 1.0]], "logp_sampler": [[-0.6931, -0.6931]], "head_ids": [[[0, -1], [1, 2]]],
                       "head_logp_sampler": [[[-0.6931, "-Infinity"], [-1.3863, -1.3863]]]},
            "definition": {"centering": {"tail": "dropped"}},
        },
        "grad_head_logp", [[[0.25, 0.0], [0.125, 0.125]]], [[[0.25, 0.0], [0.125, 0.0]]],
    ),
)  # fmt: skip
class HeadWidthFixed(EditedInputs):
    """N or N + 1 entries come back; the first token's count is taken as everybody's width and longer heads are cut."""

    def edit(self, x: dict[str, Array]) -> None:
        if "head_ids" not in x or not x["mask"].any():
            return
        b, t = np.argwhere(x["mask"] != 0)[0]
        present = (x["head_ids"] >= 0) & (x["mask"] != 0)[..., None]
        beyond = present.cumsum(axis=-1) > present[b, t].sum()
        x["head_ids"] = np.where(beyond, -1, x["head_ids"])
        for name in ("head_logp_sampler", "head_logp_anchor"):
            if name in x:
                x[name] = np.where(beyond, -np.inf, x[name]).astype(self.dtype)


@mutant(
    "head-from-the-gradient-buffer", [69], "verl #8010", "numerics", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.5), (0.25, 0.75), 0, head=[0], weight={}, centering={"tail": "dropped"}),
        "grad_head_logp", [[[0.5]]], [[[0.2689]]],
    ),
)  # fmt: skip
class HeadFromGradientBuffer(Plain):
    """The log-prob backward has overwritten the logits with p - e_y before the head is gathered from them."""

    def prepare(self, x: dict[str, Array], o: Any) -> State:
        s = super().prepare(x, o)
        if s.head_ids is None:
            return s
        hit = np.arange(s.rows_p.shape[-1]) == s.tokens[..., None]
        rows = self.log_softmax_rows((np.exp(s.rows_p) - hit).astype(self.dtype), o.temperature, s.inside)
        s = replace(s, head_p=self.head_gather(rows, s.head_ids))
        return replace(s, log_tail=self.log_tail(replace(s, rows_p=rows)))


@mutant(
    "absent-slot-wraps", [], "", "shape", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.3, 0.2), (0.25, 0.5, 0.25), 0, head=[0, -1], centering={"tail": "rescaled"}),
        "diagnostics.head_mass_trainer", 0.5, 0.7,
    ),
)  # fmt: skip
class AbsentSlotWraps(Plain):
    """id -1 gathers the last vocabulary entry: its probability enters the trainer's head mass and coefficients."""

    def prepare(self, x: dict[str, Array], o: Any) -> State:
        s = super().prepare(x, o)
        if s.head_ids is None:
            return s
        last = s.rows_p.shape[-1] - 1
        ids = np.where((s.head_ids < 0) & s.mask[..., None], last, s.head_ids)
        s = replace(s, head_ids=ids, head_p=self.head_gather(s.rows_p, ids))
        off = np.maximum(1 - np.exp(s.head_p).sum(-1), 0)
        return replace(s, log_tail=np.log(off))


@mutant(
    "absent-slot-has-mass-one", [], "", "semantics", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.3, 0.2), (0.25, 0.5, 0.25), 0, head=[0, -1]), "diagnostics.head_mass_sampler", 0.25, 1.25
    ),
)  # fmt: skip
class AbsentSlotMassOne(EditedInputs):
    """An absent slot is filled with log-prob 0: the sampler's head mass gains 1."""

    def edit(self, x: dict[str, Array]) -> None:
        if "head_ids" in x:
            x["head_logp_sampler"] = np.where(x["head_ids"] == -1, 0, x["head_logp_sampler"]).astype(self.dtype)


@mutant(
    "sampled-token-absent-from-head-is-zero", [], "", "semantics", OBJECTIVE,
    Smallest(
        vocabulary(P, Q, 1, a=0.5, head=[2, 0, 3], weight=TIS), "weights", [[2.0]], [[0.0]]
    ),
)  # fmt: skip
class AbsentSampledIsZero(Plain):
    """The sampled token is looked up in the head; where it is absent its trainer probability is taken as 0."""

    def prepare(self, x: dict[str, Array], o: Any) -> State:
        s = super().prepare(x, o)
        if s.head_ids is None:
            return s
        found = (s.head_ids == s.tokens[..., None]).any(-1)
        return replace(s, logp=np.where(found | ~s.mask, s.logp, -np.inf))


@mutant(
    "sampled-token-off-head-loses-weight", [], "", "semantics", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.25, 0.25), (0.5, 0.375, 0.125), 2, head=[0], weight=TIS), "weights", [[2.0]], [[1.0]]
    ),
)  # fmt: skip
class SampledOffHead(Plain):
    """log q(y) is read from the head; a sampled token outside it is treated as on-policy."""

    def log_ratio(self, s: Any, numerator: str | None) -> Array:
        d = super().log_ratio(s, numerator)
        return d if s.head_ids is None else np.where((s.head_ids == s.tokens[..., None]).any(-1), d, 0)
