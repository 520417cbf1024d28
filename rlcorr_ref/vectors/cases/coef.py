"""Centering coefficients on the head from head log-probs alone: every rule, alpha, tail ratio and head masses."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import ICEPOP_ONE, MIS, PAPER, PPO_BAND, TIS, TWO_SIDED

FAMILY = Family(
    "coef", "Head coefficients of score centering", "06#head-coefficients", [f"{PAPER}, Eqs. 12, 14, App. A.2-A.3"]
)

# Ratios p/q on the head: exp(0.5), exp(-0.875), exp(1.0), exp(-0.25); tails about 0.2 (trainer) and 0.23 (sampler).
HEAD = {
    "head_logp_sampler": [[[-1.25, -1.375, -2.5, -2.125], [-0.75, -1.5, -2.75, -4.0]]],
    "head_logp_trainer": [[[-0.75, -2.25, -1.5, -2.375], [-1.0, -0.875, -4.5, -3.0]]],
    "mask": [[1, 1]],
}
UP, DOWN = [[1.0, 0.5]], [[-1.0, -0.5]]

RULES: dict[int, dict[str, Any]] = {
    1: row("rescaled-none", "No weight, rescaled tail", "c = q - rho p.", settings={}),
    2: row(
        "rescaled-is",
        "Plain importance sampling",
        "q p/q - p = 0: centering adds nothing, exactly.",
        settings={"weight": {}},
    ),
    3: row("rescaled-tis", "TIS", "alpha = min(1, 2 rho) = 1: only truncated tokens remain.", settings={"weight": TIS}),
    4: row("rescaled-mis", "MIS", "Masked head tokens leave - p.", settings={"weight": MIS}),
    5: row(
        "rescaled-icepop-one", "IcePop with weight 1 inside", "alpha = rho, not 1.", settings={"weight": ICEPOP_ONE}
    ),
    6: row("rescaled-two-sided", "Two-sided truncation", "0.417 is raised to 0.5.", settings={"weight": TWO_SIDED}),
    7: row(
        "dropped-tis",
        "TIS, tail dropped",
        "alpha = 0: c = min(p, 2 q).",
        settings={"weight": TIS, "centering": {"tail": "dropped"}},
    ),
    8: row(
        "renormalised-none",
        "No weight, head renormalised",
        "c = q/Q.",
        settings={"centering": {"tail": "renormalised"}},
    ),
    9: row(
        "renormalised-tis",
        "TIS, head renormalised",
        "The ratio is p Q/q: renormalised inside g too.",
        settings={"weight": TIS, "centering": {"tail": "renormalised"}},
    ),
    10: row(
        "token-gate",
        "Token gate",
        "The gate acts on each head token and on the tail's 1/rho.",
        settings={"gate": {"low": 0.5, "high": 2.0}},
    ),
    11: row(
        "log-clamp",
        "Clamp of 0.375 nats",
        "Ratios at the clamp no longer cancel.",
        settings={"weight": {"log_clamp": 0.375}},
    ),
    12: row(
        "cispo", "CISPO on p/q", "g = min(r, 1.2): q g = p below the cap.", settings={"surrogate": {"kind": "cispo"}}
    ),
    13: row(
        "cap-below-one",
        "TIS with cap 0.5",
        "alpha = rho f(1/rho) = 0.5 rho.",
        settings={"weight": {**TIS, "high": 0.5}},
    ),
}


@FAMILY.cases(RULES, flags=["Composition", "TailModel"])
def _(settings: dict) -> Draft:
    """c_v = q_v g(v) - alpha p_v on four head tokens, alpha = rho g(tail), rho = (1 - Q)/(1 - P); without A."""
    return envelope("head_coefficients", HEAD, settings)


@FAMILY.cases(
    {
        14: row("ppo-band-positive", "PPO band, A > 0", "Only r > 1.2 is masked.", settings={"weight": PPO_BAND},
            a=UP),
        15: row("ppo-band-negative", "PPO band, A < 0", "r < 0.8 and r > 3 are masked.",
            settings={"weight": PPO_BAND}, a=DOWN),
        16: row("ppo-clip-positive", "PPO clip, A > 0", "g = r where not clipped from above.",
            settings={"surrogate": {"kind": "ppo_clip"}}, a=UP),
        17: row("ppo-clip-negative", "PPO clip, A < 0", "g = r where not clipped from below.",
            settings={"surrogate": {"kind": "ppo_clip"}}, a=DOWN),
        18: row("sign-exempt", "MIS for A < 0 only, at A > 0", "f = 1 for every v: c = q - rho p.",
            settings={"weight": {**MIS, "sign": "negative"}}, a=UP),
    },
    flags=["SignRule", "Composition"],
)  # fmt: skip
def _(settings: dict, a: list) -> Draft:
    """Rules that depend on the sign of the sampled token's advantage apply it to every v."""
    return envelope("head_coefficients", HEAD | {"advantages": a}, settings)


