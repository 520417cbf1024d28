"""Options, settings, traps and comparison row of SkyRL; `skyrl.py` gives them their meaning."""

from __future__ import annotations

from . import pieces
from .records import Entry, Option

REDUCTIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
}

OPTIONS = (
    Option(
        "tis_ratio_type",
        None,
        "weight",
        "level of the weight",
        "choice",
        {None: "no weight", "token": "o/q", "sequence": "product"},
    ),
    Option("token_tis_ratio_clip_high", 2.0, "truncation", "cap of the token weight", above=0.0),
    Option("sequence_tis_ratio_clip_high", 5.0, "truncation", "cap of the sequence weight", above=0.0),
    Option(
        "sequence_mask_metric",
        None,
        "mask",
        "row mask",
        "choice",
        {None: "none", "geometric": "geometric mean", "product": "product"},
    ),
    Option("geo_mask_low", 0.99, "mask", "lower bound", at_least=0.0),
    Option("geo_mask_high", 1.01, "mask", "upper bound", above=0.0),
    Option("product_mask_low", 0.5, "mask", "lower bound", at_least=0.0),
    Option("product_mask_high", 2.0, "mask", "upper bound", above=0.0),
    Option("outlier_token_is_threshold_low", None, "mask", "drop rows with a token below", optional=True, above=0.0),
    Option("outlier_token_is_threshold_high", None, "mask", "drop rows with a token above", optional=True, above=0.0),
    Option("token_mask_is_threshold_low", None, "mask", "drop tokens below (both needed)", optional=True, above=0.0),
    Option("token_mask_is_threshold_high", None, "mask", "drop tokens above (both needed)", optional=True, above=0.0),
    Option(
        "policy_loss_type",
        "regular",
        "surrogate",
        "loss",
        "choice",
        {
            "regular": "clipped",
            "dual_clip": "clipped, dual",
            "gspo": "row ratio, straight-through",
            "cispo": "sg(clip(r)) log p",
            "rollout_is": "p/q inside the open band, else 0",
            "dppo": "p/q where the probability has not moved too far",
            "reinforce": "plain (v0.5.0, with score centering)",
        },
        {
            "sapo": "a sigmoid gate on the ratio is no band",
            "clip_cov": "it clips tokens chosen by a covariance over the batch",
            "kl_cov": "it penalises tokens chosen by a covariance over the batch",
        },
    ),
    pieces.clip_option("eps_clip_low", 0.2, "band 1 - low"),
    pieces.clip_option("eps_clip_high", 0.2, "band 1 + high"),
    Option("clip_ratio_c", 3.0, "surrogate", "dual clip, used by dual_clip only", above=1.0),
    pieces.clip_option("cispo.cispo_eps_clip_low", 0.0, "cispo band 1 - low"),
    pieces.clip_option("cispo.cispo_eps_clip_high", 5.0, "cispo band 1 + high"),
    Option(
        "dppo.dppo_type",
        "binary_tv",
        "mask",
        "divergence",
        "choice",
        {"binary_tv": "p - q", "binary_kl": "Bernoulli KL"},
    ),
    Option("dppo.delta_low", 0.2, "mask", "bound for A < 0", at_least=0.0),
    Option("dppo.delta_high", 0.2, "mask", "bound for A > 0", at_least=0.0),
    Option(
        "loss_reduction",
        "token_mean",
        "aggregation",
        "reduction",
        "choice",
        REDUCTIONS,
        {
            "prompt_mean": "a mean over the tokens of a prompt's group, then over prompts",
            "token_mean_legacy": "a mean over micro-batches of token means: evaluate the micro-batches and average",
        },
    ),
    Option("max_seq_len", None, "aggregation", "length of seq_mean_token_sum_norm", optional=True, above=0.0),
    Option("use_kl_loss", True, "kl", "KL in the loss, on by default", "bool"),
    Option("kl_loss_coef", 0.001, "kl", "its coefficient"),
    Option(
        "kl_estimator_type",
        "k3",
        "kl",
        "its estimator",
        "choice",
        {"k1": "k1", "k2": "k2", "k3": "k3"},
        {"abs": "|log p - log ref| is not an estimator of the contract"},
    ),
    Option("use_entropy_loss", False, "entropy", "entropy bonus", "bool"),
    Option("score_centering.enabled", False, "centering", "v0.5.0; on by default there for compatible losses", "bool"),
    Option("score_centering.top_k", 128, "centering", "width of the recorded head", above=0.0),
    Option("@recorded_support", False, "centering", "top-p or top-k support recorded (v0.5.0)", "bool"),
)

PLAIN = {"use_kl_loss": False}
ENTRIES = (
    Entry("no correction", PLAIN),
    Entry("default (KL on, token mean)", {}),
    Entry("row mean with the default KL", {"loss_reduction": "sequence_mean"}),
    Entry("token TIS 2.0", {**PLAIN, "tis_ratio_type": "token"}),
    Entry("sequence TIS 5.0", {**PLAIN, "tis_ratio_type": "sequence"}),
    Entry("geometric mask", {**PLAIN, "sequence_mask_metric": "geometric"}),
    Entry("product mask, token TIS", {**PLAIN, "sequence_mask_metric": "product", "tis_ratio_type": "token"}),
    Entry(
        "outlier mask",
        {**PLAIN, "outlier_token_is_threshold_low": 1e-4, "outlier_token_is_threshold_high": 100.0},
    ),
    Entry("token mask 0.5 to 2", {**PLAIN, "token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}),
    Entry(
        "rollout_is 0.5 to 5", {**PLAIN, "policy_loss_type": "rollout_is", "eps_clip_low": 0.5, "eps_clip_high": 4.0}
    ),
    Entry("DPPO", {**PLAIN, "policy_loss_type": "dppo"}),
    Entry("CISPO", {**PLAIN, "policy_loss_type": "cispo"}),
    Entry("GSPO", {**PLAIN, "policy_loss_type": "gspo", "loss_reduction": "sequence_mean"}),
    Entry("score centering", {**PLAIN, "policy_loss_type": "reinforce", "score_centering.enabled": True}),
    Entry(
        "score centering, rollout_is",
        {
            **PLAIN,
            "policy_loss_type": "rollout_is",
            "eps_clip_low": 0.5,
            "eps_clip_high": 4.0,
            "score_centering.enabled": True,
        },
    ),
    Entry(
        "score centering on the recorded support",
        {**PLAIN, "policy_loss_type": "reinforce", "score_centering.enabled": True, "@recorded_support": True},
    ),
)

TRAPS = (
    "rollout_is keeps the open interval (1 - low, 1 + high): a ratio at the bound is dropped, unlike everywhere else",
    "masks act in sequence: the row product of the weight is taken over the mask that earlier filters left",
    "the KL loss is on by default (0.001) and always a mean of row means, whatever loss_reduction says",
    "the token mask needs both thresholds; one alone does nothing",
    "denominators never shrink: advantages are scaled by the original counts before any mask",
    "ratios are cast back to the input dtype: bf16 log-probs give bf16 ratios",
    "is_ratio_std, min and max are taken over ratio * mask, padding zeros included",
    "score centering is on by default in v0.5.0 for compatible losses",
)

COLUMNS = {
    "sequence": "product (mask: product or geometric)",
    "truncation": "cap (one-sided)",
    "mask": "mask edited: token, row, outlier",
    "boundary": "inclusive; rollout_is open",
    "log_clamp": "20 after the sum",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "off, 2 and 5",
    "floors": "1e-6 both (v0.5.0)",
}
