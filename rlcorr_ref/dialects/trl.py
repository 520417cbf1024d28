"""TRL 1.16.0: vLLM importance sampling, GRPO losses and reductions.

Read: `trl/trainer/grpo_config.py`, `trl/trainer/grpo_trainer.py` (wheel 1.16.0). The correction is inline in
`_generate_and_score_completions`, the losses in `_compute_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse

MODES = {
    "token_truncate": "clamp(exp(d), min, max)",
    "token_mask": "exp(d) inside [min, max], else 0",
    "sequence_truncate": "clamp(exp(sum d), min, max)",
    "sequence_mask": "exp(sum d) inside [min, max], else 0",
}
REDUCTIONS = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "luspo": "seq-mean-token-sum",
}


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of a GRPOConfig."""
    draft = Draft(pieces.THREE)
    weight = _weight(o)
    draft.put("weight", weight)
    draft.put("surrogate", _surrogate(draft, o, weight))
    if o["off_policy_mask_threshold"] is not None:
        pieces.keeps_kl(o["beta"] != 0 or o["entropy_coef"] != 0, "off_policy_mask_threshold")
        rule = {"statistic": "k1", "reduce": "mean", "high": o["off_policy_mask_threshold"], "sign": "negative"}
        draft.put("rejection", [{**rule, "numerator": "trainer"}])
    if o["beta"] != 0 and o["use_bias_correction_kl"]:
        refuse(
            "use_bias_correction_kl=true (the default) multiplies the k3 term by the ratio p/o with its gradient; "
            "set it to false "
            "for the plain k3 term, or beta to 0"
        )
    draft.put("kl", pieces.kl("k3", o["beta"]))
    if o["top_entropy_quantile"] < 1.0:
        refuse("top_entropy_quantile < 1 drops tokens by their entropy rank in the batch")
    kind = REDUCTIONS[o["loss_type"]]
    if o["entropy_coef"] != 0 and kind != "token-mean":
        refuse(
            f"the entropy bonus is a token mean whatever loss_type says, the policy term of {o['loss_type']!r} is not"
        )
    draft.put("entropy", pieces.entropy(o["entropy_coef"]))
    pieces.aggregation(draft, o, kind, o["max_completion_length"] if kind.endswith("norm") else None)
    if kind.startswith("seq-mean"):
        draft.note(f"the mean is over all rows: {pieces.ALL_ROWS}")
    if o["loss_type"] in ("dapo", "cispo"):
        draft.note(
            "1.16 divides by num_items_in_batch/num_processes * gradient_accumulation/steps_per_generation; earlier "
            "versions lack the "
            "last factor: give the count as @global_tokens"
        )
    draft.note("a NaN sampling log-prob means ratio 1 in 1.16; the contract refuses NaN")
    return draft


def _weight(o: Mapping[str, Any]) -> dict[str, Any] | None:
    if not o["vllm_importance_sampling_correction"]:
        return None
    low, high = o["vllm_importance_sampling_clip_min"], o["vllm_importance_sampling_clip_max"]
    if o["vllm_importance_sampling_cap"] is not None:
        high = o["vllm_importance_sampling_cap"]
    level, what = o["vllm_importance_sampling_mode"].split("_")
    if what == "truncate" and low is None and high is None:
        raise ContractError(
            "trl.vllm_importance_sampling_clip_max: truncate modes need clip_min or clip_max; TRL raises too"
        )
    if low is not None and high is not None and low >= high:
        raise ContractError(
            f"trl.vllm_importance_sampling_clip_min: {low:g} is not below clip_max {high:g}; TRL raises too"
        )
    if what == "truncate":
        return pieces.truncate(level, high, low or 0.0)
    return pieces.band(level, low or 0.0, high)


def _surrogate(draft: Draft, o: Mapping[str, Any], weight: dict[str, Any] | None) -> dict[str, Any]:
    low, high = o["epsilon"], o["epsilon"] if o["epsilon_high"] is None else o["epsilon_high"]
    if o["importance_sampling_level"] == "sequence":
        if o["loss_type"] not in ("grpo", "luspo"):
            refuse(
                f"importance_sampling_level='sequence' with loss_type={o['loss_type']!r}: TRL warns against the pair"
            )
        if o["delta"] is not None:
            refuse("delta with importance_sampling_level='sequence': the contract's gspo has no dual bound")
        return pieces.row_ratio(draft, weight, low, high, "importance_sampling_level='sequence'")
    if o["loss_type"] == "cispo":
        return pieces.absolute_cispo("trl.epsilon_high", high)
    if o["delta"] is not None and o["delta"] <= 1 + high:
        refuse(f"delta={o['delta']:g} does not exceed 1 + epsilon_high: it then clips positive advantages as well")
    return pieces.ppo(low, high, o["delta"])


