"""The functional Qwen3 forward against transformers, the cached decode against it, and checkpoint errors."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from repro.bench.plain_decode import Cache, decode_step
from repro.policies import (
    CheckpointError,
    check_state,
    expected_shapes,
    forward,
    fuse,
    initial_state,
    load_policy,
    rotary_tables,
    save_policy,
    tiny_config,
)

SHAPES = [
    {},
    {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3},
    {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 96, "rms_norm_eps": 1e-3},
    {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
]


def random_policy(changes, seed=0):
    config = tiny_config(29, initializer_range=0.2, **changes)
    generator = torch.Generator().manual_seed(seed)
    state = initial_state(config, generator)
    return config, {n: v + 0.3 * torch.randn(v.shape, generator=generator) * (v.ndim == 1) for n, v in state.items()}


@pytest.mark.parametrize("changes", SHAPES)
@torch.no_grad()
def test_logits_equal_those_of_transformers(changes):
    config, state = random_policy(changes)
    model = Qwen3ForCausalLM(config).eval()
    model.load_state_dict(state)
    for shape in ((5, 17), (3, 3), (1, 40)):
        tokens = torch.randint(0, 29, shape, generator=torch.Generator().manual_seed(1))
        eager = model.float()(tokens).logits.double()
        exact = model.double()(tokens).logits
        assert exact.abs().max() > 1
        # Two float32 passes round differently on every processor: both are held against float64, and the fused one is as near.
        fused, plain = (pass_ - exact for pass_ in (forward(state, config, tokens).double(), eager))
        assert fused.square().mean() < 1.25**2 * plain.square().mean()
        assert fused.abs().max() < 2e-5


@pytest.mark.parametrize("changes", SHAPES[:3])
@torch.no_grad()
def test_decoding_with_the_cache_equals_the_full_forward(changes):
    config, state = random_policy(changes)
    tokens = torch.randint(0, 29, (4, 13), generator=torch.Generator().manual_seed(2))
    cache, blocks, tables = Cache.empty(config, 4, 13), fuse(state, config), rotary_tables(config, 13)
    steps = [decode_step(state, blocks, config, cache, tables, tokens[:, t], t) for t in range(13)]
    torch.testing.assert_close(torch.stack(steps, 1), forward(state, config, tokens), rtol=0, atol=1e-5)


def test_gradients_equal_those_of_transformers():
    config, state = random_policy(SHAPES[0])
    model = Qwen3ForCausalLM(config)
    model.load_state_dict(state)
    tokens = torch.randint(0, 29, (3, 7), generator=torch.Generator().manual_seed(3))
    direction = torch.randn((3, 7, 29), generator=torch.Generator().manual_seed(4))
    (model(tokens).logits * direction).sum().backward()
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    (forward(leaves, config, tokens) * direction).sum().backward()
    for name, parameter in model.named_parameters():
        scale = parameter.grad.abs().max()
        torch.testing.assert_close(leaves[name].grad / scale, parameter.grad / scale, rtol=0, atol=1e-5)


@torch.no_grad()
def test_what_follows_never_changes_a_row():
    config, state = random_policy(SHAPES[0])
    tokens = torch.randint(0, 29, (2, 9), generator=torch.Generator().manual_seed(5))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 29
    torch.testing.assert_close(forward(state, config, tokens)[:, :6], forward(state, config, changed)[:, :6])


@torch.no_grad()
def test_saved_folder_loads_here_and_in_transformers(tmp_path):
    config, state = random_policy(SHAPES[1])
    save_policy(tmp_path / "a", state, config)
    again, config_again = load_policy(tmp_path / "a")
    assert all(torch.equal(state[name], again[name]) for name in state)
    tokens = torch.randint(0, 29, (2, 5))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a", local_files_only=True)
    torch.testing.assert_close(forward(again, config_again, tokens), model(tokens).logits, rtol=0, atol=1e-5)
    save_policy(tmp_path / "b", dict(reversed(state.items())), config)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert not list(tmp_path.glob("**/.*tmp"))


def test_default_size_and_names():
    config = tiny_config(73)
    assert 100_000 <= sum(v.numel() for v in initial_state(config, torch.Generator()).values()) <= 150_000
    model = Qwen3ForCausalLM(config)
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == expected_shapes(config)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: s.pop("model.norm.weight"), r"model\.norm\.weight: expected shape \(64,\), found no such tensor"),
        (
            lambda s: s.update({"lm_head.weight": torch.zeros(28, 64)}),
            r"lm_head\.weight: expected shape \(29, 64\) .* found \(28, 64\)",
        ),
        (lambda s: s.update({"extra": torch.zeros(2)}), "extra: not a tensor of this architecture"),
        (
            lambda s: s.update({"model.norm.weight": torch.ones(64).double()}),
            "expected torch.float32, found torch.float64",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named(tmp_path, damage, message):
    config, state = random_policy({})
    save_policy(tmp_path, state, config)
    tensors = load_file(tmp_path / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_policy(tmp_path)
    with pytest.raises(CheckpointError):
        save_policy(tmp_path / "new", tensors, config)


def test_missing_damaged_and_tied_checkpoints(tmp_path):
    config, state = random_policy({})
    with pytest.raises(CheckpointError, match="expected config.json in this folder, found none"):
        load_policy(tmp_path)
    save_policy(tmp_path, state, config)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_policy(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "tie_word_embeddings": True}))
    with pytest.raises(CheckpointError, match="untied"):
        load_policy(tmp_path)
    with pytest.raises(CheckpointError, match="untied"):
        check_state(state, tiny_config(29, tie_word_embeddings=True))
