"""ms-swift 4.6.0: rollout importance sampling, GRPO losses and reductions.

Read: `swift/rlhf_trainers/grpo_trainer.py`, `swift/rlhf_trainers/args_mixin.py`, `swift/arguments/rlhf_args.py` (wheel 4.6.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse

MODES = {
    None: "no weight",
    "token_truncate": "min(rho, C)",
    "token_mask": "rho where rho <= C, else 0",
    "sequence_truncate": "min(geometric mean of rho, C)",
    "sequence_mask": "token rho where the row's geometric mean <= C, else 0",
}
REDUCTIONS = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
    "cispo": "token-mean",
}


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of the GRPO arguments."""
    draft = Draft(pieces.THREE)
    weight = _weight(draft, o)
    draft.put("weight", weight)
    draft.put("surrogate", _surrogate(draft, o, weight))
    if o["off_policy_sequence_mask_delta"] is not None:
        rule = {"statistic": "k1", "reduce": "mean", "high": o["off_policy_sequence_mask_delta"], "sign": "negative"}
        denominator = "shrunk" if o["loss_type"] == "bnpo" else "kept"
        draft.put("rejection", [{**rule, "numerator": "trainer", "denominator": denominator}])
        draft.note(
            "the sequence mask edits the completion mask: it removes the KL term too, and bnpo divides by what is left"
        )
    draft.put("kl", pieces.kl("k3", o["beta"], weighted=weight is not None))
    if weight is not None and o["beta"] != 0:
        draft.note("the reference KL is multiplied by the importance weight, unlike everywhere else")
    if o["top_entropy_quantile"] < 1.0:
        refuse("top_entropy_quantile < 1 drops tokens by their entropy rank in the batch")
    kind = REDUCTIONS[o["loss_type"]]
    pieces.aggregation(draft, o, kind, o["max_completion_length"] if kind.endswith("norm") else None)
    if kind.startswith("seq-mean"):
        draft.note(f"the mean is over all rows: {pieces.ALL_ROWS}")
    if weight is not None:
        draft.note(
            "without stored old log-probs the numerator is the detached current policy: give no logp_anchor and use "
            "reinforce"
        )
    return draft


def _weight(draft: Draft, o: Mapping[str, Any]) -> dict[str, Any] | None:
    mode, cap = o["rollout_importance_sampling_mode"], o["rollout_importance_sampling_threshold"]
    if mode is None:
        return None
    if mode == "token_truncate":
        return pieces.truncate("token", cap, log_clamp=20.0)
    if mode == "token_mask":
        return pieces.band("token", 0.0, cap, log_clamp=20.0)
    if mode == "sequence_truncate":
        return pieces.truncate("geometric", cap, log_clamp=20.0, clamp_order="token")
    draft.put("gate", {"level": "geometric", "high": cap, "numerator": "anchor"})
    draft.note("the gate's geometric mean is over unclamped log-ratios here; ms-swift clamps each to +-20 first")
    return pieces.raw(log_clamp=20.0)


def _surrogate(draft: Draft, o: Mapping[str, Any], weight: dict[str, Any] | None) -> dict[str, Any]:
    low, high = o["epsilon"], o["epsilon"] if o["epsilon_high"] is None else o["epsilon_high"]
    level = o["importance_sampling_level"]
    if level != "token" and (o["loss_type"] == "cispo" or o["delta"] is not None):
        refuse(f"importance_sampling_level={level!r} together with cispo or delta")
    if level == "sequence":
        return pieces.row_ratio(draft, weight, low, high, "importance_sampling_level='sequence'")
    if level == "sequence_token":
        return {"kind": "gspo", "eps_low": low, "eps_high": high}
    if o["loss_type"] == "cispo":
        return pieces.absolute_cispo("ms-swift.epsilon_high", high)
    if o["delta"] is not None and o["delta"] <= 1 + high:
        refuse(f"delta={o['delta']:g} does not exceed 1 + epsilon_high: it then clips positive advantages as well")
    return pieces.ppo(low, high, o["delta"])


