"""Loss and gradient of the corrected policy gradient, without centering: TIS, MIS, PPO, CISPO, GSPO, TOPR, DPPO."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import (
    DPPO_TV,
    GEO_TIS,
    ICEPOP_ONE,
    MIS,
    P6,
    PAPER,
    PPO_BAND,
    Q6,
    SEQ_MIS,
    SEQ_TIS,
    TIS,
    TOPR,
    TWO_SIDED,
    fp32,
    one_token,
    policy,
)

FAMILY = Family("grad", "Gradient of the corrected loss on logits and log-probs", "03#gradient", [f"{PAPER}, Table 1"])


@FAMILY.case(1, "detached-weight-two-logits", flags=["WeightNotDetached"], regression=["verl #4105"])
def _() -> Draft:
    """Two logits, weight 2: the gradient is (-1, 1).

    Logits (0, 0), sampled id 0, q = 1/4 (log q on the float32 grid), A = 1. With the weight attached the gradient is
    -w A (1 + log p) = (-0.307, 0.307); the loss value is the same.
    """
    x = {
        "logits": [[[0.0, 0.0]]],
        "tokens": [[0]],
        "mask": [[1]],
        "advantages": [[1.0]],
        "logp_sampler": [[fp32(-1.3862943611198906)]],
    }
    return envelope("objective", x, {"weight": {}})


@FAMILY.case(2, "detached-weight-sign-flip", flags=["WeightNotDetached"], regression=["verl #4105"])
def _() -> Draft:
    """log p below -1: the attached weight flips the sign of the gradient.

    p = 0.047 (log p = -3.05), w = 1.64: right -1.64 (e_y - p), attached +3.37 (e_y - p).
    """
    x = {
        "logits": [[[3.0, 0.0, -1.0]]],
        "tokens": [[1]],
        "mask": [[1]],
        "advantages": [[1.0]],
        "logp_sampler": [[-3.5625]],
    }
    return envelope("objective", x, {"weight": {}})


@FAMILY.case(3, "weight-applied-everywhere", flags=["WeightDropped"], regression=["Liger-Kernel #1082"])
def _() -> Draft:
    """Weights near 1/100 on every token.

    An accepted but unused ratio gives a gradient 100 times as large.
    """
    x = policy(503, [4, 4], 3, head=False)
    x |= {"logits": [[[0.0, 0.0, -4.0]] * 4] * 2, "logp_sampler": [[-0.0625] * 4] * 2, "tokens": [[2] * 4] * 2}
    return envelope("objective", x, {"weight": {}})


RULES: list[tuple[str, str, dict | None, str, list[str]]] = [
    ("reinforce", "REINFORCE without correction", None, "The sampler's log-probs enter nowhere.", ["Basic"]),
    (
        "importance-sampling",
        "Plain importance sampling",
        {},
        "w = p/q, detached.",
        ["WeightNotDetached", "RatioDirection"],
    ),
    ("tis", "Token TIS, cap 2", TIS, "Truncated tokens keep their gradient at weight 2.", ["LowerClip", "ZeroNotClip"]),
    ("two-sided", "Two-sided truncation [0.5, 5]", TWO_SIDED, "Small ratios are raised.", ["LowerClip"]),
    (
        "mis",
        "MIS [0.5, 5]",
        MIS,
        "Masked: gradient exactly 0, denominator unchanged.",
        ["ZeroNotClip", "RejectDenominator"],
    ),
    (
        "icepop-one",
        "IcePop with weight 1 in the band",
        ICEPOP_ONE,
        "Unweighted inside, 0 outside.",
        ["InsideOneVsRatio"],
    ),
    ("ppo-band", "PPO band as a detached weight", PPO_BAND, "The band depends on the sign of A.", ["SignRule"]),
    ("sequence-tis", "Sequence TIS", SEQ_TIS, "One weight per row.", ["SeqProductVsGeomean", "SequenceLeak"]),
    ("sequence-mis", "Sequence MIS", SEQ_MIS, "Whole rows drop out.", ["SeqProductVsGeomean"]),
    (
        "geometric-tis",
        "Geometric TIS",
        {**GEO_TIS, "high": 1.125},
        "The geometric mean is truncated.",
        ["SeqProductVsGeomean"],
    ),
    ("topr", "TOPR", TOPR, "Product at most 1 where A < 0, else 1.", ["SignRule"]),
    ("dppo", "DPPO", DPPO_TV, "Band on p - q.", ["TvStatistic"]),
    (
        "normalised-tis",
        "Batch-normalised TIS",
        {**TIS, "normalise": "tokens"},
        "Divided by their mean.",
        ["Normalise"],
    ),
]

TWO_POLICY: dict[int, dict[str, Any]] = {}
THREE_POLICY: dict[int, dict[str, Any]] = {}
for _i, (_slug, _title, _rule, _says, _flags) in enumerate(RULES):
    _row = {"title": _title, "says": _says, "flags": _flags, "rule": _rule}
    TWO_POLICY[10 + _i] = {**_row, "slug": f"{_slug}-two-policies", "title": f"{_title}, two policies"}
    if _rule is not None:
        _more = ["RatioWrongPolicy", *_flags]
        THREE_POLICY[30 + _i] = {
            **_row,
            "slug": f"{_slug}-three-policies",
            "title": f"{_title}, three policies",
            "flags": _more,
        }


@FAMILY.cases(TWO_POLICY)
def _(rule: dict | None) -> Draft:
    """loss = - mean of w A log p(y) with w = f(p/q) detached; gradient - w A (e_y - p)/N on the logits."""
    return envelope(
        "objective", policy(510, [4, 2, 3], 4, head=False, drift=1.5), {"weight": rule} if rule is not None else {}
    )


@FAMILY.cases(THREE_POLICY)
def _(rule: dict) -> Draft:
    """The weight is o/q, frozen; p moves. Numerator p instead of the anchor changes every weight."""
    return envelope("objective", policy(530, [4, 2, 3], 4, head=False, drift=1.5, anchor=True), {"weight": rule})


@FAMILY.cases(
    {
        50: row("ppo-clip-two-policies", "PPO clip on p/q", "Clipped tokens have gradient exactly 0.",
            surrogate={"kind": "ppo_clip"}, anchor=False, weight=None),
        51: row("ppo-clip-three-policies", "PPO clip on p/o, weight TIS on o/q",
            "Two ratios with two roles; using p/q in either place fails.", surrogate={"kind": "ppo_clip"},
            anchor=True, weight=TIS),
        52: row("ppo-clip-higher", "PPO clip-higher with weight", "Bounds 0.8 and 1.28.",
            surrogate={"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.28}, anchor=True, weight=MIS),
        53: row("ppo-dual", "PPO with dual clip 1.5", "Negative tokens with r > 1.5 stop.",
            surrogate={"kind": "ppo_clip", "dual": 1.5}, anchor=False, weight=None),
        54: row("cispo-two-policies", "CISPO on p/q", "Clipped tokens keep a gradient.", surrogate={"kind": "cispo"},
            anchor=False, weight=None),
        55: row("cispo-three-policies", "CISPO on p/o, weight TIS on o/q", "Both ratios detached.",
            surrogate={"kind": "cispo", "eps_low": 0.25, "eps_high": 0.25}, anchor=True, weight=TIS),
        56: row("gspo-two-policies", "GSPO on p/q", "Row ratio, one clip per row.",
            surrogate={"kind": "gspo", "eps_low": 0.25, "eps_high": 0.25}, anchor=False, weight=None),
        57: row("gspo-three-policies", "GSPO on p/o, token weights",
            "The slope is the straight-through form: each token's own weight times S.",
            surrogate={"kind": "gspo", "eps_low": 0.25, "eps_high": 0.25}, anchor=True, weight=TIS),
        58: row("ppo-sequence-weight", "PPO clip with a sequence weight", "Row weight times token clip.",
            surrogate={"kind": "ppo_clip"}, anchor=True, weight=SEQ_TIS),
        59: row("double-ratio-allowed", "PPO clip on p/q with a weight on p/q",
            "allow_double_ratio: the ratio is squared on purpose.", surrogate={"kind": "ppo_clip"}, anchor=False,
            weight=TIS, double=True, flags=["DoubleRatio"]),
    },
    flags=["ClipNotApplied", "CispoDetach", "RatioWrongPolicy"],
)  # fmt: skip
def _(surrogate: dict, anchor: bool, weight: dict | None, double: bool = False) -> Draft:
    """Loss and gradient of a ratio surrogate, with and without an anchor; rows of 3, 4 and 1 tokens."""
    x = policy(550, [3, 4, 1], 4, head=False, drift=1.25, anchor=anchor)
    settings: dict[str, Any] = {"surrogate": surrogate, "weight": weight}
    if double:
        settings["allow_double_ratio"] = True
    return envelope("objective", x, settings)


@FAMILY.case(60, "surrogate-weight-equivalence", flags=["ClipNotApplied", "SignRule"])
def _() -> Draft:
    """PPO clip's gradient is that of the weight that is r inside and 0 outside.

    The dialect "as a weight" carries the same grad_logits with another loss value: gradients are what can be compared.
    """
    x = policy(560, [4, 3], 4, head=False)
    band = {"outside": "zero", "positive": {"low": 0.0, "high": 1.25}, "negative": {"low": 0.75, "high": None}}
    return envelope(
        "objective",
        x,
        {"surrogate": {"kind": "ppo_clip", "eps_low": 0.25, "eps_high": 0.25}},
        dialects={"as-a-weight": ({"weight": band}, "REINFORCE with the detached band weight (arXiv 2609.20807)")},
    )


TEMPERATURES: dict[int, dict[str, Any]] = {
    61: row(
        "temperature-sharp", "Temperature 0.5 with TIS", "Ratios at T = 1 are wrong for both signs.", temperature=0.5
    ),
    62: row("temperature-flat", "Temperature 1.5 with TIS", "The gradient on the logits carries 1/T.", temperature=1.5),
}


@FAMILY.cases(TEMPERATURES, flags=["Temperature"])
def _(temperature: float) -> Draft:
    """p = softmax(z/T) on both paths: the ratio and the gradient."""
    return envelope("objective", policy(561, [3, 2], 5, head=False), {"temperature": temperature, "weight": TIS})


@FAMILY.case(63, "support-restricts-trainer", flags=["KeptMassTopP", "SupportMismatch"])
def _() -> Draft:
    """The recorded support restricts p: a top-p sampler with kept mass 0.8.

    Over the full vocabulary every ratio is 0.8 times what it should be; gradient off the support is exactly 0.
    """
    x = one_token([0.5, 0.3, 0.15, 0.05], [0.625, 0.375, 1e-9, 1e-9], 1, 1.0, support=[[[1, 1, 0, 0]]])
    return envelope("objective", x, {"weight": TIS})


@FAMILY.cases(
    {
        64: row("golden-tis-truncated", "Six tokens, TIS, ratio 6.25", "Weight 2.", rule=TIS, y=1),
        65: row("golden-mis-high", "Six tokens, MIS, ratio 6.25", "Weight 0: loss and gradient exactly 0.", rule=MIS,
            y=1),
        66: row("golden-mis-low", "Six tokens, MIS, ratio 0.417", "Weight 0 from below.", rule=MIS, y=2),
        67: row("golden-untruncated", "Six tokens, plain ratio 6.25", "The full ratio.", rule={}, y=1),
    },
    flags=["Basic", "ZeroNotClip"],
)  # fmt: skip
def _(rule: dict, y: int) -> Draft:
    """p = (.40 .25 .15 .10 .06 .04), q = (.30 .04 .36 .18 .05 .07) rounded to the grid, A = 0.5, one token."""
    return envelope("objective", one_token(P6, Q6, y, 0.5), {"weight": rule})


@FAMILY.case(68, "square-batch", flags=["BroadcastShape"])
def _() -> Draft:
    """B = T = V = 3.

    Every axis has the same length: an advantage or weight that broadcasts along the wrong one raises nothing.
    """
    return envelope("objective", policy(568, [3, 3, 2], 3, head=False), {"weight": TIS})


@FAMILY.case(69, "bf16-logits-peaked", flags=["Basic", "LogSoftmaxOverflow"])
def _() -> Draft:
    """Peaked bf16 logits with TIS.

    The logits are exact in bf16: a log-softmax taken in float32 passes at fp32, one taken in bf16 before the gather does not.
    """
    x = policy(569, [3, 3], 6, head=False, spread=12.0)
    return envelope("objective", x, {"weight": TIS})
