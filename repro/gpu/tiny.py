"""A tiny random Qwen3 with a byte tokenizer, made in code: what stands in for a real model where only the steps count."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 272  # 256 bytes and 3 special tokens, padded to a multiple of 16 as real models pad theirs
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte, with a padding token, an end of turn (EOS) and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = TEMPLATE
    return fast


def tiny_qwen3(seed: int = 0, **changes) -> Qwen3ForCausalLM:
    """A random Qwen3 of 2 layers and hidden size 64 in float32, its output head tied as that of Qwen3-0.6B.

    Weights of standard deviation 0.15 make its distributions peaked, so that quantisation shows. ``changes`` override
    single fields of the configuration.
    """
    fields = dict(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.15,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(Qwen3Config(**{**fields, **changes}))


def write_tiny(folder: Path, seed: int = 0, **changes) -> None:
    """Write model and tokenizer as a folder that ``repro.gpu.hf_policy.load_model`` reads."""
    tiny_qwen3(seed, **changes).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
