"""slime and miles: the built-in correction, `mis.py`, and score centering.

Read: slime 624b824a `slime/backends/megatron_utils/loss.py`, `slime/utils/ppo_utils.py`, `slime/utils/arguments.py`,
`examples/train_infer_mismatch_helper/mis.py` and `mis.yaml`; slime PR #2405 and #2406; miles 31f1ca96 and PR #3317.
miles shares slime's correction functions (`loss_hub/corrections.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from . import pieces
from . import slime_options as options
from .records import Dialect, Draft, refuse

CENTERED = {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6}


def build_slime(o: Mapping[str, Any]) -> Draft:
    """slime's built-in TIS or IcePop function, PPO, GSPO or CISPO loss, and score centering."""
    _check_pair(o)
    if o["use_score_centering"]:
        return _slime_centering(o)
    if o["pg_loss_type"] == "reinforce":
        refuse("pg_loss_type='reinforce' is read with score centering only; its plain form was not established")
    draft = Draft(pieces.TWO if o["use_rollout_logprobs"] else pieces.THREE)
    weight = None
    if o["use_tis"]:
        rule = pieces.band if o["custom_tis_function_path"] == "icepop_function" else _clip
        weight = rule("token", o["tis_clip_low"], o["tis_clip"])
        draft.note(
            "without stored trainer log-probs the numerator is the detached current policy: give no logp_anchor and "
            "use reinforce"
        )
    if o["use_rollout_logprobs"]:
        draft.note(pieces.NO_ANCHOR)
    draft.put("weight", weight)
    _loss(draft, o, weight)
    return draft


def build_mis(o: Mapping[str, Any]) -> Draft:
    """`mis.py`: weights by level and mode, rejection and veto; the loss is slime's."""
    _check_pair(o)
    draft = Draft(pieces.TWO if o["use_rollout_logprobs"] else pieces.THREE)
    if o["use_rollout_logprobs"]:
        draft.note(pieces.NO_ANCHOR)
    if not o["use_tis"]:
        if o["use_rs"]:
            draft.note("use_rs has no effect: the function returns before it when use_tis is false")
        _loss(draft, o, None)
        return draft
    low = 1.0 / o["tis_upper_bound"] if o["tis_lower_bound"] is None else o["tis_lower_bound"]
    high = o["tis_upper_bound"]
    more: dict[str, Any] = {"log_clamp": 20.0}
    if o["tis_batch_normalize"]:
        if o["tis_level"] == "geometric":
            raise ContractError("slime-mis.tis_batch_normalize: not with tis_level geometric; mis.py raises ValueError")
        more["normalise"] = "tokens" if o["tis_level"] == "token" else "rows"
        draft.note(
            "the divisor is local to the call; at sequence level mis.py counts empty rows as weight 0, the "
            "definition leaves them out"
        )
    rules: list[dict[str, Any]] = []
    if o["tis_mode"] == "truncate":
        weight = pieces.truncate(o["tis_level"], high, **more)
    elif o["tis_mode"] == "clip":
        weight = pieces.truncate(o["tis_level"], high, low, **more)
    else:
        weight = pieces.truncate(o["tis_level"], None, **more)
        rules.append(_band(o["tis_level"], low, high))
        draft.note("mask mode edits the loss mask and leaves the surviving weights raw")
    draft.put("weight", weight)
    if o["use_rs"]:
        rs_low = low if o["rs_lower_bound"] is None else o["rs_lower_bound"]
        rules.append(_band(o["rs_level"], rs_low, high if o["rs_upper_bound"] is None else o["rs_upper_bound"]))
        if o["rs_veto_threshold"] is not None:
            veto = -math.log(o["rs_veto_threshold"])
            rules.append({"statistic": "k1", "reduce": "max", "high": veto, "numerator": "anchor"})
    draft.put("rejection", rules)
    _loss(draft, o, weight)
    return draft


def build_miles(o: Mapping[str, Any]) -> Draft:
    """miles: slime's policy loss, or its own loss type for score centering."""
    if o["loss_type"] == "policy_loss":
        return build_slime({**o, "use_score_centering": False, "pg_loss_type": "default"})
    if o["use_tis"]:
        refuse("miles refuses loss_type='score_centering' with use_tis; score_centering_is selects the weight")
    draft = Draft(pieces.TWO)
    draft.note(pieces.NO_ANCHOR)
    draft.put("surrogate", {"kind": "reinforce"})
    if o["score_centering_is"] == "tis":
        draft.put("weight", pieces.truncate("token", o["score_centering_tis_clip"], numerator="trainer"))
    elif o["score_centering_is"] == "mis":
        draft.put(
            "weight", pieces.band("token", o["score_centering_mis_low"], o["score_centering_mis_high"], "trainer")
        )
    if o["@filtered_sampling"]:
        draft.put("centering", {"tail": "support"})
        draft.note("with top-p or top-k sampling the recorded support is the whole distribution: no tail is modelled")
    else:
        floor = None if o["@head_size_branch"] else 1e-6
        draft.put("centering", {**CENTERED, "floor_sampler": floor})
    draft.note("tokens with A = 0 contribute nothing even where their head is NaN; the contract refuses NaN")
    pieces.aggregation(draft, o, "token-mean" if o["calculate_per_token_loss"] else "seq-mean-token-mean")
    return draft


def _check_pair(o: Mapping[str, Any]) -> None:
    if o["use_tis"] and o["use_rollout_logprobs"]:
        raise ContractError("use_tis and use_rollout_logprobs: slime asserts that not both are set")


