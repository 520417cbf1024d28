"""Importance weights at their limits: batch normalisation, overflow, ties, junk, anchor and trainer as numerator."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, envelope, row
from .common import (
    GEO_TIS,
    ICEPOP_ONE,
    INF,
    MIS,
    NAN,
    PPO_BAND,
    SEQ_TIS,
    TIS,
    TWO_SIDED,
    Numbers,
    log_probs,
    ragged,
)
from .weight import FAMILY, MASK, D


@FAMILY.cases(
    {
        28: row("normalise-tokens", "Batch-normalised over tokens",
            "Divides by the mean of the 5 truncated weights; slime's and verl's cap is no longer the maximum.",
            rule={**TIS, "normalise": "tokens"}),
        29: row("normalise-rows", "Batch-normalised over rows",
            "Divides by the mean over the two non-empty rows of the row's mean weight.",
            rule={**TIS, "normalise": "rows"}),
        30: row("normalise-sequence-rows", "Sequence weights, normalised over rows",
            "The divisor is 1.053; counting the empty row as 0 makes it 0.702.",
            rule={**SEQ_TIS, "normalise": "rows"}),
        31: row("normalise-sequence-tokens", "Sequence weights, normalised over tokens", "Long rows count more.",
            rule={**SEQ_TIS, "normalise": "tokens"}),
        32: row("normalise-after-masking", "Masked weights count as 0 in the normaliser",
            "Averaging the kept weights only is another divisor.", rule={**MIS, "normalise": "tokens"}),
    },
    flags=["Normalise", "EmptyRow"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """Weights divided by their mean over the batch, after truncation; three rows, one of them empty."""
    d, mask = [*D, [3.0, 3.0, 3.0, 3.0]], [*MASK, [0, 0, 0, 0]]
    return envelope("weight", log_probs(d, -6.5, mask=mask), rule)


@FAMILY.cases(
    {
        33: row("log-ratio-100-clip", "Log-ratio 100 under a cap",
            "exp(100) overflows float32; nan_to_num(posinf=0) makes the weight 0 where 2 is right.", rule=TIS),
        34: row("log-ratio-100-zero", "Log-ratio 100 under a mask", "inf * 0 is NaN where 0 is right.", rule=MIS),
        35: row("log-ratio-100-one", "Log-ratio 100, weight 1 in the band", "Outside the band: 0.", rule=ICEPOP_ONE),
        36: row("log-ratio-100-two-sided", "Log-ratio +-100, two-sided", "Both bounds are hit exactly.",
            rule=TWO_SIDED),
        37: row("log-ratio-100-safety-clamp", "Log-ratio +-100 with a clamp of 20 and no cap",
            "exp(20) = 4.85e8, not inf.", rule={"log_clamp": 20.0}),
    },
    flags=["OverflowToZero", "OutlierVisible"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """Log-ratios of 100 and -100 nats beside an ordinary one."""
    return envelope("weight", log_probs([[100.0, -100.0, 0.25]], -128.0), rule)


@FAMILY.case(38, "sequence-overflow", flags=["OverflowToZero", "SequenceLeak"])
def _() -> Draft:
    """A product beyond float32 from ordinary tokens.

    300 tokens of ratio 1.65: exp(150); the capped row weight is 2 on every token, and the row of ratio 0.61 keeps exp(-2.5).
    """
    d = [[0.5] * 300, [-0.5] * 5 + [0.0] * 295]
    return envelope("weight", log_probs(d, -2.0, mask=ragged([300, 5], 300)), SEQ_TIS, outputs=("weights",))


@FAMILY.case(39, "sequence-lower-bound", flags=["SequenceLeak", "WrongBound"])
def _() -> Draft:
    """Row ratio 0.168, lower bound 0.75, two-sided.

    Correct weight 0.75 on each token, the one with ratio 2.7 included; a gate clamp(rho, lo)/rho = 4.5 amplifies instead.
    """
    x = log_probs([[-1.390625, -1.390625, 1.0]], -4.0)
    return envelope("weight", x, {"level": "sequence", "low": 0.75, "high": 2.0, "outside": "clip"})


@FAMILY.case(40, "anchor-numerator", flags=["RatioWrongPolicy"])
def _() -> Draft:
    """Truncation acts on o/q when an anchor is given.

    o/q = 2.7 is cut to 2; p/q = 1.28 would pass untouched.
    """
    x = {
        "logp_trainer": [[-1.75, -1.0]],
        "logp_anchor": [[-1.0, -2.0]],
        "logp_sampler": [[-2.0, -2.25]],
        "mask": [[1, 1]],
    }
    return envelope(
        "weight", x, TIS, dialects={"trainer": ({**TIS, "numerator": "trainer"}, "two-policy (bypass) weight p/q")}
    )


@FAMILY.case(41, "trainer-numerator", flags=["RatioWrongPolicy"])
def _() -> Draft:
    """The same data with the trainer as numerator.

    p/q = 1.28 and 3.49: the second is cut, the first is not.
    """
    x = {
        "logp_trainer": [[-1.75, -1.0]],
        "logp_anchor": [[-1.0, -2.0]],
        "logp_sampler": [[-2.0, -2.25]],
        "mask": [[1, 1]],
    }
    return envelope("weight", x, {**TIS, "numerator": "trainer"})


@FAMILY.cases(
    {
        42: row("tie-high-closed", "Ratio exactly at a closed upper bound", "Kept.",
            rule={"low": 0.5, "high": 1.0, "outside": "zero"}),
        43: row("tie-high-open", "Ratio exactly at an open upper bound", "Dropped.",
            rule={"low": 0.5, "high": 1.0, "outside": "zero", "closed": False}),
        44: row("tie-low-closed", "Ratio exactly at a closed lower bound", "Kept.",
            rule={"low": 1.0, "high": 2.0, "outside": "zero"}),
        45: row("tie-low-open", "Ratio exactly at an open lower bound", "Dropped.",
            rule={"low": 1.0, "high": 2.0, "outside": "zero", "closed": False}),
    },
    flags=["ThresholdTie"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """Token 0 has equal log-probs (ratio exactly 1) and the bound is 1; its neighbours lie inside and outside."""
    x = {"logp_trainer": [[-1.5, -2.0, -1.0]], "logp_sampler": [[-1.5, -1.5, -1.5]], "mask": [[1, 1, 1]]}
    return envelope("weight", x, rule)


@FAMILY.case(46, "nan-under-mask-normalised", flags=["PadSentinel", "Normalise"])
def _() -> Draft:
    """NaN under the mask does not enter the batch normaliser.

    mean(w * mask) keeps the NaN; the selection comes first.
    """
    x = log_probs(D, -6.5, mask=MASK)
    x["logp_trainer"][0][3], x["logp_sampler"][1][2], x["logp_sampler"][1][3] = NAN, NAN, INF
    return envelope("weight", x, {**TIS, "normalise": "tokens"})


@FAMILY.case(47, "all-dropped", flags=["AllTruncated", "Normalise"])
def _() -> Draft:
    """Every token outside the band, with batch normalisation.

    0/0: no weight is left to normalise, all weights are 0 and nothing is NaN.
    """
    return envelope("weight", log_probs([[2.0, 2.5], [-3.0, 2.25]], -6.0), {**MIS, "normalise": "tokens"})


RANDOM: dict[int, dict[str, Any]] = {
    48: row("random-tis", "Random batch, TIS", "Plain parity.", rule=TIS),
    49: row("random-mis", "Random batch, MIS", "Plain parity.", rule=MIS),
    50: row("random-ppo-band", "Random batch, PPO band", "Plain parity with signs.", rule=PPO_BAND),
    51: row(
        "random-geometric",
        "Random batch, geometric band",
        "Rows dropped together.",
        rule={**GEO_TIS, "low": 0.625, "high": 1.25, "outside": "zero"},
    ),
}


@FAMILY.cases(RANDOM, flags=["Basic"])
def _(rule: dict) -> Draft:
    """B = T = 4 with ragged rows and advantages of both signs per row."""
    n = Numbers(48)
    x = log_probs(n.uniform(-1.5, 1.5, 4, 4, step=0.0625).tolist(), -5.0, mask=ragged([4, 3, 1, 2], 4))
    return envelope("weight", x | {"advantages": n.uniform(-1, 1, 4, 4, step=0.25).tolist()}, rule)
