"""Score centering: every tail with every composition, support, floors, extremes, two and three policies."""

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
    SEQ_TIS,
    TIS,
    TWO_SIDED,
    one_token,
    policy,
)

FAMILY = Family("centre", "Score centering on logits", "05#score-centering", [f"{PAPER}, Eqs. 8, 12, 14 and App. A"])

TAIL_SAYS = {
    "rescaled": "Tail modelled as rho p: c_v = q_v g(v) - alpha p_v on the head.",
    "exact": "Whole sampler rows: no tail model.",
    "dropped": "Tail forgotten: c_v = q_v g(v), expectation short of the tail mass.",
    "renormalised": "Head blown up to mass 1, inside the ratio too.",
    "uniform": "Tail mass spread evenly over the other V - K tokens.",
}
COMPOSITIONS: list[tuple[str, str, dict | None, list[str]]] = [
    ("none", "no weight", None, ["CentredScoreMeasure"]),
    ("importance", "plain importance sampling", {}, ["Composition"]),
    ("tis", "TIS 2", TIS, ["Composition"]),
    ("mis", "MIS [0.5, 5]", MIS, ["Composition", "SampledMaskedCenteringAlive"]),
    ("icepop-one", "IcePop with weight 1 inside", ICEPOP_ONE, ["Composition", "InsideOneVsRatio"]),
    ("ppo-band", "PPO band by sign", PPO_BAND, ["Composition", "SignRule"]),
]

GRID: dict[int, dict[str, Any]] = {}
_serial = 1
for _tail in ("rescaled", "exact", "dropped", "renormalised", "uniform"):
    for _slug, _name, _rule, _flags in COMPOSITIONS:
        GRID[_serial] = {
            "slug": f"{_tail}-{_slug}",
            "title": f"Tail {_tail}, {_name}",
            "says": TAIL_SAYS[_tail],
            "flags": ["TailModel", *_flags],
            "tail": _tail,
            "rule": _rule,
        }
        _serial += 1


@FAMILY.cases(GRID, derivation="06#tails")
def _(tail: str, rule: dict | None) -> Draft:
    """Centered REINFORCE: the sampler's expectation of the weighted score is subtracted.

    Two rows, V = 6, K = 3; some ratios beyond every bound.
    """
    x = policy(917, [2, 1], 6, 3, drift=1.75, full=tail == "exact", head=tail != "exact")
    return envelope("objective", x, {"weight": rule, "centering": {"tail": tail}})


THREE: dict[int, dict[str, Any]] = {}
_serial = 31
for _tail in ("rescaled", "exact", "dropped"):
    for _slug, _name, _settings in (
        ("tis", "TIS on o/q", {"weight": TIS}),
        ("mis", "MIS on o/q", {"weight": MIS}),
        ("ppo", "PPO clip on p/o", {"surrogate": {"kind": "ppo_clip"}}),
        (
            "ppo-tis",
            "PPO clip on p/o and TIS on o/q",
            {"surrogate": {"kind": "ppo_clip", "eps_high": 0.28}, "weight": TIS},
        ),
        (
            "cispo-tis",
            "CISPO on p/o and TIS on o/q",
            {"surrogate": {"kind": "cispo", "eps_low": 0.25, "eps_high": 0.25}, "weight": TIS},
        ),
    ):
        THREE[_serial] = {
            "slug": f"{_tail}-three-{_slug}",
            "title": f"Three policies, tail {_tail}, {_name}",
            "says": TAIL_SAYS[_tail],
            "flags": ["ThreePolicies", "TailModel", "Composition"],
            "tail": _tail,
            "settings": _settings,
        }
        _serial += 1


@FAMILY.cases(THREE, derivation="07#three-policies")
def _(tail: str, settings: dict) -> Draft:
    """g(v) holds both ratios of token v: f(o_v/q_v) and, for a ratio surrogate, r_v = p_v/o_v with its clip for this A."""
    x = policy(931, [2, 1], 5, 3, drift=1.25, anchor=True, full=tail == "exact", head=tail != "exact")
    return envelope("objective", x, {**settings, "centering": {"tail": tail}})


