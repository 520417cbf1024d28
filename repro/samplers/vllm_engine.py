"""Start of a vLLM engine inside this process: environment, settings, the settings that differ between devices."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config

from repro.errors import LaboratoryError
from repro.policies import State
from repro.samplers.vllm_weights import write_checkpoint


class EngineUnavailable(LaboratoryError):
    """vLLM is not installed, or its engine does not start with these settings; the message says what to do."""


def start_engine(
    state: State,
    config: Qwen3Config,
    *,
    dtype: str,
    kv_cache_dtype: str,
    quantization: str | None,
    prefix_caching: bool,
    max_sequences: int,
) -> Any:
    """A ``vllm.LLM`` with ``state`` loaded; its processed log-probs reach down to the whole vocabulary.

    Raises :class:`EngineUnavailable` with vLLM's own reason.
    """
    vllm = _import_vllm()
    with tempfile.TemporaryDirectory(prefix="rlcorr-policy-") as folder:
        write_checkpoint(Path(folder), state, config, quantization)
        try:
            engine = vllm.LLM(
                folder,
                dtype=dtype,
                kv_cache_dtype=kv_cache_dtype,
                quantization=None if quantization == "int8" else quantization,  # the checkpoint's files name int8
                max_model_len=config.max_position_embeddings,
                max_num_seqs=max_sequences,
                max_logprobs=config.vocab_size,
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=prefix_caching,
                enforce_eager=True,
                skip_tokenizer_init=True,
                generation_config="vllm",
                **device_options(quantization),
            )
        except Exception as error:
            raise EngineUnavailable(
                f"vLLM {vllm.__version__} does not start with dtype={dtype}, kv_cache_dtype={kv_cache_dtype}, "
                f"quantization={quantization}: {last_line(error)}; choose another format or another machine"
            ) from error
    mode = engine.llm_engine.vllm_config.model_config.logprobs_mode
    if mode != "processed_logprobs":
        raise EngineUnavailable(f"logprobs_mode: expected 'processed_logprobs', the engine runs with {mode!r}")
    return engine


def runs_on_cpu() -> bool:
    """Whether the installed vLLM was built for CPUs."""
    from vllm.platforms import current_platform

    return current_platform.is_cpu()


def device_options(quantization: str | None) -> dict[str, Any]:
    """Engine arguments that differ between devices, and the device's own settings made. Only the CPU has been run."""
    if not runs_on_cpu():
        return {"gpu_memory_utilization": 0.3}  # the trainer shares the device
    if quantization == "fp8_per_channel":
        _keep_onednn_from_fp8_products()
    return {"block_size": 32}  # the CPU's own default of 128 tokens would never cache a sequence of ours


def _keep_onednn_from_fp8_products() -> None:
    """Let ``torch._scaled_mm`` use torch's own emulation of fp8, in this process.

    On a processor with AMX oneDNN takes products with one scale per tensor, which is how vLLM calls them, and computes
    them in its reference kernel: 5.4 s where the emulation takes 27 ms (32 x 576 x 1536). oneDNN as a whole cannot be
    switched off: vLLM's other CPU kernels abort without it.
    """
    product = torch._scaled_mm
    if getattr(product, "emulated", False):
        return

    def emulated(*arguments: Any, **options: Any) -> torch.Tensor:
        before, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, False
        try:
            return product(*arguments, **options)
        finally:
            torch.backends.mkldnn.enabled = before

    emulated.emulated = True
    torch._scaled_mm = emulated


def _import_vllm() -> Any:
    """vLLM, set up to run inside this process. Settings of the environment that are already there are kept."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # updates reach into the engine's memory
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the trainer's threads are not vLLM's to move
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        import vllm
    except ImportError as error:
        raise EngineUnavailable(
            f"vllm: cannot be imported ({error}); it needs an environment of its own, made from "
            "tests/engine_vllm/requirements.txt"
        ) from error
    _make_llvmlite_scannable()
    return vllm


def _make_llvmlite_scannable() -> None:
    """Let vLLM's start-up look through llvmlite, which Numba loads.

    vLLM 0.32.0 reads ``vars(x)`` of every module attribute. llvmlite's library handle answers any attribute, ``__dict__``
    too, with a foreign function, on which vLLM stops with an AttributeError. The handle's own table of answers is given
    an empty dict for that one name.
    """
    module = sys.modules.get("llvmlite.binding.ffi")
    if module is not None and not isinstance(getattr(module.lib, "__dict__", {}), dict):
        module.lib._fntab["__dict__"] = {}


def last_line(error: BaseException) -> str:
    """The last line of an error's text, or its type's name: vLLM's messages end with what matters."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
