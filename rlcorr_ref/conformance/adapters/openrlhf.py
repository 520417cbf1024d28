"""OpenRLHF: `PolicyLoss`, `aggregate_loss` and `compute_approx_kl`, taken from the installed files.

Importing the package needs flash-attn and DeepSpeed; the loss module needs torch only. Weights are not returned:
they are read from the gradient at ratio 1 with advantage -1, where d loss / d log p of a token is its weight.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from ..protocol import Named
from . import grpo_options as grpo
from .tools import bounded_k3, compared, complete, file_of, gradient, isolate, need, plain_objective

NAME, TITLE = "openrlhf", "OpenRLHF"
DISTRIBUTION, VERIFIED = "openrlhf", ("0.11.2", "0.11.3")
DIALECT = "openrlhf"
ENTRY = "classes isolated from the installed files, from log-probs"
ABSENT = {
    "ratio": "the ratio is not returned",
    "advantages": "advantages are formed by the experience maker",
    "head_coefficients": "0.11.2 has no score centering",
    "log_softmax": "log-probs come from the actor's forward pass",
    "quantise": "no quantiser",
    "shard": "sharding is the trainer's; reductions are judged with global counts",
}
BOUNDED = "the KL estimate is bounded to [-10, 10]"


def load() -> Any:
    """The isolated loss classes."""
    import torch
    from torch import nn

    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional}
    isolate(file_of(DISTRIBUTION, "openrlhf/models/utils.py"), ("masked_mean", "compute_approx_kl"), names)
    isolate(file_of(DISTRIBUTION, "openrlhf/models/loss.py"), ("aggregate_loss", "PolicyLoss"), names)
    return OpenRlhf(
        SimpleNamespace(torch=torch, **{k: names[k] for k in ("aggregate_loss", "PolicyLoss", "compute_approx_kl")})
    )


class OpenRlhf:
    """Contract functions answered by OpenRLHF."""

    def __init__(self, package: SimpleNamespace) -> None:
        self.p = package

    def weight(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        options = correction(parameters, parameters.get("gate"), [])
        n = logp_trainer if logp_anchor is None or parameters["numerator"] == "trainer" else logp_anchor
        return {"weights": self._weights(options, n, logp_sampler, mask)}

    def reject(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        options = correction(None, None, parameters["rejection"])
        n = compared(parameters["rejection"], logp_trainer, logp_anchor)
        return {"mask": self._weights(options, n, logp_sampler, mask) != 0}

    def surrogate(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any = None, **more: Any
    ):
        advantages = self.p.torch.ones_like(logp_trainer) if advantages is None else advantages
        kind, old = parameters["kind"], more.get("logp_anchor")
        grpo.one_advantage(parameters, advantages, mask)
        old = logp_trainer if kind == "reinforce" else logp_sampler if old is None else old
        loss = self._policy(parameters, {"kind": "token-sum"}, {})
        counts = {"batch_num_tokens": 1.0, "global_batch_size": 1.0}
        found = gradient(lambda logp: loss(logp, old, advantages, mask, None, **counts)[0], logp_trainer)
        per_row = mask.sum(-1, keepdim=True) if kind == "gspo" else 1  # gspo is a mean over the row by construction
        return {"slope": found["grad_logp"] * per_row}

    def aggregate(self, parameters: dict, values: Any, mask: Any):
        token, counts = reduction(parameters)
        found = gradient(lambda x: self.p.aggregate_loss(x, mask, token, **counts), values)
        return {"value": found["loss"], "coefficients": found["grad_logp"]}

    def diagnostics(self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, **more: Any):
        settings, anchor = complete(parameters), more.get("logp_anchor")
        need(not settings["centering"], "no score centering")
        rule = settings["weight"]
        options = (
            correction(rule, settings["gate"], [])
            if rule
            else {"is_correction_level": "token", "is_correction_threshold": [0.0, math.inf]}
        )
        need(not settings["rejection"], "a rejected unit is a weight of 0, counted by is_filter_ratio only")
        n = logp_trainer if anchor is None else anchor
        advantages = more.get("advantages")
        advantages = self.p.torch.ones_like(n) if advantages is None else advantages
        kind = settings["surrogate"]["kind"]
        old = n if kind == "reinforce" else logp_sampler if anchor is None else anchor
        loss = self._policy(settings["surrogate"], settings["aggregation"], options)
        _, clipped, _, kl, filtered = loss(logp_trainer, old, advantages, mask, logp_sampler)
        if parameters.get("surrogate"):
            return {"clip_fraction": clipped}
        out = {"kl_k1": kl}
        if rule and rule["outside"] == "zero":
            out["fraction_zero"] = filtered
        return out

    def objective(
        self, definition: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any, **more: Any
    ):
        plain_objective(definition, "OpenRLHF", ("kl", "rejection", "gate"))
        need(bool(mask.any()) or definition["aggregation"]["tokens"], "an empty batch needs global counts")
        anchor, kl, kind = more.get("logp_anchor"), definition["kl"], definition["surrogate"]["kind"]
        rule = definition["weight"]
        grpo.one_advantage(definition["surrogate"], advantages, mask)
        need(kl is None or not kl["weighted"], "the KL term is never multiplied by the weight")
        need(kl is None or kl["kind"] in ("k1", "k2", "k3"), "no such KL estimator")
        compared([*([rule] if rule else []), *definition["rejection"]], logp_trainer, anchor)
        need((kind == "reinforce") == (anchor is None), "the ratio p/o is always in the loss; at p = o it is REINFORCE")
        rules = definition["rejection"]
        need(not (kl and rules), "a dropped token keeps its KL term")
        need(not rules or definition["weight"] is not None, "a gate always comes with the ratio as weight")
        need(not definition["gate"] or definition["weight"] is not None, "a gate always comes with the ratio as weight")
        options = {}
        if definition["weight"] is not None or definition["gate"] is not None or rules:
            options = correction(definition["weight"], definition["gate"], rules)
        need(not (kind == "gspo" and options), "with gspo the correction replaces p/o by p/q and no weight is applied")
        token, counts = reduction(definition["aggregation"])
        need(kind != "gspo" or not token, "gspo forces the row mean")
        loss = self._policy(definition["surrogate"], definition["aggregation"], options)
        old = logp_trainer if anchor is None else anchor

        def total(logp: Any) -> Any:
            value = loss(logp, old, advantages, mask, logp_sampler, **counts)[0]
            if kl is None:
                return value
            estimate = self.p.compute_approx_kl(logp, more["logp_reference"], kl_estimator=kl["kind"])
            return value + kl["beta"] * self.p.aggregate_loss(estimate, mask, token, **counts)

        shift = bounded_k3(definition, logp_trainer, more.get("logp_reference"), mask)
        shift = {key: value for key, value in shift.items() if key == "grad_logp"}
        return Named({"grad_logp": gradient(total, logp_trainer)["grad_logp"]}, BOUNDED, shift=shift)

    def _weights(self, options: dict[str, Any], n: Any, q: Any, mask: Any) -> Any:
        loss = self._policy({"kind": "ppo_clip"}, {"kind": "token-sum"}, options)
        minus = -self.p.torch.ones_like(n)
        found = gradient(lambda logp: loss(logp, n, minus, mask, q, batch_num_tokens=1.0)[0], n)
        return self.p.torch.where(mask.bool(), found["grad_logp"], 0.0)

    def _policy(self, rule: dict, aggregation: dict, options: dict) -> Any:
        need(rule["kind"] != "cispo", "no cispo loss")
        return self.p.PolicyLoss(
            clip_eps_low=rule.get("eps_low", 0.2),
            clip_eps_high=rule.get("eps_high", 0.2),
            dual_clip=rule.get("dual"),
            token_level_loss=aggregation["kind"].startswith("token"),
            policy_loss_type="gspo" if rule["kind"] == "gspo" else "ppo",
            **options,
        )


def reduction(rule: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """(token_level_loss, global counts) of an aggregation."""
    kind = rule["kind"]
    need(kind in ("token-mean", "seq-mean-token-mean"), f"no reduction {kind}")
    if kind == "token-mean":
        return True, {} if rule["tokens"] is None else {"batch_num_tokens": rule["tokens"]}
    return False, {} if rule["sequences"] is None else {"global_batch_size": rule["sequences"]}


def correction(rule: dict | None, gate: dict | None, rules: list[dict]) -> dict[str, Any]:
    """is_correction_* options of a weight, a gate or a rejection rule."""
    need(sum(map(bool, (gate, rules))) <= 1 and len(rules) <= 1, "one gate only")
    if rules:
        raw = rule is None or (rule["high"] is None and not rule["low"] and rule["level"] == "token")
        need(
            raw and (rule is None or rule["normalise"] is rule["log_clamp"] is None),
            "survivors keep their raw token weight",
        )
        return _gate(rules[0])
    rule = rule or {}
    level, low, high = rule.get("level", "token"), rule.get("low") or 0.0, rule.get("high")
    need(
        rule.get("log_clamp") is None and rule.get("normalise") is None, "no log clamp and no normalisation of weights"
    )
    need(
        rule.get("closed", True) and rule.get("inside", "ratio") == "ratio",
        "bands keep their ends and the ratio inside",
    )
    signs = (rule.get("positive"), rule.get("negative"))
    need(signs == (None, None) and rule.get("sign", "both") == "both", "no bounds by sign")
    need(level == "token", f"no {level} importance weight: level seq is a gate on raw token weights")
    top = math.inf if high is None else high
    if gate:
        need(not low and high is None, "the sequence gate leaves token weights raw")
        need(gate["numerator"] == rule.get("numerator"), "gate and weight compare the same log-probs")
        need(
            gate["level"] == "geometric" and gate["closed"] and gate["sign"] == "both",
            "the gate is the geometric mean, closed",
        )
        return _options("seq", "mask", "ratio", gate["low"], gate["high"])
    statistic = rule.get("statistic", "ratio")
    if statistic != "ratio":
        need(statistic == "tv" and not low and rule["outside"] == "zero", "tv is unsigned, with an upper bound")
        return _options("token", "mask", "tv", 0.0, top)
    return _options("token", "clip" if rule.get("outside") == "clip" else "mask", "ratio", low, top)


def _gate(rule: dict) -> dict[str, Any]:
    statistic, reduce = rule["statistic"], rule["reduce"]
    need(statistic in ("ratio", "tv", "binary_kl"), f"no gate on {statistic}")
    need(reduce in ("token", "mean"), f"no gate on the row's {reduce}")
    need(
        rule["closed"] and rule["sign"] == "both" and rule["log_clamp"] is None,
        "bounds are inclusive, for every sign, unclamped",
    )
    need(rule["denominator"] == "kept", "denominators never shrink")
    need(statistic == "ratio" or not rule["low"], f"{statistic} takes an upper bound only")
    return _options("seq" if reduce == "mean" else "token", "mask", statistic, rule["low"], rule["high"])


def _options(level: str, mode: str, gating: str, low: float | None, high: float | None) -> dict[str, Any]:
    return {
        "is_correction_level": level,
        "is_correction_mode": mode,
        "is_correction_gating": gating,
        "is_correction_threshold": [low or 0.0, math.inf if high is None else high],
    }
