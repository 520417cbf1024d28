"""Score centering where something is zero: absent slots, probabilities of 0 on either side, A = 0, everything out of band."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, envelope, row
from .centre import FAMILY
from .common import MIS, P6, Q6, TIS, one_token, policy


@FAMILY.cases(
    {
        88: row("absent-slot-end", "Absent slot at the end of the head", "Equal to the head without it.",
            head=[2, 0, -1], rule=None),
        89: row("absent-slot-middle", "Absent slot in the middle of the head", "Slots after it keep their ids.",
            head=[2, -1, 0], rule=MIS),
        90: row("absent-slots-all", "A head without any token",
            "Everything is tail: rho = 1, alpha = 1, nothing changes.", head=[-1, -1], rule=None),
    },
    flags=["AbsentSlot"],
)  # fmt: skip
def _(head: list, rule: dict | None) -> Draft:
    """id -1 with log q = -Infinity is no token: gathering the last vocabulary entry puts its probability on the head."""
    x = one_token(P6, Q6, 1, 0.5, [i for i in head if i >= 0], exact=True)
    present = iter(x["head_logp_sampler"][0][0])
    x["head_ids"], x["head_logp_sampler"] = [[head]], [[[next(present) if i >= 0 else "-Infinity" for i in head]]]
    return envelope("objective", x, {"weight": rule, "centering": {}})


@FAMILY.cases(
    {
        91: row("both-zero-in-head-tis", "Zero on both sides of a head slot, TIS",
            "min(NaN, 2) keeps the NaN; the slot contributes nothing.", rule=TIS, z="-Infinity", q="-Infinity"),
        92: row("both-zero-in-head-none", "Zero on both sides of a head slot, no weight", "0 * -inf in the loss.",
            rule=None, z="-Infinity", q="-Infinity"),
        93: row("sampler-zero-in-head-is", "Sampler zero in the head, plain ratio",
            "q f(p/q) = p in the limit: the coefficient is p - alpha p.", rule={}, z=-2.5, q="-Infinity"),
        94: row("sampler-zero-in-head-tis", "Sampler zero in the head, TIS",
            "Bounded rule: the slot contributes 0 - alpha p.", rule=TIS, z=-2.5, q="-Infinity"),
    },
    flags=["InfTimesZero"],
)  # fmt: skip
def _(rule: dict | None, z: Any, q: Any) -> Draft:
    """A head slot with a valid id whose sampler (and trainer) probability is 0."""
    x = {
        "logits": [[[1.0, 0.5, -0.25, 0.0, z]]],
        "tokens": [[1]],
        "mask": [[1]],
        "advantages": [[0.5]],
        "logp_sampler": [[-2.5]],
        "head_ids": [[[0, 4, 2]]],
        "head_logp_sampler": [[[-0.75, q, -1.5]]],
    }
    return envelope("objective", x, {"weight": rule, "centering": {}})


@FAMILY.cases(
    {
        95: row("trainer-zero-none", "Trainer zero in the head, no weight",
            "The coefficient stays in the gradient, the loss is infinite and says so.", rule=None),
        96: row("trainer-zero-tis", "Trainer zero in the head, TIS",
            "Ratio 0: the slot's coefficient is 0 and the loss finite.", rule=TIS),
    },
    flags=["InfTimesZero"],
)  # fmt: skip
def _(rule: dict | None) -> Draft:
    """A head token with sampler mass 0.05 whose trainer probability is exactly 0 (logit -Infinity)."""
    x = {
        "logits": [[[1.0, 0.5, -0.25, 0.0, "-Infinity"]]],
        "tokens": [[1]],
        "mask": [[1]],
        "advantages": [[0.5]],
        "logp_sampler": [[-2.5]],
        "head_ids": [[[0, 2, 4]]],
        "head_logp_sampler": [[[-0.75, -1.5, -3.0]]],
    }
    return envelope(
        "objective", x, {"weight": rule, "centering": {}}, outputs=("loss", "grad_logits", "grad_logp", "weights")
    )


@FAMILY.cases(
    {
        97: row("vanishing-sampler-is", "log q = -111 in the head, plain ratio",
            "exp(log p - log q) overflows float32; q f(p/q) is p.", rule={}),
        98: row("vanishing-sampler-tis", "log q = -111 in the head, TIS", "2 q = 0 to every precision.", rule=TIS),
    },
    flags=["OverflowToZero", "InfTimesZero"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """A head token that the sampler all but excludes and the trainer likes."""
    x = {
        "logits": [[[1.0, 0.5, -0.25, 0.0]]],
        "tokens": [[1]],
        "mask": [[1]],
        "advantages": [[1.0]],
        "logp_sampler": [[-1.0]],
        "head_ids": [[[2, 0]]],
        "head_logp_sampler": [[[-0.5, -111.0]]],
    }
    return envelope("objective", x, {"weight": rule, "centering": {}}, outputs=("grad_logits", "grad_logp", "weights"))


@FAMILY.cases(
    {
        99: row("zero-advantage", "A = 0 switches a token off", "Loss and gradient exactly 0 at that token.",
            rule=TIS),
        100: row("zero-advantage-mis", "A = 0 with MIS", "No centering term either.", rule=MIS),
    },
    flags=["ZeroAdvantage"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """Three tokens, the middle one with A = 0: it counts in the denominator and contributes nothing."""
    x = policy(999, [3], 5, 3)
    x["advantages"] = [[1.0, 0.0, -0.5]]
    return envelope("objective", x, {"weight": rule, "centering": {}})


@FAMILY.case(101, "all-out-of-band", flags=["AllTruncated", "Composition"])
def _() -> Draft:
    """Everything outside the band, the tail included: loss and gradient exactly 0.

    Every head ratio is below 0.5, rho below 0.2: alpha = 0 and c = 0.
    """
    x = {
        "logits": [[[2.5, 0.0, -1.25, 0.625, -2.5]]],
        "tokens": [[0]],
        "mask": [[1]],
        "advantages": [[-0.75]],
        "logp_sampler": [[-3.0]],
        "head_ids": [[[1, 2, 4]]],
        "head_logp_sampler": [[[-0.6875, -1.5, -1.875]]],
    }
    return envelope("objective", x, {"weight": MIS, "centering": {}})
