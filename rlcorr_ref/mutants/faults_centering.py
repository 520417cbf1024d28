"""Mutants of score centering: sign, measure, composition with weights, three policies, what multiplies the term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import log_difference, times
from .faults_head import FLAT, TIS, P, Q
from .plain import Plain
from .registry import HEAD, OBJECTIVE, Smallest, mutant
from .smallest import vocabulary

Array = np.ndarray
MIS = {"low": 0.5, "high": 5.0, "outside": "zero"}
QUARTERS = (0.25, 0.25, 0.25, 0.25)


def golden(rule: Any = None, head: Any = (2, 0, 3), **definition: Any) -> dict:
    """The six-token example of the contract: A = 0.5, sampled id 1 (ratio 6.25)."""
    return vocabulary(P, Q, 1, a=0.5, head=head, weight=rule, **definition)


@mutant(
    "centering-sign", [], "", "formula", OBJECTIVE,
    Smallest(
        vocabulary(QUARTERS, FLAT, 0), "grad_logits", [[[-0.6, 0.3, 0.2, 0.1]]], [[[-0.9, 0.2, 0.3, 0.4]]]
    ),
)  # fmt: skip
class CenteringSign(Plain):
    """- A sum c log p in place of + A sum c log p: the drift is doubled."""

    def center_scale(self, s: Any, weights: Array, row: Array) -> Array:
        return -super().center_scale(s, weights, row)


@mutant(
    "centering-forgotten", [], "", "semantics", HEAD,
    Smallest(
        vocabulary(QUARTERS, FLAT, 0), "grad_logits", [[[-0.6, 0.3, 0.2, 0.1]]], [[[-0.75, 0.25, 0.25, 0.25]]]
    ),
)  # fmt: skip
class CenteringForgotten(Plain):
    """The centering term never reaches the loss."""

    def log_mass(self, o: Any, logq: Array, *rest: Any) -> Array:
        return np.full_like(super().log_mass(o, logq, *rest), -np.inf)


@mutant(
    "centered-with-the-trainer", [], "", "formula", HEAD,
    Smallest(
        vocabulary(QUARTERS, FLAT, 0), "grad_logits", [[[-0.6, 0.3, 0.2, 0.1]]], [[[-0.75, 0.25, 0.25, 0.25]]]
    ),
)  # fmt: skip
class CenteredWithTrainer(Plain):
    """E_p in place of E_q: sum_v p_v grad log p_v = 0, so centering does nothing."""

    def log_mass(self, o: Any, logq: Array, logp: Array, *rest: Any) -> Array:
        return super().log_mass(o, logp, logp, *rest)


@mutant(
    "centered-uniformly", [], "", "formula", OBJECTIVE,
    Smallest(
        vocabulary(FLAT, (0.1, 0.2, 0.3, 0.4), 0), "grad_logits", [[[-0.9, 0.2, 0.3, 0.4]]], [[[-0.75, 0.25, 0.25, 0.25]]]
    ),
)  # fmt: skip
class CenteredUniformly(Plain):
    """The mean score over the vocabulary in place of the sampler's expectation."""

    def sampler_rows(self, s: Any, o: Any) -> Array:
        rows = super().sampler_rows(s, o)
        held = np.isfinite(rows)
        return np.where(held, -np.log(np.maximum(held.sum(-1, keepdims=True), 1)), -np.inf).astype(self.dtype)


@mutant(
    "centering-without-advantage", [], "", "formula", OBJECTIVE,
    Smallest(
        vocabulary(QUARTERS, FLAT, 0, a=2.0), "grad_logits", [[[-1.2, 0.6, 0.4, 0.2]]], [[[-1.35, 0.55, 0.45, 0.35]]]
    ),
)  # fmt: skip
class CenteringWithoutAdvantage(Plain):
    """+ sum c log p without A."""

    def center_scale(self, s: Any, weights: Array, row: Array) -> Array:
        return row


@mutant(
    "centering-unweighted", [], "", "formula", HEAD,
    Smallest(golden(TIS), "diagnostics.centering_l1", 0.05571429, 0.54285714),
)  # fmt: skip
class CenteringUnweighted(Plain):
    """The unweighted score is centered while the sampled token carries w: g = 1 in place of f(p_v/q_v)."""

    def center_weight(self, rule: Any, d: Array, *rest: Any) -> tuple[Array, Array]:
        return np.ones_like(d), np.zeros(d.shape, dtype=bool)


