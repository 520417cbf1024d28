"""Weights in the forms that a vLLM engine loads: as they are, or as 8-bit integers with one scale per output row.

Integer weights follow the "compressed-tensors" layout: for every ``*_proj`` an int8 tensor
``NAME = round(w / s)``, s = max|w| / 127 by rows, beside ``NAME_scale`` [out, 1] float32; activations are quantised by
the engine, token by token. Embeddings, norms and the output head stay as they are. The same tensors make the first
checkpoint and every later update, because the engine takes no unquantised tensor for a quantised layer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers import Qwen3Config

from repro.policies import State, save_policy
from repro.provenance import write_atomic

QUANTISATIONS = (None, "fp8_per_channel", "int8")
LARGEST = 127.0
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}  # vLLM's joint layers


def checkpoint_tensors(state: State, quantization: str | None) -> State:
    """The tensors to send to an engine of this ``quantization``; only ``int8`` differs from ``state`` itself."""
    if quantization != "int8":
        return {name: value.detach() for name, value in state.items()}
    tensors: State = {}
    for name, value in state.items():
        value = value.detach()
        if name.endswith("_proj.weight"):
            # The floor keeps 0/0 out of an all-zero row and is far below any weight in use.
            scale = (value.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
            tensors[name] = (value / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8)
            tensors[f"{name}_scale"] = scale
        else:
            tensors[name] = value
    return tensors


def refill_integer_layers(model: torch.nn.Module, tensors: State) -> None:
    """Put new int8 weights and scales into the running ``model`` and build its CPU kernels again.

    Needed because after the reload of vLLM 0.32.0 the engine answers NaN from the next token on (measured); by its source
    the likely reason is that the oneDNN kernel keeps the address of scales that the reload then frees.
    """
    from vllm.model_executor.layers.linear import LinearBase

    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            base, leaf = name.rsplit(".", 1)
            parts = [f"{base}.{part}.weight" for part in FUSED.get(leaf, (leaf,))]
            weight, scale = (torch.cat([tensors[part + end] for part in parts]) for end in ("", "_scale"))
            module.weight = torch.nn.Parameter(weight, requires_grad=False)
            module.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
            module.quant_method.process_weights_after_loading(module)


def write_checkpoint(folder: Path, state: State, config: Qwen3Config, quantization: str | None) -> None:
    """A folder that vLLM loads: ``model.safetensors`` and ``config.json``, with the integer scheme where asked for."""
    save_policy(folder, state, config)
    if quantization != "int8":
        return
    tensors = {name: value.contiguous() for name, value in checkpoint_tensors(state, quantization).items()}
    write_atomic(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    described = json.loads(config.to_json_string()) | {"quantization_config": _integer_scheme()}
    write_atomic(folder / "config.json", (json.dumps(described, indent=2, sort_keys=True) + "\n").encode())


def _integer_scheme() -> dict[str, Any]:
    common = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "channel", "dynamic": False},
        "input_activations": {**common, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
