"""One decode step of a tiny policy for many rows: matrix products in torch, everything between them in fused kernels.

The key/value cache is static and indexed by slot; a step names the slots it continues, so rows may leave at any step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config

from repro.kernels import decode
from repro.kernels.rounding import Rounding, rounding
from repro.policies import State, rotary_tables

IDENTITY = rounding(None)


class Decoder:
    """The state of one generation: cache, buffers, and the weights in the form the step wants.

    ``blocks`` is ``fuse(state, config)``. ``activations`` rounds the input of every linear layer inside the blocks, ``kv``
    keys (after rotation) and values as they are written; embeddings, norms and head stay in float32.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        blocks: list[State],
        config: Qwen3Config,
        activations: Rounding,
        kv: Rounding,
        capacity: int,
    ) -> None:
        self.config, self.activations, self.kv = config, activations, kv
        self.capacity = -(-capacity // decode.POSITIONS) * decode.POSITIONS
        self.eps = np.float32(config.rms_norm_eps)
        self.embedding = state["model.embed_tokens.weight"].detach().numpy()
        self.final_norm = state["model.norm.weight"].detach().numpy()
        self.head = state["lm_head.weight"].detach().t()
        self.blocks = [
            {name: value.detach().t() if value.ndim == 2 else value.detach().numpy() for name, value in block.items()}
            for block in blocks
        ]
        self.cosine, self.sine = (table.numpy() for table in rotary_tables(config, self.capacity))

    def open(self, slots: int) -> None:
        """An empty cache of ``slots`` sequences and the buffers of a step."""
        config = self.config
        dim, heads, kv_heads = config.head_dim, config.num_attention_heads, config.num_key_value_heads
        layers = range(config.num_hidden_layers)
        blocks = self.capacity // decode.POSITIONS
        self.keys = [np.empty((slots, kv_heads, blocks, dim, decode.POSITIONS), np.float32) for _ in layers]
        self.values = [np.empty((slots, kv_heads, self.capacity, dim), np.float32) for _ in layers]
        widths = {
            "normed": config.hidden_size,
            "qkv": (heads + 2 * kv_heads) * dim,
            "attended": heads * dim,
            "update": config.hidden_size,
            "gate_up": 2 * config.intermediate_size,
            "gated": config.intermediate_size,
            "logits": config.vocab_size,
        }
        self.scratch = np.empty((4 + heads) * dim + 2 * self.capacity, np.float32)
        self.powers = np.empty(max(widths.values()), np.int32)
        self.buffers = {name: torch.empty((slots, width)) for name, width in widths.items()}

    def copy_prompts(self, first: np.ndarray, samples: int, length: int) -> None:
        """Give the ``samples`` slots from each of ``first`` on the first ``length`` positions of its cache."""
        blocks = -(-length // decode.POSITIONS)
        for keys, values in zip(self.keys, self.values, strict=True):
            for cache, used in ((keys, blocks), (values, length)):
                cache[:, :, :used] = np.repeat(cache[first, :, :used], samples, axis=0)

    def step(self, tokens: np.ndarray, slots: np.ndarray, position: int) -> np.ndarray:
        """Logits [R, V] (a buffer, overwritten by the next step) after feeding ``tokens`` [R] to ``slots`` [R]."""
        rows, eps, fmt, powers = len(tokens), self.eps, self.activations, self.powers
        normed, qkv, attended, update, gate_up, gated, logits = (b[:rows] for b in self.buffers.values())
        x = self.embedding[tokens]
        for layer, block in enumerate(self.blocks):
            if layer == 0:
                decode.norm_round(x, block["norm_in"], eps, fmt, powers, normed.numpy())
            else:
                decode.add_norm_round(x, update.numpy(), block["norm_in"], eps, fmt, powers, normed.numpy())
            torch.mm(normed, block["qkv"], out=qkv)
            decode.attend(
                qkv.numpy(), slots, block["q_norm"], block["k_norm"], eps, self.cosine[position], self.sine[position],
                self.keys[layer], self.values[layer], position, self.kv, fmt, self.scratch, powers, attended.numpy(),
            )  # fmt: skip
            torch.mm(attended, block["out"], out=update)
            decode.add_norm_round(x, update.numpy(), block["norm_mid"], eps, fmt, powers, normed.numpy())
            torch.mm(normed, block["gate_up"], out=gate_up)
            decode.gate_round(gate_up.numpy(), fmt, powers, gated.numpy())
            torch.mm(gated, block["down"], out=update)
        decode.add_norm_round(x, update.numpy(), self.final_norm, eps, IDENTITY, powers, normed.numpy())
        torch.mm(normed, self.head, out=logits)
        return logits.numpy()
