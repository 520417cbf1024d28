"""Micro-batches and ranks: with global denominators the shards add up to the whole batch, with local ones they do not."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import TIS, policy

FAMILY = Family(
    "shard", "Shards of a batch", "08#shards", ["TRL, verl and ms-swift: global against local token counts"]
)

SPLITS: dict[int, dict[str, Any]] = {
    1: row("token-mean-global-2-2", "Token mean, 2 + 2 rows, global",
        "Shards hold 5 and 4 tokens; each divides by 9.",
        shards=[[0, 1], [2, 3]], kind="token-mean", mode="global"),
    2: row("token-mean-global-1111", "Token mean, one row per shard, global",
        "The split does not matter: the same gradient as 2 + 2.",
        shards=[[0], [1], [2], [3]], kind="token-mean", mode="global"),
    3: row("token-mean-global-order", "Token mean, rows regrouped, global",
        "Neither does the order of rows.",
        shards=[[3, 0], [2, 1]], kind="token-mean", mode="global"),
    4: row("token-mean-local", "Token mean, 2 + 2 rows, local",
        "Mean of means: verl #7200's faulty value, stated as what it is.",
        shards=[[0, 1], [2, 3]], kind="token-mean", mode="local"),
    5: row("row-mean-global", "Row means, 1 + 3 rows, global",
        "Every shard divides by all rows.",
        shards=[[0], [1, 2, 3]], kind="seq-mean-token-mean", mode="global"),
    6: row("row-mean-local", "Row means, 1 + 3 rows, local",
        "Row 0 weighs three times as much as the others.",
        shards=[[0], [1, 2, 3]], kind="seq-mean-token-mean", mode="local"),
    7: row("row-sum-global", "Row sums, 3 + 1 rows, global",
        "Sums over rows, global row count.",
        shards=[[0, 1, 2], [3]], kind="seq-mean-token-sum", mode="global"),
    8: row("token-sum-local", "Token sum, local",
        "A sum has no denominator, but the mean over shards halves it.",
        shards=[[0, 2], [1, 3]], kind="token-sum", mode="local"),
}  # fmt: skip


@FAMILY.cases(SPLITS, flags=["GlobalDenominator", "AggDenominator"])
def _(shards: list, kind: str, mode: str) -> Draft:
    """Losses of the shards, their combination and the combined gradient; rows of 4, 1, 2 and 2 valid tokens."""
    x = policy(801, [4, 1, 2, 2], 3, head=False)
    definition = {"weight": TIS, "aggregation": {"kind": kind}}
    return envelope("shard", x, {"definition": definition, "shards": shards, "denominators": mode})


@FAMILY.cases(
    {
        9: row("empty-shard-global", "A shard without valid tokens, global",
            "It contributes exactly 0 and raises nothing.", mode="global"),
        10: row("empty-shard-local", "A shard without valid tokens, local",
            "It contributes 0, and the mean over shards still counts it.", mode="local"),
    },
    flags=["EmptyRow", "GlobalDenominator"],
)  # fmt: skip
def _(mode: str) -> Draft:
    """The second of three shards is fully masked."""
    x = policy(809, [3, 0, 2], 3, head=False)
    settings = {"definition": {"weight": TIS}, "shards": [[0], [1], [2]], "denominators": mode}
    return envelope("shard", x, settings)


@FAMILY.case(11, "centered-shards", flags=["GlobalDenominator", "CentredScoreMeasure"])
def _() -> Draft:
    """Shards of a centered objective.

    The centering term divides by the same global count as the sampled-token term.
    """
    x = policy(811, [3, 1, 2], 5, 3)
    definition = {"weight": TIS, "centering": {}}
    return envelope("shard", x, {"definition": definition, "shards": [[0], [1, 2]], "denominators": "global"})
