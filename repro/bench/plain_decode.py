"""A decode step of the tiny policy in plain torch: what the fused kernels are measured and tested against.

One token for the whole batch against a static key/value cache, with a hook at the input of every linear layer inside the
blocks and one on keys and values as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3Config

from repro.policies import State

Quantiser = Callable[[Tensor], Tensor]


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


def _norm(x: Tensor, weight: Tensor, config: Qwen3Config) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, config.rms_norm_eps)


def _heads(x: Tensor, block: State, config: Qwen3Config, quantise: Quantiser | None) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised queries [..., Hq, D], keys and values [..., Hkv, D] before rotation, from the block input [..., H]."""
    x = _norm(x, block["norm_in"], config)
    x = F.linear(quantise(x) if quantise else x, block["qkv"])
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    q, k, v = x.unflatten(-1, (heads + 2 * kv, config.head_dim)).split([heads, kv, kv], dim=-2)
    return _norm(q, block["q_norm"], config), _norm(k, block["k_norm"], config), v


def _mlp(x: Tensor, block: State, config: Qwen3Config, quantise: Quantiser | None) -> Tensor:
    h = _norm(x, block["norm_mid"], config)
    gate, up = F.linear(quantise(h) if quantise else h, block["gate_up"]).chunk(2, dim=-1)
    h = F.silu(gate) * up
    return x + F.linear(quantise(h) if quantise else h, block["down"])


class Cache(NamedTuple):
    """Static key/value cache: per layer [B, Hkv, length, D] each."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls, config: Qwen3Config, rows: int, length: int) -> Cache:
        shape = (rows, config.num_key_value_heads, length, config.head_dim)
        layers = range(config.num_hidden_layers)
        return cls([torch.zeros(shape) for _ in layers], [torch.zeros(shape) for _ in layers])

    def rows(self, index: Tensor) -> Cache:
        """The cache of the rows in ``index`` (repeats allowed): expands prompts to samples and drops finished rows."""
        return Cache([k[index] for k in self.keys], [v[index] for v in self.values])


def decode_step(
    state: Mapping[str, Tensor],
    blocks: list[State],
    config: Qwen3Config,
    cache: Cache,
    tables: tuple[Tensor, Tensor],
    tokens: Tensor,
    position: int,
    quantise: Quantiser | None = None,
    quantise_kv: Quantiser | None = None,
) -> Tensor:
    """Logits [B, V] after feeding ``tokens`` [B] at ``position``; writes the new keys and values into ``cache``.

    ``blocks`` is ``fuse(state, config)``. ``quantise`` is applied to the input of every linear layer inside the blocks,
    ``quantise_kv`` to keys (after rotation) and values as they are written; embeddings, norms and head stay as they are.
    """
    cosine, sine = tables[0][position], tables[1][position]
    groups = config.num_attention_heads // config.num_key_value_heads
    x = F.embedding(tokens, state["model.embed_tokens.weight"])
    for layer, block in enumerate(blocks):
        q, k, v = _heads(x, block, config, quantise)
        q, k = _rotate(q, cosine, sine), _rotate(k, cosine, sine)
        if quantise_kv:
            k, v = quantise_kv(k), quantise_kv(v)
        cache.keys[layer][:, :, position] = k
        cache.values[layer][:, :, position] = v
        keys, values = cache.keys[layer][:, :, : position + 1], cache.values[layer][:, :, : position + 1]
        q = q.unflatten(1, (config.num_key_value_heads, groups))
        scores = (q @ keys.transpose(-1, -2)) * config.head_dim**-0.5
        attended = (torch.softmax(scores, dim=-1) @ values).flatten(1)
        x = x + F.linear(quantise(attended) if quantise else attended, block["out"])
        x = _mlp(x, block, config, quantise)
    return F.linear(_norm(x, state["model.norm.weight"], config), state["lm_head.weight"])
