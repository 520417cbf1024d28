"""The settings of a run of the GPU tier: the published experiment's defaults, and the checks on what a caller changes.

The keys are those of ``repro.settings`` and five more:

device        torch's name of the device, "cuda" or "cpu"
compute       dtype of every forward pass, trainer's and sampler's: "bfloat16" or "float32"; weights are kept in float32
micro_batch   responses in one forward and backward pass
data_rows     rows of the data set that are drawn; the first ``eval_problems`` of their shuffled order are held out
eval_samples  responses to each held-out problem

Defaults: Qwen3-0.6B on Countdown, group size 8, 64 prompts, SGD 0.01 on token means, top-128 head (arXiv 2609.20807 and
its released sweeps); 64 held-out problems. The defaults have not yet been run on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from repro.arms import ARMS, Control
from repro.errors import LaboratoryError
from repro.quantise import grid
from repro.settings import AGGREGATIONS, COUNTS, ENGINES, OPTIMIZERS, REQUIRED

VERL_ARMS = ("pg", "tis", "sc", "tis_sc")  # those of the rerun in verl's pull request 8010
NATIVE_FORMATS = ("", "fp8_e4m3")
COMPUTE = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DEVICES = ("cuda", "cpu")

COUNTDOWN: dict[str, Any] = {
    "task": "countdown",
    "optimizer": "sgd",
    "lr": 0.01,
    "updates_per_rollout": 1,
    "advantage": "mean",
    "aggregation": "token-mean",
    "engine": "torch",
    "engine_dtype": "",
    "engine_kv": "",
    "engine_quantization": "",
    "weights": "fp8_e4m3",
    "activations": "fp8_e4m3",
    "kv": "",
    "weight_noise": 0.0,
    "staleness": 0,
    "head_k": 128,
    "prompts_per_step": 64,
    "samples_per_prompt": 8,
    "max_tokens": 384,
    "temperature": 1.0,
    "eval_every": 20,
    "eval_problems": 64,
    "eval_samples": 8,
    "oracle_every": 20,
    "oracle_rows": 4,
    "checkpoint_every": 20,
    "device": "cuda",
    "compute": "bfloat16",
    "micro_batch": 8,
    "data_rows": 20_000,
}
NEEDED = (*REQUIRED, "checkpoint")


class DeviceUnavailable(LaboratoryError):
    """The machine lacks the device, or the device lacks a kernel, that the settings ask for."""


def usable_arms() -> tuple[str, ...]:
    """Arms of one policy per rollout, without a control's change, whose weights are functions of a single token: what
    the loss without arrays over the vocabulary covers and what a few tokens of a row can be checked for."""
    return tuple(
        name
        for name, arm in ARMS.items()
        if arm.control == Control() and not arm.anchored and not arm.definition.get("gate")
        and (arm.definition.get("weight") or {}).get("level", "token") == "token"
        and (arm.definition.get("weight") or {}).get("statistic", "ratio") == "ratio"
    )  # fmt: skip


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with the defaults of :data:`COUNTDOWN`; unknown, missing or senseless settings are ValueErrors."""
    known = (*NEEDED, *COUNTDOWN)
    if unknown := sorted(set(config) - set(known)):
        raise ValueError(f"{unknown[0]}: not a setting of the GPU tier; known: {', '.join(known)}")
    if missing := [name for name in NEEDED if name not in config]:
        raise ValueError(f"{missing[0]}: required (an arm, a seed, a number of steps and a model's folder make a run)")
    full = {**COUNTDOWN, **config}
    for name, choices in (
        ("arm", usable_arms()), ("task", ("countdown",)), ("engine", ENGINES), ("optimizer", OPTIMIZERS),
        ("advantage", ("mean", "mean_std")), ("aggregation", AGGREGATIONS), ("device", DEVICES), ("compute", COMPUTE),
        ("updates_per_rollout", (1,)), ("weights", NATIVE_FORMATS), ("activations", NATIVE_FORMATS),
    ):  # fmt: skip
        if full[name] not in choices:
            raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {full[name]!r}")
    for name in (*COUNTS, "eval_samples", "micro_batch", "data_rows"):
        if type(full[name]) is not int or full[name] < 1:
            raise ValueError(f"{name}: expected a positive whole number, got {full[name]!r}")
    if full["weights"] != full["activations"]:
        raise ValueError(
            f"activations: expected {full['weights']!r} as for weights, got {full['activations']!r}; the native matrix "
            "product takes both factors in fp8"
        )
    if full["engine"] == "vllm" and (simulated := [n for n in ("weights", "kv") if full[n]]):
        raise ValueError(
            f"{simulated[0]}: expected '' with engine 'vllm', got {full[simulated[0]]!r}; that engine's formats are "
            "engine_dtype, engine_kv and engine_quantization"
        )
    if full["kv"]:
        try:
            grid(full["kv"])
        except ValueError as error:
            raise ValueError(f"kv: {error}") from None
    if full["data_rows"] <= full["eval_problems"]:
        raise ValueError(
            f"data_rows: expected more than the {full['eval_problems']} held-out problems, got {full['data_rows']}"
        )
    for name in ("lr", "temperature"):
        if not full[name] > 0:
            raise ValueError(f"{name}: expected a positive number, got {full[name]!r}")
    for name in ("seed", "staleness", "head_k"):
        if type(full[name]) is not int or full[name] < 0:
            raise ValueError(f"{name}: expected a whole number >= 0, got {full[name]!r}")
    if not full["weight_noise"] >= 0:
        raise ValueError(f"weight_noise: expected a standard deviation >= 0, got {full['weight_noise']!r}")
    return full


def resolve_device(name: str) -> torch.device:
    """The device called ``name``; DeviceUnavailable where this machine has no GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable(
            "device: expected a CUDA GPU, torch finds none here; run this tier on a machine that has one. What does not "
            "need it is exercised by `python -m repro.gpu.dry_run`"
        )
    return torch.device(name)
