"""ms-swift: the loss, weight and metric methods of its GRPO trainer, taken from the installed file.

Importing the trainer needs a GPU-sized dependency tree and trl < 1, so the methods are compiled out of
`swift/rlhf_trainers/grpo_trainer.py` and called with a plain object as `self`. Needs torch only.
"""

from __future__ import annotations

import math
from types import MethodType, SimpleNamespace
from typing import Any

from ..protocol import Named
from . import grpo_options as grpo
from .tools import bounded_k3, complete, file_of, gradient, isolate, need, plain_objective

NAME, TITLE = "ms-swift", "ms-swift"
DISTRIBUTION, VERIFIED = "ms-swift", ("4.6.0", "4.6.1")
DIALECT = "ms-swift"
ENTRY = "methods isolated from the installed file, from log-probs"
ABSENT = {
    "ratio": "the ratio is returned after truncation only; it is judged in family weight",
    "advantages": "advantages are formed over gathered rewards in a module that needs the whole package",
    "head_coefficients": "4.6.0 has no score centering",
    "log_softmax": "log-probs come from the model's forward pass",
    "quantise": "no quantiser",
    "shard": "sharding is the trainer's; token means are judged with a given count",
}
SOURCE = "swift/rlhf_trainers/grpo_trainer.py"
METHODS = (
    "_compute_loss_and_metrics",
    "_get_rollout_is_correction",
    "_apply_rollout_importance_sampling",
    "_compute_sequence_level_ratios",
    "_compute_off_policy_sequence_mask",
    "_compute_rollout_offpolicy_metrics",
    "_compute_is_correction_metrics",
    "_undo_gradient_accumulation_scaling",
)
CLAMP = 20.0
BY_NAME = "'sequence' is the geometric mean of the row (documented), and log-ratios are clamped to +-20 per token"
REDUCTIONS = ("dapo", "grpo", "dr_grpo")
METRICS = {
    "kl_k1": "kl",
    "kl_k3": "k3_kl",
    "ppl_trainer": "training_ppl",
    "ppl_sampler": "rollout_ppl",
    "log_ppl_diff_mean": "log_ppl_diff",
    "log_ppl_diff_abs": "log_ppl_abs_diff",
    "log_ppl_diff_max": "log_ppl_diff_max",
    "log_ppl_diff_min": "log_ppl_diff_min",
    "ppl_ratio": "ppl_ratio",
    "chi2_token": "chi2_token",
    "chi2_sequence": "chi2_seq",
}
RENAMED = {
    "kl_k3": "kl_k3@ms-swift",
    "ppl_trainer": "training_ppl@verl",
    "log_ppl_diff_mean": "log_ppl_diff@verl",
    "ppl_ratio": "ppl_ratio@verl",
    "chi2_sequence": "chi2_seq@ms-swift",
}


def load() -> Any:
    """The isolated methods; one process stands in for the distributed helpers."""
    import torch

    path = file_of(DISTRIBUTION, SOURCE)
    names = {"torch": torch, "gather": lambda x: x, "gather_object": lambda x: x}
    names |= {"nanmin": torch.min, "nanmax": torch.max}
    isolate(path, ("WINDOW_NORMALIZED_LOSS_TYPES",), names)
    isolate(path, METHODS, names, inside="GRPOTrainer")
    return Swift(SimpleNamespace(torch=torch, names=names))


