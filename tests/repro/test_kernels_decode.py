"""The fused decode kernels against their plain torch counterparts: rounding exactly, the rest to float32 rounding."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from repro.bench.plain_decode import Cache, decode_step
from repro.kernels import decode
from repro.kernels.rounding import round_row, rounding
from repro.policies import fuse, initial_state, rotary_tables, tiny_config
from repro.quantise import FORMATS, quantise
from repro.samplers.torch_sampler import TorchSampler
from repro.tasks import countdown_tiny as task

EDGES = [0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 1.0, 0.9999999, 448.0, 0.0625, 2.0**-20]


def rounded(row: np.ndarray, name: str | None) -> np.ndarray:
    row = row.copy()
    round_row(row, np.empty(len(row), np.int32), rounding(name))
    return row


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_rounding_equals_the_quantiser_exactly(name, scale):
    rng = np.random.default_rng(0)
    for size in (1, 7, 32, 192):
        row = (rng.standard_normal(size) * scale * 10 ** rng.uniform(-4, 0, size)).astype(np.float32)
        assert np.array_equal(rounded(row, name), quantise(torch.tensor(row), name).numpy())


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_of_edges_zeros_and_nan(name):
    for row in (np.array(EDGES, np.float32), np.zeros(5, np.float32), np.array([3e-39, 0, -1e-44], np.float32)):
        assert np.array_equal(rounded(row, name), quantise(torch.tensor(row), name).numpy())
    assert np.isnan(rounded(np.array([1.0, np.nan, 2.0], np.float32), name)).all()


def test_no_format_changes_nothing_and_an_unknown_one_is_refused():
    row = np.array(EDGES, np.float32)
    assert np.array_equal(rounded(row, None).view(np.int32), row.view(np.int32))
    with pytest.raises(ValueError, match="format: expected one of"):
        rounding("fp3")


SHAPES = [
    {},
    {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3},
    {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 96, "rms_norm_eps": 1e-3},
    {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64},
    {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16},  # an odd number of queries to a group
    {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 48},  # thirty-two dimensions and sixteen
]
QUANTISED = {"weights": None, "activations": "fp8_e4m3", "kv": "fp4_e2m1"}
PLAIN = dict.fromkeys(QUANTISED)


@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.parametrize(("formats", "exceptions"), [(PLAIN, 0.0), (QUANTISED, 0.3)])
@pytest.mark.parametrize("peak", [1.0, 8.0])
def test_generation_equals_the_plain_decode_step(changes, formats, exceptions, peak):
    """Plain: to rounding everywhere. Quantised: but where a last bit has crossed a rounding boundary, and after it."""
    config = tiny_config(task.VOCABULARY, initializer_range=0.2, **changes)
    state = initial_state(config, torch.Generator().manual_seed(1))
    state["lm_head.weight"] = state["lm_head.weight"] * peak
    sampler = TorchSampler(config, eos=task.EOS, pad=task.PAD, **formats)
    sampler.load_weights(state, 0)
    prompts = torch.randint(0, 60, (3, 5), generator=torch.Generator().manual_seed(2))
    rollout = sampler.generate(prompts, 4, 40, 0.8, torch.Generator().manual_seed(3), 4)

    length = rollout.tokens.shape[1]
    sequence = torch.cat([rollout.prompts, rollout.tokens[:, :-1]], dim=1)
    hooks = [partial(quantise, name=formats[n]) if formats[n] else None for n in ("activations", "kv")]
    cache, tables = Cache.empty(config, 12, 5 + length), rotary_tables(config, 5 + length)
    with torch.no_grad():
        logits = [
            decode_step(state, fuse(state, config), config, cache, tables, sequence[:, t], t, *hooks)
            for t in range(sequence.shape[1])
        ]
    expected = torch.log_softmax(torch.stack(logits[4:], dim=1) / 0.8, dim=-1)
    error = (rollout.logp_sampler_full - expected).abs().amax(-1)[rollout.mask] / (1 + peak)
    assert (error > 5e-5).double().mean() <= exceptions
    assert error.median() < 1e-5


def test_a_nan_reaches_the_logits_check():
    logits = np.zeros((2, 4), np.float32)
    logits[1, 2] = np.nan
    logq, tokens = np.zeros((2, 1, 4), np.float32), np.zeros((2, 1), np.int64)
    rows, mass = np.arange(2), np.empty(8, np.float32)
    assert not decode.draw(logits, 1.0, np.full(2, 0.5), rows, 0, mass, logq, tokens)
    assert decode.draw(logits[:1], 1.0, np.full(2, 0.5), rows[:1], 0, mass, logq, tokens)
    np.testing.assert_allclose(logq[0, 0], np.log(0.25), rtol=1e-7)
    assert tokens[0, 0] == 2  # half of the mass lies at or below token 1: the draw inverts [low, high)
