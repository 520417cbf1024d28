"""Shared fixtures of the laboratory's tests: a random tiny policy and recorded rollouts from its quantised sampler."""

from __future__ import annotations

import pytest
import torch

from repro.policies import initial_state, tiny_config
from repro.samplers.torch_sampler import TorchSampler
from repro.tasks import countdown_tiny as task


@pytest.fixture(autouse=True)
def one_thread():
    """Bit-for-bit claims are made for a thread count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def config():
    return tiny_config(task.VOCABULARY, initializer_range=0.15)


@pytest.fixture(scope="package")
def policy(config):
    """Random weights large enough for peaked, varied distributions; norms away from 1."""
    generator = torch.Generator().manual_seed(7)
    state = initial_state(config, generator)
    return {
        name: value + 0.2 * torch.randn(value.shape, generator=generator) if value.ndim == 1 else value
        for name, value in state.items()
    }


@pytest.fixture
def prompts():
    import numpy as np

    problems = task.training_problems(np.random.default_rng(5), 4)
    return torch.tensor([task.prompt(problem) for problem in problems])


@pytest.fixture
def quantised_sampler(config, policy):
    sampler = TorchSampler(
        config, eos=task.EOS, pad=task.PAD, weights="fp4_e2m1", activations="fp8_e4m3", kv="fp8_e4m3"
    )
    sampler.load_weights(policy, 3)
    return sampler
