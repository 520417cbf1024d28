"""Edges of the whole objective: junk under the mask, empty rows, one token, extremes, ties, packed order."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import MIS, SEQ_TIS, TIS, fp32, policy, ragged

FAMILY = Family(
    "edge", "Edges of the objective", "08#masks", ["contract: what lies under the mask changes no output bit"]
)

JUNK: dict[int, dict[str, Any]] = {
    1: row(
        "nan-padding",
        "NaN in every padded field",
        "NaN * 0 = NaN in the loss or, worse, only in the gradient.",
        junk="NaN",
    ),
    2: row("infinite-padding", "Infinity in every padded field", "inf - inf and inf * 0.", junk="Infinity"),
    3: row("minus-infinite-padding", "-Infinity in every padded field", "exp(-inf - -inf).", junk="-Infinity"),
    4: row("sentinel-padding", "-1e10 in every padded field", "exp(1e10) * 0.", junk=-9999220736.0),
    5: row(
        "large-positive-padding",
        "+1e4 in every padded field",
        "A log-prob of 1e4 overflows before the mask acts.",
        junk=9984.0,
    ),
}


@FAMILY.cases(JUNK, flags=["PadSentinel"])
def _(junk: Any) -> Draft:
    """TIS with junk under the mask: loss, weights and gradient are those of the clean batch; padded gradients are exactly 0."""
    x = policy(1101, [2, 3, 1], 4, head=False)
    for b, valid_row in enumerate(x["mask"]):
        for t, valid in enumerate(valid_row):
            if not valid:
                x["logits"][b][t] = [junk] * 4
                x["logp_sampler"][b][t] = x["advantages"][b][t] = junk
                x["tokens"][b][t] = -100
    return envelope("objective", x, {"weight": TIS})


@FAMILY.cases(
    {
        6: row("junk-and-row-rules", "Junk under the mask and row weights", "The row's sum must not see it.",
            settings={"weight": SEQ_TIS}),
        7: row("junk-and-normaliser", "Junk under the mask and a batch normaliser",
            "The mean weight must not see it.", settings={"weight": {**TIS, "normalise": "rows"}}),
        8: row("junk-and-rejection", "Junk under the mask and a row maximum", "The maximum must not see it.",
            settings={"rejection": [{"statistic": "k1", "reduce": "max", "high": 0.5}]}),
        9: row("junk-and-entropy", "Junk under the mask and entropy", "p log p of a NaN row must not be formed.",
            settings={"entropy": {"coef": 0.25}}),
        10: row("junk-and-gspo", "Junk under the mask and GSPO", "The row's mean ratio must not see it.",
            settings={"surrogate": {"kind": "gspo", "eps_low": 0.75, "eps_high": 0.75}}),
    },
    flags=["PadSentinel", "MaskInRowSum"],
)  # fmt: skip
def _(settings: dict) -> Draft:
    """NaN and infinities under a mask with a gap in the middle of a row."""
    x = policy(401, [3, 3], 4, head=False, mask=[[1, 0, 1], [1, 1, 0]])
    x["logits"][0][1], x["logits"][1][2] = ["NaN"] * 4, ["Infinity", "NaN", "-Infinity", 0.0]
    x["logp_sampler"][0][1], x["logp_sampler"][1][2] = "NaN", "-Infinity"
    x["advantages"][0][1], x["tokens"][0][1], x["tokens"][1][2] = "Infinity", 99, -1
    return envelope("objective", x, settings)


@FAMILY.cases(
    {
        11: row("empty-row-token-mean", "An empty row, token mean", "It changes nothing.",
            rule={"kind": "token-mean"}),
        12: row("empty-row-row-mean", "An empty row, row means", "R = 2, and 0/0 for the empty row must not appear.",
            rule={"kind": "seq-mean-token-mean"}),
        13: row("empty-row-sequence-weight", "An empty row, sequence weights",
            "exp(0) = 1 of an empty row enters nothing.", rule={"kind": "seq-mean-token-sum"}),
    },
    flags=["EmptyRow"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """Rows of 2, 0 and 3 valid tokens with a sequence weight."""
    return envelope("objective", policy(1111, [2, 0, 3], 4, head=False), {"weight": SEQ_TIS, "aggregation": rule})


@FAMILY.case(14, "fully-masked-batch", flags=["EmptyRow", "GlobalDenominator"])
def _() -> Draft:
    """No valid token at all with an explicit denominator.

    Loss 0 and gradient 0: such a micro-batch or rank must still take part.
    """
    x = policy(1114, [2, 1], 3, head=False, mask=[[0, 0], [0, 0]])
    return envelope("objective", x, {"weight": TIS, "aggregation": {"kind": "token-mean", "tokens": 16}})


@FAMILY.cases(
    {
        15: row("single-token-tis", "B = T = 1, TIS", "A squeeze makes a scalar of everything.",
            settings={"weight": TIS}),
        16: row("single-token-normalised", "B = T = 1, normalised", "w divided by itself is 1.",
            settings={"weight": {**TIS, "normalise": "tokens"}}),
        17: row("single-token-gspo", "B = T = 1, GSPO", "Row ratio and token ratio coincide.",
            settings={"surrogate": {"kind": "gspo", "eps_low": 0.75, "eps_high": 0.75}}),
    },
    flags=["SingleToken"],
)  # fmt: skip
def _(settings: dict) -> Draft:
    """One row with one token."""
    return envelope("objective", policy(1116, [1], 3, head=False), settings)


@FAMILY.case(18, "single-column", flags=["SingleToken", "BroadcastShape"])
def _() -> Draft:
    """T = 1, B = 3.

    [B, 1] times [B] broadcasts to [B, B].
    """
    return envelope("objective", policy(1118, [1, 1, 1], 4, head=False), {"weight": SEQ_TIS})


@FAMILY.case(19, "single-row", flags=["SingleToken", "BroadcastShape"])
def _() -> Draft:
    """B = 1, T = 5.

    A mean over axis 0 in place of axis 1 returns the row itself.
    """
    return envelope(
        "objective",
        policy(1119, [5], 3, head=False),
        {"weight": SEQ_TIS, "aggregation": {"kind": "seq-mean-token-sum"}},
    )


@FAMILY.case(20, "two-token-vocabulary", flags=["SingleToken"])
def _() -> Draft:
    """V = 2 with centering over a head of one token.

    The tail is one token: the rescaled model is exact.
    """
    return envelope("objective", policy(1120, [2, 1], 2, 1), {"weight": TIS, "centering": {}})


@FAMILY.case(21, "large-logits", flags=["LogSoftmaxOverflow"])
def _() -> Draft:
    """Logits shifted by 4096: the gradient is that of the unshifted row.

    All logits are multiples of 1/8 below 2^13: exact in float32; exp before the shift overflows.
    """
    x = policy(1121, [2, 1], 4, head=False)
    x["logits"] = [[[z + 4096.0 for z in token] for token in row] for row in x["logits"]]
    return envelope("objective", x, {"weight": TIS})


@FAMILY.cases(
    {
        22: row("log-ratio-minus-90-tis", "Trainer 90 nats below the sampler, TIS",
            "Weight e^-90, gradient of that size or 0: not NaN.", rule=TIS),
        23: row("log-ratio-minus-90-mis", "Trainer 90 nats below the sampler, MIS", "Weight exactly 0.", rule=MIS),
    },
    flags=["OutlierVisible"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """A sampled token that the trainer all but excludes (logit -90)."""
    x = policy(1122, [2], 3, head=False)
    x |= {"logits": [[[0.0, -90.0, -1.0], [0.5, 0.0, 1.0]]], "tokens": [[1, 2]], "logp_sampler": [[-0.5, -1.25]]}
    return envelope("objective", x, {"weight": rule})


@FAMILY.cases(
    {
        24: row("sampler-outlier-tis", "Sampler 100 nats below the trainer, TIS",
            "Weight 2: exp(100) must not become 0, inf or NaN.", rule=TIS),
        25: row("sampler-outlier-mis", "Sampler 100 nats below the trainer, MIS",
            "Weight 0: inf * 0 must not become NaN.", rule=MIS),
    },
    flags=["OverflowToZero", "OutlierVisible"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """A token whose recorded log q is -101 although the trainer likes it."""
    x = policy(1124, [2], 3, head=False)
    x |= {"logits": [[[0.0, 1.0, -1.0], [0.5, 0.0, 1.0]]], "tokens": [[1, 2]], "logp_sampler": [[-101.0, -1.25]]}
    return envelope("objective", x, {"weight": rule})


@FAMILY.case(26, "anchor-tie-closed-band", flags=["ThresholdTie", "RatioWrongPolicy"])
def _() -> Draft:
    """o/q exactly 1 with the band [1, 2]: kept, with gradient.

    Only an anchor makes the ratio exact on logits: equal log-probs as recorded.
    """
    x = policy(1126, [2], 3, head=False) | {"logp_sampler": [[-1.25, -2.0]], "logp_anchor": [[-1.25, -1.5]]}
    return envelope("objective", x, {"weight": {"low": 1.0, "high": 2.0, "outside": "zero"}})


@FAMILY.case(27, "zero-advantage-everywhere", flags=["ZeroAdvantage"])
def _() -> Draft:
    """All advantages 0: loss and gradient exactly 0.

    A group with equal rewards; nothing may turn it NaN, an overflowing ratio included.
    """
    x = policy(1127, [2, 1], 3, head=False)
    x |= {"advantages": [[0.0, 0.0], [0.0, 0.0]], "logp_sampler": [[-1.0, -101.0], [-0.5, 0.0]]}
    return envelope("objective", x, {"weight": TIS})


@FAMILY.case(28, "leading-padding", flags=["PadSentinel", "SegmentBoundary"])
def _() -> Draft:
    """Padding on the left, and rows that begin at different positions.

    Valid tokens are where the mask says, not the first n_b of the row.
    """
    mask = [[0, 0, 1, 1], [0, 1, 1, 1]]
    return envelope(
        "objective",
        policy(1128, [4, 4], 4, head=False, mask=mask),
        {"weight": {"level": "geometric", "high": 1.0625, "outside": "clip"}},
    )


@FAMILY.case(29, "long-row-sequence", flags=["SeqProductVsGeomean", "MaskInRowSum"])
def _() -> Draft:
    """70 tokens in one row: a product of 70 ratios.

    Ordinary log-probs stored in bf16 shift such a sum visibly (feature fp32-logprobs); those here are exact on purpose.
    """
    z = [[[0.25, -0.25, 0.0]] * 70]
    q = fp32(-1.0)
    x = {
        "logits": z,
        "tokens": [[t % 3 for t in range(70)]],
        "mask": ragged([70], 70),
        "advantages": [[1.0] * 70],
        "logp_sampler": [[q - 0.125 * (t % 3 == 1) for t in range(70)]],
    }
    return envelope(
        "objective", x, {"weight": {"level": "sequence", "high": 2.0, "outside": "clip"}}, outputs=("loss", "weights")
    )
