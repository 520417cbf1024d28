"""Group-relative advantages: mean, mean and standard deviation, leave-one-out; singletons, equal rewards, group order."""

from __future__ import annotations

from ..registry import Draft, Family, envelope, row

FAMILY = Family(
    "adv",
    "Group-relative advantages",
    "05#baselines",
    ["GRPO arXiv 2402.03300", "RLOO arXiv 2402.14740", "Dr. GRPO arXiv 2503.20783"],
)

REWARDS = [1.0, 0.0, 0.0, 1.0, 4.0, 1.0, 0.5]
GROUPS = [0, 0, 1, 0, 1, 1, 1]


@FAMILY.cases(
    {
        1: row("group-mean", "Group mean subtracted", "No division: Dr. GRPO's and arXiv 2609.20807's choice.",
            settings={"kind": "mean"}, flags=["Basic"]),
        2: row("group-std", "Group mean and standard deviation", "n - 1 in the variance, eps outside the root.",
            settings={"kind": "mean_std"}, flags=["GroupStd"]),
        3: row("group-std-population", "Population standard deviation", "n in the variance: sqrt(n/(n - 1)) larger.",
            settings={"kind": "mean_std", "ddof": 0}, flags=["GroupStd"]),
        4: row("group-std-large-eps", "eps = 0.25", "eps inside the root, or a maximum in place of the sum, shows.",
            settings={"kind": "mean_std", "eps": 0.25}, flags=["GroupStd"]),
        5: row("leave-one-out", "Leave-one-out baseline",
            "Baseline over the others: n/(n - 1) times the centred reward.", settings={"kind": "leave_one_out"},
            flags=["LeaveOneOut"]),
    },
)  # fmt: skip
def _(settings: dict) -> Draft:
    """Two groups of 3 and 4 rewards, interleaved: grouping by position instead of id fails."""
    return envelope("advantages", {"rewards": REWARDS, "groups": GROUPS}, settings)


@FAMILY.cases(
    {
        6: row("singleton-mean", "A group of one, mean", "0.", settings={"kind": "mean"}),
        7: row("singleton-std", "A group of one, standard deviation",
            "std of one value is NaN in torch; the advantage is 0.", settings={"kind": "mean_std"}),
        8: row("singleton-leave-one-out", "A group of one, leave-one-out",
            "Nobody to compare with: the reward itself.", settings={"kind": "leave_one_out"}),
    },
    flags=["SingletonGroup"],
)  # fmt: skip
def _(settings: dict) -> Draft:
    """Group 7 has one member; group 3 has two."""
    return envelope("advantages", {"rewards": [0.5, 2.0, 1.0], "groups": [7, 3, 3]}, settings)


@FAMILY.cases(
    {
        9: row("equal-rewards-std", "Equal rewards, standard deviation", "0/(0 + eps) = 0, also with eps = 0.",
            settings={"kind": "mean_std", "eps": 0.0}),
        10: row("equal-rewards-leave-one-out", "Equal rewards, leave-one-out", "Exactly 0.",
            settings={"kind": "leave_one_out"}),
    },
    flags=["GroupStd", "SingletonGroup"],
)  # fmt: skip
def _(settings: dict) -> Draft:
    """Three equal rewards: a mean that rounds leaves 1e-17, which a small std turns into anything."""
    return envelope("advantages", {"rewards": [0.69921875] * 3, "groups": [0, 0, 0]}, settings)


@FAMILY.case(11, "two-scales", flags=["GroupStd"])
def _() -> Draft:
    """Groups (0, 1) and (0, 10): per-group, not per-batch, standard deviation.

    Both groups give +-0.7071; the batch's 4.86 gives something else (TRL #3992).
    """
    return envelope("advantages", {"rewards": [0.0, 1.0, 0.0, 10.0], "groups": [0, 0, 1, 1]}, {"kind": "mean_std"})


@FAMILY.case(12, "signed-rewards", flags=["Basic", "LeaveOneOut"])
def _() -> Draft:
    """Rewards in {-1, +1}, groups of eight.

    The setting of arXiv 2609.20807: A = R - mean, no division.
    """
    rewards = [1.0, -1.0, -1.0, -1.0, 1.0, -1.0, -1.0, 1.0]
    return envelope("advantages", {"rewards": rewards, "groups": [2] * 8}, {"kind": "mean"})


@FAMILY.case(13, "large-offset", flags=["GroupStd"])
def _() -> Draft:
    """Rewards 1000 + small.

    Centering before squaring keeps the digits; E[R^2] - E[R]^2 in float32 does not.
    """
    return envelope(
        "advantages", {"rewards": [1000.0, 1004.0, 1008.0, 996.0], "groups": [0, 0, 0, 0]}, {"kind": "mean_std"}
    )
