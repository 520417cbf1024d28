"""The settings of a training run: the defaults of the CPU runs, and the checks on what a caller changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.arms import ARMS
from repro.tasks import countdown_tiny
from repro.tasks.registry import TASKS

ENGINES = ("torch", "vllm")
OPTIMIZERS = ("sgd", "adamw")
ADVANTAGES = ("mean", "mean_std", "raw", "raw01")
AGGREGATIONS = ("seq-mean-token-sum", "token-mean")

# ``weights``, ``activations`` and ``kv`` are the torch sampler's simulated formats ("" for none): together they start at
# KL(q || p) of about 0.06 nats a token and an effective sample size of about 0.9 on the committed warm starts.
COUNTDOWN_TINY: dict[str, Any] = {
    "task": "countdown_tiny",
    "checkpoint": "repro/checkpoints/countdown_tiny_seed1",
    "optimizer": "sgd",
    "lr": 0.003,
    "updates_per_rollout": 1,
    "advantage": "mean",
    "aggregation": "seq-mean-token-sum",
    "engine": "torch",
    "engine_dtype": "",
    "engine_kv": "",
    "engine_quantization": "",
    "weights": "fp4_e2m1",
    "activations": "fp8_e4m3",
    "kv": "fp4_e2m1",
    "weight_noise": 0.0,
    "staleness": 0,
    "head_k": 16,
    "prompts_per_step": 32,
    "samples_per_prompt": 8,
    "max_tokens": countdown_tiny.MAX_RESPONSE,
    "temperature": 1.0,
    "eval_every": 20,
    "eval_problems": 256,
    "oracle_every": 10,
    "oracle_rows": 4,
    "checkpoint_every": 10,
}
REQUIRED = ("arm", "seed", "steps")
COUNTS = (
    "steps", "updates_per_rollout", "prompts_per_step", "samples_per_prompt", "max_tokens", "eval_every", "eval_problems",
    "oracle_every", "oracle_rows", "checkpoint_every",
)  # fmt: skip


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with the defaults of :data:`COUNTDOWN_TINY`; unknown, missing or senseless settings are ValueErrors."""
    known = (*REQUIRED, *COUNTDOWN_TINY)
    if unknown := sorted(set(config) - set(known)):
        raise ValueError(f"{unknown[0]}: not a setting of this trainer; known: {', '.join(known)}")
    if missing := [name for name in REQUIRED if name not in config]:
        raise ValueError(f"{missing[0]}: required (an arm, a seed and a number of steps make a run)")
    full = {**COUNTDOWN_TINY, **config}
    for name, choices in (
        ("arm", ARMS), ("task", TASKS), ("engine", ENGINES), ("optimizer", OPTIMIZERS), ("advantage", ADVANTAGES),
        ("aggregation", AGGREGATIONS),
    ):  # fmt: skip
        if full[name] not in choices:
            raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {full[name]!r}")
    for name in COUNTS:
        if not isinstance(full[name], int) or full[name] < 1:
            raise ValueError(f"{name}: expected a positive whole number, got {full[name]!r}")
    if full["prompts_per_step"] % full["updates_per_rollout"]:
        raise ValueError(
            f"updates_per_rollout: {full['prompts_per_step']} prompts cannot be divided among {full['updates_per_rollout']}"
        )
    if full["updates_per_rollout"] > 1 and not ARMS[full["arm"]].anchored:
        raise ValueError(
            f"updates_per_rollout: arm {full['arm']!r} forms its ratios against the sampler; an anchored arm is needed: "
            f"{', '.join(name for name, arm in ARMS.items() if arm.anchored)}"
        )
    if not full["lr"] > 0:
        raise ValueError(f"lr: expected a positive step size, got {full['lr']!r}")
    if not isinstance(full["seed"], int) or full["seed"] < 0:
        raise ValueError(f"seed: expected a whole number >= 0, got {full['seed']!r}")
    return full


def definition_of(config: Mapping[str, Any], arm: str | None = None) -> dict[str, Any]:
    """The definition of a run's objective (or of another arm's under the same settings), without the denominator, which
    is the batch's."""
    return {
        **ARMS[arm or config["arm"]].definition,
        "temperature": config["temperature"],
        "aggregation": {"kind": config["aggregation"]},
    }


def with_denominator(definition: Mapping[str, Any], sequences: int, tokens: int) -> dict[str, Any]:
    """The definition with the explicit denominator of a batch, so that a part of it has its share of the whole."""
    kind = definition["aggregation"]["kind"]
    count = {"tokens": tokens} if kind == "token-mean" else {"sequences": sequences}
    return {**definition, "aggregation": {"kind": kind, **count}}