OPTIONS = (
    Option("vllm_importance_sampling_correction", True, "weight", "on by default", "bool"),
    Option("vllm_importance_sampling_mode", "sequence_mask", "weight", "level and rule", "choice", MODES),
    Option("vllm_importance_sampling_clip_max", 3.0, "truncation", "upper bound", optional=True, above=0.0),
    Option("vllm_importance_sampling_clip_min", None, "truncation", "lower bound", optional=True, above=0.0),
    Option("vllm_importance_sampling_cap", None, "truncation", "deprecated name of clip_max", optional=True, above=0.0),
    Option(
        "loss_type",
        "dapo",
        "aggregation",
        "surrogate and reduction",
        "choice",
        REDUCTIONS,
        {
            "sapo": "a sigmoid gate on the ratio is no band",
            "vespo": "a gamma-shaped function of the row weight is no band",
        },
    ),
    Option(
        "importance_sampling_level",
        "token",
        "surrogate",
        "level of r = p/o",
        "choice",
        {"token": "r", "sequence": "row mean of log r"},
    ),
    pieces.clip_option("epsilon", 0.2, "band 1 - epsilon"),
    pieces.clip_option("epsilon_high", None, "band 1 + epsilon_high (null: epsilon); for cispo the cap itself"),
    Option("delta", None, "surrogate", "cap on r: a dual clip for negative advantages", optional=True, above=1.0),
    Option("beta", 0.0, "kl", "coefficient of the k3 term"),
    Option("use_bias_correction_kl", True, "kl", "multiply the k3 term by p/o", "bool"),
    Option("off_policy_mask_threshold", None, "mask", "drop rows with A < 0 and mean log q/p above it", optional=True),
    Option("max_completion_length", 512, "aggregation", "length of dr_grpo", optional=True, above=0.0),
    Option("entropy_coef", 0.0, "entropy", "entropy bonus, always a token mean"),
    Option("top_entropy_quantile", 1.0, "mask", "keep only the tokens of highest entropy", above=0.0),
)

ENTRIES = (
    Entry("default: sequence mask 3.0", {}),
    Entry(
        "token truncate 2.0",
        {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0},
    ),
    Entry(
        "token mask 0.5 to 2.0",
        {
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_min": 0.5,
            "vllm_importance_sampling_clip_max": 2.0,
        },
    ),
    Entry(
        "sequence truncate 2.0",
        {"vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_max": 2.0},
    ),
    Entry("no correction", {"vllm_importance_sampling_correction": False}),
    Entry("GRPO reduction", {"loss_type": "grpo"}),
    Entry("Dr. GRPO reduction", {"loss_type": "dr_grpo", "max_completion_length": 4}),
    Entry("CISPO with cap 5", {"loss_type": "cispo", "epsilon_high": 5.0}),
    Entry("CISPO with the default epsilon", {"loss_type": "cispo"}),
    Entry("two-sided GRPO", {"delta": 4.0, "epsilon_high": 0.28}),
    Entry(
        "GSPO", {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4}
    ),
    Entry("off-policy sequence mask", {"off_policy_mask_threshold": 0.1}),
    Entry("KL with the default bias correction", {"beta": 0.04}),
    Entry("plain k3 KL", {"beta": 0.04, "use_bias_correction_kl": False}),
)

TRAPS = (
    "the correction is on by default (sequence_mask, 3.0); one docstring names token_truncate as the default",
    "sequence modes take the product of the row, not its geometric mean (intended: PR #5815 was closed)",
    "no safety clamp: a ratio may overflow to infinity, then it is capped or masked",
    "cispo: epsilon_high is the cap itself, so 0.2 caps the ratio at 0.2 and not at 1.2",
    "use_bias_correction_kl is true by default, so beta > 0 is not the plain k3 term",
    "grpo and dr_grpo average over all rows, empty ones included",
    "the scale of dapo and cispo changed in 1.16 (gradient_accumulation/steps_per_generation)",
    "off_policy_mask_threshold leaves the denominator alone; the option of the same meaning in ms-swift edits the mask",
    "metrics are over weights after clipping; an empty row counts as ratio 1",
)

COLUMNS = {
    "sequence": "product",
    "truncation": "clamp on both sides (min off by default)",
    "mask": "zero weight, two-sided (min off by default)",
    "boundary": "inclusive",
    "log_clamp": "none",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "on: sequence mask 3",
    "floors": "no centering",
}

DIALECTS = (
    Dialect(
        "trl",
        "TRL",
        "1.16.0",
        "2026-07-24, 2026-11-29",
        ("trl/trainer/grpo_config.py", "trl/trainer/grpo_trainer.py", "huggingface/trl PR #5815"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
