"""Contract settings as verl's option values, or the reason why there is none.

Source: verl 0.9.1 `verl/trainer/ppo/rollout_corr_helper.py`, `verl/trainer/ppo/core_algos.py`.
"""

from __future__ import annotations

import math
from typing import Any

from .tools import need

CLAMP = 20.0
CLAMPED = "log-ratios are clamped to +-20 (SAFETY_BOUND) and k3 is bounded to [-10, 10], as the code says"
SINGLETON = "a group of one keeps its reward: mean 0 and standard deviation 1 are set for it"
UNBOUNDED = 1e-30  # IcePop needs a positive lower bound; below exp(-20) it never binds
REDUCE = {"token": "token", "sum": "seq_sum", "mean": "seq_mean", "max": "seq_max"}


def importance(rule: dict[str, Any]) -> tuple[str, str, bool]:
    """(rollout_is, rollout_is_threshold, rollout_is_batch_normalize) of a weight rule."""
    level, low, high = rule["level"], rule["low"], rule["high"]
    need(level in ("token", "sequence"), f"no {level} importance weight")
    need(rule["statistic"] == "ratio", "no band on a probability difference in rollout_is")
    need(rule["positive"] is None and rule["negative"] is None, "no bounds by the sign of the advantage")
    need(rule["sign"] == "both", "no weight restricted to one sign of the advantage")
    need(rule["inside"] == "ratio", "inside the band the weight is the ratio, never 1")
    need(rule["closed"], "bands keep their ends")
    need(rule["log_clamp"] in (None, CLAMP), "the log clamp is fixed at 20")
    need(
        level == "token" or rule["clamp_order"] == "aggregate" or rule["log_clamp"] is None,
        "the sum is clamped, not tokens",
    )
    normalise = {None: False, "tokens": level == "token", "rows": level == "sequence"}[rule["normalise"]]
    need(rule["normalise"] is None or normalise, f"{level} weights are not normalised over {rule['normalise']}")
    bound = "inf" if high is None else repr(float(high))
    if rule["outside"] == "zero" and (low or high is not None):
        return level, f"{low or UNBOUNDED!r}_{bound}", normalise
    need(not low, "truncation is one-sided: no lower bound")
    return level, bound, normalise


def rejection(rules: list[dict[str, Any]]) -> tuple[str, str]:
    """(rollout_rs, rollout_rs_threshold) of rejection rules.

    A band on the ratio is what the k1 options document ("lower/upper ratio bounds"); a band on k1 = log q - log n
    is its log.
    """
    names, thresholds = [], []
    for rule in rules:
        statistic, low, high = rule["statistic"], rule["low"], rule["high"]
        need(statistic in ("ratio", "k1", "k2", "k3"), f"no rejection by {statistic}")
        need(rule["sign"] == "both", "rejection ignores the sign of the advantage")
        need(rule["closed"], "bounds are inclusive")
        need(rule["log_clamp"] in (None, CLAMP), "the log clamp is fixed at 20")
        need(not (statistic in ("ratio", "k1") and rule["reduce"] == "max"), "no seq_max_k1")
        if statistic in ("k2", "k3"):
            need(not low and high is not None, f"{statistic} takes an upper bound only")
            threshold = repr(float(high))
        elif statistic == "ratio":
            threshold = f"{low or 1e-12!r}_{1e12 if high is None else float(high)!r}"
        else:
            threshold = f"{1e-12 if low is None else math.exp(low)!r}_{1e12 if high is None else math.exp(high)!r}"
        names.append(f"{REDUCE[rule['reduce']]}_{'k1' if statistic == 'ratio' else statistic}")
        thresholds.append(threshold)
    need(len(set(names)) == len(names), "an option may be listed once")
    return ",".join(names), ",".join(thresholds)


def correction(rule: dict[str, Any] | None, rules: list[dict[str, Any]]) -> dict[str, Any]:
    """The rollout_correction settings of a definition."""
    level, threshold, normalise = (None, None, False) if rule is None else importance(rule)
    out: dict[str, Any] = {
        "rollout_is": level,
        "rollout_is_threshold": threshold,
        "rollout_is_batch_normalize": normalise,
        "rollout_rs": None,
        "rollout_rs_threshold": None,
    }
    if rules:
        out["rollout_rs"], out["rollout_rs_threshold"] = rejection(rules)
    return out


def anchored(rule: dict[str, Any] | None, rules: list[dict[str, Any]]) -> None:
    """Decoupled correction compares the old log-probs with the sampler's."""
    for given in ([] if rule is None else [rule]) + list(rules):
        need(given.get("numerator") in (None, "anchor"), "with old log-probs the numerator is the anchor")


def numerator(rule: dict[str, Any], trainer: Any, anchor: Any) -> Any:
    """Log-probs of the numerator [B, T]: the anchor where there is one."""
    return trainer if anchor is None or rule.get("numerator") == "trainer" else anchor


def reduction(rule: dict[str, Any]) -> dict[str, Any]:
    """`agg_loss` arguments of an aggregation."""
    out = {"loss_agg_mode": rule["kind"]}
    for key, name in (
        ("tokens", "batch_num_tokens"),
        ("sequences", "global_batch_size"),
        ("length", "loss_scale_factor"),
    ):
        if rule.get(key) is not None:
            out[name] = rule[key]
    return out


def counts(aggregation: dict[str, Any], mask: Any, rules: list[dict[str, Any]]) -> dict[str, Any]:
    """Global counts where rejection must not shrink the denominators: those of the mask before rejection."""
    if not rules or any(rule["denominator"] == "shrunk" for rule in rules):
        return {}
    tokens, rows = int(mask.sum()), int(mask.any(-1).sum())
    return {"tokens": aggregation.get("tokens") or tokens, "sequences": aggregation.get("sequences") or rows}


def clamped(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition with verl's safety clamp in the weight and every rejection rule."""
    out = dict(definition)
    if out["weight"] is not None:
        out["weight"] = {**out["weight"], "log_clamp": CLAMP}
    out["rejection"] = [{**rule, "log_clamp": CLAMP} for rule in out["rejection"]]
    return out


def singletons(parameters: dict[str, Any], rewards: Any, groups: list[int]) -> list[float]:
    """Advantages [B] with a group of one keeping its reward (over 1 + eps with std normalisation)."""
    from ...wire import evaluate_case

    plain = [float(r) for r in rewards]
    case = {"function": "advantages", "inputs": {"rewards": plain, "groups": groups}, "parameters": parameters}
    scale = 1.0 + 1e-6 if parameters["kind"] == "mean_std" else 1.0
    found = evaluate_case(case)["advantages"]
    return [r / scale if groups.count(g) == 1 else a for r, g, a in zip(plain, groups, found, strict=True)]
