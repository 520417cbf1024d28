"""Options, settings, traps and comparison row of verl; `verl.py` gives them their meaning."""

from __future__ import annotations

from . import pieces
from .records import Entry, Option

KL_KINDS = {
    "kl": "k1",
    "k1": "k1",
    "mse": "k2",
    "k2": "k2",
    "mse+": "k2",
    "k2+": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
    "low_var_kl+": "k3+",
    "k3+": "k3+",
}
LOSS_MODES = {
    "vanilla": "clipped surrogate in r = p/o, dual clip, then times w",
    "gspo": "row ratio, straight-through",
    "cispo": "sg(clip(r, 1 - low, 1 + high)) log p",
    "gpg": "plain REINFORCE",
}
REFUSED_MODES = {
    "dppo_tv": "its mask compares p with the anchor o, the contract's tv statistic compares with the sampler",
    "dppo_kl": "its mask is a binary KL that depends on the direction of the move and on the anchor",
    "sapo": "a sigmoid gate on the ratio is no band",
    "clip_cov": "it clips tokens chosen by the covariance of log-prob and advantage over the batch",
    "kl_cov": "it penalises tokens chosen by the covariance of log-prob and advantage over the batch",
    "geo_mean": "GMPO clips log-ratios before averaging them over the row",
    "dro": "a quadratic log-ratio penalty is no surrogate of the contract",
}

OPTIONS = (
    Option(
        "rollout_is",
        None,
        "weight",
        "level of the importance weight (YAML default null, dataclass default 'sequence')",
        "choice",
        {None: "no weight", "token": "exp(clamp(d))", "sequence": "exp(clamp(sum d)), the product"},
    ),
    Option(
        "rollout_is_threshold", 2.0, "truncation", "a number caps; a string 'low_high' zeroes outside (IcePop)", "text"
    ),
    Option("rollout_is_batch_normalize", False, "weight", "divide by the mean weight after truncation", "bool"),
    Option(
        "rollout_rs", None, "mask", "comma list of (token|seq_sum|seq_mean|seq_max)_k(1|2|3)", "text", optional=True
    ),
    Option(
        "rollout_rs_threshold",
        None,
        "mask",
        "one threshold, or one per option, comma-separated; k1: 'low_high' or high; k2, k3: high",
        "text",
        optional=True,
    ),
    Option("bypass_mode", False, "policies", "use the sampler's log-probs as the old policy", "bool"),
    Option(
        "loss_type",
        "ppo_clip",
        "surrogate",
        "the loss in bypass mode",
        "choice",
        {"ppo_clip": "clipped in p/q, no weight", "reinforce": "-A w log p"},
    ),
    Option("loss_mode", "vanilla", "surrogate", "the loss in decoupled mode", "choice", LOSS_MODES, REFUSED_MODES),
    pieces.clip_option("clip_ratio", 0.2, "used only where clip_ratio_low or clip_ratio_high is null"),
    Option("clip_ratio_low", 0.2, "surrogate", "band 1 - low", optional=True, at_least=0.0),
    Option("clip_ratio_high", 0.2, "surrogate", "band 1 + high", optional=True, at_least=0.0),
    Option("clip_ratio_c", 3.0, "surrogate", "dual clip, on by default", above=1.0),
    Option(
        "loss_agg_mode",
        "token-mean",
        "aggregation",
        "reduction",
        "choice",
        {
            k: k
            for k in (
                "token-mean",
                "token-sum",
                "seq-mean-token-sum",
                "seq-mean-token-mean",
                "seq-mean-token-sum-norm",
            )
        },
    ),
    Option("loss_scale_factor", None, "aggregation", "length of seq-mean-token-sum-norm", optional=True, above=0.0),
    Option("use_kl_loss", False, "kl", "add a KL term to the loss", "bool"),
    Option("kl_loss_coef", 0.001, "kl", "its coefficient"),
    Option(
        "kl_loss_type",
        "low_var_kl",
        "kl",
        "its estimator; '+' takes k2's gradient",
        "choice",
        KL_KINDS,
        {
            "abs": "|log p - log ref| is not an estimator of the contract",
            "full": "verl raises NotImplementedError",
            "k1+": "k1's value with k2's gradient is not an estimator of the contract",
            "kl+": "k1's value with k2's gradient is not an estimator of the contract",
        },
    ),
    Option("entropy_coeff", 0.0, "entropy", "entropy bonus"),
    Option("score_centering", False, "centering", "rollout_correction.score_centering (PR #8010)", "bool"),
    Option("topk_log_probs", 0, "centering", "width of the recorded sampler head (PR #8010)", at_least=0.0),
    Option(
        "trainer.use_v1", True, "mask", "false: the legacy trainer, whose token count shrinks with rejection", "bool"
    ),
    Option("@local_denominators", False, "mask", "losses called without global token or row counts", "bool"),
)

