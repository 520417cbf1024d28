"""Second witnesses against faults of the whole objective and its shards: masks, rejection, KL, entropy, heads, support."""

from __future__ import annotations

from ..registry import Draft, envelope
from .common import NAN, TIS, log_probs, policy
from .faults import FAMILY

FALLS = {"statistic": "ratio", "reduce": "token", "low": 0.625, "high": 1.75}


@FAMILY.cases(
    {
        10: {
            "slug": "metrics-under-row-sums",
            "title": "Token metrics under row sums",
            "says": "They divide by tokens, not by the loss's rows.",
            "rule": {"kind": "seq-mean-token-sum"},
            "regression": ["NeMo-RL #2683"],
        },
        11: {
            "slug": "metrics-under-fixed-length",
            "title": "Token metrics under a fixed length",
            "says": "They divide by tokens, not by R times L.",
            "rule": {"kind": "seq-mean-token-sum-norm", "length": 16},
        },
    },
    flags=["MetricPooling", "AggDenominator"],
)
def _(rule: dict) -> Draft:
    """Mean ratio, weight and k1 beside the loss; rows of 4 and 2 tokens."""
    names = ("loss", "grad_logits", *(f"diagnostics.{name}" for name in ("ratio_mean", "weight_mean", "kl_k1")))
    return envelope(
        "objective", policy(1410, [4, 2], 4, head=False), {"weight": TIS, "aggregation": rule}, outputs=names
    )


@FAMILY.cases(
    {
        18: {
            "slug": "nothing-survives-tokens",
            "title": "Every token rejected",
            "says": "0/0 must not appear; N counts the original tokens.",
            "rule": FALLS,
            "aggregation": {"kind": "token-mean"},
            "regression": ["verl #6485"],
        },
        19: {
            "slug": "nothing-survives-rows",
            "title": "Every row rejected, row means",
            "says": "R and n_b count the original mask.",
            "rule": {"statistic": "k1", "reduce": "mean", "low": -0.5, "high": 0.5},
            "aggregation": {"kind": "seq-mean-token-mean"},
        },
    },
    flags=["RejectDenominator", "AllTruncated"],
)
def _(rule: dict, aggregation: dict) -> Draft:
    """Loss and gradient are exactly 0 when rejection leaves nothing, and nothing is NaN."""
    x = policy(1418, [2, 1], 3, head=False)
    x |= {"logits": [[[0.0] * 3] * 2] * 2, "logp_sampler": [[-3.0, -2.5], [-4.0, -1.0]]}
    return envelope("objective", x, {"weight": TIS, "rejection": [rule], "aggregation": aggregation})


@FAMILY.cases(
    {
        20: {
            "slug": "rejected-outlier-importance",
            "title": "A rejected outlier under plain importance sampling",
            "says": "exp(99) overflows float32 where keep = 0: inf * 0.",
            "weight": {},
        },
        21: {
            "slug": "rejected-outlier-clamped-row",
            "title": "A rejected outlier under an untruncated row weight",
            "says": "The row's product is infinite and every token of it rejected.",
            "weight": {"level": "sequence"},
        },
    },
    flags=["InfTimesZero", "OverflowToZero"],
)
def _(weight: dict) -> Draft:
    """A stale token with log q = -100, rejected: loss and gradient are those of the other tokens, finite."""
    x = policy(1420, [1, 2], 3, head=False)
    x["logits"] = [[[0.0, 0.5, -0.5]] * 2] * 2
    x |= {
        "tokens": [[0, 0], [1, 2]],
        "logp_sampler": [[-100.0, -1.0], [-1.25, -1.75]],
        "advantages": [[1.0, 1.0], [0.5, -0.75]],
    }
    return envelope(
        "objective",
        x,
        {"weight": weight, "rejection": [FALLS]},
        outputs=("loss", "grad_logits", "grad_logp", "token_loss", "mask"),
    )


@FAMILY.cases(
    {
        22: {
            "slug": "entropy-flat-temperature",
            "title": "Entropy at temperature 1.5",
            "says": "A second division by T (in place, on a view) flattens it further.",
            "settings": {"entropy": {"coef": 0.25}, "temperature": 1.5},
            "regression": ["TRL #7125"],
        },
        23: {
            "slug": "entropy-sharp-temperature-weighted",
            "title": "Entropy at temperature 0.5 under TIS",
            "says": "Unweighted, at T, once.",
            "settings": {"entropy": {"coef": 0.5}, "temperature": 0.5, "weight": TIS},
        },
    },
    flags=["EntropySign", "Temperature"],
)
def _(settings: dict) -> Draft:
    """- coef H(softmax(z/T)) beside the policy term."""
    return envelope("objective", policy(1422, [3, 2], 5, head=False), settings)


