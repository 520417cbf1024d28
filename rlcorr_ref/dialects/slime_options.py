"""Options, settings and traps of slime, its `mis.py` and miles; `slime_miles.py` gives them their meaning."""

from __future__ import annotations

from . import pieces
from .records import Entry, Option

LOSS = (
    Option(
        "advantage_estimator",
        "grpo",
        "surrogate",
        "selects the loss as well",
        "choice",
        {
            "grpo": "clipped",
            "gspo": "row ratio",
            "cispo": "sg(clip(r)) log p",
            "ppo": "clipped",
            "reinforce_plus_plus": "clipped",
            "reinforce_plus_plus_baseline": "clipped",
        },
    ),
    pieces.clip_option("eps_clip", 0.2, "band 1 - eps_clip"),
    pieces.clip_option("eps_clip_high", None, "band 1 + eps_clip_high (null: eps_clip)"),
    Option("eps_clip_c", None, "surrogate", "dual clip", optional=True, above=1.0),
    Option("use_kl_loss", False, "kl", "add a KL term", "bool"),
    Option("kl_loss_coef", 0.0, "kl", "its coefficient"),
    Option(
        "kl_loss_type",
        "k1",
        "kl",
        "its estimator",
        "choice",
        {"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"},
    ),
    Option("use_unbiased_kl", False, "kl", "multiply the KL term by p/o", "bool"),
    Option("entropy_coef", 0.0, "entropy", "entropy bonus"),
    Option("calculate_per_token_loss", False, "aggregation", "token mean instead of the mean of row means", "bool"),
    Option("use_opsm", False, "mask", "drop rows with A < 0 and mean log o/p above opsm_delta", "bool"),
    Option("opsm_delta", 1e-4, "mask", "its threshold"),
    Option("use_rollout_logprobs", False, "policies", "the sampler's log-probs are the old ones", "bool"),
)
TIS = (
    Option("use_tis", False, "weight", "multiply by the clamped token ratio", "bool"),
    Option("tis_clip", 2.0, "truncation", "upper bound", above=0.0),
    Option("tis_clip_low", 0.0, "truncation", "lower bound", at_least=0.0),
    Option(
        "custom_tis_function_path",
        None,
        "mask",
        "the function in place of vanilla_tis_function",
        "choice",
        {None: "vanilla_tis_function", "icepop_function": "0 outside [tis_clip_low, tis_clip]"},
        {"examples/train_infer_mismatch_helper/mis.py:compute_mis_weights_with_cp": "see the dialect slime-mis"},
    ),
)
CENTERING = (
    Option("use_score_centering", False, "centering", "PR #2405", "bool"),
    Option("score_centering_top_k", 128, "centering", "width of the recorded head", above=0.0),
    Option(
        "pg_loss_type", "default", "surrogate", "PR #2405", "choice", {"default": "as above", "reinforce": "-A w log p"}
    ),
    Option("@recorded_support", False, "centering", "top-p support recorded (PR #2406)", "bool"),
)
MIS = (
    Option("use_tis", True, "weight", "without it nothing happens, rejection included", "bool"),
    Option("use_rs", True, "mask", "rejection and veto", "bool"),
    *(
        Option(
            name,
            "token",
            part,
            "level",
            "choice",
            {"token": "token", "sequence": "product", "geometric": "geometric mean"},
        )
        for name, part in (("tis_level", "weight"), ("rs_level", "mask"))
    ),
    Option(
        "tis_mode",
        "truncate",
        "weight",
        "rule",
        "choice",
        {
            "truncate": "min(w, upper)",
            "clip": "clamp(w, lower, upper)",
            "mask": "raw weight, mask edited outside the band",
        },
    ),
    Option("tis_lower_bound", 0.5, "truncation", "lower bound (null: 1/upper)", optional=True, above=0.0),
    Option("tis_upper_bound", 2.0, "truncation", "upper bound", above=0.0),
    Option("rs_lower_bound", None, "mask", "lower bound of rejection (null: the weight's)", optional=True, above=0.0),
    Option("rs_upper_bound", None, "mask", "upper bound of rejection (null: the weight's)", optional=True, above=0.0),
    Option("rs_veto_threshold", 1e-4, "mask", "drop a row that has a token ratio below it", optional=True, above=0.0),
    Option("tis_batch_normalize", True, "weight", "divide by the mean weight", "bool"),
)
MILES = (
    Option(
        "loss_type",
        "policy_loss",
        "surrogate",
        "loss",
        "choice",
        {"policy_loss": "slime's", "score_centering": "centered REINFORCE (PR #3317)"},
    ),
    Option(
        "score_centering_is",
        "none",
        "weight",
        "weight of the centered loss",
        "choice",
        {"none": "1", "tis": "min(rho, clip)", "mis": "rho inside the band, else 0"},
    ),
    Option("score_centering_tis_clip", 2.0, "truncation", "cap", above=0.0),
    Option("score_centering_mis_low", 0.5, "mask", "lower bound", above=0.0),
    Option("score_centering_mis_high", 5.0, "mask", "upper bound", above=0.0),
    Option("rollout_top_logprobs_num", 128, "centering", "width of the recorded head", above=0.0),
    Option("@filtered_sampling", False, "centering", "top-p or top-k sampling: mode 'support'", "bool"),
    Option(
        "@head_size_branch", False, "centering", "the branch with score_centering_head_size: sampler floor 0", "bool"
    ),
)

