"""verl: rollout correction, policy losses, reductions, advantages and metrics, called as the trainer calls them.

Imports `verl.trainer.ppo.rollout_corr_helper` and `core_algos` (CPU; needs tensordict, omegaconf, ray, codetiming,
transformers). Three policies: the decoupled pipeline (weights and rejection of the old log-probs, then the
registered policy loss). Two policies: `compute_policy_loss_bypass_mode`. Denominators "kept" are the global counts
that the engine passes in.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from ..protocol import Named
from . import verl_options as options
from .tools import bounded_k3, gradient, need, plain_objective
from .verl_metrics import LOSSES, metrics

NAME, TITLE = "verl", "verl"
DISTRIBUTION, VERIFIED = "verl", ("0.9.1", "0.9.2")
DIALECT = "verl"
ENTRY = "imported functions, from log-probs"
ABSENT = {
    "ratio": "weights are returned after truncation only; the ratio is judged in family weight",
    "head_coefficients": "0.9.1 has no score centering",
    "log_softmax": "log-probs come from the engine's forward pass",
    "quantise": "no quantiser",
    "shard": "sharding is the engine's; the reductions are judged with global counts",
}


def load() -> Any:
    """The adapter's functions bound to the imported package."""
    import torch
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo import core_algos, rollout_corr_helper
    from verl.workers.config import ActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    configs = {"actor": ActorConfig, "policy": PolicyLossConfig, "correction": RolloutCorrectionConfig}
    return Verl(SimpleNamespace(torch=torch, algos=core_algos, helper=rollout_corr_helper, **configs))


