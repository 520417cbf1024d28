"""Second witnesses against faults that only one other case exposes: each kind of mistake is caught in two places."""

from __future__ import annotations

from ..registry import Draft, Family, envelope
from .common import MIS, TIS, fp32, log_probs, ragged

FAMILY = Family(
    "faults", "Faults seen in public reports, a second time", "08#faults", ["contract: see the flags of each case"]
)

D = [[0.75, -0.5, 0.25, 0.0], [1.5, -1.25, 0.0, 0.0], [0.125, -0.0625, 0.375, 0.625]]
MASK = ragged([3, 2, 4], 4)
BATCH = log_probs(D, -3.0, mask=MASK)
SIGNS = [[1.0, -1.0, 1.0, 1.0], [-1.0, -0.5, 1.0, 1.0], [1.0, 1.0, 0.0, -2.0]]


@FAMILY.cases(
    {
        1: {
            "slug": "clip-fraction-cispo",
            "title": "Clip fraction of CISPO",
            "says": "r > 1.2 counts although both branches of the loss coincide.",
            "kind": {"kind": "cispo"},
            "regression": ["open-instruct #1735"],
        },
        2: {
            "slug": "clip-fraction-cispo-two-sided",
            "title": "Clip fraction of CISPO with both bounds",
            "says": "Ratios below 0.75 count too.",
            "kind": {"kind": "cispo", "eps_low": 0.25, "eps_high": 0.5},
        },
        3: {
            "slug": "clip-fraction-quadrants",
            "title": "Clip fraction by quadrant",
            "says": "r > 1 + eps with A > 0 and r < 1 - eps with A < 0, nothing else.",
            "kind": {"kind": "ppo_clip"},
            "regression": ["TRL #3032"],
        },
        4: {
            "slug": "clip-fraction-dual",
            "title": "Clip fraction with a dual bound of 1.5",
            "says": "A < 0 with r above the dual bound counts.",
            "kind": {"kind": "ppo_clip", "dual": 1.5},
            "regression": ["verl #972"],
        },
    },
    flags=["MetricFromClamped", "DualClip"],
)
def _(kind: dict) -> Draft:
    """Share of valid tokens with an active bound; rows of 3, 2 and 4 tokens with signs mixed within rows."""
    return envelope("diagnostics", BATCH | {"advantages": SIGNS}, {"surrogate": kind}, outputs=("clip_fraction",))


@FAMILY.case(5, "chi-square-ragged", flags=["MetricChi2", "MetricPooling"])
def _() -> Draft:
    """Chi-square of rows with 3, 2 and 4 tokens.

    E[w^2] - 1 pooled over tokens, and over rows of products; neither 1 - E[w^2] nor E[w^2].
    """
    return envelope("diagnostics", BATCH, {}, outputs=("chi2_token", "chi2_sequence", "kl_k3"))


@FAMILY.case(6, "mismatch-with-three-policies", flags=["MetricKL", "RatioWrongPolicy"], regression=["verl #4070"])
def _() -> Draft:
    """Anchor against sampler, three distinct policies.

    The trainer has moved on by another amount on every token: it enters no mismatch metric.
    """
    x = BATCH | {"logp_anchor": [[-2.5, -3.25, -3.0, -3.0], [-2.0, -3.75, -3.0, -3.0], [-3.125, -2.875, -2.75, -3.5]]}
    return envelope("diagnostics", x, {"weight": TIS}, outputs=("kl_k1", "kl_k3", "ratio_mean", "ess"))


@FAMILY.case(7, "log-ratios-of-25", flags=["OutlierVisible", "MetricKL"])
def _() -> Draft:
    """Log-ratios of 25 and -25 among ordinary ones: k1 and k2 are linear and quadratic in the raw d.

    A clamp at 20 reads a k1 of the same sign but another size.
    """
    x = log_probs([[25.0, -0.5, 0.25], [-25.0, -24.0, 0.5]], -32.0)
    return envelope("diagnostics", x, {}, outputs=("kl_k1", "kl_k2", "log_ppl_diff_max"))