@FAMILY.case(24, "entropy-with-dead-columns", flags=["InfTimesZero", "EntropySign"], regression=["SkyRL #2259"])
def _() -> Draft:
    """Unused vocabulary rows with logit -Infinity in a batch with TIS.

    p log p = 0 there, in the value and in the gradient, for every token.
    """
    x = policy(1424, [2, 1], 4, head=False)
    for row in x["logits"]:
        for z in row:
            z[3] = "-Infinity"
    x["tokens"] = [[0, 1], [2, 0]]
    return envelope(
        "objective", x, {"weight": TIS, "entropy": {"coef": 0.25}}, outputs=("loss", "grad_logits", "grad_logp")
    )


@FAMILY.cases(
    {
        25: {
            "slug": "k1-weighted",
            "title": "k1 inside the importance weight",
            "says": "Slope w on log p: neither 0 nor 1.",
            "kind": "k1",
            "weighted": True,
        },
        26: {
            "slug": "k3-weighted",
            "title": "k3 inside the importance weight",
            "says": "w beta (1 - exp x).",
            "kind": "k3",
            "weighted": True,
        },
        27: {
            "slug": "k3-plus-unweighted",
            "title": "k3+ beside a weighted policy term",
            "says": "Value of k3, gradient of k2; the name must be known.",
            "kind": "k3+",
            "weighted": False,
            "regression": ["verl #6058"],
        },
    },
    flags=["KLWeighted", "KLGradient"],
)
def _(kind: str, weighted: bool) -> Draft:
    """TIS and a KL term with weights far from 1."""
    x = policy(1425, [3, 2], 4, head=False, reference=True, drift=1.5)
    return envelope("objective", x, {"weight": TIS, "kl": {"kind": kind, "beta": 0.5, "weighted": weighted}})


@FAMILY.case(28, "k3-far-below", flags=["K3Formula", "KLGradient"], regression=["OpenRLHF #1335"])
def _() -> Draft:
    """A reference 8 nats above the trainer on one token, 12 below on another.

    k3 is 2972 and 11: clamped at 10 both values change and the gradient dies.
    """
    x = policy(1428, [2], 3, head=False)
    x |= {
        "logits": [[[0.0, 9.0, 0.0], [2.0, 0.0, -2.0]]],
        "tokens": [[0, 0]],
        "logp_reference": [[-1.0, -12.0]],
        "logp_sampler": [[-2.0, -0.5]],
    }
    return envelope("objective", x, {"kl": {"kind": "k3", "beta": 0.0625}})


@FAMILY.case(32, "first-row-empty-gradient", flags=["EmptyRow", "WeightDropped"])
def _() -> Draft:
    """The first row has no valid token, TIS.

    Weights of the other rows are p/q as ever.
    """
    return envelope("objective", policy(1432, [0, 3, 2], 4, head=False), {"weight": TIS})


@FAMILY.cases(
    {
        33: {
            "slug": "nan-under-mask-untruncated",
            "title": "NaN under the mask, plain ratios",
            "says": "A truncation would hide the NaN; here nothing does.",
            "function": "weight",
        },
        34: {
            "slug": "nan-under-mask-importance",
            "title": "NaN under the mask, plain importance sampling",
            "says": "Weights are exactly 0 off the mask.",
            "function": "objective",
        },
    },
    flags=["PadSentinel"],
    derivation="08#masks",
)
def _(function: str) -> Draft:
    """exp(NaN) times a mask of 0 is NaN; the untruncated weight has no bound that swallows it."""
    if function == "weight":
        x = log_probs([[0.5, -0.25, 0.0], [0.75, 0.0, 0.0]], -2.0, mask=[[1, 1, 0], [1, 0, 0]])
        x["logp_trainer"][0][2] = x["logp_sampler"][1][1] = x["logp_sampler"][1][2] = NAN
        return envelope("weight", x, {})
    x = policy(1434, [2, 1], 3, head=False)
    x["logp_sampler"][1][1], x["advantages"][1][1] = NAN, NAN
    return envelope("objective", x, {"weight": {}})


@FAMILY.cases(
    {
        47: {
            "slug": "shards-with-rejection",
            "title": "Rejection in micro-batches of two rows",
            "says": "One denominator for the whole batch, whatever each part retains.",
            "shards": [[0, 1], [2, 3]],
            "regression": ["AReaL #1546"],
        },
        48: {
            "slug": "shards-with-rejection-uneven",
            "title": "Rejection in micro-batches of one and three rows",
            "says": "The split does not matter.",
            "shards": [[0], [1, 2, 3]],
        },
    },
    flags=["GlobalDenominator", "RejectDenominator"],
)
def _(shards: list) -> Draft:
    """A token rule that drops different numbers of tokens in different shards, token mean, counts kept."""
    x = policy(1447, [4, 2, 3, 1], 4, head=False, drift=1.5)
    return envelope(
        "shard", x, {"definition": {"weight": TIS, "rejection": [FALLS]}, "shards": shards, "denominators": "global"}
    )
