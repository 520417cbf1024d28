"""SkyRL: off-policy correction and the PPO loss, taken from the installed files.

The package needs Python 3.12 for a plain import; the functions need torch only. Reductions are applied to the
advantages by `apply_loss_reduction_to_advantages_minibatch`, then losses are summed, as the trainer does.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ..protocol import Named
from .tools import compared, complete, file_of, gradient, isolate, need, plain_objective

NAME, TITLE = "skyrl", "SkyRL"
DISTRIBUTION, VERIFIED = "skyrl", ("0.3.0", "0.3.1")
DIALECT = "skyrl"
ENTRY = "functions isolated from the installed files, from log-probs"
ABSENT = {
    "ratio": "the ratio is returned after the cap only; it is judged in family weight",
    "aggregate": "the reduction scales advantages; it is judged through the objective",
    "advantages": "group statistics are keyed by prompt ids inside the trainer's batch",
    "head_coefficients": "0.3.0 has no score centering",
    "log_softmax": "log-probs come from the model's forward pass",
    "quantise": "no quantiser",
    "shard": "sharding is the trainer's",
}
ROOT = "skyrl/backends/skyrl_train/utils/"
CORRECTIONS = (
    "off_policy_correction_enabled",
    "compute_tis_ratio",
    "compute_outlier_token_mask",
    "compute_token_mask",
    "compute_sequence_mask",
    "compute_off_policy_correction",
    "apply_off_policy_correction",
)
CLAMP = 20.0
CLAMPED = "log-ratios are clamped to +-20; row means are over all rows, empty ones included"
REDUCTIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
}
METRICS = {
    "ratio_mean": "is_ratio_mean",
    "ratio_std": "is_ratio_std",
    "ratio_max": "is_ratio_max",
    "ratio_min": "is_ratio_min",
}


def load() -> Any:
    """The isolated functions."""
    import torch

    names: dict[str, Any] = {"torch": torch}
    isolate(file_of(DISTRIBUTION, ROOT + "torch_utils.py"), ("masked_mean", "safe_exp_delta"), names)
    isolate(file_of(DISTRIBUTION, ROOT + "off_policy_correction_utils.py"), CORRECTIONS, names)
    losses = ("ppo_policy_loss", "reduce_loss", "apply_loss_reduction_to_advantages_minibatch")
    isolate(file_of(DISTRIBUTION, ROOT + "ppo_utils.py"), losses, names)
    return SkyRl(SimpleNamespace(torch=torch, names=names))


def options(**given: Any) -> SimpleNamespace:
    """off_policy_correction with everything off but what is given."""
    off = dict.fromkeys(
        (
            "tis_ratio_type",
            "sequence_mask_metric",
            "outlier_token_is_threshold_low",
            "outlier_token_is_threshold_high",
            "token_mask_is_threshold_low",
            "token_mask_is_threshold_high",
        )
    )
    return SimpleNamespace(**{**off, **given})


class SkyRl:
    """Contract functions answered by SkyRL."""

    def __init__(self, package: SimpleNamespace) -> None:
        self.p = package

    def weight(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        need(not parameters.get("gate"), "a gate edits the mask")
        n = logp_trainer if logp_anchor is None or parameters["numerator"] == "trainer" else logp_anchor
        w, _metrics, _mask = self.p.names["compute_off_policy_correction"](
            n, logp_sampler, mask, importance(parameters)
        )
        # the loss multiplies padding by the mask; it is left out of the comparison here and judged in the gradient
        w = self.p.torch.where(mask.bool(), w.expand_as(n), 0.0)
        return Named({"weights": w}, CLAMPED, settings={**parameters, "log_clamp": CLAMP})

    def reject(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        rules = parameters["rejection"]
        n = compared(parameters["rejection"], logp_trainer, logp_anchor)
        _w, _metrics, kept = self.p.names["compute_off_policy_correction"](n, logp_sampler, mask, rejection(rules))
        return Named({"mask": kept}, CLAMPED, settings={"rejection": [{**rule, "log_clamp": CLAMP} for rule in rules]})

    def surrogate(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any = None, **more: Any
    ):
        advantages = self.p.torch.ones_like(logp_trainer) if advantages is None else advantages
        kind, anchor = parameters["kind"], more.get("logp_anchor")
        need(kind in ("reinforce", "ppo_clip"), f"{kind} is another loss function, not isolated")
        old = logp_trainer if kind == "reinforce" else logp_sampler if anchor is None else anchor
        found = gradient(
            lambda logp: self._loss(parameters, logp, old, advantages, mask, None, options())[0], logp_trainer
        )
        return {"slope": found["grad_logp"]}

    def diagnostics(self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, **more: Any):
        settings, anchor = complete(parameters), more.get("logp_anchor")
        need(not settings["centering"] and not settings["rejection"], "no such statistic")
        n = logp_trainer if anchor is None else anchor
        if parameters.get("surrogate"):
            rule = settings["surrogate"]
            need(rule["kind"] == "ppo_clip", "no clip fraction for this loss")
            old = logp_sampler if anchor is None else anchor
            return {
                "clip_fraction": self._loss(rule, logp_trainer, old, more["advantages"], mask, None, options())[1][
                    "clip_ratio"
                ]
            }
        rule = settings["weight"]
        given = importance(rule) if rule else options(tis_ratio_type="token", token_tis_ratio_clip_high=2.0)
        _w, found, _mask = self.p.names["compute_off_policy_correction"](n, logp_sampler, mask, given)
        need(not rule or rule["level"] == "token", "ratio statistics are those of tokens")
        out = {key: found[name] for key, name in METRICS.items()}
        if rule:
            out["fraction_high"] = found["tis_token_clip_high_ratio"]
        m = mask.bool()
        ratio = (n - logp_sampler)[m].double().clamp(-CLAMP, CLAMP).exp()
        values = {"ratio_mean": ratio.mean(), "ratio_max": ratio.max(), "ratio_min": ratio.min()}
        return Named(out, CLAMPED, values=values)

    def objective(
        self, definition: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any, **more: Any
    ):
        plain_objective(definition, "SkyRL", ("rejection",))
        anchor, kind = more.get("logp_anchor"), definition["surrogate"]["kind"]
        rule, rules, aggregation = definition["weight"], definition["rejection"], definition["aggregation"]
        need(kind in ("reinforce", "ppo_clip"), f"{kind} is another loss function, not isolated")
        compared([*([rule] if rule else []), *definition["rejection"]], logp_trainer, anchor)
        need((kind == "reinforce") == (anchor is None), "the ratio p/o is always in the loss; at p = o it is REINFORCE")
        need(aggregation["kind"] in REDUCTIONS, f"no reduction {aggregation['kind']}")
        need(aggregation["tokens"] is None, "the token count is that of the mini-batch")
        need(aggregation["sequences"] in (None, len(mask)), "the row count is that of the mini-batch")
        need(not any(r["denominator"] == "shrunk" for r in rules), "denominators never shrink")
        raw = not rules or rule is None or rule["level"] == "token"
        need(raw, "the row product is taken over the tokens that survive the masks")
        given = vars(options()) | (vars(importance(rule)) if rule else {}) | (vars(rejection(rules)) if rules else {})
        if rule and rules:
            given |= {key: value for key, value in vars(importance(rule)).items() if value is not None}
        scaled = self.p.names["apply_loss_reduction_to_advantages_minibatch"](
            advantages, mask, REDUCTIONS[aggregation["kind"]], len(mask), aggregation["length"]
        )
        old = logp_trainer if anchor is None else anchor
        found = gradient(
            lambda logp: self._loss(
                definition["surrogate"], logp, old, scaled, mask, logp_sampler, SimpleNamespace(**given)
            )[0],
            logp_trainer,
        )
        settings = dict(definition)
        if aggregation["kind"].startswith("seq-mean"):
            settings["aggregation"] = {**aggregation, "sequences": len(mask)}
        if rule:
            settings["weight"] = {**rule, "log_clamp": CLAMP}
        settings["rejection"] = [{**r, "log_clamp": CLAMP} for r in rules]
        return Named({"grad_logp": found["grad_logp"]}, CLAMPED, settings=settings)

    def _loss(self, rule: dict, logp: Any, old: Any, advantages: Any, mask: Any, sampler: Any, given: Any) -> Any:
        config = SimpleNamespace(
            policy_loss_type="dual_clip" if rule.get("dual") else "regular",
            eps_clip_low=rule.get("eps_low", 0.2),
            eps_clip_high=rule.get("eps_high", 0.2),
            clip_ratio_c=rule.get("dual"),
            off_policy_correction=given,
        )
        return self.p.names["ppo_policy_loss"](logp, old, advantages, config, mask, sampler)


def importance(rule: dict[str, Any]) -> SimpleNamespace:
    """off_policy_correction of a weight rule."""
    level, high = rule["level"], rule["high"]
    need(level in ("token", "sequence"), f"no {level} importance weight")
    need(rule["statistic"] == "ratio" and rule["inside"] == "ratio", "the weight is the ratio")
    need(rule["positive"] is None and rule["negative"] is None and rule["sign"] == "both", "no bounds by sign")
    need(not rule["low"], "the cap is one-sided")
    need(rule["outside"] != "zero" or high is None, "weights are capped; a band edits the mask")
    need(rule["normalise"] is None, "no normalisation of weights")
    need(rule["log_clamp"] in (None, CLAMP), "the log clamp is fixed at 20")
    need(
        rule["log_clamp"] is None or rule["clamp_order"] == "aggregate" or level == "token",
        "the sum is clamped, not tokens",
    )
    return options(tis_ratio_type=level, **{f"{level}_tis_ratio_clip_high": float("inf") if high is None else high})


def rejection(rules: list[dict[str, Any]]) -> SimpleNamespace:
    """off_policy_correction of one rejection rule on the ratio."""
    need(len(rules) == 1 and rules[0]["statistic"] == "ratio", "masks are bands on the ratio")
    rule = rules[0]
    need(rule["closed"] and rule["sign"] == "both", "bounds are inclusive, for every sign")
    need(rule["log_clamp"] in (None, CLAMP), "the log clamp is fixed at 20")
    low, high = rule["low"] or 0.0, float("inf") if rule["high"] is None else rule["high"]
    if rule["reduce"] == "token":
        return options(token_mask_is_threshold_low=low, token_mask_is_threshold_high=high)
    need(rule["reduce"] in ("sum", "mean"), "a maximum is the outlier mask, which bounds every token on both sides")
    name, key = ("product", "product") if rule["reduce"] == "sum" else ("geometric", "geo")
    return options(sequence_mask_metric=name, **{f"{key}_mask_low": low, f"{key}_mask_high": high})
