"""Findings for AReaL: each function feeds the package the smallest input and compares with the reference."""

from __future__ import annotations

import math
from typing import Any

from .inputs import ones, right, tensor
from .records import Finding, Observation, by_row_weight, differ

SOURCE = "areal/utils/functional/functional.py"
CONFIG = "areal/api/cli_args.py"
DATA = "areal/utils/data.py"


def reciprocal_k3(areal: Any) -> Observation:
    """k3 of a ratio of 3, unclamped."""
    d = [[math.log(3.0)]]
    p = tensor([[-1.0]])
    estimate = areal.p.names["KLEstimator"]._compute_approx_kl
    return differ(
        lambda: estimate(p, p - tensor(d), "k3", apply_clamp=False)[0, 0], right("diagnostics", "kl_k3", d, {})
    )


def kept_by_k3(areal: Any) -> Observation:
    """A ratio of 3 against an upper bound of 0.5 on k3."""
    d = [[math.log(3.0)]]
    p, one = tensor([[-1.0]]), tensor([[1]], whole=True)
    options = {"level": "token", "action": "mask", "metric": "kl_k3", "agg": "mean", "upper": 0.5}
    wanted = right("reject", "mask", d, {"statistic": "k3", "reduce": "token", "high": 0.5})
    return differ(lambda: areal._apply(options, p, p - tensor(d), one).loss_mask.long(), wanted)


def gate_and_clamp(areal: Any) -> Observation:
    """Product 16 above the bound 5, geometric mean 4 below it: clamp changes nothing."""
    d = [[math.log(4.0), math.log(4.0)]]
    p, m = tensor([[-1.0, -1.0]]), tensor(ones(d), whole=True)
    options = {"level": "sequence", "action": "clamp", "metric": "ratio", "agg": "sum", "upper": 5.0}
    wanted = right("weight", "weights", d, {"level": "sequence", "high": 5.0, "outside": "clip"})
    return differ(lambda: areal._apply(options, p, p - tensor(d), m).behave_imp_weight, wanted)


def geometric(areal: Any) -> Observation:
    """Token ratios 4 and 1 at level sequence without an active bound."""
    d = [[math.log(4.0), 0.0]]
    p, m = tensor([[-1.0, -1.0]]), tensor(ones(d), whole=True)
    options = {"level": "sequence", "action": "clamp", "metric": "ratio", "agg": "mean", "upper": 100.0}
    wanted = right("weight", "weights", d, {"level": "sequence", "high": 100.0, "outside": "clip"})
    return differ(lambda: areal._apply(options, p, p - tensor(d), m).behave_imp_weight, wanted)


def infinite_ratio(areal: Any) -> Observation:
    """A non-finite log-ratio: both log-probs -inf."""
    inf = float("-inf")
    one = tensor([[1]], whole=True)
    options = {"level": "token", "action": "mask", "metric": "ratio", "agg": "mean", "upper": 5.0}
    return differ(
        lambda: areal._apply(options, tensor([[-1.0]]), tensor([[inf]]), one).behave_imp_weight,
        "0 or an error: the ratio is infinite",
    )


def overflow(areal: Any) -> Observation:
    """A surrogate log-ratio of 100 nats with A > 0: the clip stops the gradient."""
    import torch

    def run() -> Any:
        leaf = torch.tensor([[-1.0]], requires_grad=True)
        rule = {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.2}
        old, one = tensor([[-101.0]]), tensor([[1]], whole=True)
        return torch.autograd.grad(areal._loss(rule, leaf, old, old, tensor([[1.0]]), one, None)[0], leaf)[0]

    return differ(run, [[0.0]])


FINDINGS = (
    Finding(
        "areal-k3-reciprocal",
        "kl_k3 is evaluated on the reciprocal of the documented ratio",
        "the option's help text states k3 = r - log r - 1, with r the ratio of proximal to behaviour policy as for "
        "metric ratio",
        "ratio 3, metric kl_k3",
        "The estimator exponentiates minus the log-ratio: 1/r + log r - 1. For a ratio of 3 that is 0.43 instead of"
        " 0.90.",
        f"{CONFIG}, {DATA}",
        reciprocal_k3,
        lambda o: "k3-metric-reversed" in o.faults or "k3-of-the-reciprocal" in o.faults,
    ),
    Finding(
        "areal-k3-keeps",
        "A token beyond the documented k3 bound is kept",
        "tokens with metric > upper are filtered",
        "ratio 3, metric kl_k3, upper 0.5",
        "The decision follows from the reciprocal ratio: large ratios are judged mildly and small ones severely.",
        SOURCE,
        kept_by_k3,
        lambda o: "k3-of-the-reciprocal" in o.faults,
    ),
    Finding(
        "areal-clamp-no-effect",
        "Clamping by the product leaves the weight above what the bound means",
        "level sequence weighs by the geometric mean; agg sum compares the product with the bounds; clamp bounds "
        "the weight",
        "ratios [4, 4], level sequence, agg sum, action clamp, upper 5",
        "The gate sees the product, 16, and clamps the geometric mean, 4, to 5: nothing changes. Documented piece "
        "by piece; 'right' shows the product clamped to the bound.",
        SOURCE,
        gate_and_clamp,
        kind="by definition",
    ),
    Finding(
        "areal-sequence-geometric",
        "'sequence' is the geometric mean of the row",
        "with level sequence and metric ratio the weight is documented as the sequence-level geometric mean",
        "ratios [4, 1], level sequence, action clamp, upper 100",
        "The row's importance ratio is the product, 4; the geometric mean is 2. verl, TRL and SkyRL use the product"
        " under the same name.",
        SOURCE,
        geometric,
        by_row_weight,
        kind="by definition",
    ),
    Finding(
        "areal-nonfinite-is-one",
        "An infinite ratio becomes ratio 1",
        "non-finite log-ratios are set to 0 to keep NaN from spreading",
        "log p = -1, behaviour log-prob -inf, upper 5",
        "The token that is furthest off policy gets the weight of an on-policy one. Ratios that are huge but finite"
        " are masked.",
        SOURCE,
        infinite_ratio,
        kind="by definition",
    ),
    Finding(
        "areal-ratio-overflow",
        "An overflowing ratio makes the gradient NaN where the clip should make it 0",
        "eps_clip bounds the ratio: a token beyond 1 + eps with A > 0 has no gradient",
        "log p = -1, proximal log-prob -101, A = 1, eps_clip 0.2, float32",
        "exp(100) is infinite in float32, and the branch that is not selected contributes 0 times infinity in the "
        "backward pass.",
        SOURCE,
        overflow,
        lambda o: o.family == "surrogate" and any("got NaN" in miss for miss in o.misses),
        beyond=True,
    ),
)