ANCHOR = HEAD | {"head_logp_anchor": [[[-1.0, -1.75, -1.875, -2.25], [-0.875, -1.125, -3.5, -3.375]]]}


@FAMILY.cases(
    {
        19: row("three-tis", "TIS on o/q", "c = min(o, 2 q) - alpha p, alpha = o tail over p tail here.",
            settings={"weight": TIS}, a=UP),
        20: row("three-ppo-positive", "PPO clip on p/o, A > 0", "q r = q p/o, not p.",
            settings={"surrogate": {"kind": "ppo_clip"}}, a=UP),
        21: row("three-ppo-tis-negative", "PPO clip on p/o and TIS on o/q, A < 0",
            "q (o/q)(p/o) = p where neither binds.", settings={"surrogate": {"kind": "ppo_clip"}, "weight": TIS},
            a=DOWN),
        22: row("three-cispo-mis", "CISPO on p/o and MIS on o/q", "Both detached, both per v.",
            settings={"surrogate": {"kind": "cispo"}, "weight": MIS}, a=UP),
        23: row("three-trainer-numerator", "TIS on p/q although an anchor is given", "numerator \"trainer\".",
            settings={"weight": {**TIS, "numerator": "trainer"}}, a=UP),
    },
    flags=["ThreePolicies", "Composition"],
    derivation="07#three-policies",
)  # fmt: skip
def _(settings: dict, a: list) -> Draft:
    """Three policies: the weight is o/q, the surrogate's ratio p/o."""
    return envelope("head_coefficients", ANCHOR | {"advantages": a}, settings)


@FAMILY.case(24, "masked-token", flags=["PadSentinel", "BroadcastShape"])
def _() -> Draft:
    """A masked token with junk on its head: coefficients 0 there.

    B = 2, T = 1, K = 4: NaN and positive log-probs under the mask.
    """
    x = {
        "head_logp_sampler": [[HEAD["head_logp_sampler"][0][0]], [["NaN", 3.0, "Infinity", "-Infinity"]]],
        "head_logp_trainer": [[HEAD["head_logp_trainer"][0][0]], [["NaN", "NaN", 2.0, 0.0]]],
        "mask": [[1], [0]],
    }
    return envelope("head_coefficients", x, {"weight": MIS})


@FAMILY.case(25, "absent-slot", flags=["AbsentSlot"])
def _() -> Draft:
    """A slot with log-prob -Infinity on both sides contributes nothing.

    Mass, alpha and the other coefficients are those of the three other slots.
    """
    x = {
        "head_logp_sampler": [[[-1.25, "-Infinity", -2.5, -2.125]]],
        "head_logp_trainer": [[[-0.75, "-Infinity", -1.5, -2.375]]],
        "mask": [[1]],
    }
    return envelope("head_coefficients", x, {"weight": TIS})
