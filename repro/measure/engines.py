"""Two samplers for any Hugging Face folder of a causal language model: a vLLM engine, and transformers in simulated formats.

`open_model` checks the folder and says what it is. `vllm_responses` and `torch_responses` sample at temperature 1 from the
whole vocabulary and return, per response, the tokens with the log-probs of the distribution they were drawn from and its
k most likely tokens (``repro.samplers.vllm_decode.Response``). `load_trainer` is the other side: transformers in float32.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.errors import LaboratoryError
from repro.provenance import file_sha256, portable
from repro.quantise import FORMATS, quantise
from repro.samplers.vllm_decode import Response, decode
from repro.samplers.vllm_engine import EngineUnavailable, _import_vllm, device_options, last_line

ENGINES = ("vllm", "torch")
DTYPES = ("float32", "bfloat16")
NO_EOS = -1  # equals no token: a response then always has its full length


class MeasureError(LaboratoryError):
    """A model, a request or an engine's answer that cannot be measured; the message names what was expected."""


@dataclass(frozen=True)
class Format:
    """What the sampler computes in. ``quantization`` is vLLM's name, or for ``torch`` a format of ``repro.quantise`` for the
    weights of linear layers; ``activations`` (their inputs) is for ``torch`` only; ``kv_cache_dtype`` is "auto", vLLM's name,
    or for ``torch`` a format of ``repro.quantise``.
    """

    engine: str
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    activations: str | None = None

    def __post_init__(self) -> None:
        checks = {"sampler": (self.engine, ENGINES), "dtype": (self.dtype, DTYPES)}
        if self.engine == "torch":
            checks |= {
                "quantization": (self.quantization, (None, *FORMATS)),
                "activations": (self.activations, (None, *FORMATS)),
                "kv_cache_dtype": (self.kv_cache_dtype, ("auto", *FORMATS)),
            }
        else:
            checks |= {"activations": (self.activations, (None,))}
        for name, (value, known) in checks.items():
            if value not in known:
                raise MeasureError(f"{name}: expected one of {', '.join(map(str, known))}, got {value!r}")

    @property
    def label(self) -> str:
        """The name of the sampler in tables and legends."""
        parts = [f"{self.engine} {self.dtype}"]
        parts += [self.quantization] if self.quantization else []
        parts += [f"activations {self.activations}"] if self.activations else []
        parts += [f"{self.kv_cache_dtype} KV"] if self.kv_cache_dtype != "auto" else []
        return " + ".join(parts)


@dataclass(frozen=True)
class Model:
    """A checked model folder: its name, vocabulary, context length, end-of-sequence id and tokenizer (or None)."""

    folder: Path
    name: str
    vocabulary: int
    context: int
    eos: int
    tokenizer: Any


