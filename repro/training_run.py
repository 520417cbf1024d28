"""The frame of a training run, whatever trains: sample, reward, update, measure, evaluate, save, continue.

`repro.trainer` fills it in for the tiny policies on a CPU, `repro.gpu.trainer` for Hugging Face models. Both so have one
order of events, one table of metrics and one way to continue after a kill.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repro import controls
from repro.arms import Arm
from repro.mismatch import Mismatch
from repro.policies import State
from repro.samplers import Rollout
from repro.state import TrainingState, load_state, save_state


class Learnt(NamedTuple):
    """What one rollout's updates gave: the new weights, measurements of the mismatch before them, the mean norm of their
    gradients, and the largest scaled error against the reference (None where nothing was compared)."""

    policy: State
    measures: Mapping[str, float]
    grad_norm: float
    oracle_error: float | None


def advantages_from(groups: Tensor, kind: str) -> Tensor:
    """[B] from rewards [groups, samples].

    "mean": minus the group's mean; "mean_std": that over the group's deviation; "raw": the reward itself; "raw01": 1 for a
    positive reward, else 0.
    """
    if kind.startswith("raw"):
        return (groups if kind == "raw" else (groups > 0).to(groups.dtype)).flatten()
    advantages = groups - groups.mean(dim=1, keepdim=True)
    if kind == "mean_std":
        advantages = advantages / (groups.std(dim=1, keepdim=True) + 1e-6)
    return advantages.flatten()


class TrainingRun(ABC):
    """The state of one run and its step. A subclass sets the attributes below and says how its parts are made."""

    config: dict[str, Any]
    arm: Arm
    mismatch: Mismatch
    policy: State
    snapshot: State  # the weights the sampler last took; differs from the policy under staleness
    step: int
    metrics: list[dict[str, Any]]

    @abstractmethod
    def restore(self, state: TrainingState) -> None:
        """Continue from a saved state; a state of other settings is a StateError naming them."""

    @abstractmethod
    def state(self) -> TrainingState:
        """Everything that the rest of the run depends on."""

    @abstractmethod
    def _load_sampler(self) -> int | None:
        """Hand the snapshot over; nine digits of the hash of what the sampler then holds, None where it cannot say."""

    @abstractmethod
    def _sample(self) -> tuple[Rollout, Tensor]:
        """The step's rollout, validated, and its rewards [B], groups of one problem side by side."""

    @abstractmethod
    def _learn(self, rollout: Rollout, advantages: Tensor, number: int) -> Learnt:
        """The updates of one rollout at step ``number``; ``self.policy`` stays as it is until the step is over."""

    @abstractmethod
    def _evaluate(self, number: int) -> dict[str, float]:
        """Held-out accuracy of the trainer's policy without quantisation and of the sampler's."""

    def run_step(self) -> dict[str, Any]:
        """Sample, measure, update; returns the step's metrics (None where not measured at this step)."""
        started = time.perf_counter()
        number, held = self.step + 1, None
        if self.mismatch.refreshes(self.step):
            self.snapshot = {name: value.clone() for name, value in self.policy.items()}
            held = self._load_sampler()
        rollout, rewards = self._sample()
        groups = rewards.view(-1, self.config["samples_per_prompt"])
        learnt = self._learn(rollout, self._advantages(groups), number)
        metrics = {
            "step": number,
            "train_accuracy": float((rewards > 0).double().mean()),
            "reward_mean": float(rewards.double().mean()),
            **dict.fromkeys(("heldout_accuracy_trainer", "heldout_accuracy_sampler")),
            **learnt.measures,
            "eos_rate": float(rollout.ended.double().mean()),
            "response_length": float(rollout.mask.sum(-1).double().mean()),
            "gradient_groups": float((groups != groups[:, :1]).any(dim=1).double().mean()),
            "grad_norm": learnt.grad_norm,
            "update_norm": controls.norm({name: learnt.policy[name] - value for name, value in self.policy.items()}),
            "oracle_error": learnt.oracle_error,
            "weights_read_back": held,
        }
        if number == 1 or number % self.config["eval_every"] == 0:
            # Before the update, as everything else in this row: it describes the policy that sampled the batch.
            metrics |= self._evaluate(number)
        self.policy = learnt.policy
        metrics["seconds"] = time.perf_counter() - started
        self.step = number
        self.metrics.append(metrics)
        return metrics

    def _advantages(self, groups: Tensor) -> Tensor:
        """`advantages_from` by the setting ``advantage``; a constant where the arm is such a control."""
        if self.arm.control.constant is not None:
            return torch.full((groups.numel(),), self.arm.control.constant)
        return advantages_from(groups, self.config["advantage"])

    def _checked(self, advantages: Tensor, rows: Tensor, number: int) -> list[int]:
        """Rows held against the reference at this step: one of zero advantage if there is one, the others not."""
        if number % self.config["oracle_every"] and number != 1:
            return []
        rng = np.random.default_rng([self.config["seed"], number, int(rows[0])])
        zero = advantages[rows] == 0
        first = [int(r) for r in rng.permutation(rows[zero].numpy())[:1]]
        return first + [int(r) for r in rng.permutation(rows[~zero].numpy())[: self.config["oracle_rows"] - len(first)]]


def run_to_the_end(
    trainer: TrainingRun, on_step: Callable[[dict[str, Any]], None], checkpoint_dir: Path | None
) -> list[dict[str, Any]]:
    """Run ``trainer`` to its last step; returns one metrics dict per step, those of earlier processes included.

    ``on_step`` is called with each newly computed row. With ``checkpoint_dir`` an existing state is continued, and the
    state is saved every ``checkpoint_every`` steps and at the end, before the row is reported.
    """
    if checkpoint_dir is not None and (saved := load_state(checkpoint_dir)) is not None:
        trainer.restore(saved)
    steps, every = trainer.config["steps"], trainer.config["checkpoint_every"]
    while trainer.step < steps:
        metrics = trainer.run_step()
        if checkpoint_dir is not None and (trainer.step % every == 0 or trainer.step == steps):
            save_state(checkpoint_dir, trainer.state())
        on_step(metrics)
    return trainer.metrics[:steps]
