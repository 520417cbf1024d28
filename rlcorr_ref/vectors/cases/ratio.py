"""Importance log-ratios at every level: direction, numerator, row sum against row mean, runs, clamps and their order."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import NAN, PAPER, Numbers, log_probs, ragged

FAMILY = Family(
    "ratio",
    "Importance log-ratios and the levels at which they are formed",
    "04#levels",
    [f"{PAPER}, Table 1 (level)"],
)

PRODUCT = "sum of log-ratios: the product (verl, TRL, SkyRL, NeMo RL)"
GEOMETRIC = "mean of log-ratios: the geometric mean (ms-swift, AReaL)"


@FAMILY.case(1, "direction", flags=["Basic", "RatioDirection"])
def _() -> Draft:
    """Trainer over sampler, token by token.

    d = log p - log q = (0.5, -1, 0.25): q - p flips every sign, so a reciprocal ratio fails at each token.
    """
    return envelope("ratio", log_probs([[0.5, -1.0, 0.25]]))


@FAMILY.case(2, "anchor-is-numerator", flags=["RatioWrongPolicy"])
def _() -> Draft:
    """With three policies the numerator is the frozen anchor.

    log p = -1, log o = -1.25, log q = -1.5: the weight is o/q = 1.284, p/q = 1.649 counts the update twice.
    """
    x = {
        "logp_trainer": [[-1.0, -3.0]],
        "logp_anchor": [[-1.25, -2.0]],
        "logp_sampler": [[-1.5, -2.5]],
        "mask": [[1, 1]],
    }
    return envelope(
        "ratio", x, dialects={"trainer": ({"numerator": "trainer"}, "current policy over sampler (two-policy mode)")}
    )


@FAMILY.case(3, "trainer-numerator-on-request", flags=["RatioWrongPolicy"])
def _() -> Draft:
    """The trainer as numerator although an anchor is given.

    The option "numerator" overrules the default; an implementation that ignores it returns o/q.
    """
    x = {
        "logp_trainer": [[-1.0, -3.0]],
        "logp_anchor": [[-1.25, -2.0]],
        "logp_sampler": [[-1.5, -2.5]],
        "mask": [[1, 1]],
    }
    return envelope("ratio", x, {"numerator": "trainer"})


LEVELS: dict[int, dict[str, Any]] = {
    4: row(
        "sequence-product",
        "Sequence level is the product",
        "exp(-1) = 0.368 in row 0; the mean would give 0.779.",
        level="sequence",
    ),
    5: row(
        "geometric-mean",
        "Geometric level is the mean of logs",
        "exp(-1/4) = 0.779 in row 0; the sum would give 0.368.",
        level="geometric",
    ),
}


@FAMILY.cases(LEVELS, flags=["SeqProductVsGeomean", "MaskInRowSum"])
def _(level: str) -> Draft:
    """One ratio per row, spread over its valid tokens; rows of 4 and 2 valid tokens, d summing to -1 and -0.25, junk behind."""
    d = [[-0.25, -0.5, 0.125, -0.375], [-0.5, 0.25, 9.0, -7.0]]
    x = log_probs(d, -4.0, mask=ragged([4, 2]))
    other = "geometric" if level == "sequence" else "sequence"
    return envelope(
        "ratio",
        x,
        {"level": level},
        dialects={other: ({"level": other}, GEOMETRIC if level == "sequence" else PRODUCT)},
    )


@FAMILY.case(6, "geometric-not-arithmetic", flags=["ArithmeticMeanRatio", "SeqProductVsGeomean"])
def _() -> Draft:
    """Ratios 4.02, 0.249 and 1.65: geometric mean 1.18, arithmetic mean 1.97.

    exp of the mean log-ratio, not the mean of the ratios; the product is 1.65.
    """
    return envelope("ratio", log_probs([[1.390625, -1.390625, 0.5]]), {"level": "geometric"})


@FAMILY.cases(
    {
        7: row("segment-two-runs", "Segments are runs of valid tokens", "Merging the runs gives one mean, 0.",
            mask=[[1, 1, 0, 1, 1]]),
        8: row("segment-single-tokens", "Alternating mask: every token its own segment",
            "Each token keeps its own ratio.", mask=[[1, 0, 1, 0, 1]]),
        9: row("segment-leading-gap", "A segment that starts after a gap", "Leading padding belongs to no segment.",
            mask=[[0, 0, 1, 1, 1]]),
    },
    flags=["SegmentBoundary"],
)  # fmt: skip
def _(mask: list) -> Draft:
    """Mean log-ratio over the contiguous run of valid tokens that holds t."""
    return envelope("ratio", log_probs([[0.5, 0.75, 3.0, -0.5, -0.75]], -4.0, mask=mask), {"level": "segment"})


@FAMILY.case(10, "segment-across-rows", flags=["SegmentBoundary", "BroadcastShape"])
def _() -> Draft:
    """A run that ends a row does not continue in the next.

    Row 0 ends valid and row 1 starts valid; packing the rows end to end must not join their runs. B = T = 3.
    """
    d = [[0.25, 0.5, 0.75], [-0.5, -0.25, -1.0], [1.0, 0.0, 0.5]]
    return envelope("ratio", log_probs(d, -3.0, mask=[[0, 1, 1], [1, 1, 0], [1, 0, 1]]), {"level": "segment"})


CLAMPS: dict[int, dict[str, Any]] = {
    11: row(
        "clamp-aggregate",
        "The row's sum is clamped",
        "d = (25, -22, 1) sums to 4 and stays.",
        level="sequence",
        order="aggregate",
    ),
    12: row(
        "clamp-tokens-first",
        "Tokens are clamped before the sum",
        "(20, -20, 1) sums to 1.",
        level="sequence",
        order="token",
    ),
    13: row(
        "clamp-geometric-aggregate",
        "The row's mean is clamped",
        "mean(25, -22, 1) = 4/3.",
        level="geometric",
        order="aggregate",
    ),
    14: row(
        "clamp-geometric-tokens",
        "Tokens are clamped before the mean",
        "mean(20, -20, 1) = 1/3.",
        level="geometric",
        order="token",
    ),
}


@FAMILY.cases(CLAMPS, flags=["ClampThenMean", "SafetyClampVisible"])
def _(level: str, order: str) -> Draft:
    """A safety clamp of 20 nats; verl clamps the row's log-ratio for weights, ms-swift each token."""
    x = log_probs([[25.0, -22.0, 1.0]], -30.0)
    settings = {"level": level, "log_clamp": 20.0, "clamp_order": order}
    other = "aggregate" if order == "token" else "token"
    return envelope(
        "ratio",
        x,
        settings,
        dialects={f"clamp-{other}": ({**settings, "clamp_order": other}, f"clamp order {other!r}")},
    )


