"""Aggregation: the named reductions, explicit denominators, empty rows, padding."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import NAN, TIS, policy, ragged

FAMILY = Family(
    "agg", "Reductions of per-token losses", "08#reductions", ["verl core_algos.agg_loss", "Dr. GRPO arXiv 2503.20783"]
)

VALUES = [[1.0, -2.0, 0.5, 64.0], [4.0, 64.0, 64.0, 64.0], [64.0, 64.0, 64.0, 64.0], [0.25, 0.75, -1.5, 3.0]]
MASK = ragged([3, 1, 0, 4], 4)

KINDS: dict[int, dict[str, Any]] = {
    1: row("token-mean", "Token mean", "1/8 per token: rows by their length.", rule={"kind": "token-mean"}),
    2: row("token-sum", "Token sum", "No denominator.", rule={"kind": "token-sum"}),
    3: row(
        "row-mean-of-sums",
        "Mean over rows of token sums",
        "1/3: the empty row does not count; dividing each row by its length is verl #931.",
        rule={"kind": "seq-mean-token-sum"},
    ),
    4: row(
        "row-mean-of-means",
        "Mean over rows of token means",
        "1/(3 n_b): short rows weigh as much as long ones.",
        rule={"kind": "seq-mean-token-mean"},
    ),
    5: row(
        "row-mean-fixed-length",
        "Mean over rows, fixed length",
        "1/(3 * 16), not the padded width 4.",
        rule={"kind": "seq-mean-token-sum-norm", "length": 16},
    ),
    6: row(
        "token-mean-global",
        "Token mean with a global count",
        "1/20: the micro-batch's own 8 tokens are not the denominator.",
        rule={"kind": "token-mean", "tokens": 20},
    ),
    7: row(
        "row-sum-global",
        "Row sums with a global row count",
        "1/10.",
        rule={"kind": "seq-mean-token-sum", "sequences": 10},
    ),
    8: row(
        "row-mean-global",
        "Row means with a global row count",
        "1/(10 n_b).",
        rule={"kind": "seq-mean-token-mean", "sequences": 10},
    ),
    9: row(
        "fixed-length-global",
        "Fixed length with a global row count",
        "1/(10 * 16).",
        rule={"kind": "seq-mean-token-sum-norm", "length": 16, "sequences": 10},
    ),
}


@FAMILY.cases(KINDS, flags=["AggDenominator", "EmptyRow", "GlobalDenominator"])
def _(rule: dict) -> Draft:
    """One number from [B, T] under a ragged mask, and the coefficient of each token; padding holds 64."""
    return envelope("aggregate", {"values": VALUES, "mask": MASK}, rule)


@FAMILY.cases(
    {
        10: row("empty-batch-explicit", "Nothing valid, explicit denominator",
            "Loss 0: a fully masked micro-batch contributes nothing, 0/0 must not appear.",
            rule={"kind": "token-mean", "tokens": 20}),
        11: row("empty-batch-rows", "Nothing valid, explicit row count", "Loss 0.",
            rule={"kind": "seq-mean-token-mean", "sequences": 4}),
        12: row("empty-batch-sum", "Nothing valid, token sum", "A sum over nothing is 0.",
            rule={"kind": "token-sum"}),
    },
    flags=["EmptyRow", "GlobalDenominator"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """A micro-batch whose tokens are all masked."""
    return envelope("aggregate", {"values": [[1.0, 2.0], [3.0, NAN]], "mask": [[0, 0], [0, 0]]}, rule)


@FAMILY.cases(
    {
        13: row("nan-under-mask-token-mean", "NaN under the mask, token mean", "sum(x * mask) is NaN.",
            rule={"kind": "token-mean"}),
        14: row("nan-under-mask-row-mean", "NaN under the mask, row means",
            "verl's first fix covered the token sums only.", rule={"kind": "seq-mean-token-mean"}),
    },
    flags=["PadSentinel"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """Junk under the mask is selected away, not multiplied by 0."""
    return envelope(
        "aggregate", {"values": [[1.0, NAN, 3.0], ["Infinity", 2.0, "-Infinity"]], "mask": [[1, 0, 1], [0, 1, 0]]}, rule
    )


@FAMILY.case(15, "cancelling-terms", flags=["AggDenominator"])
def _() -> Draft:
    """Terms that cancel: 1024 - 1024 + small.

    The error of a sum scales with the sum of absolute terms; the tolerance says so, and a wrong denominator still fails.
    """
    return envelope(
        "aggregate", {"values": [[1024.0, -1024.0, 0.5, 0.25]], "mask": [[1, 1, 1, 1]]}, {"kind": "token-mean"}
    )


@FAMILY.cases(
    {
        16: row("gradient-token-sum", "Gradient under token sum", "Coefficient 1.", rule={"kind": "token-sum"}),
        17: row("gradient-row-mean", "Gradient under row means", "Coefficient 1/(R n_b), R without the empty row.",
            rule={"kind": "seq-mean-token-mean"}),
        18: row("gradient-row-sum", "Gradient under row sums", "Coefficient 1/R.",
            rule={"kind": "seq-mean-token-sum"}),
        19: row("gradient-fixed-length", "Gradient under Dr. GRPO's fixed length", "Coefficient 1/(8 R).",
            rule={"kind": "seq-mean-token-sum-norm", "length": 8}),
        20: row("gradient-global-tokens", "Gradient with a global token count", "Coefficient 1/32.",
            rule={"kind": "token-mean", "tokens": 32}),
    },
    flags=["AggDenominator", "EmptyRow"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """TIS-weighted REINFORCE; rows of 3, 0 and 2 valid tokens."""
    return envelope("objective", policy(716, [3, 0, 2], 4, head=False), {"weight": TIS, "aggregation": rule})


@FAMILY.case(21, "mask-gaps", flags=["AggDenominator", "MaskInRowSum"])
def _() -> Draft:
    """Masks with gaps: n_b counts valid tokens, not the last valid position.

    Row 0 has 2 valid tokens of which the last is at position 3.
    """
    mask = [[1, 0, 0, 1], [0, 1, 1, 1]]
    return envelope(
        "aggregate",
        {"values": [[2.0, 64.0, 64.0, 4.0], [64.0, 1.0, 3.0, 8.0]], "mask": mask},
        {"kind": "seq-mean-token-mean"},
    )
