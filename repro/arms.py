"""What a run is: the arms, the settings of the CPU runs, and the checks on both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from repro.tasks import countdown_tiny as task


class Arm(NamedTuple):
    """A correction (the part of the definition that differs between arms) and whether the sampler is quantised."""

    definition: dict[str, Any]
    mismatched: bool = True


TIS = {"level": "token", "high": 2.0, "outside": "clip"}
ARMS: dict[str, Arm] = {
    "onpolicy": Arm({}, mismatched=False),
    "pg": Arm({}),
    "tis": Arm({"weight": TIS}),
    "sc": Arm({"centering": {"tail": "rescaled"}}),
    "tis_sc": Arm({"weight": TIS, "centering": {"tail": "rescaled"}}),
}

# The settings of the CPU runs. ``weights``, ``activations`` and ``kv`` are the sampler's simulated formats: together
# they start at KL(q || p) of about 0.06 nats a token and an effective sample size of about 0.9 on this checkpoint.
COUNTDOWN_TINY: dict[str, Any] = {
    "task": "countdown_tiny",
    "checkpoint": "repro/checkpoints/countdown_tiny_seed1",
    "lr": 0.003,
    "weights": "fp4_e2m1",
    "activations": "fp8_e4m3",
    "kv": "fp4_e2m1",
    "weight_noise": 0.0,
    "staleness": 0,
    "head_k": 16,
    "prompts_per_step": 32,
    "samples_per_prompt": 8,
    "max_tokens": task.MAX_RESPONSE,
    "temperature": 1.0,
    "eval_every": 20,
    "eval_problems": 256,
    "oracle_every": 10,
    "oracle_rows": 4,
    "checkpoint_every": 10,
}
REQUIRED = ("arm", "seed", "steps")


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with the defaults of :data:`COUNTDOWN_TINY`; unknown, missing or senseless settings are ValueErrors."""
    known = (*REQUIRED, *COUNTDOWN_TINY)
    if unknown := sorted(set(config) - set(known)):
        raise ValueError(f"{unknown[0]}: not a setting of this trainer; known: {', '.join(known)}")
    if missing := [name for name in REQUIRED if name not in config]:
        raise ValueError(f"{missing[0]}: required (an arm, a seed and a number of steps make a run)")
    full = {**COUNTDOWN_TINY, **config}
    if full["arm"] not in ARMS:
        raise ValueError(f"arm: expected one of {', '.join(ARMS)}, got {full['arm']!r}")
    if full["task"] != "countdown_tiny":
        raise ValueError(f"task: this trainer runs countdown_tiny, got {full['task']!r}")
    for name in ("steps", "prompts_per_step", "samples_per_prompt", "eval_every", "eval_problems", "oracle_every",
                 "oracle_rows", "checkpoint_every"):  # fmt: skip
        if not isinstance(full[name], int) or full[name] < 1:
            raise ValueError(f"{name}: expected a positive whole number, got {full[name]!r}")
    if not full["lr"] > 0:
        raise ValueError(f"lr: expected a positive step size, got {full['lr']!r}")
    if not isinstance(full["seed"], int) or full["seed"] < 0:
        raise ValueError(f"seed: expected a whole number >= 0, got {full['seed']!r}")
    return full


def definition_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The full definition of a run's objective, as ``rlcorr_ref.Objective.from_dict`` takes it."""
    sequences = config["prompts_per_step"] * config["samples_per_prompt"]
    return {
        **ARMS[config["arm"]].definition,
        "temperature": config["temperature"],
        "aggregation": {"kind": "seq-mean-token-sum", "sequences": sequences},
    }
