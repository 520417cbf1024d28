"""The weight read-back: equal after every transfer, and a ReadBackError where a transfer went wrong."""

from __future__ import annotations

import pytest
import torch

from repro import readback
from repro.mismatch import Mismatch
from repro.policies import initial_state, tiny_config
from repro.readback import ReadBackError
from repro.samplers.torch_sampler import TorchSampler
from repro.trainer import Trainer
from tests.repro.small_run import SMALL


def policy(seed: int = 0):
    config = tiny_config(24, num_attention_heads=2, num_key_value_heads=1)
    return initial_state(config, torch.Generator().manual_seed(seed)), config


@pytest.mark.parametrize("weights", [None, "fp4_e2m1", "int8"])
def test_what_a_sampler_holds_is_what_it_was_given(weights):
    state, config = policy()
    sampler = TorchSampler(config, eos=0, pad=1, weights=weights)
    sampler.load_weights(state, 3)
    expected = Mismatch(weights=weights).delivered(state)
    first = readback.confirm(expected, sampler.held_weights(), 3)
    assert first == readback.digits(readback.digest(expected)) and 0 <= first < 10**9
    sampler.load_weights({name: value + 1e-3 for name, value in state.items()}, 4)
    with pytest.raises(ReadBackError, match="policy version 4 delivered"):
        readback.confirm(expected, sampler.held_weights(), 4)


def test_one_bit_in_one_fused_tensor_is_found_and_named():
    state, config = policy()
    sampler = TorchSampler(config, eos=0, pad=1)
    sampler.load_weights(state, 0)
    sampler._blocks[1]["qkv"].view(torch.int32)[0, 0] ^= 1
    with pytest.raises(ReadBackError, match="^model.layers.1.self_attn.q_proj.weight"):
        readback.confirm(state, sampler.held_weights(), 0)


def test_names_and_shapes_enter_the_digest():
    a = torch.arange(6.0)
    assert readback.digest({"x": a}) != readback.digest({"y": a}) != readback.digest({"x": a.view(2, 3)})
    with pytest.raises(ReadBackError, match="^y: "):
        readback.confirm({"x": a, "y": a}, {"x": a}, 0)


def test_a_run_records_the_hash_at_every_transfer_and_stops_at_a_wrong_one(monkeypatch):
    trainer = Trainer({**SMALL, "arm": "pg", "staleness": 1})
    rows = [trainer.run_step() for _ in range(3)]
    assert [row["weights_read_back"] is None for row in rows] == [False, True, False]
    assert rows[0]["weights_read_back"] != rows[2]["weights_read_back"]
    monkeypatch.setattr(TorchSampler, "load_weights", lambda self, state, version: None)
    trainer.run_step()
    with pytest.raises(ReadBackError, match="the transfer was skipped"):
        trainer.run_step()
