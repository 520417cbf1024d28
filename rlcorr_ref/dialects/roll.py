"""ROLL: train/infer correction (weights and filters) and the PPO loss of its RLVR worker.

Read: `roll/utils/train_infer_corrections.py`, `roll/utils/functionals.py` (`agg_loss`), `roll/configs/base_config.py`,
`roll/pipeline/rlvr/actor_worker.py` (git 8eb27cc2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError, check_bool, check_choice, check_keys, check_number
from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse

LEVELS = ("token", "segment", "geometric", "sequence")
FILTER_DEFAULTS = {
    "enabled": False,
    "agg_type": "token",
    "ratio_enabled": True,
    "ratio_low": 0.8,
    "ratio_high": 1.2,
    "diff_enabled": False,
    "diff_low": -0.2,
    "diff_high": 0.2,
}


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of a pipeline configuration."""
    draft = Draft(pieces.THREE)
    weight = None
    if o["is_weight.enabled"]:
        if not o["is_weight.detach"]:
            refuse("is_weight.detach=false lets the gradient flow through the weight")
        weight = pieces.truncate(o["is_weight.weight_type"], o["is_weight.upper_bound"])
    draft.put("weight", weight)
    draft.put("surrogate", _surrogate(draft, o, weight))
    kl_on = (o["use_kl_loss"] and o["kl_loss_coef"] != 0) or o["entropy_loss_coef"] != 0
    _filters(draft, o, kl_on)
    if o["use_kl_loss"]:
        draft.put("kl", pieces.kl("k3", o["kl_loss_coef"]))
        draft.note("ROLL clamps the k3 value to [-10, 10]; the definition does not")
    if o["entropy_loss_coef"] != 0 and "rejection" in draft.definition:
        refuse("the entropy term keeps the unfiltered mask; set entropy_loss_coef to 0")
    draft.put("entropy", pieces.entropy(o["entropy_loss_coef"]))
    _reduction(draft, o)
    return draft


def _surrogate(draft: Draft, o: Mapping[str, Any], weight: Mapping[str, Any] | None) -> dict[str, Any]:
    low = o["pg_clip_low"] if o["use_pg_clip_range"] else o["pg_clip"]
    high = o["pg_clip_high"] if o["use_pg_clip_range"] else o["pg_clip"]
    if o["importance_sampling"] == "seq":
        if o["dual_clip_loss"]:
            refuse("dual_clip_loss with importance_sampling='seq': the contract's gspo has no dual bound")
        return pieces.row_ratio(draft, weight, low, high, "importance_sampling='seq'")
    return pieces.ppo(low, high, 1.0 + 2.0 * o["pg_clip"] if o["dual_clip_loss"] else None)


def _filters(draft: Draft, o: Mapping[str, Any], kl_on: bool) -> None:
    """Ratio and difference filters, ANDed, on the response mask."""
    rules: list[dict[str, Any]] = []
    shrink = o["enable_old_logprobs_recompute"]
    for i, given in enumerate(o["filters"] or ()):
        f = _filter(i, given)
        if not f["enabled"]:
            continue
        if f["ratio_enabled"]:
            if f["agg_type"] == "segment":
                pieces.keeps_kl(kl_on, "a segment gate")
                if "gate" in draft.definition or shrink:
                    refuse(
                        "a segment filter is a gate in the contract: only one, and the denominator cannot shrink "
                        "with it"
                    )
                draft.put(
                    "gate", {"level": "segment", "low": f["ratio_low"], "high": f["ratio_high"], "numerator": "anchor"}
                )
            else:
                reduce = {"token": "token", "geometric": "mean", "sequence": "sum"}[f["agg_type"]]
                rules.append({"statistic": "ratio", "reduce": reduce, "low": f["ratio_low"], "high": f["ratio_high"]})
        if f["diff_enabled"]:
            if f["agg_type"] != "token" or f["diff_low"] != -f["diff_high"]:
                refuse(
                    "a difference filter bounds the signed o - q (or its row mean); the contract's rejection knows "
                    "|o - q| of a token, which "
                    "is the symmetric band at agg_type 'token'"
                )
            rules.append({"statistic": "tv", "reduce": "token", "high": f["diff_high"]})
    token_level = any(rule["reduce"] == "token" for rule in rules) or "gate" in draft.definition
    if token_level and o["loss_agg_mode"] == "seq-mean-token-mean" and not shrink:
        if "gate" in draft.definition:
            refuse("with a segment filter the row mean divides by the surviving tokens of the row, a gate cannot")
        if o["@global_rows"] is None:
            refuse(
                "with a token filter the row mean divides by the surviving tokens of the row but by all rows; give "
                "@global_rows (rows with "
                "a valid token before filtering)"
            )
        shrink = True
    denominator = "shrunk" if shrink else "kept"
    draft.put("rejection", [{**rule, "numerator": "anchor", "denominator": denominator} for rule in rules])
    if rules:
        draft.note(
            f"denominators: {denominator} (worker path keeps the global counts, the pipeline path counts after "
            "filtering)"
        )