@mutant(
    "centering-weighted-by-sampled-token", [], "", "formula", OBJECTIVE,
    Smallest(
        golden(TIS), "grad_head_logp", [[[0.00642857, 0.01714286, 0.00428571]]], [[[0.29142857, 0.11714286, 0.13428571]]]
    ),
)  # fmt: skip
class CenteringBySampledWeight(CenteringUnweighted):
    """w_y sum_v q_v log p_v: the sampled token's weight multiplies the unweighted expectation."""

    def center_scale(self, s: Any, weights: Array, row: Array) -> Array:
        return times(s.advantages, weights)


@mutant(
    "sampled-weight-multiplies-twice", [], "", "formula", OBJECTIVE,
    Smallest(
        golden(TIS), "grad_logits",
        [[[0.406, -0.75696429, 0.15225, 0.1015, 0.05832857, 0.03888571]]],
        [[[0.412, -0.76392857, 0.1545, 0.103, 0.05665714, 0.03777143]]],
    ),
)  # fmt: skip
class SampledWeightTwice(Plain):
    """The centering term, weights inside, is multiplied by the sampled token's weight once more."""

    def center_scale(self, s: Any, weights: Array, row: Array) -> Array:
        return times(s.advantages, weights)


@mutant(
    "masked-token-loses-centering", [], "", "semantics", OBJECTIVE,
    Smallest(
        golden(MIS), "grad_logits", [[[0.03, 0.01875, -0.06375, 0.0075, 0.0045, 0.003]]], [[[0.0] * 6]]
    ),
)  # fmt: skip
class MaskedLosesCentering(Plain):
    """A token whose own weight is 0 loses its centering term too: the masked estimator drifts."""

    def center_scale(self, s: Any, weights: Array, row: Array) -> Array:
        return np.where(weights == 0, 0, super().center_scale(s, weights, row))


@mutant(
    "alpha-without-weight", [], "", "formula", HEAD,
    Smallest(golden({}), "diagnostics.centering_l1", 0.0, 0.35285714),
)  # fmt: skip
class AlphaWithoutWeight(Plain):
    """alpha = rho in place of rho f(1/rho): not 0 under a ratio that cancels."""

    def tail(self, s: Any, o: Any, divisor: Any) -> tuple[Array, Array]:
        _, ratio = super().tail(s, o, divisor)
        return ratio, ratio


@mutant(
    "alpha-of-inverse-ratio", [], "", "formula", HEAD,
    Smallest(golden({}), "diagnostics.centering_l1", 0.0, 0.51415510),
)  # fmt: skip
class AlphaOfInverseRatio(Plain):
    """alpha = rho f(rho) in place of rho f(1/rho)."""

    def log_mass(self, o: Any, logq: Array, logp: Array, logo: Array | None, a: Array, divisor: Any) -> Array:
        if not getattr(self, "in_tail", False) or logo is not None:
            return super().log_mass(o, logq, logp, logo, a, divisor)
        return super().log_mass(o, logp, logq, None, a, divisor) + log_difference(logq, logp)

    def tail(self, s: Any, o: Any, divisor: Any) -> tuple[Array, Array]:
        self.in_tail = True
        try:
            return super().tail(s, o, divisor)
        finally:
            self.in_tail = False


@mutant(
    "head-coefficients-without-tail-term", [], "", "formula", HEAD,
    Smallest(
        golden(), "grad_head_logp", [[[0.14571429, 0.05857143, 0.06714286]]], [[[0.18, 0.15, 0.09]]]
    ),
)  # fmt: skip
class HeadWithoutTailTerm(Plain):
    """c_v = q_v g(v): the head-only form reports coefficients without - alpha p_v."""

    def center(self, s: Any, o: Any, divisor: Any) -> Any:
        term = super().center(s, o, divisor)
        if term.wide or o.centering.tail != "rescaled":
            return term
        on_head = (
            np.take_along_axis(term.mass, np.maximum(s.head_ids, 0), axis=-1) if s.head_ids is not None else term.head
        )
        return replace(term, head=np.where(s.head_ids >= 0, on_head, 0))