@FAMILY.cases(
    {
        46: row("golden-none", "Six tokens, no weight",
            "rho = 16/35; gradient (.15, -.443, .18, .09, .0137, .0091) before rounding of the inputs.",
            head=[2, 0, 3], rule=None, y=1),
        47: row("golden-tis", "Six tokens, TIS, sampled ratio 6.25", "alpha = 32/35.", head=[2, 0, 3], rule=TIS, y=1),
        48: row("golden-tis-in-head", "Six tokens, TIS, sampled token in the head",
            "The recorded log-prob and the head agree.", head=[2, 0, 3], rule=TIS, y=2),
        49: row("golden-mis-masked-alive", "Sampled token masked, centering alive",
            "Gradient (.03, .019, -.064, .0075, .0045, .003), not 0.", head=[2, 0, 3], rule=MIS, y=1),
        50: row("golden-tail-above-one", "Six tokens, rho = 1.5", "Tail ratio above 1: alpha = 1.5 without a weight.",
            head=[2, 0, 1], rule=None, y=3),
        51: row("golden-tis-tail-above-one", "Six tokens, TIS, rho = 1.5",
            "alpha = rho f(1/rho) = 1, coefficients of in-band tokens vanish.", head=[2, 0, 1], rule=TIS, y=3),
        52: row("golden-mis-tail-above-one", "Six tokens, MIS, rho = 1.5",
            "Head tokens out of band contribute - alpha p.", head=[2, 0, 1], rule=MIS, y=3),
    },
    flags=["Composition", "TailRatioDirection", "CentredSign", "SampledMaskedCenteringAlive"],
)  # fmt: skip
def _(head: list, rule: dict | None, y: int) -> Draft:
    """p = (.40 .25 .15 .10 .06 .04), q = (.30 .04 .36 .18 .05 .07) rounded to float32, A = 0.5, one token."""
    return envelope("objective", one_token(P6, Q6, y, 0.5, head, exact=True), {"weight": rule, "centering": {}})


@FAMILY.cases(
    {
        53: row("sequence-weight", "Sequence weight on the centered term",
            "The row weight multiplies the unweighted centered term as a whole.", settings={"weight": SEQ_TIS}),
        54: row("geometric-weight", "Geometric weight on the centered term",
            "A row weight is no function of v: not inside g.", settings={"weight": {**GEO_TIS, "high": 1.0625}}),
        55: row("sequence-gate", "Sequence gate on the centered term", "A dropped row loses both terms.",
            settings={"weight": TIS, "gate": {"level": "sequence", "low": 0.5, "high": 2.0}}, seed=425, drift=1.75),
        56: row("token-gate", "Token gate inside g",
            "A token gate is a function of v and acts on every head token and the tail.",
            settings={"weight": TIS, "gate": {"level": "token", "low": 0.625, "high": 1.5}}),
        57: row("log-clamp-inside", "Log clamp inside g", "A clamp of 0.5 nats acts on every v.",
            settings={"weight": {"log_clamp": 0.5}}),
        58: row("normalised-inside", "Batch normaliser inside g", "The divisor multiplies coefficients too.",
            settings={"weight": {**TIS, "normalise": "tokens"}}),
        59: row("sign-exempt-inside", "Sign exemption inside g", "With A >= 0 exempt every v has f = 1.",
            settings={"weight": {**MIS, "sign": "negative"}}),
        60: row("two-sided-inside", "Two-sided truncation inside g",
            "Small ratios are raised on the head too: q_v * 0.5.", settings={"weight": TWO_SIDED}),
        61: row("cap-below-one", "A cap of 0.5",
            "f(1) = 0.5: coefficients still vanish on-policy, the rest is halved.",
            settings={"weight": {**TIS, "high": 0.5}}),
        62: row("temperature", "Temperature 0.75", "p, rho and the gradient at T; q is as recorded.",
            settings={"weight": TIS, "temperature": 0.75}),
        63: row("row-mean", "Row means", "The centering term has the token's aggregation coefficient.",
            settings={"weight": MIS, "aggregation": {"kind": "seq-mean-token-mean"}}),
        64: row("ppo-clip-two-policies", "PPO clip on p/q, centered",
            "g(v) = r_v where r_v is not clipped for this A: q g = p on those tokens.",
            settings={"surrogate": {"kind": "ppo_clip"}}),
        65: row("cispo-two-policies", "CISPO on p/q, centered", "g(v) = min(r_v, 1.2).",
            settings={"surrogate": {"kind": "cispo"}}),
    },
    flags=["Composition", "CentredScoreMeasure"],
    derivation="07#composition",
)  # fmt: skip
def _(settings: dict, seed: int = 953, drift: float = 1.0) -> Draft:
    """Rescaled tail; rows of 3 and 2 tokens, advantages of both signs, V = 6, K = 3."""
    return envelope("objective", policy(seed, [3, 2], 6, 3, drift=drift), {**settings, "centering": {}})


@FAMILY.cases(
    {
        66: row("dppo-exact", "DPPO band, exact tail", "The band on p_v - q_v acts on every v.",
            settings={"weight": DPPO_TV}),
        67: row("tv-absolute-exact", "Absolute TV band, exact tail", "Either sign of p - q.",
            settings={"weight": {"statistic": "tv", "high": 0.2, "outside": "zero"}}),
    },
    flags=["TvStatistic", "Composition"],
)  # fmt: skip
def _(settings: dict) -> Draft:
    """TV statistics have no constant value on a modelled tail, so they go with whole rows."""
    return envelope(
        "objective",
        policy(900, [2, 2], 5, full=True, head=False, drift=1.5),
        {**settings, "centering": {"tail": "exact"}},
    )
