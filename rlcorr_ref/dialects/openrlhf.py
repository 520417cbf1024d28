"""OpenRLHF 0.11.2 and 0.11.0: importance correction of the policy loss. The options were replaced between the two.

Read: `openrlhf/models/loss.py`, `openrlhf/cli/train_ppo_ray.py` (wheel 0.11.2; git 3c3be623 for 0.11.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of 0.11.2 (level, mode, gating)."""
    level, mode, gating = o["is_correction_level"], o["is_correction_mode"], o["is_correction_gating"]
    kl_on = _kl_on(o)
    threshold = o["is_correction_threshold"]
    low, high = (
        (0.0, threshold[0]) if len(threshold) == 1 else pieces.bounds("openrlhf.is_correction_threshold", threshold)
    )
    draft = _base(o, level != "off")
    if level == "off" or o["policy_loss_type"] == "gspo":
        return draft
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        raise ContractError(
            "openrlhf.is_correction_mode: clip needs is_correction_level token and gating ratio; OpenRLHF raises"
        )
    if gating != "ratio" and low > 0:
        raise ContractError(f"openrlhf.is_correction_threshold: {gating} takes an upper bound only, got low {low:g}")
    if gating == "ratio":
        _ratio_gate(draft, level, mode, low, high)
        return draft
    draft.note("OpenRLHF clamps both probabilities to [1e-6, 1 - 1e-6] in the divergence")
    if gating == "tv" and level == "token":
        draft.put("weight", {**pieces.band("token", 0.0, high), "statistic": "tv"})
        return draft
    pieces.keeps_kl(kl_on, f"is_correction_gating={gating!r}")
    draft.put("weight", pieces.raw())
    reduce = "token" if level == "token" else "mean"
    draft.put("rejection", [{"statistic": gating, "reduce": reduce, "high": high, "numerator": "anchor"}])
    draft.note("OpenRLHF gives a dropped unit the weight 0 and keeps it in the mask: the same loss")
    return draft


def build_old(o: Mapping[str, Any]) -> Draft:
    """The definition of 0.11.0 (type tis, icepop or seq-mask-tis)."""
    draft = _base({**o, "loss_agg_mode": "token-mean", "kl.unbiased_gradient": False}, o["is_correction_enable"])
    if not o["is_correction_enable"] or o["policy_loss_type"] == "gspo":
        return draft
    low, high = pieces.bounds("openrlhf-0.11.0.is_correction_threshold", o["is_correction_threshold"])
    kind = o["is_correction_type"]
    _ratio_gate(draft, "seq" if kind == "seq-mask-tis" else "token", "clip" if kind == "tis" else "mask", low, high)
    return draft


def _base(o: Mapping[str, Any], corrected: bool) -> Draft:
    gspo = o["policy_loss_type"] == "gspo"
    draft = Draft(pieces.TWO if gspo and corrected else pieces.THREE)
    low, high = (o["eps_clip"],) * 2
    if o["eps_clip_low_high"] is not None:
        low, high = pieces.bounds("openrlhf.eps_clip_low_high", o["eps_clip_low_high"])
    if gspo:
        if o["dual_clip"] is not None:
            refuse("dual_clip with policy_loss_type='gspo': the contract's gspo has no dual bound")
        draft.put("surrogate", pieces.row_ratio(draft, None, low, high, "policy_loss_type='gspo'"))
        if corrected:
            draft.note("with gspo the correction replaces the row ratio p/o by p/q and no weight is applied")
            draft.note(pieces.NO_ANCHOR)
    else:
        draft.put("surrogate", pieces.ppo(low, high, o["dual_clip"]))
        draft.note(
            "OpenRLHF clamps log p - log o to +-20 inside the surrogate (not log o - log q); the definition does not"
        )
    if o["kl.use_loss"] and o["kl.init_coef"] != 0:
        if o["kl.unbiased_gradient"]:
            refuse("kl.unbiased_gradient=true weighs the KL gradient by p/o")
        draft.put("kl", pieces.kl(o["kl.estimator"], o["kl.init_coef"]))
        draft.note("OpenRLHF clamps the KL estimate to [-10, 10]; the definition does not")
    draft.put("entropy", pieces.entropy(o["entropy_coef"]))
    pieces.aggregation(draft, o, "seq-mean-token-mean" if gspo else o["loss_agg_mode"])
    return draft


def _kl_on(o: Mapping[str, Any]) -> bool:
    return (o["kl.use_loss"] and o["kl.init_coef"] != 0) or bool(o["entropy_coef"])


def _ratio_gate(draft: Draft, level: str, mode: str, low: float, high: float) -> None:
    """Token clamp or band, or the geometric gate that leaves the survivors their raw token weights."""
    if mode == "clip":
        draft.put("weight", pieces.truncate("token", high, low))
    elif level == "token":
        draft.put("weight", pieces.band("token", low, high))
    else:
        draft.put("weight", pieces.raw())
        draft.put("gate", {"level": "geometric", "low": low, "high": high, "numerator": "anchor"})


