"""A tiny policy of the Qwen3 architecture as a functional forward pass over a dict of Hugging Face-named tensors.

``forward``  full sequences, for training: logits [B, L, V], differentiable in the weights.
``fuse``     concatenates q/k/v and gate/up once per weight update, so that a decode step is four GEMMs a layer.

The weights are exactly those of ``transformers.Qwen3ForCausalLM`` (RMSNorm, rotary positions, per-head q/k norm,
grouped-query attention, SwiGLU, untied output head), so a saved folder loads in transformers and in vLLM.
Weights are a plain dict because the same pass has to run on the trainer's tensors, on a stale copy of them and on a
quantised copy. `repro.samplers.decoder` decodes; `repro.bench.plain_decode` does it without fused kernels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import Qwen3Config

from repro.kernels.causal_attention import attention
from repro.kernels.training import add_norm, gated, norm

State = dict[str, Tensor]


class CheckpointError(ValueError):
    """A checkpoint that does not fit its configuration; the message names the tensor and both shapes."""


def tiny_config(vocabulary: int, **changes) -> Qwen3Config:
    """The configuration of the CPU runs: 2 layers, hidden 64, 4 query and 2 key/value heads of 32, about 0.13 M weights.

    head_dim is 32 because vLLM's CPU attention supports it. ``changes`` override single fields by their Qwen3 names.
    """
    fields = dict(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        architectures=["Qwen3ForCausalLM"],
        dtype="float32",
    )
    return Qwen3Config(**{**fields, **changes})


def expected_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Every tensor name of the architecture with its shape."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_hidden_layers):
        base = f"model.layers.{layer}"
        shapes |= {
            f"{base}.input_layernorm.weight": (hidden,),
            f"{base}.self_attn.q_proj.weight": (queries, hidden),
            f"{base}.self_attn.k_proj.weight": (keys, hidden),
            f"{base}.self_attn.v_proj.weight": (keys, hidden),
            f"{base}.self_attn.o_proj.weight": (hidden, queries),
            f"{base}.self_attn.q_norm.weight": (dim,),
            f"{base}.self_attn.k_norm.weight": (dim,),
            f"{base}.post_attention_layernorm.weight": (hidden,),
            f"{base}.mlp.gate_proj.weight": (inner, hidden),
            f"{base}.mlp.up_proj.weight": (inner, hidden),
            f"{base}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (config.vocab_size, hidden)}


def check_state(state: Mapping[str, Tensor], config: Qwen3Config) -> None:
    """Raise :class:`CheckpointError` unless ``state`` holds exactly the architecture's tensors, in float32."""
    if config.tie_word_embeddings:
        raise CheckpointError("tie_word_embeddings: only untied output heads are supported; set it to False")
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in state:
            raise CheckpointError(f"{name}: expected shape {shape}, found no such tensor in the checkpoint")
        if tuple(state[name].shape) != shape:
            raise CheckpointError(
                f"{name}: expected shape {shape} from the configuration, found {tuple(state[name].shape)}; "
                "the weights and config.json belong to different models"
            )
        if state[name].dtype != torch.float32:
            raise CheckpointError(f"{name}: expected torch.float32, found {state[name].dtype}; convert it first")
    unknown = sorted(set(state) - set(expected))
    if unknown:
        raise CheckpointError(f"{unknown[0]}: not a tensor of this architecture; expected none, found one")


def initial_state(config: Qwen3Config, generator: torch.Generator) -> State:
    """Seeded initial weights: normal with sd 0.02 (``initializer_range``), norms at 1."""
    return {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * config.initializer_range
        for name, shape in expected_shapes(config).items()
    }


