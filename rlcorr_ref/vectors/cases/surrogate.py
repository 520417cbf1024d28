"""Surrogates in log p: REINFORCE, PPO clip (asymmetric, dual), CISPO and GSPO, value and slope on every side of the band."""

from __future__ import annotations

from ..registry import Draft, Family, envelope, row
from .common import log_probs, ragged

FAMILY = Family(
    "surrogate",
    "Policy-gradient surrogates: value and slope in log p",
    "03#surrogates",
    ["PPO arXiv 1707.06347 eq. 7", "dual clip arXiv 1912.09729", "CISPO arXiv 2506.13585", "GSPO arXiv 2507.18071"],
)

# r = 1.65, 1.13, 0.88, 0.54, 3.49, 0.29 with both signs of A.
D = [[0.5, 0.125, -0.125, -0.625, 1.25, -1.25]]
UP, DOWN = [[1.0, 2.0, 1.0, 0.5, 1.0, 1.0]], [[-1.0, -2.0, -1.0, -0.5, -1.0, -1.0]]
SIDES = {"up": UP, "down": DOWN}


@FAMILY.cases(
    {
        1: row("reinforce-positive", "REINFORCE, A > 0", "Slope -A, whatever the sampler says.",
            kind={"kind": "reinforce"}, side="up", flags=["Basic"]),
        2: row("reinforce-negative", "REINFORCE, A < 0", "Slope -A > 0.", kind={"kind": "reinforce"}, side="down",
            flags=["Basic"]),
        3: row("ppo-positive", "PPO clip 0.2, A > 0", "Slope 0 exactly where r > 1.2; r < 0.8 is not clipped.",
            kind={"kind": "ppo_clip"}, side="up", flags=["ClipNotApplied"]),
        4: row("ppo-negative", "PPO clip 0.2, A < 0", "Slope 0 exactly where r < 0.8; r > 1.2 is not clipped.",
            kind={"kind": "ppo_clip"}, side="down", flags=["ClipNotApplied"]),
        5: row("ppo-asymmetric-positive", "Asymmetric clip 0.2 and 0.09375, A > 0",
            "The upper bound is 1.09375: r = 1.13 is clipped.",
            kind={"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.09375}, side="up", flags=["WrongBound"]),
        6: row("ppo-asymmetric-negative", "Asymmetric clip, A < 0",
            "The lower bound is 0.9375: r = 0.88 is clipped; exchanged offsets keep it.",
            kind={"kind": "ppo_clip", "eps_low": 0.0625, "eps_high": 0.5}, side="down", flags=["WrongBound"]),
        7: row("ppo-dual-negative", "Dual clip 3, A < 0", "r = 3.49 is bounded: value 3 |A|, slope 0.",
            kind={"kind": "ppo_clip", "dual": 3.0}, side="down", flags=["DualClip"]),
        8: row("ppo-dual-positive", "Dual clip 3, A > 0",
            "The dual bound does not act; max(., 3 A) would make every objective 3 A.",
            kind={"kind": "ppo_clip", "dual": 3.0}, side="up", flags=["DualClip"]),
        9: row("cispo-positive", "CISPO, upper bound 1.2, A > 0",
            "Clipped tokens keep the slope -1.2 A: the ratio is detached, not masked.", kind={"kind": "cispo"},
            side="up", flags=["CispoDetach"]),
        10: row("cispo-negative", "CISPO, A < 0", "No lower bound by default.", kind={"kind": "cispo"}, side="down",
            flags=["CispoDetach", "LowerClip"]),
        11: row("cispo-two-sided", "CISPO with both bounds", "r = 0.29 is raised to 0.5.",
            kind={"kind": "cispo", "eps_low": 0.5, "eps_high": 0.25}, side="up", flags=["CispoDetach", "LowerClip"]),
        12: row("cispo-cap-is-an-offset", "CISPO eps_high is an offset",
            "eps_high 4 means cap 5; TRL and ms-swift read it as the cap itself.",
            kind={"kind": "cispo", "eps_high": 4.0}, side="up", flags=["WrongBound"]),
        13: row("cispo-unbounded", "CISPO without bounds", "Slope -r A.",
            kind={"kind": "cispo", "eps_low": None, "eps_high": None}, side="down", flags=["CispoDetach"]),
    },
)  # fmt: skip
def _(kind: dict, side: str) -> Draft:
    """Value s and slope ds/d log p per token for six ratios r = p/q on both sides of the band."""
    return envelope("surrogate", log_probs(D, -4.0, advantages=SIDES[side]), kind)


@FAMILY.case(14, "zero-advantage", flags=["ZeroAdvantage"])
def _() -> Draft:
    """A = 0: value and slope 0, nothing clipped.

    A token with A = 0 counts in no clip fraction.
    """
    return envelope(
        "surrogate", log_probs([[0.5, -0.625, 0.0]], -4.0, advantages=[[0.0, 0.0, 0.0]]), {"kind": "ppo_clip"}
    )


@FAMILY.cases(
    {
        15: row("tie-upper-positive", "r exactly at the upper bound, A > 0", "eps_high = 0: r = 1 is the bound.",
            eps=(0.25, 0.0), a=1.0),
        16: row("tie-lower-negative", "r exactly at the lower bound, A < 0", "eps_low = 0: r = 1 is the bound.",
            eps=(0.0, 0.25), a=-1.0),
    },
    flags=["ThresholdTie", "ClipNotApplied"],
)  # fmt: skip
def _(eps: tuple, a: float) -> Draft:
    """A tie takes the unclipped branch: slope -r A, not 0. Autograd of min gives half or none of it."""
    x = log_probs([[0.0, 0.5 * a]], -2.0, advantages=[[a, a]])
    return envelope("surrogate", x, {"kind": "ppo_clip", "eps_low": eps[0], "eps_high": eps[1]})


@FAMILY.case(17, "ppo-anchor-denominator", flags=["RatioWrongPolicy", "ThreePolicies"])
def _() -> Draft:
    """With an anchor r = p/o, not p/q.

    p/o stays in the band for token 0 and leaves it for token 1; p/q the other way round.
    """
    x = {
        "logp_trainer": [[-1.0, -1.0]],
        "logp_anchor": [[-1.0625, -1.5]],
        "logp_sampler": [[-2.0, -1.0625]],
        "mask": [[1, 1]],
        "advantages": [[1.0, 1.0]],
    }
    return envelope("surrogate", x, {"kind": "ppo_clip"})


ROWS = [[0.25, -0.125, 0.375], [0.0009765625, -0.00048828125, 9.0], [-0.0009765625, -0.00048828125, 0.0]]


@FAMILY.cases(
    {
        18: row("gspo-positive", "GSPO with its own narrow band, A > 0",
            "Row 0 (S = 1.18) is clipped, row 1 (S = 1.00024) is not.", a=1.0, eps={}),
        19: row("gspo-negative", "GSPO, A < 0", "Row 2 (S = 0.99951) is below 1 - 3e-4 and clipped.", a=-1.0, eps={}),
        20: row("gspo-wide", "GSPO with a wide band",
            "All rows pass; slope -S A on every token of the row, each row its own S.", a=1.0,
            eps={"eps_low": 0.25, "eps_high": 0.25}),
    },
    flags=["GspoRowRatio", "SeqProductVsGeomean"],
)  # fmt: skip
def _(a: float, eps: dict) -> Draft:
    """S = exp(row mean of log r) for all tokens of a row; rows of 3, 2 and 3 tokens, junk behind row 1."""
    x = log_probs(ROWS, -12.0, mask=ragged([3, 2, 3], 3), advantages=[[a] * 3] * 3)
    x["logp_sampler"] = [[-0.5, -0.5, -0.5], [-0.0625, -0.0625, -12.0], [-0.0625, -0.0625, -0.0625]]
    x["logp_trainer"] = [
        [q + d for q, d in zip(qr, dr, strict=True)] for qr, dr in zip(x["logp_sampler"], ROWS, strict=True)
    ]
    return envelope("surrogate", x, {"kind": "gspo", **eps})


@FAMILY.case(21, "gspo-square-batch", flags=["BroadcastShape", "GspoRowRatio"])
def _() -> Draft:
    """GSPO with B = T = 2.

    Row ratios that land on columns give the transposed slopes.
    """
    x = log_probs([[0.25, 0.5], [-0.25, 0.125]], -3.0, advantages=[[1.0, 2.0], [-1.0, 0.5]])
    return envelope("surrogate", x, {"kind": "gspo", "eps_low": 0.75, "eps_high": 0.75})


@FAMILY.cases(
    {
        22: row("overflow-ppo-positive", "PPO with log r = 100, A > 0", "Value -1.2 A, finite.",
            kind={"kind": "ppo_clip"}, a=1.0),
        23: row("overflow-ppo-dual", "PPO with log r = 100, A < 0, dual 3",
            "Value 3 |A|, slope 0; inf - inf in a naive max.", kind={"kind": "ppo_clip", "dual": 3.0}, a=-1.0),
        24: row("overflow-cispo", "CISPO with log r = 100", "Slope -1.2 A.", kind={"kind": "cispo"}, a=1.0),
        25: row("overflow-zero-advantage", "PPO with log r = 100 and A = 0", "inf * 0 must not turn the token NaN.",
            kind={"kind": "ppo_clip"}, a=0.0),
    },
    flags=["OverflowToZero", "InfTimesZero"],
)  # fmt: skip
def _(kind: dict, a: float) -> Draft:
    """exp(100) overflows float32; the clipped branch protects only if it is selected before the product."""
    return envelope("surrogate", log_probs([[100.0, 0.0625]], -104.0, advantages=[[a, 1.0]]), kind)
