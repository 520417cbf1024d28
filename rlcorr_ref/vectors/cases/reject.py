"""Rejection: rules that edit the mask, every statistic with every reduction, signs, clamps, ties, vetoes."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import MIS, NAN, TIS, Numbers, log_probs, policy, ragged

FAMILY = Family(
    "reject",
    "Rejection rules that edit the mask",
    "03#rejection",
    ["verl 0.9.1 rollout correction (k1, k2, k3 x token, sum, mean, max)", "OpenRLHF 0.11.2 (tv, binary KL)"],
)

# Five rows, d of both signs and of different sizes, so that no two statistics or reductions order them alike.
D = [
    [0.5, -0.25, 0.125, 6.0],
    [1.25, -1.0, 6.0, 6.0],
    [-1.25, 1.0, 0.0625, 0.125],
    [-0.75, -0.625, 0.25, -6.0],
    [0.75, 0.5, -0.125, 0.25],
]
LOGQ = [
    [-1.5, -1.0, -0.75, -7.0],
    [-2.5, -0.5, -7.0, -7.0],
    [-0.375, -2.0, -2.0, -1.0],
    [-0.5, -2.0, -0.75, -7.0],
    [-1.0, -3.0, -0.25, -1.5],
]
MASK = ragged([3, 2, 4, 3, 4], 4)

WORDS = {
    "ratio": "exp(d); reductions in log space: product and geometric mean",
    "k1": "k1 = - d = log q - log n",
    "k2": "k2 = d^2/2",
    "k3": "k3 = exp(d) - 1 - d",
    "tv": "|n - q| of the sampled token",
    "binary_kl": "KL of the sampled token's Bernoulli pair, sampler first",
}
SHARP = "The bound is placed so that any other reduction, and other statistics, keep other tokens"
GRID: dict[int, dict[str, Any]] = {}
for _serial, (_statistic, _reduce, _low, _high, _flags) in enumerate(
    [
        ("ratio", "token", 0.5, 1.5, ["Basic", "RatioDirection"]),
        ("ratio", "sum", 0.5, 1.375, ["SeqProductVsGeomean", "RatioDirection"]),
        ("ratio", "mean", 0.625, 1.375, ["SeqProductVsGeomean", "RatioDirection"]),
        ("ratio", "max", 0.5, 1.5, ["RowVeto", "RatioDirection"]),
        ("k1", "token", None, 0.15625, ["RatioDirection"]),
        ("k1", "sum", None, 0.046875, ["RatioDirection", "SeqProductVsGeomean"]),
        ("k1", "mean", None, 0.0234375, ["RatioDirection", "MaskInRowSum"]),
        ("k1", "max", None, 0.15625, ["RatioDirection", "RowVeto"]),
        ("k2", "token", None, 0.1875, ["K2Factor"]),
        ("k2", "sum", None, 0.4765625, ["K2Factor"]),
        ("k2", "mean", None, 0.125, ["K2Factor", "MaskInRowSum"]),
        ("k2", "max", None, 0.4375, ["K2Factor", "RowVeto"]),
        ("k3", "token", None, 0.25, ["K3Formula", "RatioDirection"]),
        ("k3", "sum", None, 0.5, ["K3Formula", "RatioDirection"]),
        ("k3", "mean", None, 0.125, ["K3Formula", "RatioDirection", "MaskInRowSum"]),
        ("k3", "max", None, 0.875, ["K3Formula", "RatioDirection", "RowVeto"]),
        ("tv", "token", None, 0.0625, ["TvStatistic"]),
        ("tv", "sum", None, 0.5, ["TvStatistic"]),
        ("tv", "mean", None, 0.25, ["TvStatistic", "MaskInRowSum"]),
        ("tv", "max", None, 0.375, ["TvStatistic", "RowVeto"]),
        ("binary_kl", "token", None, 0.15625, ["MetricKL", "RatioDirection"]),
        ("binary_kl", "sum", None, 0.375, ["MetricKL"]),
        ("binary_kl", "mean", None, 0.125, ["MetricKL", "MaskInRowSum"]),
        ("binary_kl", "max", None, 0.375, ["MetricKL", "RatioDirection", "RowVeto"]),
    ],
    start=1,
):
    _swap = "; so does exchanging trainer and sampler." if "RatioDirection" in _flags else "."
    GRID[_serial] = {
        "slug": f"{_statistic.replace('_', '-')}-{_reduce}",
        "title": f"{_statistic} with reduction {_reduce}",
        "says": f"{WORDS[_statistic]}. {SHARP}{_swap}",
        "flags": _flags,
        "rule": {"statistic": _statistic, "reduce": _reduce, "low": _low, "high": _high},
    }


@FAMILY.cases(GRID)
def _(rule: dict) -> Draft:
    """Which valid tokens survive: token rules drop tokens, sum, mean and max drop rows; padding holds d = +-6."""
    return envelope("reject", log_probs(D, LOGQ, mask=MASK), rule)


@FAMILY.case(25, "token-veto", flags=["RowVeto"])
def _() -> Draft:
    """Veto: one token with p/q below 1e-4 drops its whole row.

    max of k1 against -log 1e-4 = 9.21: d = -9.5 in row 0 and -9 in row 1; a token rule would drop one token only.
    """
    x = log_probs([[-9.5, 0.25, -0.125], [-9.0, 0.125, 0.5]], -1.0)
    return envelope("reject", x, {"statistic": "k1", "reduce": "max", "high": 9.210340371976182})


@FAMILY.cases(
    {
        26: row("sign-negative-rows", "Only rows with A < 0 can be dropped",
            "DeepSeek-V3.2's sequence mask: the positive row stays although it is further off.", sign="negative"),
        27: row("sign-positive-rows", "Only rows with A >= 0 can be dropped", "A = 0 counts as positive.",
            sign="positive"),
    },
    flags=["SignRule"],
)  # fmt: skip
def _(sign: str) -> Draft:
    """Row mean of k1 with a sign; rows have A = 1, -1, 0."""
    a = [[1.0] * 3, [-1.0] * 3, [0.0] * 3]
    x = log_probs([[-0.5, -0.25, -0.375], [-0.25, -0.5, -0.25], [-0.5, -0.5, -0.25]], -2.0, advantages=a)
    return envelope("reject", x, {"statistic": "k1", "reduce": "mean", "high": 0.125, "sign": sign})


@FAMILY.case(28, "sign-within-a-row", flags=["SignRule", "RowVeto"])
def _() -> Draft:
    """Signs that differ within one row.

    The row's statistic drops the row, but tokens of the exempt sign stay.
    """
    x = log_probs([[-0.5, -0.75, -0.25]], -2.0, advantages=[[1.0, -1.0, -2.0]])
    return envelope("reject", x, {"statistic": "k1", "reduce": "mean", "high": 0.125, "sign": "negative"})


@FAMILY.cases(
    {
        29: row("clamp-before-statistic", "d is clamped before the statistic", "(5, -5, 0) sums to 0: the row falls.",
            clamp=5.0),
        30: row("clamp-absent", "The same rows without a clamp", "(25, -22, 0) sums to 3: the row stays.",
            clamp=None),
    },
    flags=["ClampThenMean", "SafetyClampVisible"],
)  # fmt: skip
def _(clamp: float | None) -> Draft:
    """Row sum of k1 with d = (-25, 22, 0) against the band [2, 8]; the second row, d = (-4, 0, 0), stays either way."""
    x = log_probs([[-25.0, 22.0, 0.0], [-4.0, 0.0, 0.0]], -32.0)
    return envelope("reject", x, {"statistic": "k1", "reduce": "sum", "low": 2.0, "high": 8.0, "log_clamp": clamp})


@FAMILY.cases(
    {
        31: row("tie-k1-closed", "k1 exactly at a closed bound", "Kept.", closed=True),
        32: row("tie-k1-open", "k1 exactly at an open bound", "Dropped.", closed=False),
    },
    flags=["ThresholdTie"],
)  # fmt: skip
def _(closed: bool) -> Draft:
    """d = -0.5 exactly, bound 0.5."""
    x = log_probs([[-0.5, 0.25, -1.0]], -1.0)
    return envelope("reject", x, {"statistic": "k1", "reduce": "token", "high": 0.5, "closed": closed})


@FAMILY.cases(
    {
        33: row("tie-k2-closed", "k2 exactly at a closed bound", "Kept.", closed=True),
        34: row("tie-k2-open", "k2 exactly at an open bound", "Dropped.", closed=False),
    },
    flags=["ThresholdTie", "K2Factor"],
)  # fmt: skip
def _(closed: bool) -> Draft:
    """d = 0.5 exactly: d^2/2 = 0.125 is the bound."""
    x = log_probs([[0.5, 0.25, -1.0]], -2.0)
    return envelope("reject", x, {"statistic": "k2", "reduce": "token", "high": 0.125, "closed": closed})


@FAMILY.case(35, "two-rules-and", flags=["RowVeto", "Basic"])
def _() -> Draft:
    """Two rules are ANDed.

    A token band and a row veto: each drops something the other keeps.
    """
    rules = [
        {"statistic": "ratio", "reduce": "token", "low": 0.625, "high": 2.0},
        {"statistic": "k1", "reduce": "max", "high": 1.125},
    ]
    return envelope("reject", log_probs(D, LOGQ, mask=MASK), {"rejection": rules})


@FAMILY.case(36, "statistics-over-original-mask", flags=["MaskInRowSum", "RowVeto"])
def _() -> Draft:
    """Row statistics use the original mask, whatever an earlier rule dropped.

    Token 0 falls to the token rule; the row mean with it is 0.46 and drops the row, without it 0.06 would keep it.
    """
    rules = [
        {"statistic": "k1", "reduce": "token", "high": 1.0},
        {"statistic": "k1", "reduce": "mean", "high": 0.25},
    ]
    return envelope("reject", log_probs([[-1.25, -0.125, 0.0]], -1.0), {"rejection": rules})


@FAMILY.case(37, "anchor-numerator", flags=["RatioWrongPolicy"])
def _() -> Draft:
    """Rejection compares anchor and sampler when an anchor is given.

    Row 0: the anchor is 1 nat off the sampler and the trainer is not, so it falls; row 1 the other way round, so it stays.
    """
    x = {
        "logp_trainer": [[-1.0, -1.0], [-2.0, -2.0]],
        "logp_anchor": [[-2.0, -2.0], [-1.0, -1.0]],
        "logp_sampler": [[-1.0, -1.0], [-1.0, -1.0]],
        "mask": [[1, 1], [1, 1]],
    }
    rule = {"statistic": "k1", "reduce": "mean", "high": 0.5}
    return envelope(
        "reject", x, rule, dialects={"trainer": ({**rule, "numerator": "trainer"}, "current policy against sampler")}
    )


@FAMILY.case(38, "nan-under-mask", flags=["PadSentinel"])
def _() -> Draft:
    """NaN padding in a row maximum.

    max over the padded row is NaN and drops a healthy row (or keeps an unhealthy one).
    """
    x = log_probs([[-0.25, 0.125, 0.0], [-2.0, 0.25, 0.0]], -1.0, mask=[[1, 1, 0], [1, 1, 0]])
    x["logp_trainer"][0][2] = x["logp_trainer"][1][2] = NAN
    return envelope("reject", x, {"statistic": "k1", "reduce": "max", "high": 1.0})


@FAMILY.cases(
    {
        39: row("denominator-kept", "Dropped tokens stay in the denominator",
            "1/6 per token: verl decoupled, TRL, ms-swift weights.", denominator="kept"),
        40: row("denominator-shrunk", "Dropped tokens leave the denominator",
            "1/(kept tokens): verl legacy, AReaL M2PO.", denominator="shrunk"),
    },
    flags=["RejectDenominator"],
)  # fmt: skip
def _(denominator: str) -> Draft:
    """Loss and gradient with a token rule that drops three of six tokens, token mean."""
    rule = {"statistic": "ratio", "reduce": "token", "low": 0.625, "high": 1.75, "denominator": denominator}
    other = "kept" if denominator == "shrunk" else "shrunk"
    return envelope(
        "objective",
        policy(401, [3, 2, 1], 4, head=False, drift=1.25),
        {"weight": TIS, "rejection": [rule]},
        dialects={other: ({"weight": TIS, "rejection": [{**rule, "denominator": other}]}, f"denominator {other!r}")},
    )


@FAMILY.cases(
    {
        41: row("rows-kept-row-mean", "A dropped row under a row mean, counts kept",
            "R still counts the dropped row.", denominator="kept"),
        42: row("rows-shrunk-row-mean", "A dropped row under a row mean, counts shrunk",
            "R counts surviving rows only.", denominator="shrunk"),
    },
    flags=["RejectDenominator", "EmptyRow"],
)  # fmt: skip
def _(denominator: str) -> Draft:
    """A row rule with seq-mean-token-mean."""
    rule = {"statistic": "k2", "reduce": "mean", "high": 0.140625, "denominator": denominator}
    settings = {"weight": TIS, "rejection": [rule], "aggregation": {"kind": "seq-mean-token-mean"}}
    return envelope("objective", policy(401, [3, 2, 4], 4, head=False), settings)


@FAMILY.case(43, "dropped-token-drops-centering", flags=["RejectKeepsTerm"])
def _() -> Draft:
    """A rejected token contributes nothing at all, its centering term included.

    Unlike a weight of 0 (MIS), which leaves the centering term alive.
    """
    rule = {"statistic": "ratio", "reduce": "token", "low": 0.625, "high": 1.75}
    return envelope(
        "objective", policy(402, [3, 2], 5, 3, drift=1.5), {"weight": MIS, "rejection": [rule], "centering": {}}
    )


@FAMILY.case(44, "dropped-token-drops-kl", flags=["RejectKeepsTerm"])
def _() -> Draft:
    """A rejected token contributes neither KL nor entropy.

    Gradient exactly 0 on its logits.
    """
    rule = {"statistic": "ratio", "reduce": "token", "low": 0.625, "high": 1.75}
    settings = {"rejection": [rule], "kl": {"kind": "k3", "beta": 0.25}, "entropy": {"coef": 0.125}}
    return envelope("objective", policy(406, [3, 2], 4, head=False, reference=True), settings)


@FAMILY.cases(
    {
        45: row("random-k1-mean", "Random batch, k1 row mean", "Plain parity.",
            rule={"statistic": "k1", "reduce": "mean", "low": -0.25, "high": 0.25}),
        46: row("random-k3-token", "Random batch, k3 per token", "Plain parity.",
            rule={"statistic": "k3", "reduce": "token", "high": 0.40625}),
    },
    flags=["Basic"],
)  # fmt: skip
def _(rule: dict) -> Draft:
    """B = T = 4, ragged, one empty row."""
    n = Numbers(45)
    return envelope(
        "reject", log_probs(n.uniform(-1.5, 1.5, 4, 4, step=0.0625).tolist(), -3.0, mask=ragged([4, 0, 3, 2], 4)), rule
    )
