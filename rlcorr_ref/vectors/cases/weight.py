"""Importance weights: one grid that spans TIS, MIS, IcePop, PPO bands, TOPR, DPPO, with batch normalisation and clamps."""

from __future__ import annotations

from ..registry import Draft, Family, envelope, row
from .common import (
    DPPO_TV,
    GEO_TIS,
    ICEPOP_ONE,
    MIS,
    PAPER,
    PPO_BAND,
    SEQ_MIS,
    SEQ_TIS,
    TIS,
    TOPR,
    TWO_SIDED,
    log_probs,
    ragged,
)

FAMILY = Family("weight", "Detached importance weights", "03#truncation", [f"{PAPER}, Table 1"])

# Log-ratios 1.1, -1.4, 0.4, 0.1, -0.1 on the bf16 grid: ratios 3.03, 0.246, 1.49, 1.10, 0.90 (rows of 3 and 2 valid tokens).
D = [[1.109375, -1.40625, 0.3984375, 6.0], [0.099609375, -0.099609375, 6.0, -6.0]]
MASK = ragged([3, 2], 4)
SIGNED = [[1.0, -1.0, -1.0, 1.0], [-0.5, 2.0, 1.0, 1.0]]
LOWER = (
    {"level": "token", "low": 0.5, "high": 2.0, "outside": "clip"},
    "two-sided: OpenRLHF (default low 0.5), slime core, TRL with clip_min, NeMo RL",
)


@FAMILY.cases(
    {
        1: row("untruncated", "No bound: the plain ratio", "Any hidden cap shows in token 0.", rule={},
            flags=["Basic"]),
        2: row("tis-2", "TIS, cap 2", "One-sided: the ratio 0.25 stays.", rule=TIS, flags=["LowerClip", "Basic"],
            dialects={"two-sided": LOWER}),
        3: row("two-sided-clip", "Two-sided truncation [0.5, 5]", "0.245 is raised to 0.5.", rule=TWO_SIDED,
            flags=["LowerClip"]),
        4: row("mis", "MIS (IcePop of verl and slime), [0.5, 5]", "0.245 is masked, not raised.", rule=MIS,
            flags=["ZeroNotClip", "InsideOneVsRatio"],
            dialects={"inside-one": (ICEPOP_ONE, "IcePop as arXiv 2609.20807 spells it: weight 1 in the band")}),
        5: row("icepop-inside-one", "IcePop with weight 1 in the band", "Every kept token has weight exactly 1.",
            rule=ICEPOP_ONE, flags=["InsideOneVsRatio"],
            dialects={"inside-ratio": (MIS, "IcePop of verl, slime, NeMo RL: the ratio in the band")}),
        6: row("mask-one-sided", "One-sided mask, cap 2", "3.03 becomes 0 and 0.245 stays: ms-swift's token_mask.",
            rule={**TIS, "outside": "zero"}, flags=["ZeroNotClip", "LowerClip"]),
        7: row("cap-below-one", "A cap of 0.5", "Every weight near 1 is halved: f(1) is not 1.",
            rule={**TIS, "high": 0.5}, flags=["WrongBound"]),
        8: row("low-is-zero", "low = 0 means no lower bound", "log(0) or clamp(rho, 0)/rho must not appear.",
            rule={**TIS, "low": 0.0}, flags=["WrongBound"]),
        9: row("bounds-not-offsets", "Bounds [0.25, 1.25], not offsets",
            "1 - low and 1 + high would give [0.75, 2.25].", rule={**TIS, "low": 0.25, "high": 1.25},
            flags=["WrongBound"]),
        10: row("open-band", "Open band", "Interior values are the same as closed.", rule={**MIS, "closed": False},
            flags=["Basic"]),
    },
)  # fmt: skip
def _(rule: dict, dialects: dict | None = None) -> Draft:
    """w = f(rho) per valid token, 0 off the mask; all advantages positive, junk in the padding."""
    return envelope("weight", log_probs(D, -6.5, mask=MASK), rule, dialects=dialects or {})


