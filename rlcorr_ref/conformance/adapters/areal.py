"""AReaL: `apply_rejection_sampling`, `ppo_actor_loss_fn` and `KLEstimator`, taken from the installed files.

Importing the package pulls its services; the functions need torch only. At p = o the loss is REINFORCE with the
given weights.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from types import SimpleNamespace
from typing import Any

from ...wire import evaluate_case
from ..protocol import Named
from . import grpo_options as grpo
from .tools import compared, complete, file_of, gradient, isolate, need, plain_objective

NAME, TITLE = "areal", "AReaL"
DISTRIBUTION, VERIFIED = "areal", ("1.0.4", "1.0.5")
DIALECT = "areal"
ENTRY = "functions isolated from the installed files, from log-probs"
ABSENT = {
    "ratio": "the ratio is returned with a bound only; it is judged in family weight",
    "aggregate": "the reduction is inside the loss: a token mean over the mask before rejection",
    "advantages": "advantages are formed by the trainer",
    "head_coefficients": "1.0.4 has no score centering",
    "log_softmax": "log-probs come from the engine's forward pass",
    "quantise": "no quantiser",
    "shard": "sharding is the engine's",
}
GEOMETRIC = "'sequence' with metric ratio is the geometric mean of the row (documented)"
FUNCTIONS = (
    "RejectionSamplingResult",
    "_check_bounds",
    "apply_rejection_sampling",
    "ppo_actor_loss_fn",
    "_compute_sequence_level_ratio_and_advantages",
)


def load() -> Any:
    """The isolated functions and their configuration class."""
    import torch

    names: dict[str, Any] = {"torch": torch, "functools": functools, "logger": logging.getLogger("areal")}
    names |= {"dataclass": dataclasses.dataclass, "field": dataclasses.field, "__name__": __name__}
    isolate(file_of(DISTRIBUTION, "areal/api/cli_args.py"), ("RejectionSamplingConfig",), names)
    isolate(file_of(DISTRIBUTION, "areal/utils/data.py"), ("KLEstimator",), names)
    isolate(file_of(DISTRIBUTION, "areal/utils/functional/functional.py"), FUNCTIONS, names)
    isolate(file_of(DISTRIBUTION, "areal/trainer/ppo/actor.py"), ("_apply_m2po_masking", "_get_m2po_loss_mask"), names)
    return AReal(SimpleNamespace(torch=torch, names=names, config=names["RejectionSamplingConfig"]))


class AReal:
    """Contract functions answered by AReaL."""

    def __init__(self, package: SimpleNamespace) -> None:
        self.p = package

    def weight(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        need(not parameters.get("gate"), "no gate on a weight of another level")
        n = logp_trainer if logp_anchor is None or parameters["numerator"] == "trainer" else logp_anchor
        found = self._apply(importance(parameters), n, logp_sampler, mask)
        return Named({"weights": found.behave_imp_weight}, GEOMETRIC, settings=by_name(parameters))

    def reject(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        n = compared(parameters["rejection"], logp_trainer, logp_anchor)
        return {"mask": self._apply(rejection(parameters["rejection"]), n, logp_sampler, mask).loss_mask}

    def surrogate(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any = None, **more: Any
    ):
        advantages = self.p.torch.ones_like(logp_trainer) if advantages is None else advantages
        kind, anchor = parameters["kind"], more.get("logp_anchor")
        need(kind in ("reinforce", "ppo_clip"), f"{kind} is judged through the objective, or absent")
        old = logp_trainer if kind == "reinforce" else logp_sampler if anchor is None else anchor
        found = gradient(
            lambda logp: self._loss(parameters, logp, old, logp_sampler, advantages, mask, None)[0], logp_trainer
        )
        return {"slope": found["grad_logp"] * mask.sum()}

    def diagnostics(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        need(not parameters or "weight" in parameters, "reported with rejection sampling only")
        n = logp_trainer if logp_anchor is None else logp_anchor
        m, mean = mask.bool(), lambda x: x[mask.bool()].mean()
        estimate = self.p.names["KLEstimator"]._compute_approx_kl
        kl = {k: mean(estimate(n, logp_sampler, k, apply_clamp=False)) for k in ("k1", "k2", "k3")}
        out, values = {"kl_k1": kl["k1"], "kl_k2": kl["k2"], "kl_k3": kl["k3"]}, {}
        if parameters:
            rule = complete(parameters)["weight"]
            found = self._apply(importance(rule), n, logp_sampler, mask)
            out["weight_mean"] = found.behave_imp_weight[m].mean()
            if rule["level"] == "sequence":
                policies = {"logp_trainer": n, "logp_sampler": logp_sampler}
                inputs = {key: value.double().masked_fill(~m, 0.0).tolist() for key, value in policies.items()}
                case = {"function": "diagnostics", "inputs": {**inputs, "mask": mask.tolist()}}
                values["weight_mean"] = evaluate_case({**case, "parameters": {"weight": by_name(rule)}})["weight_mean"]
        return Named(out, f"kl_k1 is log p - log q; {GEOMETRIC}", renamed={"kl_k1": "kl@areal"}, values=values)

    def objective(
        self, definition: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any, **more: Any
    ):
        plain_objective(definition, "AReaL", ("rejection",))
        anchor, kind, rule = more.get("logp_anchor"), definition["surrogate"]["kind"], definition["weight"]
        need(kind in ("reinforce", "ppo_clip", "gspo"), f"no {kind} loss")
        compared([*([rule] if rule else []), *definition["rejection"]], logp_trainer, anchor)
        need((kind == "reinforce") == (anchor is None), "the ratio p/o is always in the loss; at p = o it is REINFORCE")
        need(definition["aggregation"]["kind"] == "token-mean", "the loss is a token mean")
        need(definition["aggregation"]["tokens"] is None, "global counts are the engine's loss weights")
        rules = definition["rejection"]
        need(rule is None or not rules, "one option for both weight and rejection")
        need(not rules or rule is not None, "rejection without weights does not exist: survivors carry the ratio")
        grpo.one_advantage(definition["surrogate"], advantages, mask)
        options = None if rule is None else importance(rule)
        old = logp_trainer if anchor is None else anchor
        found = gradient(
            lambda logp: self._loss(definition["surrogate"], logp, old, logp_sampler, advantages, mask, options)[0],
            logp_trainer,
        )
        settings = definition if rule is None else {**definition, "weight": by_name(rule)}
        return Named({"grad_logp": found["grad_logp"]}, GEOMETRIC, settings=settings)

    def _apply(self, options: dict[str, Any], n: Any, q: Any, mask: Any) -> Any:
        return self.p.names["apply_rejection_sampling"](n, q, mask.bool(), None, self.p.config(**options))

    def _loss(self, rule: dict, logp: Any, old: Any, q: Any, advantages: Any, mask: Any, options: dict | None) -> Any:
        return self.p.names["ppo_actor_loss_fn"](
            logp,
            old,
            q,
            advantages,
            rule.get("eps_low", 0.2),
            mask.bool(),
            eps_clip_higher=rule.get("eps_high", 0.2),
            c_clip=rule.get("dual"),
            rejection_sampling=None if options is None else self.p.config(**options),
            importance_sampling_level="sequence" if rule["kind"] == "gspo" else "token",
        )


def importance(rule: dict[str, Any]) -> dict[str, Any]:
    """RejectionSamplingConfig fields of a weight rule."""
    level, low, high = rule["level"], rule["low"] or None, rule["high"]
    need(level in ("token", "sequence", "geometric"), f"no {level} importance weight")
    need(rule["statistic"] == "ratio" and rule["inside"] == "ratio", "the weight is the ratio, banded by the ratio")
    need(rule["positive"] is None and rule["negative"] is None and rule["sign"] == "both", "no bounds by sign")
    need(
        rule["closed"] and rule["normalise"] is None and rule["log_clamp"] is None,
        "closed bands, no normalisation, no log clamp",
    )
    need(high is None or high > 1.0, "the upper bound of a ratio must exceed 1")
    return {
        "level": "token" if level == "token" else "sequence",
        "action": "clamp" if rule["outside"] == "clip" else "mask",
        "metric": "ratio",
        "agg": "mean",
        "upper": math.inf if high is None else high,
        "lower": low,
    }


def rejection(rules: list[dict[str, Any]]) -> dict[str, Any]:
    """RejectionSamplingConfig fields of a rejection rule; k3 goes by its name."""
    need(len(rules) == 1, "one rule only")
    rule = rules[0]
    statistic, low, high = rule["statistic"], rule["low"], rule["high"]
    need(statistic in ("ratio", "k1", "k2", "k3"), f"no rejection by {statistic}")
    need(
        rule["closed"] and rule["sign"] == "both" and rule["log_clamp"] is None,
        "inclusive bounds, every sign, unclamped",
    )
    if statistic == "k1":  # kl_k1 is log p - log q: the band of log q - log p, reflected
        low, high = None if high is None else -high, None if low is None else -low
    need(statistic != "ratio" or high is None or high > 1.0, "the upper bound of a ratio must exceed 1")
    need(
        statistic == "ratio" or rule["reduce"] != "max" or statistic != "k1",
        "the reflected band of a maximum is a minimum",
    )
    return {
        "level": "token" if rule["reduce"] == "token" else "sequence",
        "action": "mask",
        "metric": "ratio" if statistic == "ratio" else f"kl_{statistic}",
        "agg": "mean" if rule["reduce"] == "token" else rule["reduce"],
        "upper": math.inf if high is None else high,
        "lower": (low or None) if statistic == "ratio" else low,
    }


def by_name(rule: dict[str, Any]) -> dict[str, Any]:
    """What the option called "sequence" documents: the geometric mean."""
    return {**rule, "level": "geometric"} if rule["level"] == "sequence" else rule
