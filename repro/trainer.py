"""On-policy-by-intention training of a tiny policy against a mismatched sampler: one arm, one seed, one run.

    run_cell({"arm": "sc", "seed": 1, "steps": 100}, on_step=print, checkpoint_dir=Path("state"))

Each step: the sampler takes the trainer's weights, samples 8 responses to each of 32 problems at temperature 1; rewards
are +1 or -1, advantages are rewards minus the group's mean (no division by its deviation); the loss is the sum over
tokens divided by the number of sequences; one plain SGD update in float32 (no momentum, no clipping). A row of metrics
describes the policy that sampled the step's batch, before the update that the batch causes.

Every ``oracle_every`` steps the gradient of the very backward pass that trains is held against ``rlcorr_ref`` in float64
on the same logits; a deviation beyond 2e-5 of the contract's accuracy scale stops the run.

Runs are deterministic for a seed and a thread count. The whole state is one file, written to a temporary name and
renamed: a killed run resumes bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.arms import ARMS, COUNTDOWN_TINY, complete_config, definition_of
from repro.losses import LossBatch, check_definition, correction_loss
from repro.mismatch import Mismatch, measure
from repro.oracle import compare
from repro.policies import forward, load_policy
from repro.samplers import Rollout, Sampler
from repro.state import TrainingState, load_state, save_state
from repro.tasks import countdown_tiny as task
from repro.warmstart import held_out_accuracy

__all__ = ["ARMS", "COUNTDOWN_TINY", "Trainer", "TrainingDiverged", "run_cell"]

REPOSITORY = Path(__file__).resolve().parents[1]
CHUNK_ROWS = 32  # rows of one backward pass: activations of 32 x 72 tokens stay in the processor's cache
LOSS = Callable[[Tensor, LossBatch, Mapping[str, Any]], Tensor]


class TrainingDiverged(RuntimeError):
    """A number that is not finite reached the update; the message says where and what to do."""


class Trainer:
    """The state of one run and its step. ``loss`` and ``sampler`` can be replaced, by tests and by other engines."""

    def __init__(self, config: Mapping[str, Any], *, loss: LOSS = correction_loss, sampler: Sampler | None = None):
        self.config = complete_config(config)
        self.loss, self.definition = loss, definition_of(self.config)
        check_definition(self.definition)
        self.mismatch = Mismatch.from_config(self.config) if ARMS[self.config["arm"]].mismatched else Mismatch()
        self.policy, self.policy_config = load_policy(REPOSITORY / self.config["checkpoint"])
        self.sampler = sampler or self.mismatch.sampler(self.policy_config, eos=task.EOS, pad=task.PAD)
        self.clean_sampler = Mismatch().sampler(self.policy_config, eos=task.EOS, pad=task.PAD)
        self.snapshot = self.policy  # the weights the sampler last took; differs from the policy under staleness
        self.problems_rng = np.random.default_rng(self.config["seed"])
        self.generator = torch.Generator().manual_seed(self.config["seed"])
        self.held_out = task.held_out_problems(self.config["eval_problems"])
        self.step = 0
        self.metrics: list[dict[str, Any]] = []

    def restore(self, state: TrainingState) -> None:
        """Continue from a saved state; a state of other settings is a ValueError naming them."""
        state.check_config(self.config)
        self.policy, self.snapshot, self.step = state.policy, state.snapshot, state.step
        self.problems_rng.bit_generator.state = state.problems_rng
        self.generator.set_state(state.generator)
        self.metrics = state.metrics
        if self.step:
            self._load_sampler()

    def state(self) -> TrainingState:
        """Everything that the rest of the run depends on."""
        return TrainingState(
            self.config, self.step, self.policy, self.snapshot, self.problems_rng.bit_generator.state,
            self.generator.get_state(), self.metrics,
        )  # fmt: skip

    def run_step(self) -> dict[str, Any]:
        """Sample, measure, update; returns the step's metrics (None where not measured at this step)."""
        started = time.perf_counter()
        config = self.config
        number = self.step + 1
        if self.mismatch.refreshes(self.step):
            self.snapshot = {name: value.clone() for name, value in self.policy.items()}
            self._load_sampler()
        problems = task.training_problems(self.problems_rng, config["prompts_per_step"])
        prompts = torch.tensor([task.prompt(problem) for problem in problems])
        rollout = self.sampler.generate(
            prompts, config["samples_per_prompt"], config["max_tokens"], config["temperature"], self.generator,
            config["head_k"],
        ).validate(task.VOCABULARY, config["head_k"])  # fmt: skip
        rewards = self._rewards(problems, rollout)
        groups = rewards.view(-1, config["samples_per_prompt"])
        advantages = (groups - groups.mean(dim=1, keepdim=True)).flatten()
        logits, oracle_error = self._backward(rollout, advantages, number)
        lengths = rollout.mask.sum(-1).double()
        metrics = {
            "step": number,
            "train_accuracy": float((rewards > 0).double().mean()),
            "reward_mean": float(rewards.double().mean()),
            **dict.fromkeys(("heldout_accuracy_trainer", "heldout_accuracy_sampler")),
            **measure(logits, rollout),
            "eos_rate": float(rollout.ended.double().mean()),
            "response_length": float(lengths.mean()),
            "gradient_groups": float((groups != groups[:, :1]).any(dim=1).double().mean()),
            "grad_norm": self._gradient_norm(number),
            "oracle_error": oracle_error,
        }
        if number == 1 or number % config["eval_every"] == 0:
            metrics |= self._evaluate(number)
        with torch.no_grad():
            self.policy = {
                name: value.detach() if value.grad is None else (value - config["lr"] * value.grad).detach()
                for name, value in self.policy.items()
            }
        metrics["seconds"] = time.perf_counter() - started
        self.step = number
        self.metrics.append(metrics)
        return metrics

    def _load_sampler(self) -> None:
        self.sampler.load_weights(self.mismatch.perturb(self.snapshot, self.config["seed"]), self.step)

    @staticmethod
    def _rewards(problems: list[task.Problem], rollout: Rollout) -> Tensor:
        indices, responses = rollout.prompt_index.tolist(), rollout.tokens.tolist()
        return torch.tensor([task.reward(problems[i], r) for i, r in zip(indices, responses, strict=True)])

    def _backward(self, rollout: Rollout, advantages: Tensor, number: int) -> tuple[Tensor, float | None]:
        """Accumulate the gradient; returns detached logits of all rows and the oracle error if it was measured.

        Rows of zero advantage contribute exactly nothing and get a forward pass only, for the diagnostics - except one
        of them on oracle steps, which shows that nothing is what the loss makes of it.
        """
        for value in self.policy.values():
            value.requires_grad_()
            value.grad = None
        lengths = rollout.mask.sum(-1)
        active = (advantages != 0).nonzero().squeeze(-1)
        passive = (advantages == 0).nonzero().squeeze(-1)
        checked = self._oracle_rows(active, passive, number)
        trained = torch.cat([active, torch.tensor([r for r in checked if advantages[r] == 0], dtype=torch.int64)])
        logits = torch.zeros(*rollout.tokens.shape, task.VOCABULARY)
        batch = LossBatch(
            rollout.tokens, rollout.mask, advantages[:, None].expand_as(rollout.logp_sampler), rollout.logp_sampler,
            head_ids=rollout.head_ids, head_logp_sampler=rollout.head_logp_sampler,
        )  # fmt: skip
        error = None
        for rows in self._chunks(trained, lengths):
            longest = int(lengths[rows].max())
            chunk = self._logits(rollout, rows, longest)
            chunk.retain_grad()
            part = batch.rows(rows, longest)
            self._finite(chunk.detach(), part.mask, rows, number)
            self.loss(chunk, part, self.definition).backward()
            logits[rows, :longest] = chunk.detach()
            for row in checked:
                if (place := (rows == row).nonzero()).numel():
                    at = slice(int(place), int(place) + 1)
                    where = {"arm": self.config["arm"], "step": number, "row": row}
                    found = compare(chunk.detach()[at], chunk.grad[at], part.rows(at), self.definition, where)
                    error = max(found, error or 0.0)
        rest = torch.tensor([r for r in passive.tolist() if r not in checked], dtype=torch.int64)
        with torch.no_grad():
            for rows in self._chunks(rest, lengths):
                longest = int(lengths[rows].max())
                logits[rows, :longest] = self._logits(rollout, rows, longest)
                self._finite(logits[rows, :longest], rollout.mask[rows, :longest], rows, number)
        return logits, error

    @staticmethod
    def _chunks(rows: Tensor, lengths: Tensor) -> list[Tensor]:
        """Rows in pieces of similar length, so that each piece is cut to its own longest response."""
        return [piece for piece in rows[lengths[rows].argsort(stable=True)].split(CHUNK_ROWS) if len(piece)]

    def _logits(self, rollout: Rollout, rows: Tensor, longest: int) -> Tensor:
        """Trainer logits [rows, longest, V], row t predicting response token t."""
        sequence = torch.cat([rollout.prompts[rows], rollout.tokens[rows, : longest - 1]], dim=1)
        return forward(self.policy, self.policy_config, sequence)[:, rollout.prompts.shape[1] - 1 :]

    def _oracle_rows(self, active: Tensor, passive: Tensor, number: int) -> list[int]:
        """Rows held against the reference at this step: one of zero advantage if there is one, the others not."""
        if number % self.config["oracle_every"] and number != 1:
            return []
        rng = np.random.default_rng([self.config["seed"], number])
        rows = [int(r) for r in rng.permutation(passive.numpy())[:1]]
        return rows + [int(r) for r in rng.permutation(active.numpy())[: self.config["oracle_rows"] - len(rows)]]

    def _finite(self, logits: Tensor, mask: Tensor, rows: Tensor, number: int) -> None:
        bad = ~torch.isfinite(logits).all(-1) & mask
        if bad.any():
            row, token = (int(i) for i in bad.nonzero()[0])
            raise TrainingDiverged(
                f"logits: not finite at step {number}, row {int(rows[row])}, token {token} of arm {self.config['arm']!r}; "
                "the policy has diverged: lower lr, or resume from the last saved state with other settings"
            )

    def _gradient_norm(self, number: int) -> float:
        squares = [float(v.grad.double().square().sum()) for v in self.policy.values() if v.grad is not None]
        norm = float(np.sqrt(sum(squares)))
        if not np.isfinite(norm):
            raise TrainingDiverged(
                f"gradient: its norm is {norm} at step {number} of arm {self.config['arm']!r}; no update was made and the "
                "saved state is intact: lower lr, or bound the weights"
            )
        return norm

    def _evaluate(self, number: int) -> dict[str, float]:
        """Held-out accuracy of the trainer's policy and of the sampler's, one response to each problem."""
        seed = 1_000_003 * self.config["seed"] + number
        self.clean_sampler.load_weights(self.policy, self.step)
        return {
            f"heldout_accuracy_{name}": held_out_accuracy(sampler, self.held_out, torch.Generator().manual_seed(seed))
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
    trainer = Trainer(config, **replacements)
    if checkpoint_dir is not None and (saved := load_state(checkpoint_dir)) is not None:
        trainer.restore(saved)
    steps = trainer.config["steps"]
    while trainer.step < steps:
        metrics = trainer.run_step()
        due = trainer.step % trainer.config["checkpoint_every"] == 0 or trainer.step == steps
        if checkpoint_dir is not None and due:
            save_state(checkpoint_dir, trainer.state())
        on_step(metrics)
    return trainer.metrics[:steps]
