"""Gates: a 0/1 factor at one level on a weight at another, as "Seq-MIS" and "seq-mask-TIS" mean it."""

from __future__ import annotations

from ..registry import Draft, Family, envelope, row
from .common import TIS, log_probs, policy, ragged

FAMILY = Family(
    "gate",
    "Gates on the importance weight",
    "04#gates",
    ["ms-swift sequence_mask, OpenRLHF seq-mask-tis, NeMo RL seq-mask-tis"],
)

D = [[0.75, -0.25, -0.375, 6.0], [0.5, 0.625, 6.0, 6.0], [-0.0625, 0.125, 0.0625, -0.1875]]
MASK = ragged([3, 2, 4], 4)
GEO = {"level": "geometric", "low": 0.875, "high": 1.125}


@FAMILY.cases(
    {
        1: row("geometric-gate-raw-weight", "Geometric gate, raw token weights",
            "Kept rows carry the token ratio, 2.117 included; truncating it is OpenRLHF's comment, not its code.",
            rule={"gate": GEO}),
        2: row("geometric-gate-truncated-weight", "Geometric gate, truncated token weights", "Gate and TIS multiply.",
            rule={**TIS, "gate": GEO}),
        3: row("sequence-gate", "Product gate, token weights", "The product 1.13 passes, 3.08 does not.",
            rule={**TIS, "gate": {"level": "sequence", "high": 2.0}}),
        4: row("token-gate", "Token gate on a sequence weight",
            "Single tokens drop out of a row that keeps its weight.",
            rule={"level": "sequence", "gate": {"level": "token", "high": 1.5}}),
        5: row("gate-one-sided", "One-sided gate", "low = 0 keeps every small ratio.",
            rule={"gate": {"level": "geometric", "high": 1.125}}),
        6: row("gate-segment", "Segment gate", "One run drops, the other stays.",
            rule={"gate": {"level": "segment", "low": 0.875, "high": 1.125}},
            mask=[[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 1]]),
    },
    flags=["GateMultipliesWeight", "SeqProductVsGeomean"],
)  # fmt: skip
def _(rule: dict, mask: list | None = None) -> Draft:
    """w = f(rho) * 1[the gate's band holds the ratio at the gate's level]."""
    return envelope("weight", log_probs(D, -6.5, mask=mask or MASK), rule)


@FAMILY.cases(
    {
        7: row("gate-negative-only", "Gate for A < 0 only", "Rows with A >= 0 pass whatever their ratio.",
            sign="negative"),
        8: row("gate-positive-only", "Gate for A >= 0 only", "Rows with A < 0 pass whatever their ratio.",
            sign="positive"),
    },
    flags=["SignRule", "GateMultipliesWeight"],
)  # fmt: skip
def _(sign: str) -> Draft:
    """A gate exempts one sign of the advantage; both rows lie outside its band."""
    a = [[1.0] * 4, [-1.0] * 4, [0.0] * 4]
    x = log_probs([[0.5] * 4, [0.625] * 4, [0.75] * 4], -6.5, mask=MASK, advantages=a)
    return envelope("weight", x, {**TIS, "gate": {**GEO, "sign": sign}})


@FAMILY.cases(
    {
        9: row("gate-tie-closed", "Gate, ratio exactly at a closed bound", "Passes.", closed=True),
        10: row("gate-tie-open", "Gate, ratio exactly at an open bound", "Does not pass.", closed=False),
    },
    flags=["ThresholdTie"],
)  # fmt: skip
def _(closed: bool) -> Draft:
    """The row's log-ratios 0.5 and -0.5 cancel exactly: product and geometric mean are exactly 1, the bound is 1."""
    x = log_probs([[0.5, -0.5], [-0.25, -0.5]], -2.0)
    return envelope("weight", x, {"gate": {"level": "sequence", "low": 0.25, "high": 1.0, "closed": closed}})


@FAMILY.case(11, "gate-anchor-numerator", flags=["RatioWrongPolicy", "GateMultipliesWeight"])
def _() -> Draft:
    """A gate looks at the anchor unless told otherwise.

    Row 0: o/q stays in the band, p/q leaves it; row 1 the other way round. The weight's numerator is the trainer, the gate's not.
    """
    x = {
        "logp_trainer": [[-1.0, -1.25], [-2.0, -2.0625]],
        "logp_anchor": [[-2.0, -2.125], [-1.0, -1.25]],
        "logp_sampler": [[-2.0, -2.0], [-2.0, -2.0]],
        "mask": [[1, 1], [1, 1]],
    }
    return envelope("weight", x, {"numerator": "trainer", "gate": GEO})


@FAMILY.cases(
    {
        12: row("gradient-geometric-gate", "Gradient under a geometric gate",
            "A dropped row has gradient exactly 0 and still counts in the denominator.",
            gate={"level": "geometric", "low": 0.75, "high": 1.375}),
        13: row("gradient-token-gate", "Gradient under a token gate", "Dropped tokens have gradient exactly 0.",
            gate={"level": "token", "low": 0.5, "high": 1.5}),
    },
    flags=["GateMultipliesWeight", "WeightDropped"],
    derivation="04#gates",
)  # fmt: skip
def _(gate: dict) -> Draft:
    """Loss and gradient of TIS-weighted REINFORCE with a gate, token mean over all valid tokens."""
    return envelope("objective", policy(412, [4, 3, 2], 4, head=False), {"weight": TIS, "gate": gate})


@FAMILY.case(14, "gate-alone-is-a-weight", flags=["GateMultipliesWeight"])
def _() -> Draft:
    """A gate without a weight: the loss is masked, not weighted.

    w = 1 where the row's product lies in the band, 0 elsewhere; arXiv 2609.20807's sequence mask.
    """
    x = policy(414, [3, 2], 4, head=False)
    return envelope("objective", x, {"gate": {"level": "sequence", "low": 0.5, "high": 2.0}})
