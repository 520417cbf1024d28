"""Score centering at its limits: support, floors, extreme tail ratios, absent slots, zero probabilities, diagnostics."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, envelope, row
from .centre import FAMILY
from .common import MIS, TIS, fp32, one_token, policy

SUPPORT = {
    "logits": [[[1.0, 0.5, -0.25, 2.0, -1.0]]],
    "mask": [[1]],
    "advantages": [[1.5]],
    "support": [[[1, 1, 0, 1, 0]]],
}
LOGQ_SUPPORT = [fp32(x) for x in (-0.916290731874155, -1.6094379124341003, -0.916290731874155)]  # .4 .2 .4


@FAMILY.cases(
    {
        68: row("support-whole-rows", "Support tail from whole rows", "Off the support nothing: no tail, no alpha.",
            rule=None, rows=True),
        69: row("support-from-head", "Support tail from the head", "The head is the support; its mass is 1.",
            rule=None, rows=False),
        70: row("support-tis", "Support tail with TIS", "Ratios use p restricted to the support.", rule=TIS,
            rows=True),
        71: row("support-head-mis", "Support tail from the head with MIS",
            "p off the support is 0; over the whole row every ratio is wrong.", rule=MIS, rows=False),
    },
    flags=["SupportMismatch", "KeptMassTopP", "TailModel"],
)  # fmt: skip
def _(rule: dict | None, rows: bool) -> Draft:
    """Top-p replay: sampler and trainer both live on the recorded support {0, 1, 3}."""
    x: dict[str, Any] = {**SUPPORT, "tokens": [[1]], "logp_sampler": [[LOGQ_SUPPORT[1]]]}
    if rows:
        q = LOGQ_SUPPORT
        x["logp_sampler_full"] = [[[q[0], q[1], "-Infinity", q[2], "-Infinity"]]]
    else:
        x["head_ids"], x["head_logp_sampler"] = (
            [[[3, 0, 1, -1]]],
            [[[LOGQ_SUPPORT[2], LOGQ_SUPPORT[0], LOGQ_SUPPORT[1], "-Infinity"]]],
        )
    return envelope("objective", x, {"weight": rule, "centering": {"tail": "support"}})


@FAMILY.case(72, "support-singleton", flags=["SupportMismatch", "SingleToken"])
def _() -> Draft:
    """A support of one token: log p = 0, no gradient at all.

    The score vanishes and so does the correction; a full-vocabulary log-prob gives both.
    """
    x = {**SUPPORT, "support": [[[0, 0, 1, 0, 0]]], "tokens": [[2]], "logp_sampler": [[0.0]]}
    x["logp_sampler_full"] = [[["-Infinity", "-Infinity", 0.0, "-Infinity", "-Infinity"]]]
    return envelope("objective", x, {"centering": {"tail": "support"}})


@FAMILY.case(73, "head-is-vocabulary", flags=["TailModel", "FloorSide"])
def _() -> Draft:
    """K = V: the tail is empty and the gradient exact.

    Both tail masses are floored: rho is about 1 and multiplies nothing. (Loss values are ill-conditioned here and not judged.)
    """
    x = policy(973, [2], 4, 4, full=True)  # a head on the float32 grid: its mass is 1 to rounding
    del x["logp_sampler_full"]
    return envelope(
        "objective",
        x,
        {"centering": {}},
        outputs=("grad_logits", "grad_logp", "weights"),
    )


@FAMILY.case(74, "single-tail-token", flags=["TailModel"])
def _() -> Draft:
    """V - K = 1: the rescaled tail is exact.

    One tail token: its share of the tail is 1 under any model, so dropping the tail is wrong and rescaling right.
    """
    return envelope("objective", policy(974, [2, 1], 4, 3), {"weight": TIS, "centering": {}})


@FAMILY.cases(
    {
        75: row("on-policy-none", "On-policy, no weight", "The gradient is plain REINFORCE's.", rule=None),
        76: row("on-policy-tis", "On-policy, TIS", "f(1) = 1: nothing changes.", rule=TIS),
        77: row("on-policy-mis", "On-policy, MIS", "f(1) = 1: nothing changes.", rule=MIS),
    },
    flags=["NoOpOnPolicy"],
)  # fmt: skip
def _(rule: dict | None) -> Draft:
    """Sampler equal to the trainer up to float32 rounding: coefficients vanish to rounding error, the tail included."""
    z = [1.0, 0.5, -0.25, -1.0, -2.0]
    total = sum(2.718281828459045**x for x in z)
    return envelope(
        "objective",
        one_token(
            [2.718281828459045**x / total for x in z],
            [2.718281828459045**x / total for x in z],
            1,
            1.0,
            [0, 1],
            exact=True,
            logits=[[z]],
        ),
        {"weight": rule, "centering": {}},
    )


@FAMILY.cases(
    {
        78: row("rho-3e3", "Tail ratio 3e3, no weight", "Head-only float32 code is off by 3e-4.", p_tail=1e-4,
            rule=None),
        79: row("rho-1e5", "Tail ratio 1.5e5, no weight", "Head-only float32 code is off by 1e-2.", p_tail=2e-6,
            rule=None),
        80: row("rho-1e5-tis", "Tail ratio 1.5e5, TIS", "alpha = min(1, 2 rho) = 1: bounded rules do not see it.",
            p_tail=2e-6, rule=TIS),
        81: row("rho-1e5-mis", "Tail ratio 1.5e5, MIS", "1/rho lies below the band: alpha = 0.", p_tail=2e-6,
            rule=MIS),
    },
    flags=["TailPrecision"],
    derivation="10#tail-precision",
)  # fmt: skip
def _(p_tail: float, rule: dict | None) -> Draft:
    """The trainer has all but lost its tail, the sampler keeps 0.3 there; coefficients near -rho p cancel in a head-only sum.

    The gradient -A (e_y - q_hat) is well conditioned: q_hat - p on the tail instead of alpha p on the head.
    """
    p = [0.6 * (1 - p_tail), 0.4 * (1 - p_tail), 0.7 * p_tail, 0.3 * p_tail]
    x = one_token(p, [0.4, 0.3, 0.2, 0.1], 0, 1.0, [0, 1], exact=True)
    return envelope("objective", x, {"weight": rule, "centering": {}}, outputs=("grad_logits", "grad_logp", "weights"))


P_FLOOR = [0.6, 0.4 - 1e-8, 7e-9, 3e-9]
Q_FLOOR = [0.59, 0.4, 0.007, 0.003]


@FAMILY.cases(
    {
        82: row("floor-both", "Both tails floored", "rho = 0.01/1e-6: gradient (-.40406, .40396, 7e-5, 3e-5).",
            floors={}),
        83: row("floor-sampler-only", "Sampler floored, trainer not", "rho = 1e6: gradient (-.41, .40, .007, .003).",
            floors={"floor_trainer": None}),
        84: row("floor-trainer-only", "Trainer floored, sampler not",
            "The authors' training code: same as both here.", floors={"floor_sampler": None}),
        85: row("floor-none", "No floor", "The unfloored model.",
            floors={"floor_sampler": None, "floor_trainer": None}),
        86: row("floor-wide", "Floors of 2^-6",
            "Visible to every precision: a floor left out or on the wrong side fails by percents.",
            floors={"floor_sampler": 0.015625, "floor_trainer": 0.015625}),
    },
    flags=["FloorSide", "TailPrecision"],
)  # fmt: skip
def _(floors: dict) -> Draft:
    """Trainer tail 1e-8 against sampler tail 0.01: the floor decides where the mass goes."""
    return envelope(
        "objective",
        one_token(P_FLOOR, Q_FLOOR, 0, 1.0, [0, 1], exact=True),
        {"centering": floors},
        outputs=("grad_logits", "grad_logp", "weights"),
    )


@FAMILY.case(87, "floor-sampler-visible", flags=["FloorSide"])
def _() -> Draft:
    """A sampler whose head holds all the mass, trainer tail 0.25, sampler floor 2^-4.

    The floor gives the tail 1/16: without it rho = 0 and the coefficients are q alone.
    """
    x = one_token([0.45, 0.3, 0.15, 0.1], [0.6, 0.4, 1e-12, 1e-12], 0, 1.0, [0, 1], exact=True)
    return envelope("objective", x, {"centering": {"floor_sampler": 0.0625}})


@FAMILY.case(102, "constant-advantage-mean-zero", flags=["CentredScoreMeasure", "CentredSign"])
def _() -> Draft:
    """V = 3, K = 3, all three tokens as three rows with the same prefix and A = 1.

    Weighted by q the three gradients sum to 0: the centered score has mean zero under the sampler. The trainer's mean, or a
    renormalised head, leaves a drift. (q = 1/2, 1/4, 1/4 on the float32 grid.)
    """
    q = [fp32(x) for x in (-0.6931471805599453, -1.3862943611198906, -1.3862943611198906)]
    z = [0.5, 1.0, -0.5]
    x = {
        "logits": [[z]] * 3,
        "tokens": [[0], [1], [2]],
        "mask": [[1]] * 3,
        "advantages": [[1.0]] * 3,
        "logp_sampler": [[q[0]], [q[1]], [q[2]]],
        "logp_sampler_full": [[q]] * 3,
    }
    return envelope("objective", x, {"centering": {"tail": "exact"}})


@FAMILY.case(103, "square-everything", flags=["BroadcastShape", "AbsentSlot"])
def _() -> Draft:
    """B = T = K = 3, V = 4, ragged.

    Head, token and row axes of one length: gathers along the wrong one raise nothing.
    """
    return envelope("objective", policy(1003, [3, 2, 1], 4, 3), {"weight": TIS, "centering": {}})


@FAMILY.case(104, "junk-head-under-mask", flags=["PadSentinel", "AbsentSlot"])
def _() -> Draft:
    """NaN log-probs, ids out of range and NaN logits under the mask.

    The gradient there is exactly 0: 0 * NaN in the backward pass poisons every weight although the loss looks right.
    """
    x = policy(1004, [2, 1], 5, 3)
    x["logits"][1][1] = ["NaN"] * 5
    x["head_ids"][1][1] = [99, -7, 99]
    x["head_logp_sampler"][1][1] = ["NaN", "Infinity", 3.0]
    x["tokens"][1][1] = -100
    x["logp_sampler"][1][1] = "NaN"
    x["advantages"][1][1] = "NaN"
    return envelope("objective", x, {"weight": MIS, "centering": {}})


@FAMILY.cases(
    {
        105: row("tail-diagnostics", "Tail ratio and head masses",
            "rho is sampler over trainer; head masses are means over tokens.", rule=None),
        106: row("tail-diagnostics-tis", "Norm of the coefficients under TIS",
            "centering_l1 is the mean over tokens of sum |c|.", rule=TIS),
    },
    flags=["TailRatioDirection", "MetricPooling"],
)  # fmt: skip
def _(rule: dict | None) -> Draft:
    """Diagnostics of the centering stage."""
    names = ("head_mass_sampler", "head_mass_trainer", "tail_ratio_mean", "tail_ratio_max", "centering_l1")
    outputs = ("grad_logits", *(f"diagnostics.{name}" for name in names))
    return envelope("objective", policy(1005, [3, 2], 6, 2), {"weight": rule, "centering": {}}, outputs=outputs)


@FAMILY.case(107, "entropy-with-head", flags=["EntropySign", "CentredScoreMeasure"])
def _() -> Draft:
    """Entropy and head centering together.

    Derivatives in log p are then vocabulary-wide: head coefficients and entropy terms add up in one row.
    """
    return envelope("objective", policy(1007, [2], 5, 2), {"weight": TIS, "centering": {}, "entropy": {"coef": 0.25}})


@FAMILY.case(108, "sampler-version-of-the-token", flags=["StaleSampler", "CentredScoreMeasure"])
def _() -> Draft:
    """Two tokens of one row sampled by two engine versions.

    Same logits, different heads: each token is centered with the head recorded when it was drawn; one head for both fails.
    """
    x = policy(1008, [2], 5, 3)
    x["logits"][0][1] = list(x["logits"][0][0])
    return envelope("objective", x, {"centering": {}})