ENTRIES = (
    Entry("no correction", {}),
    Entry("token TIS", {"rollout_is": "token", "rollout_is_threshold": 2.0}),
    Entry("sequence TIS (product)", {"rollout_is": "sequence", "rollout_is_threshold": 2.0}),
    Entry("token IcePop", {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}),
    Entry("sequence TIS, batch normalised", {"rollout_is": "sequence", "rollout_is_batch_normalize": True}),
    Entry(
        "sequence TIS + rejection",
        {"rollout_is": "sequence", "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
    ),
    Entry("geometric rejection", {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}),
    Entry("k3 rejection", {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}),
    Entry("bypass PPO clip", {"bypass_mode": True}),
    Entry("bypass REINFORCE, token TIS", {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token"}),
    Entry(
        "bypass REINFORCE, token TIS, score centering (PR #8010)",
        {
            "bypass_mode": True,
            "loss_type": "reinforce",
            "rollout_is": "token",
            "score_centering": True,
            "topk_log_probs": 128,
        },
    ),
    Entry("GSPO", {"loss_mode": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    Entry("CISPO", {"loss_mode": "cispo"}),
    Entry("DPPO", {"loss_mode": "dppo_tv"}),
)

TRAPS = (
    "rollout_is is null in the YAML and 'sequence' in the dataclass: the default depends on how the config is built",
    "clip_ratio alone changes nothing: clip_ratio_low and clip_ratio_high default to 0.2, not null",
    "k1 rejection bounds q/p, the reciprocal ratio: '0.5_1.4' keeps a token with ratio 1.5",
    "weights clamp the row sum to +-20, rejection clamps each token first: d = (25, -22) weighs exp(3) and sums to 0",
    "whether rejected tokens leave the denominator has three answers: legacy decoupled yes, v1 trainer no, bypass no",
    "threshold '0.5_2.0_3' is read as (0.5, 2.03), 'nan' makes every weight NaN, '1_000' fails: refused here",
    "bypass with ppo_clip ignores the weights; dual clip 3.0 is on by default",
    "gspo: 0.9.1 honours loss_agg_mode, the development tree (1dda039b) forces seq-mean-token-mean; default band is "
    "0.2",
    "an IcePop batch with every weight 0 raises ZeroDivisionError in the ESS metric (0.9.1)",
    "the seq modes multiply by the mask, so a NaN under the mask poisons them; token modes do not",
    "rollout_token_veto_threshold (0.6, 0.7) is gone: the same rule is a k1 row maximum; configs still set it",
    "metrics are taken before batch normalisation, after which the cap is no longer the largest weight",
)

COLUMNS = {
    "sequence": "product",
    "truncation": "cap (one-sided)",
    "mask": "two-sided zero weight ('lo_hi'), or k1/k2/k3 rejection",
    "boundary": "inclusive",
    "log_clamp": "20 after the sum (weight), per token (rejection)",
    "denominator": "no; legacy decoupled rejection yes",
    "kl_weighted": "no",
    "default": "off (YAML), cap 2",
    "floors": "1e-6 both (PR #8010)",
}
