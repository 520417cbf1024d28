"""open-instruct: the unified rho correction (clamp and mask) of its GRPO.

Read: `open_instruct/grpo_utils.py` (`compute_rho_correction`, `compute_grpo_loss`), `open_instruct/model_utils.py`
(`estimate_kl`), git e6c3044a. Later trees renamed some of these options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of a GRPOExperimentConfig."""
    if o["use_vllm_logprobs"] and o["use_rho_correction"]:
        raise ContractError(
            "open-instruct.use_vllm_logprobs and use_rho_correction: open-instruct refuses the pair (nothing to "
            "correct)"
        )
    draft = Draft(pieces.TWO if o["use_vllm_logprobs"] else pieces.THREE)
    if o["use_vllm_logprobs"]:
        draft.note(pieces.NO_ANCHOR)
    if o["use_rho_correction"]:
        _weight(draft, o)
    if o["loss_fn"] == "cispo":
        draft.put("surrogate", pieces.cispo(None, o["clip_higher"]))
    else:
        draft.put("surrogate", pieces.ppo(o["clip_lower"], o["clip_higher"]))
    if o["load_ref_policy"] and o["beta"] != 0:
        kind = {0: "k1", 1: "k2", 2: "k3"}[o["kl_estimator"]]
        draft.put("kl", pieces.kl(kind, o["beta"]))
        draft.note("log p - log ref is clamped to +-40 in the KL term; the definition does not clamp")
    elif o["beta"] != 0:
        raise ContractError(
            "open-instruct.load_ref_policy: must be true where beta is not 0; open-instruct raises ValueError"
        )
    draft.note("a NaN log-prob becomes the sentinel 1.0 on that side; the contract refuses NaN")
    if o["loss_denominator"] == "token":
        pieces.aggregation(draft, o, "token-mean")
        draft.note(
            "the count is of the whole accumulation group over all ranks, before masks: give it as @global_tokens"
        )
        return draft
    if o["@global_tokens"] is not None:
        raise ContractError("@global_tokens: given, but loss_denominator is the divisor; leave it out")
    pieces.aggregation(draft, o, "token-mean", tokens=_denominator(o["loss_denominator"]))
    return draft


def _denominator(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number < float("inf"):
        raise ContractError(f"open-instruct.loss_denominator: expected 'token' or a number > 0, got {value!r}")
    return number


def _weight(draft: Draft, o: Mapping[str, Any]) -> None:
    """Clamp (weight) and mask (gate); 0 disables a bound. The mask compares the ratio before the clamp."""
    for key, below in (("rho_mask_lower_bound", True), ("rho_clamp_lower_bound", True)):
        if o[key] >= 1.0 and below:
            raise ContractError(f"open-instruct.{key}: expected 0 (off) or a number below 1, got {o[key]:g}")
    for key in ("rho_mask_upper_bound", "rho_clamp_upper_bound"):
        if 0 < o[key] <= 1.0:
            raise ContractError(f"open-instruct.{key}: expected 0 (off) or a number above 1, got {o[key]:g}")
    if o["rho_mask_tv_divergence"]:
        refuse(
            "rho_mask_tv_divergence drops tokens by the sign of log-ratio times advantage inside rows of large "
            "divergence"
        )
    level = "geometric" if o["rho_mask_sequence_level"] else "token"
    more: dict[str, Any] = {"log_clamp": 10.0}
    if level == "geometric":
        more["clamp_order"] = "token"
    draft.put("weight", pieces.truncate(level, o["rho_clamp_upper_bound"] or None, o["rho_clamp_lower_bound"], **more))
    low, high = o["rho_mask_lower_bound"], o["rho_mask_upper_bound"] or None
    if low > 0 or high is not None:
        draft.put("gate", {"level": level, "low": low, "high": high, "numerator": "anchor"})


OPTIONS = (
    Option("use_rho_correction", True, "weight", "on by default", "bool"),
    Option("rho_clamp_lower_bound", 0.0, "truncation", "lower clamp, 0 is off", at_least=0.0),
    Option("rho_clamp_upper_bound", 2.0, "truncation", "upper clamp, 0 is off", at_least=0.0),
    Option("rho_mask_lower_bound", 0.0, "mask", "weight 0 below, 0 is off", at_least=0.0),
    Option("rho_mask_upper_bound", 0.0, "mask", "weight 0 above, 0 is off", at_least=0.0),
    Option("rho_mask_sequence_level", False, "weight", "geometric mean for gate and weight", "bool"),
    Option("rho_mask_tv_divergence", False, "mask", "VACO's mask (arXiv 2603.01365)", "bool"),
    Option(
        "loss_fn", "dapo", "surrogate", "loss", "choice", {"dapo": "clipped", "cispo": "sg(min(r, 1 + higher)) log p"}
    ),
    pieces.clip_option("clip_lower", 0.2, "band 1 - lower"),
    pieces.clip_option("clip_higher", 0.272, "band 1 + higher"),
    Option("beta", 0.05, "kl", "KL coefficient, on by default"),
    Option("load_ref_policy", True, "kl", "load the reference policy", "bool"),
    Option(
        "kl_estimator",
        2,
        "kl",
        "estimator",
        "choice",
        {0: "k1", 1: "k2", 2: "k3"},
        {3: "ratio times log p - log ref, with the ratio's gradient, is not an estimator of the contract"},
    ),
    Option("loss_denominator", "token", "aggregation", "'token', or a constant divisor", "text"),
    Option("use_vllm_logprobs", False, "policies", "the sampler's log-probs are the old ones", "bool"),
)

ENTRIES = (
    Entry("default (clamp 2, KL 0.05)", {}),
    Entry("clamp 2 without KL", {"beta": 0.0}),
    Entry(
        "IcePop 0.5 to 5",
        {"beta": 0.0, "rho_clamp_upper_bound": 0.0, "rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 5.0},
    ),
    Entry("clamp 2 and mask 0.5 to 5", {"beta": 0.0, "rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 5.0}),
    Entry("sequence level", {"beta": 0.0, "rho_mask_sequence_level": True, "rho_mask_upper_bound": 2.0}),
    Entry("sampler as the old policy", {"beta": 0.0, "use_rho_correction": False, "use_vllm_logprobs": True}),
    Entry("CISPO, constant denominator", {"beta": 0.0, "loss_fn": "cispo", "loss_denominator": 8.0}),
    Entry("TV mask", {"beta": 0.0, "rho_mask_tv_divergence": True}),
)

TRAPS = (
    "on by default with cap 2, and the KL term as well (0.05, k3)",
    "log-ratios are clamped to +-10, not 20",
    "rho_mask_sequence_level changes the weight too: the geometric mean, not the token ratio",
    "0 disables a bound; the mask compares the ratio before the clamp",
    "debug reverse_kl is mean q (log q - log p): weighted by the probability, a different KL",
    "masked and NaN log-probs are the sentinel +1.0",
)

COLUMNS = {
    "sequence": "geometric mean (gate and weight)",
    "truncation": "clamp on both sides (low off)",
    "mask": "zero weight, two-sided; TV",
    "boundary": "inclusive",
    "log_clamp": "10 per token",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "on: cap 2",
    "floors": "no centering",
}

DIALECTS = (
    Dialect(
        "open-instruct",
        "open-instruct",
        "git e6c3044a",
        "2026-08-20",
        ("open_instruct/grpo_utils.py", "open_instruct/model_utils.py"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