def open_model(folder: Path, eos: int | None = None) -> Model:
    """Read configuration and tokenizer of ``folder``; ``eos`` overrides the end-of-sequence id of its configuration."""
    from transformers import AutoConfig, AutoTokenizer

    shown = portable(str(folder))
    if not folder.is_dir():
        raise MeasureError(f"model: expected a folder with config.json and weights, got {shown}, which is not a folder")
    if not (folder / "config.json").is_file():
        raise MeasureError(f"model: {shown} holds no config.json; expected a Hugging Face model folder")
    if not (list(folder.glob("*.safetensors")) or list(folder.glob("pytorch_model*.bin"))):
        raise MeasureError(f"model: {shown} holds no weights; expected *.safetensors or pytorch_model*.bin")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise MeasureError(f"model: transformers does not read {shown}/config.json: {last_line(error)}") from error
    tokenizer = None
    if (folder / "tokenizer_config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = config.get_text_config()
    vocabulary, context = text.vocab_size, getattr(text, "max_position_embeddings", None)
    if tokenizer is not None and len(tokenizer) > vocabulary:
        raise MeasureError(
            f"vocabulary: the tokenizer of {shown} has {len(tokenizer)} tokens, its configuration {vocabulary}; "
            "expected a tokenizer that the model's embeddings cover"
        )
    ends = text.eos_token_id if eos is None else eos
    first = NO_EOS if ends is None or ends == [] else ends[0] if isinstance(ends, list) else ends
    if first != NO_EOS and not 0 <= first < vocabulary:
        raise MeasureError(f"eos: expected a token id in [0, {vocabulary}), got {first}")
    return Model(folder, folder.resolve().name, vocabulary, context or 2**31, first, tokenizer)


def check_request(model: Model, prompts: Sequence[Sequence[int]], max_tokens: int, head_k: int) -> None:
    """Raise `MeasureError` unless ``prompts`` and ``max_tokens`` new tokens fit the model, and a head its vocabulary."""
    if not prompts or not all(prompts):
        raise MeasureError("prompts: expected at least one, each with at least one token")
    if max_tokens < 1:
        raise MeasureError(f"tokens: expected at least 1 per response, got {max_tokens}")
    if not 1 <= head_k <= model.vocabulary:
        raise MeasureError(f"head_k: expected 1..{model.vocabulary} (the vocabulary), got {head_k}")
    ids = [token for prompt in prompts for token in prompt]
    if not 0 <= min(ids) <= max(ids) < model.vocabulary:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise MeasureError(f"prompts: token id {wrong} is outside the model's vocabulary of {model.vocabulary}")
    longest = max(map(len, prompts))
    if longest + max_tokens > model.context:
        raise MeasureError(
            f"tokens: {longest} prompt tokens and {max_tokens} response tokens exceed the model's context of "
            f"{model.context}; ask for fewer"
        )


def load_trainer(model: Model, dtype: torch.dtype = torch.float32) -> Any:
    """``transformers.AutoModelForCausalLM`` of the folder in ``dtype``, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    try:
        network = AutoModelForCausalLM.from_pretrained(model.folder, local_files_only=True, dtype=dtype)
    except (ValueError, OSError, RuntimeError) as error:
        raise MeasureError(
            f"model: transformers does not load {portable(str(model.folder))}: {last_line(error)}"
        ) from error
    rows = network.get_output_embeddings().weight.shape[0]
    if rows != model.vocabulary:
        raise MeasureError(f"vocabulary: config.json says {model.vocabulary}, the output head has {rows} rows")
    return network.eval()


def vllm_responses(
    model: Model, fmt: Format, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int, head_k: int
) -> list[Response]:
    """One response of at most ``max_tokens`` per prompt from a vLLM engine, which is started and stopped here."""
    vllm = _import_vllm()
    try:
        engine = vllm.LLM(
            str(model.folder),
            dtype=fmt.dtype,
            kv_cache_dtype=fmt.kv_cache_dtype,
            quantization=fmt.quantization,
            max_model_len=max(map(len, prompts)) + max_tokens,
            max_num_seqs=min(len(prompts), 256),
            max_logprobs=head_k,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=False,
            enforce_eager=True,
            skip_tokenizer_init=True,
            generation_config="vllm",
            **device_options(fmt.quantization),
        )
    except Exception as error:  # vLLM raises many kinds for formats that a machine has no kernel for
        raise EngineUnavailable(f"vLLM {vllm.__version__} does not start as {fmt.label}: {last_line(error)}") from error
    try:
        engine.update_weight_version("0")  # otherwise responses come without the version that `decode` asks for
        seeds = np.random.default_rng(seed).integers(0, 2**31, len(prompts)).tolist()
        stop = [] if model.eos == NO_EOS else [model.eos]
        parameters = [
            vllm.SamplingParams(
                temperature=1.0, max_tokens=max_tokens, logprobs=head_k, flat_logprobs=True, stop_token_ids=stop,
                ignore_eos=True, detokenize=False, seed=one,
            )
            for one in seeds
        ]  # fmt: skip
        outputs = engine.generate([{"prompt_token_ids": list(p)} for p in prompts], parameters, use_tqdm=False)
        if len(outputs) != len(prompts):
            raise MeasureError(f"engine: expected {len(prompts)} responses, got {len(outputs)}")
        return [
            decode(
                output.outputs[0], row, width=head_k, eos=model.eos, max_tokens=max_tokens, vocabulary=model.vocabulary
            )
            for row, output in enumerate(outputs)
        ]
    finally:
        engine.llm_engine.engine_core.shutdown()


@torch.no_grad()
def torch_responses(
    model: Model, fmt: Format, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int, head_k: int
) -> list[Response]:
    """As `vllm_responses`, from transformers in ``fmt``: one batch, prompts padded on the left, a key/value cache.

    Values are rounded to the formats' grids (``repro.quantise``) and computed in ``fmt.dtype``.
    """
    network = load_trainer(model, getattr(torch, fmt.dtype))
    simulate(network, fmt)
    generator = torch.Generator().manual_seed(seed)
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    # The argument's name changed within the supported versions of transformers.
    name = "cache" if "cache" in inspect.signature(network.forward).parameters else "past_key_values"
    carried = {name: _cache(network, fmt), "use_cache": True}
    fed, alive, steps = ids, torch.ones(len(prompts), dtype=torch.bool), []
    while len(steps) < max_tokens and alive.any():
        positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, -fed.shape[1] :]
        out = network(fed, attention_mask=mask, position_ids=positions, **carried)
        logp = torch.log_softmax(out.logits[:, -1].float(), -1)
        if not torch.isfinite(logp).any(-1).all() or logp.isnan().any():
            raise MeasureError(f"engine: {fmt.label} gives NaN log-probs at response token {len(steps)}")
        tokens = torch.multinomial(logp.exp(), 1, generator=generator)
        head_logp, head_ids = logp.topk(head_k)
        steps.append((tokens[:, 0], logp.gather(-1, tokens)[:, 0], head_ids, head_logp, alive.clone()))
        alive &= tokens[:, 0] != model.eos
        fed, mask = tokens, torch.cat([mask, torch.ones_like(tokens)], -1)
    columns = [torch.stack(column, 1) for column in zip(*steps, strict=True)]
    lengths = columns[4].sum(-1).tolist()
    found = []
    for row, length in enumerate(lengths):
        tokens, logp, head_ids, head_logp = (column[row, :length].numpy() for column in columns[:4])
        versions = np.zeros(length, dtype=np.int64)
        found.append(Response(tokens, logp, head_ids, head_logp, versions, bool(tokens[-1] == model.eos)))
    return found


def simulate(network: Any, fmt: Format) -> None:
    """Put the weights of every linear layer but the output head on the format's grid, and hook their inputs, in place."""
    head = network.get_output_embeddings()
    for module in network.modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            if fmt.quantization:
                module.weight.data = _rounded(module.weight.data, fmt.quantization)
            if fmt.activations:
                module.register_forward_pre_hook(lambda _, inputs: (_rounded(inputs[0], fmt.activations), *inputs[1:]))


def _rounded(x: Tensor, name: str) -> Tensor:
    return quantise(x.float(), name).to(x.dtype)


def _cache(network: Any, fmt: Format) -> Any:
    """A key/value cache that keeps what it is given on the format's grid, per token and head."""
    from transformers import DynamicCache

    class Rounded(DynamicCache):
        def update(self, key_states: Tensor, value_states: Tensor, *arguments: Any, **options: Any):
            if fmt.kv_cache_dtype != "auto":
                key_states, value_states = (_rounded(x, fmt.kv_cache_dtype) for x in (key_states, value_states))
            return super().update(key_states, value_states, *arguments, **options)

    return Rounded(config=network.config)


def describe(model: Model) -> dict[str, Any]:
    """What the record says of the model: name, architecture, sizes and the hash of its first weight file."""
    config = json.loads((model.folder / "config.json").read_text(encoding="utf-8"))
    weights = sorted([*model.folder.glob("*.safetensors"), *model.folder.glob("pytorch_model*.bin")])
    return {
        "name": model.name,
        "architecture": (config.get("architectures") or ["unknown"])[0],
        "layers": config.get("num_hidden_layers"),
        "hidden": config.get("hidden_size"),
        "vocabulary": model.vocabulary,
        "stored_dtype": config.get("dtype") or config.get("torch_dtype"),
        "weights_sha256": {path.name: file_sha256(path) for path in weights},
    }
