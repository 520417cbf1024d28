"""Diagnostics of mismatch and correction: KL estimates, perplexities, chi-square, ESS, clip and rejection fractions."""

from __future__ import annotations

from ..registry import Draft, Family, envelope, row
from .common import GEO_TIS, MIS, NAN, SEQ_TIS, TIS, log_probs, ragged

FAMILY = Family(
    "diag", "Diagnostics", "09#estimators", ["verl 0.9.1, TRL 1.16, ms-swift 4.6, NeMo RL, AReaL: see dialects"]
)

KL = ("kl_k1", "kl_k2", "kl_k3", "kl_k3_reverse")
PPL = (
    "ppl_trainer",
    "ppl_sampler",
    "log_ppl_diff_mean",
    "log_ppl_diff_abs",
    "log_ppl_diff_min",
    "log_ppl_diff_max",
    "ppl_ratio",
)
CHI2 = ("chi2_token", "chi2_sequence")
RAW = ("ratio_mean", "ratio_std", "ratio_min", "ratio_max", "ess_raw")
APPLIED = ("weight_mean", "weight_std", "weight_min", "weight_max", "ess")
FRACTIONS = ("fraction_high", "fraction_low", "fraction_zero")
REJECTED = ("fraction_rejected_tokens", "fraction_rejected_rows")

# Rows of 3 and 2 valid tokens and an empty row, ratios 3.03, 0.25, 1.49, 1.10, 0.90 (a cross-framework fixture on the bf16 grid).
D = [[1.109375, -1.390625, 0.40625, 0.0], [0.09375, -0.10546875, 0.0, 0.0], [2.1875, 0.296875, -0.703125, 0.203125]]
LOGQ = [[-3.0, -4.0, -2.5, -9.0], [-2.25, -3.25, -9.0, -9.0], [-5.0, -9.0, -9.0, -9.0]]
X = log_probs(D, LOGQ, mask=ragged([3, 2, 0], 4))


@FAMILY.cases(
    {
        1: row("kl-estimates", "k1, k2, k3 and the reverse k3", "Sign, factor 1/2 and direction all matter.",
            names=KL, flags=["MetricKL", "K3Formula", "K2Factor"],
            metrics={"areal": {"kl_k1": "kl@areal", "kl_k3": "kl_k3@areal"}, "ms-swift": {"kl_k3": "kl_k3@ms-swift"},
                     "prime-rl": {"kl_k2": "kl@prime-rl"}, "trl": {"kl_k1": "logp_difference_mean@trl"},
                     "open-instruct": {"kl_k1": "reverse_kl@open-instruct"}}),
        2: row("perplexities", "Perplexities and their ratio",
            "Mean over rows of exp(-row mean), not exp of the pooled mean; the empty row does not count.", names=PPL,
            flags=["MetricPooling", "EmptyRow"],
            metrics={"verl": {"ppl_trainer": "training_ppl@verl", "log_ppl_diff_mean": "log_ppl_diff@verl",
                              "ppl_ratio": "ppl_ratio@verl"}}),
        3: row("chi-square", "Chi-square, token and sequence", "- 1, and the product for sequences.", names=CHI2,
            flags=["MetricChi2", "SeqProductVsGeomean"],
            metrics={"slime": {"chi2_token": "chi2_token@slime"}, "verl": {"chi2_sequence": "chi2_seq@verl"},
                     "ms-swift": {"chi2_sequence": "chi2_seq@ms-swift"}}),
        4: row("raw-ratio", "Raw ratio statistics",
            "Population standard deviation over valid tokens; padding is no 0.", names=RAW,
            flags=["MetricPooling", "MetricFromClamped"]),
    },
)  # fmt: skip
def _(names: tuple, metrics: dict | None = None) -> Draft:
    """Rows of 3, 2 and 0 valid tokens, no weight."""
    return envelope("diagnostics", X, {}, outputs=names, metrics=metrics or {})


@FAMILY.cases(
    {
        5: row("tis-applied", "Applied weights under TIS", "Maximum 2; ratio statistics stay raw (maximum 3.03).",
            rule=TIS, names=(*APPLIED, *RAW), flags=["MetricFromClamped", "MetricEss"],
            metrics={"verl": {"ess": "ess@verl"}, "ms-swift": {"ess": "ess@ms-swift"}}),
        6: row("tis-fractions", "Fractions beyond the cap",
            "Counted on the raw ratio: after truncation they are always 0.", rule=TIS, names=FRACTIONS,
            flags=["MetricFromClamped"]),
        7: row("mis-applied", "Applied weights under MIS",
            "Dropped tokens enter ESS and mean with weight 0, not 1/C.", rule=MIS, names=(*APPLIED, *FRACTIONS),
            flags=["MetricEss", "ZeroNotClip"],
            metrics={"ms-swift": {"ess": "ess@ms-swift", "fraction_zero": "clipped_frac@ms-swift"},
                     "slime": {"fraction_zero": "clipfrac@slime"}}),
        8: row("sequence-weights", "Sequence weights, token-weighted statistics",
            "Each row's weight counts once per token.", rule={**SEQ_TIS, "high": 1.0625},
            names=(*APPLIED, *FRACTIONS, "ratio_mean", "ratio_max"), flags=["MetricPooling", "BroadcastShape"]),
        9: row("geometric-weights", "Geometric weights", "Raw ratios at the weight's level.",
            rule={**GEO_TIS, "high": 1.03125}, names=(*APPLIED, *FRACTIONS),
            flags=["SeqProductVsGeomean", "MetricPooling"]),
        10: row("normalised-weights", "Batch-normalised weights",
            "Mean exactly 1, maximum above it, ESS unchanged by the scale.", rule={**TIS, "normalise": "tokens"},
            names=APPLIED, flags=["Normalise", "MetricEss"]),
    },
)  # fmt: skip
def _(rule: dict, names: tuple, metrics: dict | None = None) -> Draft:
    """Diagnostics of weights on the same rows."""
    return envelope("diagnostics", X, {"weight": rule}, outputs=names, metrics=metrics or {})