def rotary_tables(config: Qwen3Config, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [length, head_dim] of the rotary position embedding, in the two-half layout of Qwen3."""
    base = float(config.rope_parameters["rope_theta"])
    frequencies = 1.0 / base ** (torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def fuse(state: Mapping[str, Tensor], config: Qwen3Config) -> list[State]:
    """Per layer the tensors of one block, with q/k/v and gate/up concatenated by rows (differentiable)."""
    layers = []
    for layer in range(config.num_hidden_layers):
        part = {k.removeprefix(f"model.layers.{layer}."): v for k, v in state.items() if f".layers.{layer}." in k}
        layers.append(
            {
                "norm_in": part["input_layernorm.weight"],
                "qkv": torch.cat([part[f"self_attn.{n}_proj.weight"] for n in "qkv"]),
                "q_norm": part["self_attn.q_norm.weight"],
                "k_norm": part["self_attn.k_norm.weight"],
                "out": part["self_attn.o_proj.weight"],
                "norm_mid": part["post_attention_layernorm.weight"],
                "gate_up": torch.cat([part["mlp.gate_proj.weight"], part["mlp.up_proj.weight"]]),
                "down": part["mlp.down_proj.weight"],
            }
        )
    return layers


def unfuse(blocks: list[State], state: Mapping[str, Tensor], config: Qwen3Config) -> State:
    """The architecture's tensors out of ``blocks``; those outside the blocks are ``state``'s."""
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    tensors = {name: value for name, value in state.items() if ".layers." not in name}
    for layer, block in enumerate(blocks):
        q, k, v = block["qkv"].split([queries, keys, keys])
        gate, up = block["gate_up"].chunk(2)
        parts = {
            "input_layernorm": block["norm_in"], "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v,
            "self_attn.q_norm": block["q_norm"], "self_attn.k_norm": block["k_norm"], "self_attn.o_proj": block["out"],
            "post_attention_layernorm": block["norm_mid"], "mlp.gate_proj": gate, "mlp.up_proj": up,
            "mlp.down_proj": block["down"],
        }  # fmt: skip
        tensors |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    return tensors


def forward(state: Mapping[str, Tensor], config: Qwen3Config, tokens: Tensor) -> Tensor:
    """Logits [B, L, V] for token ids [B, L]; row t predicts token t + 1. Causal, positions from 0, no padding mask.

    Right padding needs no mask: a causal row never sees what follows it.
    """
    eps, tables = config.rms_norm_eps, rotary_tables(config, tokens.shape[1])
    shape = (*tokens.shape, config.num_attention_heads, config.num_key_value_heads)
    x = F.embedding(tokens.flatten(), state["model.embed_tokens.weight"])
    blocks = fuse(state, config)
    h = norm(x, blocks[0]["norm_in"], eps)
    for block, after in zip(blocks, [b["norm_in"] for b in blocks[1:]] + [state["model.norm.weight"]], strict=True):
        attended = attention(F.linear(h, block["qkv"]), block["q_norm"], block["k_norm"], eps, tables, shape)
        x, h = add_norm(x, F.linear(attended, block["out"]), block["norm_mid"], eps)
        h = gated(F.linear(h, block["gate_up"]))
        x, h = add_norm(x, F.linear(h, block["down"]), after, eps)
    return F.linear(h, state["lm_head.weight"]).unflatten(0, tokens.shape)


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder, flush it to disk, rename: a reader sees the old or the new file."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def save_policy(folder: Path, state: Mapping[str, Tensor], config: Qwen3Config) -> None:
    """Write ``model.safetensors`` and ``config.json``, a folder that transformers and vLLM load. Same state, same bytes."""
    check_state(state, config)
    folder.mkdir(parents=True, exist_ok=True)
    ordered = {name: state[name].detach().contiguous() for name in sorted(state)}
    write_bytes(folder / "model.safetensors", save(ordered, metadata={"format": "pt"}))
    write_bytes(folder / "config.json", (config.to_json_string() + "\n").encode())


def load_policy(folder: Path) -> tuple[State, Qwen3Config]:
    """Read a folder written by :func:`save_policy`; raises :class:`CheckpointError` when its parts do not fit."""
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder}: expected {name} in this folder, found none; create it with repro.warmstart"
            )
    config = Qwen3Config(**json.loads((folder / "config.json").read_text()))
    try:
        state = load_file(folder / "model.safetensors")
    except SafetensorError as error:
        raise CheckpointError(f"{folder / 'model.safetensors'}: not a readable safetensors file ({error})") from error
    check_state(state, config)
    return state, config