COMMON = (
    Option(
        "policy_loss_type",
        "ppo",
        "surrogate",
        "surrogate",
        "choice",
        {"ppo": "clipped surrogate in r = p/o", "gspo": "row ratio; p/q when the correction is on"},
    ),
    pieces.clip_option("eps_clip", 0.2, "symmetric band"),
    Option("eps_clip_low_high", None, "surrogate", "two offsets, replace eps_clip", "list", optional=True),
    Option("dual_clip", None, "surrogate", "dual clip", optional=True, above=1.0),
    Option("kl.use_loss", False, "kl", "KL in the loss instead of the reward", "bool"),
    Option("kl.init_coef", 0.01, "kl", "its coefficient"),
    Option("kl.estimator", "k1", "kl", "its estimator", "choice", {"k1": "k1", "k2": "k2", "k3": "k3"}),
    Option("entropy_coef", None, "entropy", "entropy bonus", optional=True),
)

OPTIONS = (
    Option(
        "is_correction_level",
        "off",
        "weight",
        "unit of the gate",
        "choice",
        {"off": "no weight", "token": "token", "seq": "the row's mean statistic"},
    ),
    Option("is_correction_mode", "mask", "mask", "mask or clip", "choice", {"mask": "0 outside", "clip": "clamp"}),
    Option(
        "is_correction_gating",
        "ratio",
        "mask",
        "statistic of the gate",
        "choice",
        {"ratio": "o/q", "binary_kl": "Bernoulli KL of the sampled token", "tv": "|q - o|"},
    ),
    Option("is_correction_threshold", (0.5, 5.0), "truncation", "[low, high], or [high]", "list"),
    *COMMON,
    Option(
        "loss_agg_mode",
        "token-mean",
        "aggregation",
        "reduction (gspo forces the row mean)",
        "choice",
        {"token-mean": "tokens", "seq-mean-token-mean": "rows"},
    ),
    Option("kl.unbiased_gradient", False, "kl", "gradient of the true reverse KL, weighted by p/o", "bool"),
)
OLD_OPTIONS = (
    Option("is_correction_enable", False, "weight", "turn the correction on", "bool"),
    Option(
        "is_correction_type",
        "tis",
        "weight",
        "rule",
        "choice",
        {"tis": "clamp on both sides", "icepop": "0 outside", "seq-mask-tis": "geometric gate, raw token weights"},
    ),
    Option("is_correction_threshold", (0.5, 5.0), "truncation", "[low, high]", "list"),
    *COMMON,
)

TOKEN = {"is_correction_level": "token"}
ENTRIES = (
    Entry("no correction (default)", {}),
    Entry("token clip 0.5 to 5", {**TOKEN, "is_correction_mode": "clip"}),
    Entry("token mask 0.5 to 5", TOKEN),
    Entry("sequence mask 0.99 to 1.05", {"is_correction_level": "seq", "is_correction_threshold": [0.99, 1.05]}),
    Entry("token TV 0.2", {**TOKEN, "is_correction_gating": "tv", "is_correction_threshold": [0.2]}),
    Entry(
        "sequence binary KL 0.05",
        {"is_correction_level": "seq", "is_correction_gating": "binary_kl", "is_correction_threshold": [0.05]},
    ),
    Entry("GSPO with correction", {**TOKEN, "policy_loss_type": "gspo"}),
    Entry("row mean, k2 KL", {"loss_agg_mode": "seq-mean-token-mean", "kl.use_loss": True, "kl.estimator": "k2"}),
)
OLD_ENTRIES = (
    Entry("no correction (default)", {}),
    *(
        Entry(kind, {"is_correction_enable": True, "is_correction_type": kind})
        for kind in ("tis", "icepop", "seq-mask-tis")
    ),
)

TRAPS = (
    "the lower bound is 0.5 by default, and clip (tis) clamps to it: a ratio of 0.25 weighs 0.5",
    "the sequence gate is the geometric mean, survivors keep raw token weights (no cap)",
    "no clamp on log o - log q; only the surrogate's own log-ratio is clamped to +-20",
    "with gspo the correction replaces p/o by p/q and the weight is skipped, without a message",
    "masked_mean has no epsilon: an empty row's statistic is NaN and the row counts as filtered",
    "every KL estimate is clamped to [-10, 10], k1 and k2 included",
    "0.11.0 has type tis/icepop/seq-mask-tis and always a token mean for ppo; 0.11.2 has level/mode/gating",
)

COLUMNS = {
    "sequence": "geometric gate, token weights",
    "truncation": "clamp on both sides, 0.5 to 5",
    "mask": "zero weight, two-sided; ratio, binary_kl or tv",
    "boundary": "inclusive",
    "log_clamp": "none on o/q",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "off, [0.5, 5]",
    "floors": "no centering",
}

DIALECTS = (
    Dialect(
        "openrlhf",
        "OpenRLHF",
        "0.11.2",
        "2026-11-29",
        ("openrlhf/models/loss.py", "openrlhf/cli/train_ppo_ray.py"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
    Dialect(
        "openrlhf-0.11.0",
        "OpenRLHF",
        "0.11.0 (git 3c3be623)",
        "2026-08-13",
        ("openrlhf/models/loss.py", "openrlhf/cli/train_ppo_ray.py"),
        OLD_OPTIONS,
        build_old,
        OLD_ENTRIES,
        TRAPS,
        {**COLUMNS, "mask": "zero weight, two-sided"},
    ),
)