def _filter(i: int, given: Any) -> dict[str, Any]:
    where = f"roll.filters[{i}]"
    check_keys(where, given, FILTER_DEFAULTS)
    f = {**FILTER_DEFAULTS, **given}
    check_choice(f"{where}.agg_type", f["agg_type"], LEVELS)
    for key in ("enabled", "ratio_enabled", "diff_enabled"):
        check_bool(f"{where}.{key}", f[key])
    for key in ("ratio_low", "ratio_high", "diff_low", "diff_high"):
        f[key] = check_number(f"{where}.{key}", f[key])
    for kind in ("ratio", "diff"):
        if f[f"{kind}_low"] > f[f"{kind}_high"]:
            raise ContractError(f"{where}.{kind}_low: {f[f'{kind}_low']:g} is above {kind}_high {f[f'{kind}_high']:g}")
    return f


def _reduction(draft: Draft, o: Mapping[str, Any]) -> None:
    mode = o["loss_agg_mode"]
    if mode == "token-mean":
        refuse(
            "loss_agg_mode='token-mean' sums the loss without the mask, so padding and filtered tokens enter; it is "
            "the contract's token-mean "
            "only where the loss is 0 off the mask"
        )
    if mode == "seq-mean-token-sum-norm":
        if o["@padded_width"] is None:
            refuse("seq-mean-token-sum-norm divides by the padded width and by no row count; give @padded_width")
        pieces.aggregation(draft, o, mode, o["@padded_width"], sequences=1.0)
        return
    pieces.aggregation(draft, o, mode)
    draft.note(
        f"ROLL divides by its global count of valid samples, or by all rows where none is passed: {pieces.ALL_ROWS}"
    )


