"""AReaL 1.0.4: decoupled PPO loss and its rejection sampling.

Read: `areal/utils/functional/functional.py` (`apply_rejection_sampling`, `ppo_actor_loss_fn`), `areal/api/cli_args.py`,
`areal/trainer/ppo/actor.py` (wheel 1.0.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ContractError, check_choice, check_keys, check_number
from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse

RULE_DEFAULTS = {"level": "token", "action": "mask", "metric": "ratio", "agg": "mean", "upper": 5.0, "lower": None}


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of a PPOActorConfig."""
    if o["m2_threshold"] is not None:
        refuse("M2PO drops tokens by their rank in the batch; `rlcorr_ref.rejection.m2po_mask` gives its mask")
    two = not (o["use_decoupled_loss"] or o["recompute_logprob"])
    draft = Draft(pieces.TWO if two else pieces.THREE)
    high = o["eps_clip"] if o["eps_clip_higher"] is None else o["eps_clip_higher"]
    if two:
        draft.note(pieces.NO_ANCHOR)
    weight = None
    if o["rejection_sampling"] is not None:
        rule = _rule(o["rejection_sampling"])
        if o["use_decoupled_loss"]:
            weight = _apply(draft, rule)
            draft.note("a non-finite log-ratio counts as ratio 1 in AReaL")
        else:
            draft.note("rejection_sampling has no effect without use_decoupled_loss; AReaL warns")
    elif o["use_decoupled_loss"]:
        draft.note("use_decoupled_loss without rejection_sampling applies no weight at all")
    draft.put("weight", weight)
    if o["importance_sampling_level"] == "sequence":
        if o["c_clip"] is not None:
            refuse("c_clip with importance_sampling_level='sequence': the contract's gspo has no dual bound")
        if "rejection" in draft.definition:
            refuse("importance_sampling_level='sequence' takes the row mean over the mask that rejection has edited")
        draft.put(
            "surrogate", pieces.row_ratio(draft, weight, o["eps_clip"], high, "importance_sampling_level='sequence'")
        )
        draft.note("AReaL averages the advantages of a row as well")
    else:
        draft.put("surrogate", pieces.ppo(o["eps_clip"], high, o["c_clip"]))
    if o["prox_logp_method"] == "loglinear":
        draft.note("logp_anchor is interpolated: log q + alpha (log p - log q), from the policy versions")
    pieces.aggregation(draft, o, "token-mean")
    draft.note("the denominator counts the mask before rejection (or 1 when it is empty)")
    return draft


def _rule(given: Mapping[str, Any]) -> dict[str, Any]:
    """A RejectionSamplingConfig with its defaults and its own validation."""
    where = "areal.rejection_sampling"
    check_keys(where, given, RULE_DEFAULTS)
    rule = {**RULE_DEFAULTS, **given}
    for key, choices in (
        ("level", ("token", "sequence")),
        ("action", ("mask", "clamp")),
        ("metric", ("ratio", "kl_k1", "kl_k2", "kl_k3")),
        ("agg", ("sum", "mean", "max")),
    ):
        check_choice(f"{where}.{key}", rule[key], choices)
    rule["upper"] = check_number(f"{where}.upper", rule["upper"])
    rule["lower"] = check_number(f"{where}.lower", rule["lower"], optional=True)
    if rule["lower"] is not None and rule["lower"] > rule["upper"]:
        raise ContractError(
            f"{where}.lower: {rule['lower']:g} is above upper {rule['upper']:g}; AReaL raises ValueError"
        )
    if rule["metric"] == "ratio" and (rule["upper"] <= 1 or (rule["lower"] is not None and rule["lower"] <= 0)):
        raise ContractError(f"{where}: metric 'ratio' needs upper > 1 and lower > 0; AReaL raises ValueError")
    if rule["metric"] in ("kl_k2", "kl_k3") and rule["upper"] <= 0:
        raise ContractError(f"{where}.upper: expected a number > 0 for {rule['metric']}; AReaL raises ValueError")
    if rule["action"] == "clamp" and rule["metric"] != "ratio":
        raise ContractError(f"{where}.action: clamp goes with metric 'ratio' only; AReaL raises ValueError")
    return rule