@FAMILY.case(8, "rejected-rows-not-by-first-token", flags=["MetricPooling", "RowVeto"], regression=["verl #4544"])
def _() -> Draft:
    """Rows whose first token falls are not rejected rows, and the reverse.

    Row 0 loses its first token only, row 1 everything but the first, row 2 everything.
    """
    x = log_probs([[2.0, 0.25, 0.125], [0.0, 2.0, 2.5], [2.0, 1.75, -2.0]], -4.0)
    rule = {"statistic": "k2", "reduce": "token", "high": 0.5}
    return envelope(
        "diagnostics", x, {"rejection": [rule]}, outputs=("fraction_rejected_rows", "fraction_rejected_tokens")
    )


@FAMILY.case(9, "sentinel-under-mask-metrics", flags=["PadSentinel", "MetricKL"], regression=["SkyRL #1633"])
def _() -> Draft:
    """-1e10 on one side and 0 on the other under the mask: exp(1e10) * 0 is NaN in k3 and chi-square.

    Metrics select first. (The sentinel is the nearest bf16 number.)
    """
    x = log_probs([[0.5, -0.25, 0.0], [0.125, 0.0, 0.0]], -2.0, mask=[[1, 1, 0], [1, 0, 0]])
    x["logp_sampler"][0][2] = x["logp_sampler"][1][1] = -9999220736.0
    x["logp_trainer"][0][2] = x["logp_trainer"][1][1] = 0.0
    return envelope("diagnostics", x, {}, outputs=("kl_k1", "kl_k3", "chi2_token", "ratio_mean"))


@FAMILY.cases(
    {
        12: {
            "slug": "singleton-among-groups-std",
            "title": "A singleton among groups, standard deviation",
            "says": "0 for the singleton, the others untouched.",
            "settings": {"kind": "mean_std"},
        },
        13: {
            "slug": "singleton-among-groups-leave-one-out",
            "title": "A singleton among groups, leave-one-out",
            "says": "The reward itself for the singleton.",
            "settings": {"kind": "leave_one_out"},
        },
        14: {
            "slug": "epsilon-outside-the-root",
            "title": "eps = 0.75",
            "says": "std + eps: not sqrt(var + eps), not max(std, eps).",
            "settings": {"kind": "mean_std", "eps": 0.75},
        },
        15: {
            "slug": "population-deviation-of-groups",
            "title": "Population deviation",
            "says": "n, not n - 1, group by group.",
            "settings": {"kind": "mean_std", "ddof": 0, "eps": 0.125},
        },
    },
    flags=["SingletonGroup", "GroupStd"],
)
def _(settings: dict) -> Draft:
    """Groups of 3, 1 and 4 rewards, interleaved."""
    x = {"rewards": [1.0, 0.25, 0.0, 3.0, 0.5, 2.0, -1.0, 0.75], "groups": [4, 9, 4, 2, 2, 2, 4, 2]}
    return envelope("advantages", x, settings)


@FAMILY.case(16, "rejection-anchor-token-rule", flags=["RatioWrongPolicy"], regression=["TRL #4857"])
def _() -> Draft:
    """A token band on o/q with an anchor that differs from the trainer.

    o/q leaves the band at tokens 0 and 2, o/p at token 1 only.
    """
    x = log_probs([[0.0, 0.75, 0.75]], -2.0) | {"logp_anchor": [[-1.0, -2.0, -1.125]]}
    return envelope("reject", x, {"statistic": "ratio", "reduce": "token", "low": 0.625, "high": 1.75})


@FAMILY.case(17, "rejection-clamp-in-row-mean", flags=["ClampThenMean", "SafetyClampVisible"])
def _() -> Draft:
    """Tokens clamped at 4 before a row mean of k3.

    d = 6 counts as 4: k3 = 49.6, mean 16.5; unclamped 396 drops the row.
    """
    x = log_probs([[6.0, 0.25, -0.125], [0.5, -0.25, 0.0]], -8.0)
    return envelope("reject", x, {"statistic": "k3", "reduce": "mean", "high": 32.0, "log_clamp": 4.0})


