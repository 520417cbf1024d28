"""Mutants of the modelled tail: its model, its mass ratio, floors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import scatter
from .faults_head import FLAT, TIS, P, Q
from .plain import Plain
from .registry import HEAD, METRIC, OBJECTIVE, Smallest, mutant
from .smallest import vocabulary

Array = np.ndarray


@mutant(
    "tail-dropped", [114], "verl #7856, #7855", "formula", HEAD,
    Smallest(vocabulary(P, Q, 1, a=0.5, head=[2, 0, 3]), "diagnostics.centering_l1", 0.54285714, 0.84),
)  # fmt: skip
class TailDropped(Plain):
    """Truncated to the head and called rescaled: alpha = 0, the tail has no mass."""

    def tail(self, s: Any, o: Any, divisor: Any) -> tuple[Array, Array]:
        alpha, ratio = super().tail(s, o, divisor)
        return np.zeros_like(alpha), ratio


@mutant(
    "head-renormalised", [115], "Rethinking-OPD #15, verl #6676, #7425", "formula", HEAD,
    Smallest(
        vocabulary((0.5, 0.5), (0.25, 0.75), 0, head=[0]), "grad_logits", [[[-0.75, 0.75]]], [[[0.0, 0.0]]]
    ),
)  # fmt: skip
class HeadRenormalised(Plain):
    """q/Q on the head in place of a modelled tail: a head of one token makes everything 0."""

    def center(self, s: Any, o: Any, divisor: Any) -> Any:
        renormalised = replace(o.centering, tail="renormalised")
        return super().center(s, replace(o, centering=renormalised) if o.centering.tail == "rescaled" else o, divisor)


@mutant(
    "tail-ratio-one", [116], "SkyRL #2244", "formula", HEAD,
    Smallest(
        vocabulary(P, Q, 1, a=0.5, head=[2, 0, 3]), "diagnostics.tail_ratio_mean", 0.45714286, 1.0
    ),
)  # fmt: skip
class TailRatioOne(Plain):
    """The head is taken for everything: both tails are the floor and their ratio is 1."""

    def tail_masses(self, s: Any, rule: Any) -> tuple[Array, Array, Array | None]:
        q, p, o = super().tail_masses(s, rule)
        return p, p, None if o is None else p


@mutant(
    "tail-mass-unguarded", [], "", "numerics", HEAD,
    Smallest(
        vocabulary((0.25, 0.25, 0.25, 0.25), (0.5, 0.50005, 1e-9, 1e-9), 0, head=[0, 1], weight=TIS,
                   centering={"floor_sampler": 0.125, "floor_trainer": None}),
        "diagnostics.tail_ratio_mean", 0.25, -0.0001,
    ),
)  # fmt: skip
class TailMassUnguarded(Plain):
    """(1 - Q)/(1 - P) without cut and floor: a head mass that rounds above 1 makes the tail negative, its log NaN."""

    def floored(self, mass: Array, floor: float | None) -> Array:
        return mass


@mutant(
    "floors-added", [], "", "formula", HEAD,
    Smallest(
        vocabulary(FLAT, FLAT, 0, head=[0, 1], centering={"floor_sampler": 0.3, "floor_trainer": None}),
        "diagnostics.tail_ratio_mean", 1.0, 2.0,
    ),
)  # fmt: skip
class FloorsAdded(Plain):
    """max(1 - Q, floor) becomes 1 - Q + floor: not 0 on-policy where the floors differ."""

    def floored(self, mass: Array, floor: float | None) -> Array:
        return np.maximum(mass, 0) + self.dtype(floor or 0)


@mutant(
    "floors-exchanged", [], "", "semantics", HEAD,
    Smallest(
        vocabulary((0.5, 0.25, 0.25), (0.25, 0.25, 0.5), 0, head=[0, 1], centering={"floor_sampler": None, "floor_trainer": 0.5}),
        "diagnostics.tail_ratio_mean", 1.0, 2.0,
    ),
)  # fmt: skip
class FloorsExchanged(Plain):
    """The sampler's floor is applied to the trainer's tail and the other way round."""

    def tail_masses(self, s: Any, rule: Any) -> tuple[Array, Array, Array | None]:
        exchanged = replace(rule, floor_sampler=rule.floor_trainer, floor_trainer=rule.floor_sampler)
        return super().tail_masses(s, exchanged)


@mutant(
    "trainer-tail-unfloored", [], "", "numerics", HEAD,
    Smallest(
        vocabulary((0.5, 0.4, 0.1), (0.25, 0.25, 0.5), 0, head=[0, 1], centering={"floor_trainer": 0.25}),
        "diagnostics.tail_ratio_mean", 2.0, 5.0,
    ),
)  # fmt: skip
class TrainerUnfloored(Plain):
    """Only the sampler's tail is floored: rho explodes where the trainer has lost its tail."""

    def tail_masses(self, s: Any, rule: Any) -> tuple[Array, Array, Array | None]:
        return super().tail_masses(s, replace(rule, floor_trainer=None))