class Verl:
    """Contract functions answered by verl."""

    def __init__(self, package: SimpleNamespace) -> None:
        self.p = package

    def weight(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        need(not parameters.get("gate"), "verl has no gate on a weight; rejection edits the mask")
        level, threshold, normalise = options.importance(parameters)
        n = options.numerator(parameters, logp_trainer, logp_anchor)
        w, _metrics = self.p.helper.compute_rollout_correction_weights(
            n - logp_sampler, mask, level, threshold, normalise
        )
        meaning = {**parameters, "log_clamp": options.CLAMP, "clamp_order": "aggregate"}
        return Named({"weights": w}, options.CLAMPED, settings=meaning)

    def reject(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        rules = parameters["rejection"]
        names, thresholds = options.rejection(rules)
        n = options.numerator(rules[0], logp_trainer, logp_anchor)
        kept, _metrics = self.p.helper.compute_rollout_rejection_mask(n - logp_sampler, mask, names, thresholds)
        clamped = {"rejection": [{**rule, "log_clamp": options.CLAMP} for rule in rules]}
        return Named({"mask": kept}, options.CLAMPED, settings=clamped)

    def surrogate(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any = None, **more: Any
    ):
        advantages = self.p.torch.ones_like(logp_trainer) if advantages is None else advantages
        old = more.get("logp_anchor")
        old = logp_sampler if old is None else old
        loss = self.p.algos.get_policy_loss_fn(LOSSES[parameters["kind"]])
        config = self._config(parameters, {"kind": "token-sum"})
        found = gradient(lambda logp: loss(old, logp, advantages, mask, "token-sum", config)[0], logp_trainer)
        return {"slope": found["grad_logp"]}

    def aggregate(self, parameters: dict, values: Any, mask: Any):
        found = gradient(lambda x: self.p.algos.agg_loss(x, mask, **options.reduction(parameters)), values)
        return {"value": found["loss"], "coefficients": found["grad_logp"]}

    def advantages(self, parameters: dict, rewards: Any, groups: Any):
        kind, one = parameters["kind"], self.p.torch.ones(len(rewards), 1, dtype=self.p.torch.int64)
        need(parameters.get("ddof", 1) == 1, "the standard deviation is the sample one (ddof 1)")
        need(parameters.get("eps", 1e-6) == 1e-6, "epsilon is 1e-6 and no option")
        index = groups.tolist()
        alone = options.singletons(parameters, rewards, index)
        rewards = rewards.clone().unsqueeze(-1)  # the estimators write into their input
        if kind == "leave_one_out":
            found, _ = self.p.algos.compute_rloo_outcome_advantage(rewards, one, index)
        else:
            found, _ = self.p.algos.compute_grpo_outcome_advantage(
                rewards, one, index, norm_adv_by_std_in_grpo=kind == "mean_std"
            )
        return Named({"advantages": found.squeeze(-1)}, options.SINGLETON, values={"advantages": alone})

    def diagnostics(self, parameters: dict, **inputs: Any):
        return metrics(self, parameters, **inputs)

    def objective(
        self, definition: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, advantages: Any, **more: Any
    ):
        plain_objective(definition, "verl", ("kl", "rejection"))
        need(bool(mask.any()), "verl refuses a batch without a valid token (ValueError)")
        anchor, rule, rules = more.get("logp_anchor"), definition["weight"], definition["rejection"]
        kind, kl = definition["surrogate"]["kind"], definition["kl"]
        need(kl is None or not kl["weighted"], "the KL term is never multiplied by the weight")
        need(not (anchor is None and kl and rules), "in bypass mode rejection leaves the KL term alone")
        counts = options.counts(definition["aggregation"], mask, rules)
        settings = options.correction(rule, rules)
        bypass = anchor is None and kind in ("reinforce", "ppo_clip")
        config = self._config(
            definition["surrogate"],
            {**definition["aggregation"], **counts},
            {**settings, "bypass_mode": True, "loss_type": kind} if bypass else None,
        )
        mode, kept = definition["aggregation"]["kind"], mask
        out: dict[str, Any] = {}
        if anchor is None:
            need(kind == "reinforce" or rule is None, "bypass mode applies no weight to a clipped surrogate")
            need(
                kind in ("reinforce", "ppo_clip") or not rules, "bypass mode has the losses reinforce and ppo_clip only"
            )
            policy = self.p.algos.get_policy_loss_fn("bypass_mode" if bypass else LOSSES[kind])
            found = gradient(
                lambda logp: (
                    policy(logp_sampler, logp, advantages, mask, mode, config)[0]
                    + self._kl(kl, logp, more, mask, mode, config)
                ),
                logp_trainer,
            )
        else:
            options.anchored(rule, rules)
            w, kept, _ = self.p.helper.compute_rollout_correction_and_rejection_mask(
                anchor, logp_sampler, mask, **settings
            )
            w = None if w is None else w.batch["rollout_is_weights"]
            policy = self.p.algos.get_policy_loss_fn(LOSSES[kind])
            found = gradient(
                lambda logp: (
                    policy(anchor, logp, advantages, kept, mode, config, w)[0]
                    + self._kl(kl, logp, more, kept, mode, config)
                ),
                logp_trainer,
            )
            if w is not None:
                out["weights"] = w
        out |= {"grad_logp": found["grad_logp"], "loss": found["loss"]}
        shift = bounded_k3(definition, logp_trainer, more.get("logp_reference"), kept)
        return Named(out, options.CLAMPED, settings=options.clamped(definition), shift=shift)

    def _kl(self, rule: dict | None, logp: Any, more: dict, mask: Any, mode: str, config: Any) -> Any:
        """beta * agg_loss(kl_penalty), as `verl/workers/utils/losses.py` adds it."""
        if rule is None:
            return 0.0
        penalty = self.p.algos.kl_penalty(logp, more["logp_reference"], rule["kind"])
        return rule["beta"] * self.p.algos.agg_loss(penalty, mask, mode, **config.global_batch_info)

    def _config(self, surrogate: dict, aggregation: dict, correction: dict | None = None) -> Any:
        """An ActorConfig; absent bounds of the surrogate as values that never bind, and no dual clip unless asked
        for.
        """
        policy = (
            {}
            if correction is None
            else {"policy_loss": self.p.policy(rollout_correction=self.p.correction(**correction))}
        )
        low, high = surrogate.get("eps_low"), surrogate.get("eps_high")
        config = self.p.actor(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            use_dynamic_bsz=False,
            clip_ratio_low=1.0 if low is None else low,
            clip_ratio_high=math.inf if high is None else high,
            clip_ratio_c=surrogate.get("dual") or 1e30,
            **policy,
        )
        config.global_batch_info.update(
            {k: v for k, v in options.reduction(aggregation).items() if k != "loss_agg_mode"}
        )
        return config