def _apply(draft: Draft, rule: dict[str, Any]) -> dict[str, Any]:
    """The weight, and the rejection rules where the action is mask."""
    sequence, ratio = rule["level"] == "sequence", rule["metric"] == "ratio"
    level = "geometric" if sequence and ratio else "token"
    low = rule["lower"] or 0.0
    if rule["action"] == "clamp":
        if sequence and rule["agg"] != "mean":
            refuse(
                f"clamp at sequence level with agg={rule['agg']!r} tests that statistic and clamps the geometric "
                "mean, so the clamp may do "
                "nothing; with agg='mean' test and weight agree"
            )
        return pieces.truncate(level, rule["upper"], low)
    draft.put("rejection", [{**r, "numerator": "anchor"} for r in _mask_rules(rule, sequence)])
    draft.note("survivors keep the raw weight" + (", the row's geometric mean" if level == "geometric" else ""))
    return {"level": level, "numerator": "anchor"}


def _mask_rules(rule: dict[str, Any], sequence: bool) -> list[dict[str, Any]]:
    """AReaL's statistics are on o/q with kl_k1 = log o - log q and kl_k3 on the reciprocal ratio."""
    reduce = rule["agg"] if sequence else "token"
    low, high = rule["lower"], rule["upper"]
    if rule["metric"] == "ratio":
        return [{"statistic": "ratio", "reduce": reduce, "low": low, "high": high}]
    if rule["metric"] == "kl_k2":
        return [{"statistic": "k2", "reduce": reduce, "low": low, "high": high}]
    if rule["metric"] == "kl_k1":
        if reduce == "max":  # the largest log o - log q, on the ratio
            bounds = {"low": None if low is None else math.exp(low), "high": math.exp(high)}
            return [{"statistic": "ratio", "reduce": "max", **bounds}]
        return [{"statistic": "k1", "reduce": reduce, "low": -high, "high": None if low is None else -low}]
    if low is not None or reduce in ("sum", "mean"):
        refuse(
            "kl_k3 is exp(-d) - 1 + d, the k3 of the reciprocal ratio: a bound per token (or on the row's largest) "
            "is a band on the "
            "ratio, but its row sum or mean, or a lower bound, is not"
        )
    least, most = k3_band(high)
    if reduce == "token":
        return [{"statistic": "ratio", "reduce": "token", "low": math.exp(least), "high": math.exp(most)}]
    return [
        {"statistic": "ratio", "reduce": "max", "high": math.exp(most)},
        {"statistic": "k1", "reduce": "max", "high": -least},
    ]


def k3_band(upper: float) -> tuple[float, float]:
    """The interval of d with exp(-d) - 1 + d <= upper (nats).

    d - (1 + upper) = -exp(-d) is w exp(w) = -exp(-(1 + upper)) in w = d - (1 + upper): Lambert's W on both real branches.
    """
    from scipy.special import lambertw  # only here, so that the command stays light

    c = 1.0 + upper
    least, most = (c + float(lambertw(-math.exp(-c), branch).real) for branch in (-1, 0))
    return least, most