@mutant(
    "tail-ratio-inverted", [], "", "formula", HEAD,
    Smallest(
        vocabulary(P, Q, 1, a=0.5, head=[2, 0, 3]), "diagnostics.tail_ratio_mean", 0.45714286, 2.1875
    ),
)  # fmt: skip
class TailRatioInverted(Plain):
    """rho = (1 - P)/(1 - Q)."""

    def tail_masses(self, s: Any, rule: Any) -> tuple[Array, Array, Array | None]:
        q, p, o = super().tail_masses(s, rule)
        return p, q, o


@mutant(
    "tail-of-renormalised-masses", [], "", "formula", HEAD,
    Smallest(
        vocabulary(P, Q, 1, a=0.5, head=[2, 0, 3]), "diagnostics.tail_ratio_mean", 0.45714286, 0.35374150
    ),
)  # fmt: skip
class TailOfOdds(Plain):
    """rho is the ratio of the odds (1 - Q)/Q over (1 - P)/P in place of the ratio of the tails."""

    def tail_masses(self, s: Any, rule: Any) -> tuple[Array, Array, Array | None]:
        q, p, o = super().tail_masses(s, rule)
        return q / np.exp(s.head_q).sum(-1), p / np.exp(s.head_p).sum(-1), o


@mutant(
    "uniform-share-over-vocabulary", [], "", "formula", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.25, 0.125, 0.125), (0.5, 0.25, 0.15, 0.1), 0, head=[0, 1], centering={"tail": "uniform"}),
        "grad_logp_full", [[[0.5, 0.25, 0.125, 0.125]]], [[[0.5, 0.25, 0.0625, 0.0625]]],
    ),
)  # fmt: skip
class UniformOverVocabulary(Plain):
    """The tail's uniform share is (1 - Q)/V in place of (1 - Q)/(V - K)."""

    def uniform_rows(self, s: Any) -> Array:
        rows = super().uniform_rows(s)
        on_head = scatter(np.ones(s.head_ids.shape), s.head_ids, rows.shape[-1]) > 0
        tail = np.maximum((s.inside & ~on_head).sum(-1, keepdims=True), 1)
        return np.where(on_head, rows, rows + np.log(tail / s.inside.sum(-1, keepdims=True))).astype(self.dtype)


@mutant(
    "tail-ratio-of-last-token", [], "", "reduction", METRIC,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[0.0, 0.0], [0.0, 0.0]]], "tokens": [[0, 0]], "mask": [[1, 1]], "advantages": [[1.0, 1.0]],
                       "logp_sampler": [[-0.6931472, -1.3862944]], "head_ids": [[[0], [0]]],
                       "head_logp_sampler": [[[-0.6931472], [-1.3862944]]]},
            "definition": {"centering": {}},
        },
        "diagnostics.tail_ratio_max", 1.5, 1.0,
    ),
)  # fmt: skip
class TailRatioOfFirst(Plain):
    """The largest tail ratio is read at the first token in place of the maximum over tokens."""

    def head_metrics(self, s: Any, o: Any, term: Any) -> dict[str, Any]:
        out = super().head_metrics(s, o, term)
        if term is not None and not term.wide and out["tail_ratio_max"] is not None:
            out["tail_ratio_max"] = term.ratio[s.mask][0]
        return out