class Swift:
    """Contract functions answered by ms-swift."""

    def __init__(self, package: SimpleNamespace) -> None:
        self.p = package

    def me(self, **options: Any) -> SimpleNamespace:
        """The stand-in trainer with the isolated methods bound to it."""
        me = grpo.trainer(
            {"rollout_importance_sampling_threshold": 2.0, "disable_rollout_importance_sampling": False, **options}
        )
        for name in METHODS:
            setattr(me, name, MethodType(self.p.names[name], me))
        return me

    def weight(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        mode, cap, meaning = mode_of(parameters)
        n = logp_trainer if logp_anchor is None or parameters["numerator"] == "trainer" else logp_anchor
        me = self.me(rollout_importance_sampling_mode=mode, rollout_importance_sampling_threshold=cap)
        w = me._apply_rollout_importance_sampling(n - logp_sampler, mask.bool())
        # the loss multiplies padding by the mask; it is left out of the comparison here and judged in the gradient
        return Named({"weights": self.p.torch.where(mask.bool(), w, 0.0)}, BY_NAME, settings=meaning)

    def reject(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any = None, **more: Any
    ):
        threshold = grpo.drop_rule(parameters["rejection"], more.get("logp_anchor"))
        need(advantages is not None, "the sequence mask needs advantages")
        grpo.one_advantage({"kind": "gspo"}, advantages, mask)
        m = mask.bool()
        row = self.p.torch.where(m, advantages, 0.0).sum(-1)
        me = self.me(off_policy_sequence_mask_delta=threshold)
        return {"mask": me._compute_off_policy_sequence_mask(logp_trainer, logp_sampler, m, row).unsqueeze(-1) & m}

    def surrogate(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any = None, **more: Any
    ):
        advantages = self.p.torch.ones_like(logp_trainer) if advantages is None else advantages
        grpo.one_advantage(parameters, advantages, mask)
        old = more.get("logp_anchor")
        old = None if parameters["kind"] == "reinforce" else logp_sampler if old is None else old
        aggregation = {"kind": "token-sum", "slope": True}
        found = gradient(lambda x: self.loss(x, old, advantages, mask, parameters, aggregation)[0], logp_trainer)
        return {"slope": found["grad_logp"]}

    def aggregate(self, parameters: dict, values: Any, mask: Any):
        """A token loss of `values`: advantages -values at ratio 1."""
        definition = grpo.all_rows({"aggregation": parameters}, len(mask))
        zero = self.p.torch.zeros_like(values)
        value, _ = self.loss(zero, None, -values, mask, {"kind": "reinforce"}, parameters)
        return Named({"value": value}, grpo.ALL_ROWS, settings=definition["aggregation"])

    def diagnostics(self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, **more: Any):
        settings, anchor = complete(parameters), more.get("logp_anchor")
        n, m = logp_trainer if anchor is None else anchor, mask.bool()
        me = self.me(rollout_importance_sampling_mode=None)
        found, names = me._compute_rollout_offpolicy_metrics(n, logp_sampler, m), dict(METRICS)
        renamed, rule = dict(RENAMED), settings["weight"]
        if rule is not None:
            mode, cap, _ = mode_of(rule)
            need(rule["level"] == "token", "row-level statistics have no counterpart")
            me = self.me(rollout_importance_sampling_mode=mode, rollout_importance_sampling_threshold=cap)
            d = n - logp_sampler
            found |= me._compute_is_correction_metrics(d, me._apply_rollout_importance_sampling(d, m), m)
            names |= {"weight_mean": "is_weight_mean", "ess": "ess", "fraction_high": "clipped_frac"}
            renamed |= {"ess": "ess@ms-swift", "fraction_high": "clipped_frac@ms-swift"}
        why = (
            "row metrics over all rows; chi2_seq is geometric; k3 bounded to [-10, 10]; ESS clamps weights to [1/C, C]"
        )
        return Named(
            {key: found[name] for key, name in names.items()},
            why,
            renamed=renamed,
            values=self._rows(n, logp_sampler, m),
        )

    def _rows(self, n: Any, q: Any, m: Any) -> dict[str, float]:
        from .verl_metrics import over_all_rows

        return over_all_rows(n, q, m)

    def objective(
        self, definition: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any, **more: Any
    ):
        need(
            not definition["centering"] and not definition["entropy"], "no option for centering or entropy in the loss"
        )
        gate, rule, kl = definition["gate"], definition["weight"], definition["kl"]
        need(gate is None, "a gate on weights is sequence_mask, judged in family gate")
        plain_objective(definition, "ms-swift", ("kl", "rejection"))
        anchor, kind = more.get("logp_anchor"), definition["surrogate"]["kind"]
        grpo.one_advantage(definition["surrogate"], advantages, mask)
        need(kl is None or kl["kind"] == "k3", "the KL term is k3")
        need((kind == "reinforce") == (anchor is None), grpo.OWN)
        need(
            rule is None or anchor is None or rule["numerator"] in (None, "anchor"), "weights compare the old log-probs"
        )
        threshold = grpo.drop_rule(definition["rejection"], anchor)
        mode, cap, meaning = (None, 2.0, None) if rule is None else mode_of(rule)
        changed = grpo.all_rows(definition, len(mask))
        if rule is not None:
            changed = {**changed, "weight": meaning, "kl": kl and {**kl, "weighted": True}}
        found = gradient(
            lambda logp: self.loss(
                logp,
                anchor,
                advantages,
                mask,
                definition["surrogate"],
                definition["aggregation"],
                mode=(mode, cap),
                sampler=logp_sampler,
                kl=(kl, more.get("logp_reference")),
                drop=threshold,
            )[0],
            logp_trainer,
        )
        why = f"{grpo.ALL_ROWS}; {BY_NAME}; the weight multiplies the KL term; k3 is bounded to [-10, 10]"
        shift = {} if rule is not None else bounded_k3(changed, logp_trainer, more.get("logp_reference"), mask)
        shift = {key: value for key, value in shift.items() if key == "grad_logp"}
        return Named({"grad_logp": found["grad_logp"]}, why, settings=changed, shift=shift)

    def loss(self, logp: Any, old: Any, advantages: Any, mask: Any, rule: dict, aggregation: dict, **more: Any) -> Any:
        """(loss, metrics) of `_compute_loss_and_metrics` with the given log-probs as the model's."""
        options = grpo.surrogate(rule)
        mode, cap = more.get("mode", (None, 2.0))
        kl, reference = more.get("kl", (None, None))
        me = self.me(
            **options,
            args=SimpleNamespace(
                delta=options["delta"], log_entropy=False, top_entropy_quantile=1.0, gradient_accumulation_steps=1
            ),
            loss_type=grpo.loss_type(rule, aggregation, REDUCTIONS),
            beta=0.0 if kl is None else kl["beta"],
            kl_in_reward=False,
            compute_entropy=False,
            overlong_filter=False,
            rollout_importance_sampling_mode=mode,
            rollout_importance_sampling_threshold=cap,
            log_rollout_offpolicy_metrics=False,
            off_policy_sequence_mask_delta=more.get("drop"),
            max_completion_length=aggregation.get("length"),
            sdar_loss_coef=0.0,
            chord_sft_iterator=None,
            _has_teacher=False,
            model_accepts_loss_kwargs=False,
            compute_loss_func=None,
            _get_per_token_logps_and_entropies=lambda *a, **k: (logp, None),
        )
        batch = SimpleNamespace(
            completion_mask=mask.bool(),
            truncated_mask=self.p.torch.zeros(len(mask), dtype=self.p.torch.bool),
            ref_per_token_logps=reference,
            advantages=advantages,
            old_per_token_logps=old,
            rollout_per_token_logps=more.get("sampler"),
            num_items_in_batch=grpo.items(aggregation, mask),
            teacher_per_token_logps=None,
        )
        return me._compute_loss_and_metrics(None, {}, batch)


def mode_of(rule: dict[str, Any]) -> tuple[str, float, dict[str, Any]]:
    """(mode, threshold, documented meaning) of a weight rule; a product over the row is asked for by the name
    "sequence".
    """
    level, high = rule["level"], rule["high"]
    gate = rule.get("gate")
    need(rule["statistic"] == "ratio" and rule["inside"] == "ratio", "the weight is the ratio, banded by the ratio")
    need(rule["positive"] is None and rule["negative"] is None and rule["sign"] == "both", "no bounds by sign")
    need(rule["closed"] and rule["normalise"] is None, "bands keep their ends, weights are not normalised")
    need(not rule["low"], "bounds are one-sided: no lower bound")
    need(rule["log_clamp"] in (None, CLAMP), "the log clamp is fixed at 20")
    meaning = {**rule, "log_clamp": CLAMP, "clamp_order": "token"}
    if gate:
        need(level == "token" and high is None, "sequence_mask leaves token weights raw")
        need(
            gate["level"] == "geometric" and not gate["low"] and gate["sign"] == "both" and gate["closed"],
            "the gate is geometric, upper only",
        )
        return "sequence_mask", gate["high"], meaning
    if level == "token":
        zero = rule["outside"] == "zero"
        return "token_mask" if zero else "token_truncate", math.inf if high is None else high, meaning
    need(level in ("sequence", "geometric"), f"no {level} importance weight")
    need(rule["outside"] != "zero" or high is None, "sequence_mask gates token weights, it has no row weight")
    return "sequence_truncate", math.inf if high is None else high, {**meaning, "level": "geometric"}
