"""One float32 engine for all tests of a run, the checkpoint it starts from, and the trainer's log-probs of a rollout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch

from repro.policies import forward, load_policy
from repro.samplers.vllm_sampler import VllmSampler
from repro.tasks import countdown_tiny as task

CHECKPOINT = Path(__file__).resolve().parents[2] / "repro" / "checkpoints" / "countdown_tiny_seed1"
STATE, CONFIG = load_policy(CHECKPOINT)
EXACT = 1e-4  # nats, float32 engine against float32 trainer; measured: 2e-5 at most


@cache
def engine() -> VllmSampler:
    """Float32, with prefix caching, so that a stale cache can be provoked."""
    return VllmSampler(CONFIG, eos=task.EOS, pad=task.PAD, dtype="float32", prefix_caching=True)


def loaded(state=STATE, version=0) -> VllmSampler:
    sampler = engine()
    sampler.refit = None
    sampler.load_weights(state, version)
    return sampler


def changed(state=STATE, size=0.1, seed=0):
    """The weights with relative noise of this size: another policy, about one nat away at 0.1."""
    generator = torch.Generator().manual_seed(seed)
    return {n: v * (1 + size * torch.randn(v.shape, generator=generator)) for n, v in state.items()}


def prompts(number=4):
    return torch.tensor([task.prompt(p) for p in task.training_problems(np.random.default_rng(0), number)])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def trainer_rows(rollout, state=STATE, temperature=1.0):
    """[B, T, V] log-probs of the trainer on the rows that predict the rollout's tokens."""
    sequence = torch.cat([rollout.prompts, rollout.tokens], dim=1)
    logits = forward(state, CONFIG, sequence)[:, rollout.prompts.shape[1] - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


def deviation(rollout, state=STATE, temperature=1.0, where=None):
    """Largest |log p_engine - log p_trainer| on sampled tokens, nats."""
    rows = trainer_rows(rollout, state, temperature)
    gap = (rows.gather(-1, rollout.tokens[..., None]).squeeze(-1) - rollout.logp_sampler).abs()
    return float(gap[rollout.mask if where is None else where].max())