@mutant(
    "anchor-missing-inside-centering", [], "Marin", "formula", HEAD,
    Smallest(
        vocabulary((0.4, 0.4, 0.2), (0.2, 0.4, 0.4), 0, head=[0], o=(0.3, 0.4, 0.3), weight={}),
        "grad_head_logp", [[[-0.16667]]], [[[0.0]]],
    ),
)  # fmt: skip
class AnchorMissingInside(Plain):
    """Three policies: f(p_v/q_v) inside the expectation in place of f(o_v/q_v)."""

    def log_mass(self, o: Any, logq: Array, logp: Array, logo: Array | None, a: Array, divisor: Any) -> Array:
        return super().log_mass(o, logq, logp, None, a, divisor)


@mutant(
    "three-policy-alpha-with-two-policy-masses", [], "Marin", "formula", HEAD,
    Smallest(
        vocabulary((0.4, 0.4, 0.2), (0.2, 0.4, 0.4), 0, head=[0], o=(0.3, 0.4, 0.3), weight={}),
        "grad_head_logp", [[[-0.16667]]], [[[-0.1]]],
    ),
)  # fmt: skip
class AlphaWithTwoMasses(Plain):
    """Three policies on the head, but alpha = rho f(1/rho) of sampler and trainer tails only."""

    def tail_masses(self, s: Any, rule: Any) -> tuple[Array, Array, Array | None]:
        q, p, o = super().tail_masses(s, rule)
        return q, p, None if o is None else p


@mutant(
    "surrogate-ratio-missing-inside", [], "", "formula", HEAD,
    Smallest(
        vocabulary((0.5, 0.5), (0.45, 0.55), 0, surrogate={"kind": "cispo", "eps_high": 0.5}),
        "grad_logp_full", [[[0.5, 0.5]]], [[[0.45, 0.55]]],
    ),
)  # fmt: skip
class SurrogateRatioMissing(Plain):
    """g(v) leaves out the surrogate's own ratio r_v."""

    def times_ratio(self, o: Any, out: Array, *rest: Any) -> Array:
        return out


@mutant(
    "row-weight-inside-expectation", [], "", "formula", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.25, 0.25), (0.25, 0.25, 0.5), 0, head=[0, 1], weight={"level": "sequence"}),
        "grad_head_logp", [[[-1.5, -0.5]]], [[[0.0, 0.0]]],
    ),
)  # fmt: skip
class RowWeightInside(Plain):
    """A row-level weight is treated as a function of v, f(p_v/q_v), in place of multiplying the whole term."""

    def center(self, s: Any, o: Any, divisor: Any) -> Any:
        rule = o.weight
        inside = rule is not None and rule.level != "token"
        return super().center(s, replace(o, weight=replace(rule, level="token")) if inside else o, divisor)

    def center_scale(self, s: Any, weights: Array, row: Array) -> Array:
        return s.advantages


@mutant(
    "row-weight-missing-on-centering", [], "", "formula", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.25, 0.25), (0.25, 0.25, 0.5), 0, head=[0, 1], weight={"level": "sequence"}),
        "grad_head_logp", [[[-1.5, -0.5]]], [[[-0.75, -0.25]]],
    ),
)  # fmt: skip
class RowWeightMissing(Plain):
    """The row-level weight multiplies the sampled-token term only."""

    def center_scale(self, s: Any, weights: Array, row: Array) -> Array:
        return s.advantages


@mutant(
    "centering-zero-times-infinity", [], "", "numerics", HEAD,
    Smallest(
        vocabulary((0.5, 0.25, 0.25), (0.5, 0.0, 0.5), 0, head=[0, 1], weight=TIS),
        "grad_head_logp", [[[0.0, -0.25]]], [[[0.0, "NaN"]]],
    ),
)  # fmt: skip
class CenteringZeroTimesInfinity(Plain):
    """q_v f(p_v/q_v) as a product of masses: 0 * inf where the sampler's probability is 0."""

    def log_mass(self, o: Any, logq: Array, logp: Array, logo: Array | None, a: Array, divisor: Any) -> Array:
        out = super().log_mass(o, logq, logp, logo, a, divisor)
        if o.weight is None or o.weight.level != "token":
            return out
        rho = np.exp((logp if logo is None else logo) - logq)
        return out + np.log(np.exp(logq) * rho * 0 + 1)
