"""Any causal language model of transformers as the trainer's policy: float32 master weights, forward in bf16 or float32.

As in ``repro.policies`` the weights are a plain dict of tensors (Hugging Face names, float32, a tied output head once),
so that one pass serves the trainer's weights and a copy of them; :class:`HFPolicy` is what knows the network. A bfloat16
forward casts every weight and is differentiable in the float32 ones. Logits are returned in float32.

Prompts of different lengths are padded on the left. What is padding is read off the prompt: its leading run of the
pad token. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from repro.policies import CheckpointError, State


def real_tokens(prompts: Tensor, pad: int) -> Tensor:
    """[N, P] bool: False on the leading run of ``pad`` in each of ``prompts`` [N, P]. A prompt of padding is a ValueError."""
    real = (prompts != pad).cumsum(-1) > 0
    if not real[:, -1].all():
        row = int((~real[:, -1]).nonzero()[0])
        raise ValueError(f"prompts: row {row} consists of the pad token {pad} only; every prompt needs a token")
    return real


def positions_of(real: Tensor) -> Tensor:
    """[N, L] int64: the position of each token, 0 at the first real one (and on padding, where nothing reads it)."""
    return (real.long().cumsum(-1) - 1).clamp_min(0)


class HFPolicy:
    """A network on ``device`` without weights of its own: every call names them."""

    def __init__(self, model: nn.Module, *, device: torch.device, compute: torch.dtype, pad: int):
        if model.get_output_embeddings() is None:
            raise CheckpointError(f"{type(model).__name__}: expected a causal language model with an output head")
        self.model = model.to(device).eval().requires_grad_(False)
        self.device, self.compute, self.pad = device, compute, pad

    @property
    def config(self) -> Any:
        """The model's configuration, as transformers has it."""
        return self.model.config

    @property
    def vocabulary(self) -> int:
        """Width of the logits, which can exceed the number of the tokenizer's ids."""
        return self.model.get_output_embeddings().weight.shape[0]

    def initial_state(self) -> State:
        """A float32 copy of the weights that the model was loaded with."""
        return {name: value.detach().float().clone() for name, value in self.model.named_parameters()}

    def response_logits(self, state: Mapping[str, Tensor], prompts: Tensor, tokens: Tensor) -> Tensor:
        """Logits [B, T, V] float32 for ``prompts`` [B, P] and response ``tokens`` [B, T]; row t predicts token t.

        Differentiable in ``state``. Only the T rows that are needed reach the output head.
        """
        prompts, tokens = prompts.to(self.device), tokens.to(self.device)
        length = tokens.shape[1]
        sequence = torch.cat([prompts, tokens[:, : length - 1]], dim=1)
        real = torch.cat(
            [real_tokens(prompts, self.pad), torch.ones_like(tokens[:, : length - 1], dtype=torch.bool)], 1
        )
        inputs = {
            "input_ids": sequence,
            "attention_mask": real.long(),
            "position_ids": positions_of(real),
            "use_cache": False,
            "logits_to_keep": length,
        }
        weights = {name: value.to(self.compute) for name, value in state.items()}
        return functional_call(self.model, weights, kwargs=inputs).logits.float()

    def next_logp(self, state: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
        """Log-probs [N, V] float32 of the token after each of ``sequences`` [N, L], at temperature 1, without gradient."""
        with torch.no_grad():
            # One token to predict; which one it is does not matter, it is never read.
            logits = self.response_logits(state, sequences, sequences[:, -1:])
        return torch.log_softmax(logits[:, 0], dim=-1)


def load_model(folder: Path, device: torch.device, compute: torch.dtype) -> tuple[HFPolicy, Any]:
    """(policy, tokenizer) from a folder of ``save_pretrained``; nothing is ever downloaded.

    Raises CheckpointError when the folder is missing, is no model with a tokenizer, or has no chat template or EOS token.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder}: expected a folder with config.json, model.safetensors and a tokenizer, found no config.json; copy "
            "a model there first (nothing is downloaded)"
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: not a model with a tokenizer that transformers can read: {error}") from error
    for name, value in (("chat_template", tokenizer.chat_template), ("eos_token", tokenizer.eos_token_id)):
        if value is None:
            raise CheckpointError(f"{folder}: its tokenizer has no {name}; the task is posed as a chat")
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return HFPolicy(model, device=device, compute=compute, pad=pad), tokenizer
