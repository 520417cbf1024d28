"""Pairs of stages that meet in production: row-level rejection under a ratio surrogate, and row-level weights beside one."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, envelope, row
from .common import SEQ_TIS, TIS, policy
from .grad import FAMILY

BOUNDS = {"statistic": "k1", "reduce": "sum", "low": -0.25, "high": 1.25}
PRODUCT = {"statistic": "ratio", "reduce": "sum", "low": 0.125, "high": 4.0}
GEOMETRIC = {"statistic": "ratio", "reduce": "mean", "low": 0.6875, "high": 1.1875}
MEAN = {"statistic": "k1", "reduce": "mean", "high": 0.4375}


@FAMILY.cases(
    {
        70: row("ppo-rows-rejected-by-sum", "PPO clip after rejection by the row sum",
            "The row mean would keep every row.", seed=574, lengths=[2, 4, 3, 4, 1], surrogate={"kind": "ppo_clip"},
            rule=BOUNDS, flags=["ClipNotApplied", "SeqProductVsGeomean"]),
        71: row("ppo-rows-rejected-by-mean", "PPO clip after rejection by the geometric mean",
            "The product would reject every row.", seed=570, lengths=[4, 2, 3, 4], surrogate={"kind": "ppo_clip"},
            rule=GEOMETRIC, flags=["ClipNotApplied", "SeqProductVsGeomean", "MaskInRowSum"]),
        72: row("cispo-rows-rejected-by-product", "CISPO after rejection by the row product",
            "Clipped tokens keep their gradient, those of rejected rows lose it.", seed=571, lengths=[3, 4, 2, 3, 1],
            surrogate={"kind": "cispo"}, rule=PRODUCT, flags=["CispoDetach", "SeqProductVsGeomean"]),
        73: row("cispo-rows-rejected-by-mean", "CISPO, bounded on both sides, after rejection by the row mean",
            "The row sum would keep one row in place of three.", seed=572, lengths=[4, 3, 2, 4, 3],
            surrogate={"kind": "cispo", "eps_low": 0.125, "eps_high": 0.125}, rule=MEAN,
            flags=["CispoDetach", "SeqProductVsGeomean", "MaskInRowSum"]),
    },
    flags=["RejectKeepsTerm", "RejectDenominator", "RatioWrongPolicy"],
    derivation="03#rejection",
)  # fmt: skip
def _(seed: int, lengths: list[int], surrogate: dict, rule: dict) -> Draft:
    """Rows are kept or dropped by o/q (p/q keeps other rows), p/o is clipped, the token weight is TIS; N counts all tokens."""
    x = policy(seed, lengths, 4, head=False, drift=1.5, anchor=True)
    return envelope("objective", x, {"surrogate": surrogate, "weight": TIS, "rejection": [rule]})


@FAMILY.cases(
    {
        74: row("gspo-sequence-weight", "GSPO with sequence TIS",
            "The clip sees the row's geometric mean of p/o, the weight its product of o/q.", seed=570,
            lengths=[4, 2, 3, 4], surrogate={"kind": "gspo", "eps_low": 0.125, "eps_high": 0.1875}, weight=SEQ_TIS,
            flags=["GspoRowRatio"]),
        75: row("ppo-geometric-weight", "PPO clip with geometric TIS",
            "The token's r is clipped, the row's geometric mean of o/q truncated at 1.5.", seed=571,
            lengths=[3, 4, 2, 3, 1], surrogate={"kind": "ppo_clip"},
            weight={"level": "geometric", "high": 1.5, "outside": "clip"}, flags=["ClipNotApplied"]),
    },
    flags=["SeqProductVsGeomean", "SequenceLeak", "RatioWrongPolicy"],
)  # fmt: skip
def _(seed: int, lengths: list[int], surrogate: dict, weight: dict) -> Draft:
    """A row-level weight on o/q beside a surrogate on p/o: two ratios, two levels, one gradient."""
    x = policy(seed, lengths, 4, head=False, drift=1.5, anchor=True)
    return envelope("objective", x, {"surrogate": surrogate, "weight": weight})


@FAMILY.cases(
    {
        76: row("trainer-rejects-rows", "Rows rejected by p/q beside a weight on o/q",
            "o/q rejects the other rows: 1 and 3 in place of 0 and 2.", seed=574, lengths=[2, 4, 3, 4, 1],
            rule={"statistic": "k1", "reduce": "sum", "low": -0.5, "high": 1.0}, surrogate=None),
        77: row("trainer-rejects-tokens", "Tokens rejected by p/q under PPO clip on p/o",
            "Three ratios with three roles: p/q rejects, p/o is clipped, o/q weighs.", seed=573, lengths=[4, 4, 3, 2],
            rule={"statistic": "ratio", "reduce": "token", "low": 0.53125, "high": 1.75},
            surrogate={"kind": "ppo_clip"}),
    },
    flags=["RatioWrongPolicy", "ThreePolicies", "RejectKeepsTerm"],
    derivation="03#rejection",
)  # fmt: skip
def _(seed: int, lengths: list[int], rule: dict[str, Any], surrogate: dict | None) -> Draft:
    """numerator "trainer" in a rejection rule although an anchor is given: the rule asks how far p has moved from q."""
    x = policy(seed, lengths, 4, head=False, drift=1.5, anchor=True)
    settings: dict[str, Any] = {"weight": TIS, "rejection": [{**rule, "numerator": "trainer"}]}
    if surrogate is not None:
        settings["surrogate"] = surrogate
    return envelope("objective", x, settings)