SLIME_ENTRIES = (
    Entry("no correction (default)", {}),
    Entry("TIS 2.0", {"use_tis": True}),
    Entry("TIS 0.5 to 2", {"use_tis": True, "tis_clip_low": 0.5}),
    Entry("IcePop 0.5 to 2", {"use_tis": True, "tis_clip_low": 0.5, "custom_tis_function_path": "icepop_function"}),
    Entry("sampler as the old policy", {"use_rollout_logprobs": True}),
    Entry("CISPO, upper bound only", {"advantage_estimator": "cispo", "eps_clip": 1.0, "eps_clip_high": 4.0}),
    Entry("GSPO", {"advantage_estimator": "gspo", "eps_clip": 3e-4, "eps_clip_high": 4e-4}),
    Entry("off-policy sequence mask", {"use_opsm": True, "use_rollout_logprobs": True}),
    Entry("off-policy sequence mask against o", {"use_opsm": True}),
    Entry(
        "score centering", {"use_score_centering": True, "pg_loss_type": "reinforce", "calculate_per_token_loss": True}
    ),
    Entry(
        "score centering, TIS 2.0",
        {"use_score_centering": True, "pg_loss_type": "reinforce", "use_tis": True, "calculate_per_token_loss": True},
    ),
)
MIS_ENTRIES = (
    Entry("mis.yaml: token truncate 2.0, rejection, veto, normalised", {}),
    Entry("token mask", {"tis_mode": "mask", "use_rs": False, "tis_batch_normalize": False}),
    Entry(
        "sequence clip", {"tis_mode": "clip", "tis_level": "sequence", "use_rs": False, "tis_batch_normalize": False}
    ),
    Entry("geometric rejection", {"rs_level": "geometric", "rs_lower_bound": 0.99, "rs_upper_bound": 1.01}),
    Entry("rejection without TIS", {"use_tis": False}),
)
MILES_ENTRIES = (
    Entry("no correction (default)", {}),
    Entry("TIS 2.0", {"use_tis": True}),
    *(
        Entry(f"score centering, {rule}", {"loss_type": "score_centering", "score_centering_is": rule})
        for rule in ("none", "tis", "mis")
    ),
    Entry("score centering on the recorded support", {"loss_type": "score_centering", "@filtered_sampling": True}),
    Entry("score centering, head-size branch", {"loss_type": "score_centering", "@head_size_branch": True}),
)

TRAPS = (
    "no safety clamp on the built-in ratio: it may overflow to infinity and is then capped or masked",
    "tis_clip_low is 0, so IcePop without it is one-sided",
    "cispo: eps_clip below 1 keeps a lower bound 1 - eps_clip; the canonical form needs eps_clip >= 1",
    "without stored log-probs the weight follows the current step",
    "the default divides each row by its own length and then by the global batch size",
    "use_opsm compares with the trainer's stored log-probs, the frameworks that copy DeepSeek-V3.2 with the sampler's",
    "score centering weighs by the current trainer over the sampler, not by the stored trainer",
    "tis_clipfrac counts every changed weight, those raised to the lower bound included",
)
MIS_TRAPS = (
    "rejection never runs when use_tis is false, although the documentation calls it independent",
    "mask mode leaves the weight raw and edits the loss mask; the denominator keeps the original counts",
    "batch normalisation is on in mis.yaml, local to the call, and counts empty rows as weight 0",
    "the veto is evaluated inside rejection only",
    "chi2_token is averaged per row, then over rows",
    "rs bounds that are null take the weight's bounds, and a null lower bound is 1/upper",
)
MILES_TRAPS = (
    "loss_type='score_centering' has its own weight options; use_tis is refused there",
    "the newer split revision lost the guards of the one-file revision: a NaN head gives a NaN loss",
    "the head-size branch has no sampler floor: exact no-op on-policy is lost where the tail is below 1e-6",
    "tail and head coefficients are closed forms (min(p, c q)); in band they vanish exactly",
)

COLUMNS = {
    "sequence": "no sequence level",
    "truncation": "clamp on both sides, 0 to 2",
    "mask": "zero weight, two-sided (icepop_function)",
    "boundary": "inclusive",
    "log_clamp": "none",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "off, [0, 2]",
    "floors": "1e-6 both (PR #2405)",
}
MIS_COLUMNS = {
    "sequence": "product (geometric has its own name)",
    "truncation": "cap, or clamp on both sides (clip)",
    "mask": "mask edited, weight raw; veto",
    "boundary": "inclusive",
    "log_clamp": "20 after aggregation",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "off; mis.yaml normalises",
    "floors": "no centering",
}