@FAMILY.case(15, "clamp-token-level", flags=["SafetyClampVisible"])
def _() -> Draft:
    """Token ratios beyond +-20 nats with the clamp on.

    25 becomes 20 and -30 becomes -20; without the clamp exp(25) = 7.2e10.
    """
    return envelope("ratio", log_probs([[25.0, -30.0, 3.0]], -32.0), {"log_clamp": 20.0})


@FAMILY.case(16, "no-clamp", flags=["SafetyClampVisible"])
def _() -> Draft:
    """Token ratios beyond +-20 nats with no clamp.

    A built-in +-20 clamp (verl, SkyRL, ms-swift) is visible: exp(25), not exp(20).
    """
    return envelope(
        "ratio",
        log_probs([[25.0, -30.0, 3.0]], -32.0),
        {},
        dialects={"clamp-20": ({"log_clamp": 20.0}, "verl, SkyRL, ms-swift")},
    )


@FAMILY.case(17, "padding-nan", flags=["PadSentinel"])
def _() -> Draft:
    """NaN and infinities under the mask change nothing.

    (a - b) * mask keeps NaN for an infinite difference; the mask has to select before the arithmetic.
    """
    x = log_probs([[0.5, -0.25, 0.0, 0.0]], -2.0, mask=[[1, 1, 0, 0]])
    x["logp_trainer"][0][2:] = [NAN, "-Infinity"]
    x["logp_sampler"][0][2:] = ["Infinity", "-Infinity"]
    return envelope("ratio", x, {"level": "sequence"})