@FAMILY.case(11, "rejection-fractions", flags=["MetricPooling", "RowVeto"])
def _() -> Draft:
    """Rejected tokens and rows.

    Two tokens fall to the token rule, row 1 to the row rule: 4/5 of the tokens, 1/2 of the non-empty rows.
    """
    rule = {"statistic": "k2", "reduce": "token", "high": 0.5}
    rows = {"statistic": "k1", "reduce": "mean", "low": -0.0625, "high": 0.0}
    return envelope("diagnostics", X, {"rejection": [rule, rows]}, outputs=REJECTED)


@FAMILY.case(12, "clip-fraction", flags=["MetricFromClamped", "SignRule"], regression=["TRL #3032", "verl #972"])
def _() -> Draft:
    """Clip fraction by sign: r > 1 + eps for A > 0, r < 1 - eps for A < 0.

    Three of five tokens leave the band, two of them in the direction that clips; A = 0 never clips.
    """
    x = X | {"advantages": [[1.0, -1.0, -1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0] * 4]}
    return envelope(
        "diagnostics", x, {"surrogate": {"kind": "ppo_clip"}}, outputs=("clip_fraction", "zero_advantage_fraction")
    )


@FAMILY.case(13, "dual-clip-fraction", flags=["DualClip", "MetricFromClamped"], regression=["verl #972"])
def _() -> Draft:
    """Tokens stopped by the dual bound count as clipped.

    A < 0, r = 3.03, dual 2: verl's first version compared the minimum with itself and always said 0.
    """
    x = X | {"advantages": [[-1.0] * 4] * 3}
    return envelope("diagnostics", x, {"surrogate": {"kind": "ppo_clip", "dual": 2.0}}, outputs=("clip_fraction",))


@FAMILY.case(14, "all-dropped", flags=["AllTruncated", "MetricEss"])
def _() -> Draft:
    """Every weight 0: ESS is 0, not 0/0.

    Any micro-batch whose tokens all leave an IcePop band; verl 0.9.1 divides by zero there.
    """
    x = log_probs([[2.0, -2.0], [1.75, 2.25]], -4.0)
    return envelope(
        "diagnostics",
        x,
        {"weight": MIS},
        outputs=("ess", "weight_mean", "weight_max", "fraction_zero", "fraction_high"),
    )


@FAMILY.case(15, "tiny-weights", flags=["MetricEss"])
def _() -> Draft:
    """All log-ratios -20: ESS is a fraction.

    Weights of 2e-9 beside an epsilon of 1e-8 give 34 instead of 1.
    """
    return envelope(
        "diagnostics",
        log_probs([[-20.0, -20.0, -20.0]], -1.0),
        {"weight": TIS},
        outputs=("ess", "ess_raw", "weight_max"),
    )


@FAMILY.case(16, "floor-hides-collapse", flags=["MetricEss"], regression=["verl #5722"])
def _() -> Draft:
    """Weights (0.001, 1): ESS 0.5.

    Raised to 1/C = 0.5 before the ESS it reads 0.9.
    """
    return envelope("diagnostics", log_probs([[-6.90625, 0.0]], -1.0), {"weight": TIS}, outputs=("ess", "ess_raw"))


@FAMILY.case(17, "on-policy", flags=["MetricKL", "MetricChi2"])
def _() -> Draft:
    """Equal log-probs: KL and chi-square exactly 0, ratios exactly 1, ESS exactly 1.

    mean(-ratio) in place of mean(-log ratio) reads -1.
    """
    names = (*KL, *CHI2, "ratio_mean", "ess", "ess_raw", "ppl_ratio")
    return envelope("diagnostics", log_probs([[0.0, 0.0], [0.0, 5.0]], -1.5, mask=[[1, 1], [1, 0]]), {}, outputs=names)


@FAMILY.case(18, "nan-under-mask", flags=["PadSentinel", "MetricPooling"])
def _() -> Draft:
    """NaN under the mask reaches no diagnostic.

    min and max over the padded array are NaN as well.
    """
    x = log_probs(D, LOGQ, mask=ragged([3, 2, 0], 4))
    x["logp_trainer"][0][3] = x["logp_sampler"][1][2] = NAN
    return envelope(
        "diagnostics", x, {"weight": TIS}, outputs=(*KL, "ratio_min", "ratio_max", "log_ppl_diff_min", "weight_mean")
    )


@FAMILY.case(19, "anchor-numerator", flags=["MetricKL", "RatioWrongPolicy"], regression=["verl #4070"])
def _() -> Draft:
    """With an anchor the mismatch is anchor against sampler.

    Trainer equal to sampler, anchor not: k1 is 0.5 in mean; against the trainer it reads 0 for ever.
    """
    x = log_probs([[0.0, 0.0, 0.0]], -1.5) | {"logp_anchor": [[-2.0, -2.25, -1.75]]}
    return envelope("diagnostics", x, {"weight": TIS}, outputs=(*KL, "ratio_mean", "weight_mean"))


@FAMILY.case(20, "outliers", flags=["OutlierVisible", "MetricKL"])
def _() -> Draft:
    """Log-ratios of +-30: raw k1, not the clamped one.

    mean(-d) with d = (-30, 0, 2) is 9.33; a clamp of 20 reads 6.
    """
    return envelope(
        "diagnostics", log_probs([[-30.0, 0.0, 2.0]], -3.0), {}, outputs=("kl_k1", "kl_k2", "ratio_min", "ratio_max")
    )