OPTIONS = (
    Option("rollout_importance_sampling_mode", None, "weight", "level and rule", "choice", MODES),
    Option("rollout_importance_sampling_threshold", 2.0, "truncation", "C", above=0.0),
    Option(
        "off_policy_sequence_mask_delta", None, "mask", "drop rows with A < 0 and mean log q/p above it", optional=True
    ),
    Option(
        "loss_type",
        "grpo",
        "aggregation",
        "surrogate and reduction",
        "choice",
        REDUCTIONS,
        {
            "sapo": "a sigmoid gate on the ratio is no band",
            "real": "a loss over the scores of a prompt's group is no per-token surrogate",
            "fipo": "its weights depend on the future of the row",
        },
    ),
    Option(
        "importance_sampling_level",
        "token",
        "surrogate",
        "level of r = p/o",
        "choice",
        {"token": "r", "sequence": "row mean of log r", "sequence_token": "the same, straight-through"},
    ),
    pieces.clip_option("epsilon", 0.2, "band 1 - epsilon"),
    pieces.clip_option("epsilon_high", None, "band 1 + epsilon_high (null: epsilon); for cispo the cap itself"),
    Option("delta", None, "surrogate", "cap on r: a dual clip for negative advantages", optional=True, above=1.0),
    Option("beta", 0.04, "kl", "coefficient of the k3 term"),
    Option("max_completion_length", 512, "aggregation", "length of dr_grpo", above=0.0),
    Option("top_entropy_quantile", 1.0, "mask", "keep only the tokens of highest entropy", above=0.0),
)

NO_KL = {"beta": 0.0, "loss_type": "bnpo"}
ENTRIES = (
    Entry("default (GRPO, KL 0.04, no correction)", {}),
    *(Entry(f"{mode} 2.0", {"rollout_importance_sampling_mode": mode, **NO_KL}) for mode in list(MODES)[1:]),
    Entry("token truncate with the weighted KL", {"rollout_importance_sampling_mode": "token_truncate"}),
    Entry("off-policy sequence mask", {"off_policy_sequence_mask_delta": 0.1, **NO_KL}),
    Entry("GSPO", {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}),
    Entry("GSPO-token", {"importance_sampling_level": "sequence_token", "epsilon": 3e-4, "epsilon_high": 4e-4}),
    Entry("CISPO with cap 5", {"loss_type": "cispo", "epsilon_high": 5.0}),
    Entry("CISPO with the default epsilon", {"loss_type": "cispo"}),
)

TRAPS = (
    "sequence_* use the geometric mean of the row, where verl and TRL use the product",
    "sequence_mask keeps raw token weights in surviving rows, up to exp(20): only the gate is sequence-level",
    "mask modes are one-sided: small ratios are kept",
    "the weight multiplies the reference KL as well; GRPO's default beta is 0.04",
    "cispo: epsilon_high is the cap itself, so 0.2 caps the ratio at 0.2 and not at 1.2",
    "grpo averages over all rows, empty ones included",
    "ESS clamps weights to [1/C, C], so dropped tokens count as 1/C; chi2_seq is geometric; k3 is clamped to [-10, 10]",
    "weights on padding are not 0; values under the mask are multiplied by 0, so NaN there becomes NaN",
)

COLUMNS = {
    "sequence": "geometric mean",
    "truncation": "cap (one-sided)",
    "mask": "one-sided zero weight; sequence_mask gates token weights",
    "boundary": "inclusive",
    "log_clamp": "20 per token",
    "denominator": "no; off-policy sequence mask with bnpo yes",
    "kl_weighted": "yes",
    "default": "off, cap 2",
    "floors": "no centering",
}

DIALECTS = (
    Dialect(
        "ms-swift",
        "ms-swift",
        "4.6.0",
        "2026-08-22, 2026-11-29",
        ("swift/rlhf_trainers/grpo_trainer.py", "swift/rlhf_trainers/args_mixin.py"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
