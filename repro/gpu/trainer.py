"""Training of a Hugging Face model on official Countdown against a mismatched sampler: one arm, one seed, one device.

    run_cell({"arm": "sc", "seed": 1, "steps": 400, "checkpoint": "models/qwen3"}, on_step=print, checkpoint_dir=Path("state"))

The contract and the columns are those of ``repro.trainer``: each step the sampler takes the trainer's weights (every
``staleness`` + 1 steps), samples a group of responses to each problem, advantages are rewards (+1, -1) minus the group's
mean, one optimizer step follows on the gradient of the whole batch, which is made in micro-batches by the loss without
extra arrays over the vocabulary. After every update of the sampler its rows are compared with the trainer's; every
``oracle_every`` steps a few tokens' training gradients are held against ``rlcorr_ref`` in float64.

Held-out accuracies are means over ``eval_samples`` responses to each held-out problem.

Not yet run on a GPU. On the CPU, runs are deterministic for a seed and a thread count and a killed run resumes bit for
bit; on a GPU that also needs kernels that sum in a fixed order, which nobody has checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repro.arms import ARMS
from repro.backward import Loss
from repro.gpu.backward import gradient
from repro.gpu.engines import ENGINES, EngineFactory
from repro.gpu.hf_policy import load_model
from repro.gpu.hf_sampler import HFSampler
from repro.gpu.refit import RefitProbe
from repro.gpu.settings import COMPUTE, complete_config, resolve_device
from repro.gpu.task import CountdownTask
from repro.head_only import head_only_loss
from repro.losses import LossBatch, check_definition
from repro.mismatch import Mismatch
from repro.optimizers import Optimizer
from repro.policies import State
from repro.samplers import Rollout, Sampler
from repro.settings import definition_of, with_denominator
from repro.state import TrainingState
from repro.tasks import countdown
from repro.tasks.countdown import Row
from repro.training_run import Learnt, TrainingRun, run_to_the_end

__all__ = ["GpuTrainer", "run_cell"]

REPOSITORY = Path(__file__).resolve().parents[2]
PROBES = 16
CYCLE = 1_000_003  # apart from the seeds of training


class GpuTrainer(TrainingRun):
    """The state of one run and its step.

    ``engine(config, policy, eos)`` makes the sampler, by default the one that the settings name; ``loss`` and ``accept``
    (the rule that a response is correct) can be replaced, by tests and by the dry run.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        engine: EngineFactory | None = None,
        loss: Loss = head_only_loss,
        accept: Callable[[Row, str], float] = countdown.reward,
    ):
        self.config = complete_config(config)
        self.arm = ARMS[self.config["arm"]]
        self.definition = definition_of(self.config)
        check_definition(self.definition)
        self.loss = loss
        mismatch = Mismatch.from_config(self.config)
        self.mismatch = mismatch if self.arm.mismatched else Mismatch()
        device, compute = resolve_device(self.config["device"]), COMPUTE[self.config["compute"]]
        self.model, tokenizer = load_model(REPOSITORY / self.config["checkpoint"], device, compute)
        self.task = CountdownTask(
            tokenizer, pad=self.model.pad, seed=self.config["seed"], data_rows=self.config["data_rows"],
            held_out=self.config["eval_problems"], accept=accept,
        )  # fmt: skip
        self.policy = self.model.initial_state()
        self.sampler: Sampler = (engine or ENGINES[self.config["engine"]])(self.config, self.model, self.task.eos)
        self.clean_sampler = HFSampler(self.model, eos=self.task.eos)
        self.refit = RefitProbe(self.model, self.task.probes((self.task.held_out + self.task.training)[:PROBES]))
        self.snapshot = self.policy  # the weights the sampler last took; differs from the policy under staleness
        self.optimizer = Optimizer(self.config["optimizer"], self.config["lr"])
        self.generator = torch.Generator().manual_seed(self.config["seed"])
        self.step = 0
        self.metrics: list[dict[str, Any]] = []

    def restore(self, state: TrainingState) -> None:
        """Continue from a saved state; a state of other settings is a StateError naming them."""
        state.check_config(self.config)
        # In the model's own order: a file lists weights by name, and a norm summed in another order has other last bits.
        self.policy, self.snapshot = (
            self._on_device({name: part[name] for name in self.policy}) for part in (state.policy, state.snapshot)
        )
        self.step = state.step
        self.optimizer.restore(self._on_device(state.optimizer))
        self.generator.set_state(state.generator)
        self.metrics = state.metrics
        if self.step:
            self._load_sampler()

    def state(self) -> TrainingState:
        """Everything that the rest of the run depends on; problems follow from the seed and the step alone."""
        return TrainingState(
            self.config, self.step, self.policy, self.snapshot, self.optimizer.state(), {}, self.generator.get_state(),
            self.metrics,
        )  # fmt: skip

    def _sample(self) -> tuple[Rollout, Tensor]:
        problems = self.task.problems(self.step, self.config["prompts_per_step"])
        samples, head_k = self.config["samples_per_prompt"], self.config["head_k"]
        rollout = self._sampled(self.sampler, problems, samples, head_k, self.generator)
        return rollout, self._rewards(problems, rollout)

    def _learn(self, rollout: Rollout, advantages: Tensor, number: int) -> Learnt:
        batch = LossBatch(
            rollout.tokens, rollout.mask, advantages[:, None].expand_as(rollout.logp_sampler), rollout.logp_sampler,
            head_ids=rollout.head_ids, head_logp_sampler=rollout.head_logp_sampler,
            logp_sampler_full=rollout.logp_sampler_full,
        )  # fmt: skip
        definition = with_denominator(self.definition, len(advantages), int(rollout.mask.sum()))
        checked = self._checked(advantages, torch.arange(len(advantages)), number)
        found = gradient(
            self.model, self.policy, rollout, batch, definition, self.loss, checked, self.config["micro_batch"],
            {"arm": self.config["arm"], "step": number},
        )  # fmt: skip
        policy = self.optimizer.step(self.policy, found.values)
        return Learnt(policy, found.measures, found.norm, found.oracle_error)

    def _load_sampler(self) -> None:
        """Updates are compared by the sampler's log-probs (`repro.gpu.refit`) and not by a hash of its weights."""
        weights = self.snapshot
        if self.mismatch.weight_noise:  # drawn on the CPU: the same noise on every device
            on_cpu = {name: value.cpu() for name, value in weights.items()}
            weights = self._on_device(self.mismatch.perturb(on_cpu, self.config["seed"]))
        self.sampler.load_weights(weights, self.step)
        if hasattr(self.sampler, "next_logp"):
            self.refit(self.sampler, weights)

    def _on_device(self, state: State) -> State:
        return {name: value.to(self.model.device) for name, value in state.items()}

    def _sampled(
        self, sampler: Sampler, problems: list[Row], samples: int, head_k: int, generator: torch.Generator
    ) -> Rollout:
        config = self.config
        return sampler.generate(
            self.task.prompts(problems), samples, config["max_tokens"], config["temperature"], generator, head_k
        ).validate(self.model.vocabulary, head_k)

    def _rewards(self, problems: list[Row], rollout: Rollout) -> Tensor:
        lengths = rollout.mask.sum(-1).tolist()
        responses = [tokens[:n] for tokens, n in zip(rollout.tokens.tolist(), lengths, strict=True)]
        return self.task.rewards([problems[i] for i in rollout.prompt_index.tolist()], responses)

    def _evaluate(self, number: int) -> dict[str, float]:
        self.clean_sampler.load_weights(self.policy, self.step)
        problems, accuracy = self.task.held_out, {}
        for name, sampler in (("trainer", self.clean_sampler), ("sampler", self.sampler)):
            generator = torch.Generator().manual_seed(CYCLE * self.config["seed"] + number)
            rollout = self._sampled(sampler, problems, self.config["eval_samples"], 0, generator)
            accuracy[f"heldout_accuracy_{name}"] = float((self._rewards(problems, rollout) > 0).double().mean())
        return accuracy


def run_cell(
    config: Mapping[str, Any],
    on_step: Callable[[dict[str, Any]], None] = lambda metrics: None,
    checkpoint_dir: Path | None = None,
    **replacements: Any,
) -> list[dict[str, Any]]:
    """Run one arm and seed to its last step; returns one metrics dict per step, those of earlier processes included.

    As ``repro.trainer.run_cell``: ``on_step`` is called with each newly computed row; with ``checkpoint_dir`` the state is
    saved every ``checkpoint_every`` steps and at the end, and an existing state is continued. ``replacements`` reach
    :class:`GpuTrainer`. Raises ValueError for bad settings, DeviceUnavailable without the device or its fp8 kernel,
    OracleMismatch, RefitError and TrainingDiverged when training goes wrong, StateError for an unusable folder.
    """
    return run_to_the_end(GpuTrainer(config, **replacements), on_step, checkpoint_dir)
