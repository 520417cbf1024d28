"""Mutants that forget a stop-gradient: the loss value is right, the gradient is that of another objective.

Written out as the exact derivative of the attached loss; no automatic differentiation is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contract import Objective
from .arrays import log_difference, scatter, times
from .plain import Plain
from .registry import OBJECTIVE, Smallest, mutant
from .smallest import vocabulary

Array = np.ndarray


def moves_with_trainer(rule: Any, anchored: bool) -> bool:
    """Whether the weight is a function of the trainer at all: with the anchor on top it is frozen."""
    return rule is not None and (not anchored or rule.numerator == "trainer")


@mutant(
    "weight-attached", [1], "verl #4105", "semantics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[0.0, 0.0]]], "tokens": [[0]], "mask": [[1]], "advantages": [[1.0]],
                       "logp_sampler": [[-1.3862943611198906]]},
            "definition": {"weight": {}},
        },
        "grad_logits", [[[-1.0, 1.0]]], [[[-0.3069, 0.3069]]],
    ),
)  # fmt: skip
class WeightAttached(Plain):
    """d/dlog p of -w(p) A log p = -w A (1 + log p) in place of -w A: w' = w inside the band, 0 where it is truncated."""

    def objective_case(self, x: dict[str, Array], definition: Any) -> dict[str, Any]:
        out = super().objective_case(x, definition)
        o = Objective.from_dict(definition)
        s = self.prepare(x, o)
        rule = o.weight
        if not moves_with_trainer(rule, s.logo is not None) or rule.level == "segment":
            return out
        _, same = self.weight(rule, self.leveled(s, rule), s.advantages, s.numerator(rule.numerator), s.logq)
        value, _, _ = self.surrogate_terms(s, o.surrogate)
        keep = out["mask"] != 0
        coef = self.select(self.coefficients(o.aggregation, self.counted(s, o.rejection, keep)), keep)
        extra = np.where(same, self.switched(coef, self.weighted(value, out["weights"])), 0)
        if rule.level != "token":  # every token of the row moves the weight of all
            per_row = self.row_sum(extra, s.mask)
            extra = self.spread(per_row if rule.level == "sequence" else per_row / self.row_count(s.mask), s.mask)
        grad = self.to_logits(s, extra, np.zeros_like(s.rows_p))
        out["grad_logp"] = out["grad_logp"] + extra
        out["grad_logits"] = out["grad_logits"] + np.where(s.mask[..., None], grad, 0)
        return out


@mutant(
    "centering-coefficients-attached", [], "", "semantics", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.5), (0.25, 0.75), 0, head=[0], centering={"floor_sampler": None, "floor_trainer": None}),
        "grad_head_logp", [[[-0.5]]], [[[0.5397]]],
    ),
)  # fmt: skip
class CenteringAttached(Plain):
    """c_v(p) log p_v differentiated as a product: c_v + sum_u log p_u dc_u/dlog p_v, with rho's own derivative.

    On the head c_u = q_u g_u - alpha p_u; q g moves like p where the ratio is inside the band, alpha = rho g(tail) through
    rho = (1 - Q)/(1 - P) unless its ratio is inside the band too or the trainer's tail is floored.
    """

    def reported_head(self, s: Any, term: Any) -> Array:
        return term.head + self.derivative(s, term)

    def derivative(self, s: Any, term: Any) -> Array:
        """sum over head slots u of log p_u dc_u/dlog p_v [B, T, K]; only for weights that follow the trainer."""
        o, p = s.objective, np.exp(s.head_p)
        rule = o.weight
        if o.surrogate.kind != "reinforce" or (rule is not None and not moves_with_trainer(rule, s.logo is not None)):
            return np.zeros_like(p)
        mass = np.take_along_axis(term.mass, np.maximum(s.head_ids, 0), axis=-1)
        follows = np.zeros(p.shape, dtype=bool)
        tail_follows = np.zeros(s.mask.shape, dtype=bool)
        if rule is not None and rule.level == "token":
            a = s.advantages[..., None]
            _, follows = self.weight(rule, log_difference(s.head_p, s.head_q), a, s.head_p, s.head_q)
            if o.centering.tail == "rescaled":
                q_tail, p_tail, _ = self.tail_masses(s, o.centering)
                d = np.log(p_tail)[..., None] - np.log(q_tail)[..., None]
                tail_follows = self.weight(rule, d, a, d, d)[1][..., 0]
        own = times(np.where(follows, mass, 0) - times(p, term.alpha[..., None]), s.head_p)
        floored = np.exp(s.log_tail) < (o.centering.floor_trainer or 0)
        tail = np.maximum(np.exp(s.log_tail), 1e-300)
        moving = np.where(tail_follows | floored, 0, term.alpha / tail)  # d alpha / d p_v
        through_tail = -times(moving[..., None] * p, times(p, s.head_p).sum(-1, keepdims=True))
        return np.where(s.head_ids >= 0, own + through_tail, 0)

    def objective_case(self, x: dict[str, Array], definition: Any) -> dict[str, Any]:
        out = super().objective_case(x, definition)
        o = Objective.from_dict(definition)
        if out["grad_head_logp"] is None:
            return out
        s = self.prepare(x, o)
        rest = Plain(self.dtype, False).objective_case(x, definition)["grad_head_logp"]
        rows = scatter(out["grad_head_logp"] - rest, s.head_ids, s.rows_p.shape[-1])
        grad = self.to_logits(s, np.zeros_like(s.logp), rows)
        out["grad_logits"] = out["grad_logits"] + np.where(s.mask[..., None], grad, 0)
        return out