def _clip(level: str, low: float, high: float) -> dict[str, Any]:
    return pieces.truncate(level, high, low)


def _band(level: str, low: float, high: float) -> dict[str, Any]:
    """mis.py clamps the aggregated log-ratio to +-20: no band inside exp(+-20) sees it."""
    if not low < high:
        raise ContractError(f"slime-mis bounds: expected lower < upper, got {low:g} and {high:g}; mis.py asserts it")
    reduce = {"token": "token", "sequence": "sum", "geometric": "mean"}[level]
    return {"statistic": "ratio", "reduce": reduce, "low": low, "high": high, "numerator": "anchor"}


def _slime_centering(o: Mapping[str, Any]) -> Draft:
    if o["pg_loss_type"] != "reinforce":
        refuse("slime requires pg_loss_type='reinforce' with use_score_centering")
    if o["advantage_estimator"] in ("gspo", "cispo") or o["use_opsm"] or o["use_unbiased_kl"]:
        refuse("slime refuses use_score_centering with gspo, cispo, use_opsm or use_unbiased_kl")
    draft = Draft(pieces.TWO)
    draft.note(pieces.NO_ANCHOR)
    draft.put("surrogate", {"kind": "reinforce"})
    if o["use_tis"]:
        rule = pieces.band if o["custom_tis_function_path"] == "icepop_function" else _clip
        draft.put("weight", {**rule("token", o["tis_clip_low"], o["tis_clip"]), "numerator": "trainer"})
        draft.note("the weight is the current trainer over the sampler, detached")
    draft.put("centering", dict(CENTERED))
    if o["@recorded_support"]:
        draft.put("centering", {"tail": "support"})
    _terms(draft, o)
    return draft


def _loss(draft: Draft, o: Mapping[str, Any], weight: Mapping[str, Any] | None) -> None:
    """Surrogate, off-policy sequence mask, KL, entropy and reduction."""
    high = o["eps_clip"] if o["eps_clip_high"] is None else o["eps_clip_high"]
    if o["advantage_estimator"] == "cispo":
        low = None if o["eps_clip"] >= 1.0 else o["eps_clip"]
        draft.put("surrogate", pieces.cispo(low, high))
    elif o["advantage_estimator"] == "gspo":
        if o["eps_clip_c"] is not None:
            refuse("eps_clip_c with gspo: the contract's gspo has no dual bound")
        draft.put("surrogate", pieces.row_ratio(draft, weight, o["eps_clip"], high, "advantage_estimator='gspo'"))
    else:
        draft.put("surrogate", pieces.ppo(o["eps_clip"], high, o["eps_clip_c"]))
    if o["use_opsm"]:
        if not o["use_rollout_logprobs"]:
            refuse(
                "use_opsm compares the current policy with the stored trainer o; the contract's k1 compares with the "
                "sampler"
            )
        pieces.keeps_kl((o["use_kl_loss"] and o["kl_loss_coef"] != 0) or o["entropy_coef"] != 0, "use_opsm")
        rule = {"statistic": "k1", "reduce": "mean", "high": o["opsm_delta"], "sign": "negative"}
        draft.put("rejection", [{**rule, "numerator": "trainer"}])
    _terms(draft, o)


def _terms(draft: Draft, o: Mapping[str, Any]) -> None:
    if o["use_kl_loss"]:
        if o["use_unbiased_kl"]:
            refuse("use_unbiased_kl multiplies the KL term by p/o with its gradient")
        kind = "k3" if o["kl_loss_type"] == "low_var_kl" else o["kl_loss_type"]
        draft.put("kl", pieces.kl(kind, o["kl_loss_coef"]))
        if o["kl_loss_type"] == "low_var_kl":
            draft.note("low_var_kl is clamped to [-10, 10] (k3 is not); the definition does not clamp")
    draft.put("entropy", pieces.entropy(o["entropy_coef"]))
    pieces.aggregation(draft, o, "token-mean" if o["calculate_per_token_loss"] else "seq-mean-token-mean")
    if not o["calculate_per_token_loss"]:
        draft.note("slime divides by the global batch size: give it as @global_rows")
    else:
        draft.note("an empty sample adds 1 to slime's token count")


FILES = ("slime/backends/megatron_utils/loss.py", "slime/utils/ppo_utils.py", "slime PR #2405", "slime PR #2406")
DIALECTS = (
    Dialect(
        "slime",
        "slime",
        "624b824a (PR #2405, #2406 for score centering)",
        "2026-08-21",
        FILES,
        (*options.TIS, *options.LOSS, *options.CENTERING),
        build_slime,
        options.SLIME_ENTRIES,
        options.TRAPS,
        options.COLUMNS,
    ),
    Dialect(
        "slime-mis",
        "slime mis.py",
        "624b824a",
        "2026-08-21",
        ("examples/train_infer_mismatch_helper/mis.py", "examples/train_infer_mismatch_helper/mis.yaml"),
        (*options.MIS, *options.LOSS),
        build_mis,
        options.MIS_ENTRIES,
        options.MIS_TRAPS,
        options.MIS_COLUMNS,
    ),
    Dialect(
        "miles",
        "miles",
        "31f1ca96 (PR #3317 for score centering)",
        "2026-08-21",
        ("miles/backends/training_utils/loss_hub/corrections.py", "miles PR #3317"),
        (*options.TIS, *options.LOSS, *options.MILES),
        build_miles,
        options.MILES_ENTRIES,
        (*options.TRAPS, *options.MILES_TRAPS),
        {**options.COLUMNS, "floors": "1e-6 both; head-size branch: sampler none"},
    ),
)