OPTIONS = (
    Option("use_decoupled_loss", False, "policies", "recompute log-probs as the anchor and apply the weight", "bool"),
    Option("recompute_logprob", False, "policies", "recompute log-probs as the anchor, no weight", "bool"),
    Option(
        "rejection_sampling",
        None,
        "weight",
        "object with level, action, metric, agg, upper, lower; null: no weight at all",
        "mapping",
        optional=True,
    ),
    pieces.clip_option("eps_clip", 0.2, "band 1 - eps_clip"),
    pieces.clip_option("eps_clip_higher", None, "band 1 + eps_clip_higher (null: eps_clip)"),
    Option("c_clip", None, "surrogate", "dual clip", optional=True, above=1.0),
    Option("m2_threshold", None, "mask", "M2PO", optional=True, above=0.0),
    Option(
        "importance_sampling_level",
        "token",
        "surrogate",
        "level of r = p/o",
        "choice",
        {"token": "r", "sequence": "row mean of log r"},
    ),
    Option(
        "use_sapo_loss",
        False,
        "surrogate",
        "SAPO",
        "choice",
        {False: "PPO"},
        {True: "a sigmoid gate on the ratio is no band"},
    ),
    Option(
        "prox_logp_method",
        "recompute",
        "policies",
        "how the anchor is obtained",
        "choice",
        {"recompute": "a forward pass", "loglinear": "interpolation", "metrics": "a forward pass"},
    ),
)


def _rs(**rule: Any) -> dict[str, Any]:
    return {"use_decoupled_loss": True, "rejection_sampling": rule}


ENTRIES = (
    Entry("default: sampler as the old policy", {}),
    Entry("recomputed anchor, no weight", {"recompute_logprob": True}),
    Entry("decoupled without rejection sampling", {"use_decoupled_loss": True}),
    Entry("token mask, upper 2", _rs(upper=2.0)),
    Entry("token mask 0.5 to 2", _rs(upper=2.0, lower=0.5)),
    Entry("token clamp 2", _rs(action="clamp", upper=2.0)),
    Entry("sequence mask 1.01", _rs(level="sequence", upper=1.01)),
    Entry("sequence clamp 2", _rs(level="sequence", action="clamp", upper=2.0)),
    Entry("token k1 at most 0.5", _rs(metric="kl_k1", upper=0.5)),
    Entry("token k3 at most 0.5", _rs(metric="kl_k3", upper=0.5)),
    Entry("row maximum of k3 at most 0.5", _rs(level="sequence", metric="kl_k3", agg="max", upper=0.5)),
    Entry("row mean of k3 at most 0.5", _rs(level="sequence", metric="kl_k3", upper=0.5)),
    Entry("sequence product mask", _rs(level="sequence", agg="sum", upper=2.0, lower=0.5)),
    Entry("sequence clamp by the product", _rs(level="sequence", agg="sum", action="clamp", upper=2.0)),
    Entry("M2PO", {"use_decoupled_loss": True, "m2_threshold": 0.04}),
)

TRAPS = (
    "use_decoupled_loss without rejection_sampling applies no weight; the old keys behave_imp_weight_* raise",
    "level 'sequence' with metric 'ratio' weighs every token by the geometric mean, whatever agg says",
    "kl_k1 is log o - log q, the opposite sign of verl's k1",
    "kl_k3 is taken on the reciprocal ratio: rho = 3 has 0.432 here and 0.901 in verl (the help text states the "
    "other form)",
    "mask survivors keep raw weights, bounded by upper only; clamp without lower clamps at 0",
    "a non-finite log-ratio counts as ratio 1; a finite huge one overflows and is then masked or clamped",
    "the denominator counts the mask before rejection but after M2PO",
)

COLUMNS = {
    "sequence": "geometric mean",
    "truncation": "clamp on both sides (lower 0)",
    "mask": "mask edited; ratio, k1, k2, k3; M2PO",
    "boundary": "inclusive; M2PO strict",
    "log_clamp": "none; non-finite: ratio 1",
    "denominator": "no; M2PO yes",
    "kl_weighted": "KL is in the reward",
    "default": "off (no weight)",
    "floors": "no centering",
}

DIALECTS = (
    Dialect(
        "areal",
        "AReaL",
        "1.0.4",
        "2026-05-21, 2026-11-29",
        ("areal/utils/functional/functional.py", "areal/api/cli_args.py", "areal/trainer/ppo/actor.py"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
