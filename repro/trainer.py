"""Training of a tiny policy against a mismatched sampler: one arm, one warm start, one seed, one run.

    run_cell({"arm": "sc", "seed": 1, "steps": 100}, on_step=print, checkpoint_dir=Path("state"))

Each step: the sampler takes the trainer's weights, samples 8 responses to each of 32 problems at temperature 1;
advantages are rewards minus the group's mean, divided by its deviation only where ``advantage`` says so; one optimizer
step follows, or several on parts of the batch (``updates_per_rollout``), whose ratios an anchored arm forms against the
policy before the first of them. A row of metrics describes the policy that sampled the step's batch.

Every ``oracle_every`` steps the gradient of the very backward pass that trains is held against ``rlcorr_ref`` in float64
on the same logits; a deviation beyond 2e-5 of the contract's accuracy scale stops the run.

Runs are deterministic for a seed and a thread count. The whole state is one file, written to a temporary name and
renamed: a killed run resumes bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro import controls, readback
from repro.arms import ARMS
from repro.backward import Gradient, Loss, TrainingDiverged, evaluate, gradient
from repro.losses import LossBatch, check_definition, correction_loss
from repro.mismatch import Mismatch, measure
from repro.optimizers import Optimizer
from repro.policies import load_policy
from repro.samplers import Rollout, Sampler
from repro.settings import COUNTDOWN_TINY, TASKS, complete_config, definition_of, with_denominator
from repro.state import TrainingState
from repro.training_run import Learnt, TrainingRun, run_to_the_end
from repro.warmstart import held_out_accuracy

__all__ = ["ARMS", "COUNTDOWN_TINY", "Trainer", "TrainingDiverged", "run_cell"]

REPOSITORY = Path(__file__).resolve().parents[1]


class Trainer(TrainingRun):
    """The state of one run and its step. ``loss`` and ``sampler`` can be replaced, by tests and by other engines."""

    def __init__(self, config: Mapping[str, Any], *, loss: Loss | None = None, sampler: Sampler | None = None):
        self.config = complete_config(config)
        self.task = TASKS[self.config["task"]]
        self.arm = ARMS[self.config["arm"]]
        self.definition = definition_of(self.config)
        check_definition(self.definition)
        self.loss = loss or (controls.placebo_loss if self.arm.control.placebo else correction_loss)
        self.mismatch = Mismatch.from_config(self.config) if self.arm.mismatched else Mismatch()
        self.policy, self.policy_config = load_policy(REPOSITORY / self.config["checkpoint"])
        tokens = {"eos": self.task.EOS, "pad": self.task.PAD}
        self.sampler = sampler or self._engine(tokens)
        self.clean_sampler = Mismatch().sampler(self.policy_config, **tokens)
        self.snapshot = self.policy  # the weights the sampler last took; differs from the policy under staleness
        self.optimizer = Optimizer(self.config["optimizer"], self.config["lr"])
        self.problems_rng = np.random.default_rng(self.config["seed"])
        self.generator = torch.Generator().manual_seed(self.config["seed"])
        self.held_out = self.task.held_out_problems(self.config["eval_problems"])
        self.step = 0
        self.metrics: list[dict[str, Any]] = []

    def _engine(self, tokens: dict[str, int]) -> Sampler:
        if self.config["engine"] == "torch":
            return self.mismatch.sampler(self.policy_config, **tokens)
        from repro.samplers.vllm_sampler import vllm_sampler_from_config  # needs an environment with vLLM

        exact = {"engine_dtype": "float32", "engine_kv": "", "engine_quantization": ""}
        config = self.config if self.arm.mismatched else {**self.config, **exact}
        return vllm_sampler_from_config(config, self.policy_config, **tokens)

    def restore(self, state: TrainingState) -> None:
        """Continue from a saved state; a state of other settings is a ValueError naming them."""
        state.check_config(self.config)
        self.policy, self.snapshot, self.step = state.policy, state.snapshot, state.step
        self.optimizer.restore(state.optimizer)
        self.problems_rng.bit_generator.state = state.problems_rng
        self.generator.set_state(state.generator)
        self.metrics = state.metrics
        if self.step:
            self._load_sampler()

    def state(self) -> TrainingState:
        """Everything that the rest of the run depends on."""
        return TrainingState(
            self.config, self.step, self.policy, self.snapshot, self.optimizer.state(),
            self.problems_rng.bit_generator.state, self.generator.get_state(), self.metrics,
        )  # fmt: skip

    def _load_sampler(self) -> int | None:
        """Hand the snapshot over; nine digits of the hash of what the sampler then holds, None where it cannot say."""
        weights = self.mismatch.perturb(self.snapshot, self.config["seed"])
        self.sampler.load_weights(weights, self.step)
        held = getattr(self.sampler, "held_weights", None)
        return None if held is None else readback.confirm(self.mismatch.delivered(weights), held(), self.step)

    def _sample(self) -> tuple[Rollout, Tensor]:
        config = self.config
        problems = self.task.training_problems(self.problems_rng, config["prompts_per_step"])
        prompts = torch.tensor([self.task.prompt(problem) for problem in problems])
        rollout = self.sampler.generate(
            prompts, config["samples_per_prompt"], config["max_tokens"], config["temperature"], self.generator,
            config["head_k"],
        ).validate(self.task.VOCABULARY, config["head_k"])  # fmt: skip
        indices, responses = rollout.prompt_index.tolist(), rollout.tokens.tolist()
        rewards = [self.task.reward(problems[i], r) for i, r in zip(indices, responses, strict=True)]
        return rollout, torch.tensor(rewards)

    def _learn(self, rollout: Rollout, advantages: Tensor, number: int) -> Learnt:
        policy, logits, updates = self._update(rollout, advantages, number)
        errors = [u.oracle_error for u in updates if u.oracle_error is not None]
        norm = float(np.mean([u.norm for u in updates]))
        return Learnt(policy, measure(logits, rollout), norm, max(errors) if errors else None)

    def _update(self, rollout: Rollout, advantages: Tensor, number: int) -> tuple[dict, Tensor, list[Gradient]]:
        """The updates of one rollout; returns the new weights, logits of the policy before the first update, and the
        gradients."""
        where = {"arm": self.config["arm"], "step": number}
        batch = LossBatch(
            rollout.tokens, rollout.mask, advantages[:, None].expand_as(rollout.logp_sampler), rollout.logp_sampler,
            head_ids=rollout.head_ids, head_logp_sampler=rollout.head_logp_sampler,
        )  # fmt: skip
        policy, parts = self.policy, torch.arange(len(advantages)).chunk(self.config["updates_per_rollout"])
        before = None
        if self.arm.anchored:
            before = evaluate(policy, self.policy_config, rollout, torch.arange(len(advantages)), where)
            batch = replace(batch, logp_anchor=self._token_logp(before, rollout))
        if self.arm.control.placebo:
            batch = replace(batch, logp_sampler_full=rollout.logp_sampler_full)
            batch = controls.with_rotation(batch, self.task.VOCABULARY, (self.config["seed"], number),
                                           self.arm.control.placebo)  # fmt: skip
        updates = []
        for rows in parts:
            sequences, tokens = len(rows), int(rollout.mask[rows].sum())
            found = self._gradient(policy, rollout, batch, rows, self._checked(advantages, rows, number), where,
                                   (sequences, tokens))  # fmt: skip
            before = found.logits if before is None else before
            updates.append(found)
            policy = self.optimizer.step(policy, found.values)
        if self.arm.anchored and updates[0].oracle_error is not None:
            self._confirm_anchor(rollout, batch.logp_anchor, where)
        return policy, before, updates

    def _confirm_anchor(self, rollout: Rollout, anchor: Tensor, where: Mapping[str, Any]) -> None:
        """The anchor must be, bit for bit, what the weights before the first update give: no update may have moved it."""
        again = evaluate(self.policy, self.policy_config, rollout, torch.arange(len(anchor)), where)
        if not torch.equal(self._token_logp(again, rollout), anchor):
            raise TrainingDiverged(
                f"logp_anchor: changed during the updates of step {where['step']} of arm {where['arm']!r}; an update wrote "
                "into the policy or the batch in place - optimizers must return new tensors"
            )

    def _gradient(self, policy, rollout, batch, rows, checked, where, denominator) -> Gradient:
        """The arm's gradient on ``rows``, after its control has changed its length."""

        def along(definition: dict, loss: Loss, checked: list[int]) -> Gradient:
            definition = with_denominator(definition, *denominator)
            return gradient(policy, self.policy_config, rollout, batch, definition, loss, rows, checked, where)

        found, control = along(self.definition, self.loss, checked), self.arm.control
        target = found.norm
        if control.norm_of is not None:
            target = along(definition_of(self.config, control.norm_of), correction_loss, []).norm
        elif control.clip is not None:
            target = min(found.norm, control.clip)
        if target == found.norm:
            return found
        return replace(found, values=controls.scaled(found.values, found.norm, target))

    def _token_logp(self, logits: Tensor, rollout: Rollout) -> Tensor:
        logp = torch.log_softmax(logits / self.config["temperature"], dim=-1)
        return logp.gather(-1, rollout.tokens[..., None]).squeeze(-1)

    def _evaluate(self, number: int) -> dict[str, float]:
        """Held-out accuracy of the trainer's policy and of the sampler's, one response to each problem."""
        seed = 1_000_003 * self.config["seed"] + number
        self.clean_sampler.load_weights(self.policy, self.step)
        return {
            f"heldout_accuracy_{name}": held_out_accuracy(
                sampler, self.held_out, torch.Generator().manual_seed(seed), self.task
            )
            for name, sampler in (("trainer", self.clean_sampler), ("sampler", self.sampler))
        }


def run_cell(
    config: Mapping[str, Any],
    on_step: Callable[[dict[str, Any]], None] = lambda metrics: None,
    checkpoint_dir: Path | None = None,
    **replacements: Any,
) -> list[dict[str, Any]]:
    """Run one arm and seed to its last step; returns one metrics dict per step, those of earlier processes included.

    ``on_step`` is called with each newly computed row. With ``checkpoint_dir`` the state is saved every
    ``checkpoint_every`` steps and at the end, and an existing state is continued; ``replacements`` reach
    :class:`Trainer` (``loss``, ``sampler``). Raises ValueError for bad settings, ``OracleMismatch`` and
    ``TrainingDiverged`` when training goes wrong, ``StateError`` when the folder cannot be read or written.
    """
    return run_to_the_end(Trainer(config, **replacements), on_step, checkpoint_dir)