OPTIONS = (
    Option("is_weight.enabled", False, "weight", "multiply by the weight", "bool"),
    Option(
        "is_weight.weight_type",
        "token",
        "weight",
        "level",
        "choice",
        {"token": "token", "segment": "run mean", "geometric": "geometric mean", "sequence": "product"},
    ),
    Option("is_weight.upper_bound", 1.2, "truncation", "cap (null: none)", optional=True, above=0.0),
    Option("is_weight.detach", True, "weight", "detach the weight", "bool"),
    Option(
        "filters",
        None,
        "mask",
        "list of objects with enabled, agg_type, ratio_enabled/low/high, diff_enabled/low/high",
        "list",
        optional=True,
    ),
    Option(
        "importance_sampling",
        "token",
        "surrogate",
        "level of p/o",
        "choice",
        {"token": "r", "seq": "row mean of log r"},
    ),
    pieces.clip_option("pg_clip", 0.2, "symmetric band"),
    Option("use_pg_clip_range", False, "surrogate", "use pg_clip_low and pg_clip_high", "bool"),
    pieces.clip_option("pg_clip_low", 0.2, "band 1 - low"),
    pieces.clip_option("pg_clip_high", 0.2, "band 1 + high"),
    Option("dual_clip_loss", False, "surrogate", "dual clip at 1 + 2 pg_clip", "bool"),
    Option(
        "pg_variant",
        None,
        "surrogate",
        "loss of the pg worker",
        "choice",
        {None: "the PPO worker", "ppo": "clipped"},
        {
            name: "a loss of the pg worker, whose reductions and masks were not read in full"
            for name in ("vanilla", "tis", "topr", "cispo", "kimi15")
        },
    ),
    Option(
        "loss_agg_mode",
        "seq-mean-token-mean",
        "aggregation",
        "reduction",
        "choice",
        {k: k for k in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")},
    ),
    Option("use_kl_loss", False, "kl", "add a k3 term", "bool"),
    Option("kl_loss_coef", 0.0, "kl", "its coefficient"),
    Option("entropy_loss_coef", 0.0, "entropy", "entropy bonus"),
    Option(
        "enable_old_logprobs_recompute", False, "mask", "correct in the pipeline: filters shrink the counts", "bool"
    ),
    Option("@padded_width", None, "aggregation", "width of the padded response tensor", optional=True, above=0.0),
)

WEIGHT = {"is_weight.enabled": True}
ENTRIES = (
    Entry("no correction (default)", {}),
    *(Entry(f"{level} weight, cap 1.2", {**WEIGHT, "is_weight.weight_type": level}) for level in LEVELS),
    Entry("token filter 0.8 to 1.2", {"filters": [{"enabled": True}], "@global_rows": 3.0}),
    Entry("token filter without a row count", {"filters": [{"enabled": True}]}),
    Entry(
        "sequence filter 0.5 to 2",
        {"filters": [{"enabled": True, "agg_type": "sequence", "ratio_low": 0.5, "ratio_high": 2.0}]},
    ),
    Entry(
        "segment filter", {"filters": [{"enabled": True, "agg_type": "segment"}], "loss_agg_mode": "seq-mean-token-sum"}
    ),
    Entry(
        "difference filter 0.2",
        {
            "filters": [{"enabled": True, "ratio_enabled": False, "diff_enabled": True}],
            "loss_agg_mode": "seq-mean-token-sum",
        },
    ),
    Entry("token mean", {"loss_agg_mode": "token-mean"}),
    Entry("Dr. GRPO reduction", {"loss_agg_mode": "seq-mean-token-sum-norm", "@padded_width": 4.0}),
    Entry("dual clip", {"dual_clip_loss": True}),
)

TRAPS = (
    "the cap is 1.2 by default, not 2",
    "token-mean does not multiply by the mask: ones on 3 rows of 4 with 5 valid tokens give 2.4",
    "is_weight_clipfrac is a token-mean too and counts padding: 1.0 where 0.4 is right",
    "a token filter changes the row mean's own divisor (surviving tokens), not the number of rows",
    "pg_variant 'tis' clamps p/o to [0, 1]: another TIS, not between trainer and sampler",
    "the dual clip is 1 + 2 pg_clip, not 3; seq-mean-token-sum-norm divides by the padded width and no row count",
    "no safety clamp on the ratio",
)

COLUMNS = {
    "sequence": "product (geometric, segment have own names)",
    "truncation": "cap (one-sided)",
    "mask": "mask edited: ratio or o - q",
    "boundary": "inclusive",
    "log_clamp": "none",
    "denominator": "row mean: tokens yes, rows no",
    "kl_weighted": "no",
    "default": "off, cap 1.2",
    "floors": "no centering",
}

DIALECTS = (
    Dialect(
        "roll",
        "ROLL",
        "git 8eb27cc2",
        "2026-08-19",
        (
            "roll/utils/train_infer_corrections.py",
            "roll/utils/functionals.py",
            "roll/pipeline/rlvr/actor_worker.py",
        ),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
