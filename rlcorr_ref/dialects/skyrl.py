"""SkyRL 0.3.0 (off-policy correction, policy losses) and score centering of v0.5.0.

Read: `skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py`, `utils/ppo_utils.py`, `workers/worker.py`,
`skyrl/train/config/config.py` (wheel 0.3.0); PR #2244 for score centering (its description and tests, not its source).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from . import pieces
from .records import Dialect, Draft, refuse
from .skyrl_options import COLUMNS, ENTRIES, OPTIONS, REDUCTIONS, TRAPS

RATIO_LOSSES = ("rollout_is", "dppo")  # formed with the sampler's log-probs: two policies


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of an algorithm section."""
    two = o["policy_loss_type"] in RATIO_LOSSES or o["score_centering.enabled"]
    draft = Draft(pieces.TWO if two else pieces.THREE)
    if two:
        draft.note(pieces.NO_ANCHOR)
        if _corrects(o):
            refuse("off_policy_correction with a loss formed against the sampler multiplies p/q by o/q")
        _sampler_loss(draft, o)
    else:
        draft.put("surrogate", _surrogate(o))
        weight = _weight(o)
        draft.put("weight", weight)
        _masks(draft, o, weight)
    if o["score_centering.enabled"]:
        _centering(draft, o)
    kind = REDUCTIONS[o["loss_reduction"]]
    if o["use_kl_loss"] and o["kl_loss_coef"] != 0:
        if kind != "seq-mean-token-mean":
            refuse(
                f"the KL term is averaged per row and then over rows, the policy term by {o['loss_reduction']!r}: "
                "two reductions in one "
                "loss; set use_kl_loss=false for the policy term, or loss_reduction='sequence_mean'"
            )
        draft.put("kl", pieces.kl(o["kl_estimator_type"], o["kl_loss_coef"]))
        if o["kl_estimator_type"] == "k3":
            draft.note("SkyRL clamps the k3 argument to +-20 and its value to [-10, 10]; the definition does not")
    if o["use_entropy_loss"]:
        refuse("use_entropy_loss: the entropy term has its own reduction")
    length = None
    if kind.endswith("norm"):
        length = o["max_seq_len"]
        if length is None:
            refuse("seq_mean_token_sum_norm needs max_seq_len; SkyRL requires it too")
    pieces.aggregation(draft, o, kind, length)
    if kind.startswith("seq-mean"):
        draft.note(f"the mean is over all rows: {pieces.ALL_ROWS}")
    return draft


def _corrects(o: Mapping[str, Any]) -> bool:
    names = (
        "tis_ratio_type",
        "sequence_mask_metric",
        "outlier_token_is_threshold_low",
        "outlier_token_is_threshold_high",
    )
    return any(o[name] is not None for name in names) or _token_mask(o)


def _token_mask(o: Mapping[str, Any]) -> bool:
    """Both thresholds are needed; with one the mask is off."""
    return o["token_mask_is_threshold_low"] is not None and o["token_mask_is_threshold_high"] is not None


def _surrogate(o: Mapping[str, Any]) -> dict[str, Any]:
    low, high = o["eps_clip_low"], o["eps_clip_high"]
    if o["policy_loss_type"] == "cispo":
        return pieces.cispo(o["cispo.cispo_eps_clip_low"], o["cispo.cispo_eps_clip_high"])
    if o["policy_loss_type"] == "gspo":
        return {"kind": "gspo", "eps_low": low, "eps_high": high}
    return pieces.ppo(low, high, o["clip_ratio_c"] if o["policy_loss_type"] == "dual_clip" else None)


def _weight(o: Mapping[str, Any]) -> dict[str, Any] | None:
    if o["tis_ratio_type"] is None:
        return None
    level = o["tis_ratio_type"]
    return pieces.truncate(level, o[f"{level}_tis_ratio_clip_high"], log_clamp=20.0)


def _masks(draft: Draft, o: Mapping[str, Any], weight: Mapping[str, Any] | None) -> None:
    """Outlier, token and sequence masks. They edit the loss mask one after the other; the KL term keeps the original one."""
    rules: list[dict[str, Any]] = []
    metric = o["sequence_mask_metric"]
    if o["outlier_token_is_threshold_high"] is not None:
        rules.append({"statistic": "ratio", "reduce": "max", "high": o["outlier_token_is_threshold_high"]})
    if o["outlier_token_is_threshold_low"] is not None:
        rules.append({"statistic": "k1", "reduce": "max", "high": -math.log(o["outlier_token_is_threshold_low"])})
    if _token_mask(o):
        if metric is not None or (weight is not None and weight["level"] == "sequence"):
            refuse(
                "a token mask together with a sequence ratio: SkyRL takes the row product over the mask that the "
                "token filter has "
                "already edited, the contract over the original mask"
            )
        low, high = o["token_mask_is_threshold_low"], o["token_mask_is_threshold_high"]
        rules.append({"statistic": "ratio", "reduce": "token", "low": low, "high": high})
    if metric is not None:
        prefix, reduce = ("geo", "mean") if metric == "geometric" else ("product", "sum")
        rules.append(
            {"statistic": "ratio", "reduce": reduce, "low": o[f"{prefix}_mask_low"], "high": o[f"{prefix}_mask_high"]}
        )
    if rules:
        pieces.keeps_kl(o["use_kl_loss"] and o["kl_loss_coef"] != 0, "SkyRL's off-policy mask")
        draft.put("rejection", [{**rule, "numerator": "anchor"} for rule in rules])
        draft.note(
            "denominators are fixed before the masks: advantages are scaled by the original counts and the loss is a "
            "sum"
        )


def _sampler_loss(draft: Draft, o: Mapping[str, Any]) -> None:
    """Losses in p/q: rollout_is (open band, zero outside), dppo (binary TV, sign-aware), plain reinforce for centering."""
    kind = o["policy_loss_type"]
    draft.put("surrogate", {"kind": "reinforce"})
    if kind == "rollout_is":
        low, high = max(1.0 - o["eps_clip_low"], 0.0), 1.0 + o["eps_clip_high"]
        draft.put("weight", pieces.band("token", low, high, "trainer", log_clamp=20.0, closed=False))
    elif kind == "dppo":
        if o["dppo.dppo_type"] == "binary_kl":
            refuse(
                "binary_kl drops a token by its KL and the direction of the move; the contract's tv statistics know "
                "no KL"
            )
        weight = pieces.raw("trainer", log_clamp=20.0, statistic="tv_signed", outside="zero", low=None)
        positive, negative = {"low": None, "high": o["dppo.delta_high"]}, {"low": -o["dppo.delta_low"], "high": None}
        draft.put("weight", {**weight, "positive": positive, "negative": negative})
        draft.note(
            "SkyRL's loss is -A p/q with its gradient; the log-prob form here has the same gradient and another value"
        )
    elif kind != "reinforce":
        refuse(f"score centering is read with rollout_is and reinforce only, not with {kind!r}")


def _centering(draft: Draft, o: Mapping[str, Any]) -> None:
    if o["policy_loss_type"] == "dppo":
        refuse("score centering is read with rollout_is and reinforce only, not with 'dppo'")
    if o["@recorded_support"]:
        draft.put("centering", {"tail": "support"})
    else:
        draft.put("centering", {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6})


DIALECTS = (
    Dialect(
        "skyrl",
        "SkyRL",
        "0.3.0 (v0.5.0 for score centering)",
        "2026-08-21, 2026-11-29",
        (
            "skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py",
            "skyrl/backends/skyrl_train/utils/ppo_utils.py",
            "SkyRL PR #2244",
        ),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