@FAMILY.cases(
    {
        11: row("ppo-band-signs", "PPO band by sign of the advantage",
            "A >= 0: only r <= 1.2; A < 0: only 0.8 <= r <= 3.", rule=PPO_BAND),
        12: row("sign-positive", "Rule for A >= 0 only", "Tokens with A < 0 keep weight exactly 1.",
            rule={**TIS, "sign": "positive"}),
        13: row("sign-negative", "Rule for A < 0 only", "Tokens with A >= 0 keep weight exactly 1.",
            rule={**MIS, "sign": "negative"}),
        14: row("positive-band-only", "Own band for A >= 0, common band below",
            "The common bounds hold where no own band is given.",
            rule={**TWO_SIDED, "positive": {"low": 0.0, "high": 1.25}}),
        15: row("negative-band-only", "Own band for A < 0, common band above",
            "The sides exchanged keep other tokens.", rule={**MIS, "negative": {"low": 0.9375, "high": 1.25}}),
    },
    flags=["SignRule"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """Bounds that depend on the sign of the advantage, which is per token here."""
    return envelope("weight", log_probs(D, -6.5, mask=MASK, advantages=SIGNED), rule)


@FAMILY.case(16, "zero-advantage-side", flags=["SignRule", "ZeroAdvantage"])
def _() -> Draft:
    """A = 0 belongs to A >= 0.

    Ratio 1.65 with the PPO band: weight 0 at A = 0, as for A > 0; treating 0 as negative keeps 1.65.
    """
    x = log_probs([[0.5, 0.5, 0.5]], -4.0, advantages=[[0.0, 1.0, -1.0]])
    return envelope("weight", x, PPO_BAND)


ROWS = [[0.5, 0.375, 0.25, 5.0], [-0.5, -0.625, 5.0, 5.0], [0.25, -0.125, 0.125, -0.0625]]
ROW_MASK = ragged([3, 2, 4], 4)


@FAMILY.cases(
    {
        17: row("sequence-tis", "Sequence TIS, cap 2", "Product 3.08 is cut to 2; tokens alone are below 2.",
            rule=SEQ_TIS),
        18: row("sequence-mis", "Sequence MIS [0.5, 2]", "Rows 0 and 1 drop out as rows.", rule=SEQ_MIS),
        19: row("geometric-tis", "Geometric TIS, cap 1.25",
            "The geometric mean 1.45 is cut; the product would be 3.08.", rule={**GEO_TIS, "high": 1.25}),
        20: row("geometric-band", "Geometric band [0.75, 1.25] to zero", "Row 2 alone survives.",
            rule={"level": "geometric", "low": 0.75, "high": 1.25, "outside": "zero"}),
        21: row("segment-tis", "Segment-level TIS", "One weight per run.",
            rule={"level": "segment", "high": 1.25, "outside": "clip"},
            mask=[[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 1, 1]]),
        22: row("sequence-untruncated", "Sequence product without a cap",
            "TRL's gate clamp(rho)/rho applied to token ratios would give them back.", rule={"level": "sequence"}),
    },
    flags=["SeqProductVsGeomean", "SequenceLeak"],
)  # fmt: skip
def _(rule: dict, mask: list | None = None) -> Draft:
    """One weight per row, the same on all its valid tokens."""
    return envelope("weight", log_probs(ROWS, -6.0, mask=mask or ROW_MASK), rule)


@FAMILY.case(23, "topr", flags=["SignRule", "SeqProductVsGeomean"])
def _() -> Draft:
    """TOPR: the product truncated at 1, on negative rows only.

    Row 0 (A < 0, product 3.08) takes 1, row 1 (A >= 0, product 0.32) keeps 1, row 2 (A < 0, product 0.53) takes 0.53.
    """
    d = [ROWS[0], ROWS[1], [0.25, -0.5, -0.125, -0.25]]
    a = [[-1.0] * 4, [1.0] * 4, [-0.5] * 4]
    return envelope("weight", log_probs(d, -6.0, mask=ROW_MASK, advantages=a), TOPR)


@FAMILY.cases(
    {
        24: row("dppo-signed", "DPPO: signed probability difference",
            "+0.3 stays for A < 0 and goes for A > 0; -0.4 goes for A < 0.", rule=DPPO_TV),
        25: row("dppo-absolute", "Absolute probability difference",
            "|p - q| > 0.2 drops tokens 0, 1 and 5, whatever the sign.",
            rule={"statistic": "tv", "high": 0.2, "outside": "zero"}),
        26: row("dppo-inside-one", "TV band with weight 1 inside", "Kept tokens have weight 1, not p/q.",
            rule={"statistic": "tv", "high": 0.2, "outside": "zero", "inside": "one"}),
    },
    flags=["TvStatistic", "SignRule"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """Band on p - q of the sampled token; p = .6, .1, .9, .3, .02, .6 against q = .3, .5, .85, .32, .004, .3: ratio 5 stays."""
    x = {
        "logp_trainer": [[-0.51171875, -2.296875, -0.10546875, -1.203125, -3.90625, -0.51171875]],
        "logp_sampler": [[-1.203125, -0.69140625, -0.162109375, -1.140625, -5.5, -1.203125]],
        "mask": [[1, 1, 1, 1, 1, 1]],
        "advantages": [[-1.0, -1.0, 1.0, -1.0, 1.0, 1.0]],
    }
    return envelope("weight", x, rule)


@FAMILY.case(27, "dppo-signs-swapped", flags=["TvStatistic", "SignRule"])
def _() -> Draft:
    """The signed TV band with the advantages exchanged.

    p - q = 0.3 with A < 0 and -0.4 with A > 0 are both kept: the band stops only what moves further away.
    """
    x = {
        "logp_trainer": [[-0.51171875, -2.296875]],
        "logp_sampler": [[-1.203125, -0.69140625]],
        "mask": [[1, 1]],
        "advantages": [[-1.0, 1.0]],
    }
    return envelope("weight", x, DPPO_TV)