@FAMILY.cases(
    {
        29: {
            "slug": "sequence-ratio-exp-30",
            "title": "A row ratio of exp(30)",
            "says": "ratio = exp(log_ratio): a clamp at 20 on one of the two shows.",
            "level": "sequence",
        },
        30: {
            "slug": "token-ratio-exp-24",
            "title": "A token ratio of exp(24)",
            "says": "Raw on both outputs.",
            "level": "token",
        },
    },
    flags=["SafetyClampVisible"],
)
def _(level: str) -> Draft:
    """Log-ratio and ratio belong together, without a clamp."""
    return envelope("ratio", log_probs([[24.0, 5.0, 1.0], [0.5, -0.25, 0.125]], -32.0), {"level": level})


@FAMILY.case(31, "first-row-empty-ratios", flags=["EmptyRow"], regression=["SkyRL #176"])
def _() -> Draft:
    """The first row has no valid token.

    A collate that looks at the first part only drops every sampler log-prob: ratios of 1.
    """
    return envelope("ratio", log_probs([[0.0, 0.0], [0.5, -0.25], [1.0, 0.0]], -2.0, mask=[[0, 0], [1, 1], [1, 0]]))


@FAMILY.case(
    35, "zero-probability-in-the-normaliser", flags=["Normalise", "InfTimesZero"], regression=["NeMo-RL #3551"]
)
def _() -> Draft:
    """A sampled token with trainer probability 0 and a batch normaliser.

    Its weight is 0 and it stays in the mean; leaving it out of the mask changes every weight.
    """
    x = log_probs([[0.5, 0.0, -0.25], [0.25, 0.0, 0.0]], -2.0, mask=[[1, 1, 1], [1, 0, 0]])
    x["logp_trainer"][0][1] = "-Infinity"
    return envelope("weight", x, {**TIS, "normalise": "tokens"})


@FAMILY.case(36, "normaliser-over-rows-with-zeros", flags=["Normalise", "ZeroNotClip"])
def _() -> Draft:
    """Masked weights count as 0 in the normaliser over rows.

    Row means with the zeros in them; averaging what is left is another divisor.
    """
    return envelope(
        "weight",
        log_probs([[0.5, 2.0, -0.25], [0.25, -2.0, 0.0]], -4.0, mask=ragged([3, 2], 3)),
        {**MIS, "normalise": "rows"},
    )


@FAMILY.cases(
    {
        49: {
            "slug": "fp32-master-e4m3",
            "title": "float32 values beside e4m3 midpoints",
            "says": "Rounded to bf16 first they fall on the midpoint and then to the wrong side.",
            "format": "fp8_e4m3",
            "middle": (1.0625, 1.3125, 2.125, 0.15625),
        },
        50: {
            "slug": "fp32-master-int8",
            "title": "float32 values beside int8 midpoints",
            "says": "Double rounding moves them by a whole step.",
            "format": "int8",
            "middle": (64.5, 66.5, 96.5, 120.5),
        },
    },
    flags=["QuantTies", "QuantGrid"],
)
def _(format: str, middle: tuple) -> Draft:
    """Values 2^-12 (relative) beyond a midpoint, on the float32 grid: quantise the master, not its bf16 copy (xtuner #2044)."""
    above = [fp32(m * (1 + 2.0**-12)) for m in middle]
    below = [fp32(m * (1 - 2.0**-12)) for m in middle]
    return envelope("quantise", {"values": [above, below]}, {"format": format})


@FAMILY.case(52, "equal-rewards-in-one-group", flags=["GroupStd", "SingletonGroup"])
def _() -> Draft:
    """One group without spread beside one with it, eps = 0.

    0/0 = 0 for equal rewards; the other group is divided by its deviation as ever.
    """
    x = {"rewards": [0.75, 1.0, 0.75, 0.25, 0.75, 0.5], "groups": [1, 0, 1, 0, 1, 0]}
    return envelope("advantages", x, {"kind": "mean_std", "eps": 0.0})
