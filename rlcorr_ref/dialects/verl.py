"""verl 0.9.1: rollout correction, policy losses and reductions; score centering of PR #8010.

Read: `verl/trainer/ppo/rollout_corr_helper.py`, `verl/trainer/ppo/core_algos.py`, `verl/trainer/config/algorithm.py`,
`verl/workers/config/actor.py` (wheel 0.9.1), PR #8010 (merged 1 Oct 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import pieces
from .records import Dialect, Draft, refuse
from .verl_options import COLUMNS, ENTRIES, KL_KINDS, OPTIONS, TRAPS
from .verl_thresholds import importance_bounds, rejection_rules


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of a verl configuration."""
    draft = Draft(pieces.TWO if o["bypass_mode"] else pieces.THREE)
    centering = o["score_centering"]
    kl_on = (o["use_kl_loss"] and o["kl_loss_coef"] != 0) or o["entropy_coeff"] != 0
    weight = _weight(o, "trainer" if o["bypass_mode"] else "anchor")
    if o["bypass_mode"]:
        _bypass(draft, o, weight)
        if o["rollout_rs"] is not None:
            pieces.keeps_kl(kl_on, "verl's bypass loss (rejection inside the loss function)")
    else:
        draft.put("weight", weight)
        draft.put("surrogate", _surrogate(o))
    shrunk = o["@local_denominators"] or not (o["bypass_mode"] or o["trainer.use_v1"])
    rules = rejection_rules(o, "trainer" if o["bypass_mode"] else "anchor", "shrunk" if shrunk else "kept")
    draft.put("rejection", rules)
    if rules:
        draft.note(
            "the loss divides by the tokens that survive rejection"
            if shrunk
            else "the loss divides by all valid tokens; set trainer.use_v1=false (legacy trainer, decoupled) or "
            "@local_denominators=true for the variants that divide by the survivors"
        )
        if any(rule["statistic"] == "k1" for rule in rules):
            draft.note("a k1 band holds for q/n, the reciprocal of the ratio: it bounds n/q by [1/high, 1/low]")
    if centering:
        _check_centering(o)
        draft.put("centering", {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6})
        draft.note("verl clamps the sampled token's log-ratio to +-20 and not the head's; the definition clamps both")
    if o["use_kl_loss"]:
        kind = KL_KINDS[o["kl_loss_type"]]
        draft.put("kl", pieces.kl(kind, o["kl_loss_coef"]))
        if kind.startswith("k3"):
            draft.note("verl clamps the k3 argument to +-20 and its value to [-10, 10]; the definition does not")
    draft.put("entropy", pieces.entropy(o["entropy_coeff"]))
    _reduction(draft, o)
    kind = draft.definition["surrogate"]["kind"]
    if kind != "reinforce":
        limit = "at most 10" if kind == "gspo" else "+-20"
        draft.note(f"verl clamps the surrogate's log-ratio to {limit}; the definition does not")
    return draft


def _weight(o: Mapping[str, Any], numerator: str) -> dict[str, Any] | None:
    if o["rollout_is"] is None:
        return None
    low, high = importance_bounds(o["rollout_is_threshold"])
    more: dict[str, Any] = {"log_clamp": 20.0}
    if o["rollout_is_batch_normalize"]:
        more["normalise"] = "tokens" if o["rollout_is"] == "token" else "rows"
    if low is None:
        return pieces.truncate(o["rollout_is"], high, 0.0, numerator, **more)
    return pieces.band(o["rollout_is"], low, high, numerator, **more)


def _surrogate(o: Mapping[str, Any]) -> dict[str, Any]:
    low = o["clip_ratio"] if o["clip_ratio_low"] is None else o["clip_ratio_low"]
    high = o["clip_ratio"] if o["clip_ratio_high"] is None else o["clip_ratio_high"]
    if o["loss_mode"] == "gpg":
        return {"kind": "reinforce"}
    if o["loss_mode"] == "cispo":
        return pieces.cispo(low, high)
    if o["loss_mode"] == "gspo":
        return {"kind": "gspo", "eps_low": low, "eps_high": high}
    return pieces.ppo(low, high, o["clip_ratio_c"])


def _bypass(draft: Draft, o: Mapping[str, Any], weight: dict[str, Any] | None) -> None:
    """Two policies, the old one being the sampler; `loss_type` selects the loss and `loss_mode` is overwritten."""
    draft.note(pieces.NO_ANCHOR)
    if o["loss_type"] == "reinforce":
        draft.put("surrogate", {"kind": "reinforce"})
        draft.put("weight", weight)
        draft.note("the weight is formed anew from the current policy at every micro-step, and detached")
        if weight is not None and "normalise" in weight:
            draft.note("batch normalisation is per call here, that is per micro-batch")
        return
    if o["loss_mode"] != "vanilla":
        draft.note(f"bypass_mode overwrites loss_mode, so loss_mode={o['loss_mode']!r} has no effect")
    draft.put("surrogate", _surrogate({**o, "loss_mode": "vanilla"}))
    if weight is not None:
        draft.note("bypass with loss_type ppo_clip computes rollout_is weights for metrics only: they are not applied")


def _check_centering(o: Mapping[str, Any]) -> None:
    """The combinations that verl itself refuses (`_validate_score_centering_config`)."""
    for bad, what in (
        (not o["bypass_mode"], "bypass_mode=false"),
        (o["loss_type"] != "reinforce", f"loss_type={o['loss_type']!r}"),
        (o["rollout_is"] == "sequence", "rollout_is='sequence' (the dataclass default: set it to null or 'token')"),
        (o["rollout_is_batch_normalize"], "rollout_is_batch_normalize=true"),
        (o["topk_log_probs"] == 0, "topk_log_probs=0 (no sampler head is recorded)"),
    ):
        if bad:
            refuse(f"verl refuses score_centering=true with {what}")


def _reduction(draft: Draft, o: Mapping[str, Any]) -> None:
    length = None
    if o["loss_agg_mode"] == "seq-mean-token-sum-norm":
        length = o["loss_scale_factor"]
        if length is None:
            refuse(
                "loss_agg_mode='seq-mean-token-sum-norm' without loss_scale_factor divides by the padded width of "
                "the tensor "
                "at hand, so the loss depends on the padding; give loss_scale_factor"
            )
    pieces.aggregation(draft, o, o["loss_agg_mode"], length)
    if o["loss_agg_mode"].startswith("seq-mean"):
        draft.note(
            "with global counts the rows are the configured mini-batch size, rejected and empty ones included: @global_rows"
        )


DIALECTS = (
    Dialect(
        "verl",
        "verl",
        "0.9.1 (PR #8010 for score centering)",
        "2026-08-22, 2026-11-29",
        ("verl/trainer/ppo/rollout_corr_helper.py", "verl/trainer/ppo/core_algos.py", "verl PR #8010"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