@FAMILY.case(18, "padding-sentinel", flags=["PadSentinel", "MaskInRowSum"])
def _() -> Draft:
    """Sentinels -1e10 on one side and 0 on the other under the mask.

    exp(1e10) * 0 is NaN. (The sentinel is the nearest bf16 number.)
    """
    x = log_probs([[0.5, -0.25, 0.75]], -2.0, mask=[[1, 1, 0]])
    x["logp_trainer"][0][2], x["logp_sampler"][0][2] = -9999220736.0, 0.0
    return envelope("ratio", x, {"level": "geometric"})


@FAMILY.case(19, "square-batch-rows", flags=["BroadcastShape", "SeqProductVsGeomean"])
def _() -> Draft:
    """B = T = 3, rows with different sums and lengths.

    sum(-1)/n without keepdims becomes [B, B] or lands on the wrong axis, silently when B = T.
    """
    d = [[0.25, 0.5, 0.125], [-0.5, 0.25, 5.0], [1.0, 5.0, 5.0]]
    return envelope("ratio", log_probs(d, -6.0, mask=ragged([3, 2, 1])), {"level": "geometric"})


@FAMILY.case(20, "rectangular-batch-rows", flags=["BroadcastShape"])
def _() -> Draft:
    """Sequence level beside an empty row, B = 2, T = 4.

    Row 1 has no valid token: its ratios are 0 off the mask, and it adds no NaN to row 0.
    """
    return envelope(
        "ratio",
        log_probs([[0.25, -0.5, 0.125, 0.5], [1.0, 1.0, 1.0, 1.0]], -3.0, mask=ragged([4, 0], 4)),
        {"level": "sequence"},
    )


@FAMILY.case(21, "long-row-300", flags=["SeqProductVsGeomean", "SequenceLeak"])
def _() -> Draft:
    """300 tokens with d = -1/256 each and one outlier: the product is far from 1, the geometric mean is not.

    Sum = -299/256 + 2: accumulating in bf16 or dividing by the padded width shows.
    """
    d = [[-0.00390625] * 299 + [2.0]]
    return envelope("ratio", log_probs(d, -2.5), {"level": "sequence"})


@FAMILY.case(22, "one-token-rows", flags=["SingleToken", "SeqProductVsGeomean"])
def _() -> Draft:
    """Rows of one token: all levels agree.

    T = 1 and B = 3: a squeeze turns [B, 1] into [B] and broadcasts against [B, 1] to [B, B].
    """
    return envelope("ratio", log_probs([[0.5], [-1.0], [0.25]]), {"level": "sequence"})


@FAMILY.case(23, "trainer-zero-probability", flags=["InfTimesZero"])
def _() -> Draft:
    """The trainer gives a sampled token probability 0.

    log-ratio -Infinity, ratio exactly 0: no NaN, no clamp by default.
    """
    x = log_probs([[0.5, 0.0, -0.25]])
    x["logp_trainer"][0][1] = "-Infinity"
    return envelope("ratio", x)


@FAMILY.cases(
    {
        24: row("random-token", "Random rows, token level", "Plain parity.", level="token"),
        25: row("random-sequence", "Random rows, sequence level", "Plain parity.", level="sequence"),
        26: row("random-geometric", "Random rows, geometric level", "Plain parity.", level="geometric"),
        27: row("random-segment", "Random rows, segment level", "Plain parity.", level="segment"),
    },
    flags=["Basic"],
)  # fmt: skip
def _(level: str) -> Draft:
    """Four rows of different lengths, one empty, with gaps in the mask and an anchor."""
    n = Numbers(24)
    d = n.uniform(-1, 1, 4, 5, step=0.0625)
    mask = [[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]
    x = log_probs(d.tolist(), -3.0, mask=mask)
    x["logp_anchor"] = (n.uniform(-0.5, 0.5, 4, 5, step=0.0625) - 3.0).tolist()
    return envelope("ratio", x, {"level": level})
