"""Calls and settings that the findings for verl share."""

from __future__ import annotations

from typing import Any

from .inputs import ones, tensor

HELPER = "verl/trainer/ppo/rollout_corr_helper.py"
ALGOS = "verl/trainer/ppo/core_algos.py"
TIS = {"weight": {"level": "token", "high": 2.0, "outside": "clip"}}


def weights(verl: Any, d: list[list[float]], threshold: Any, mask: Any = None, level: str = "token") -> Any:
    """(weights [B, T], metrics) of log-ratios d [B, T]; float32."""
    m = tensor(ones(d) if mask is None else mask, whole=True)
    return verl.p.helper.compute_rollout_correction_weights(tensor(d), m, level, threshold)


def nan_misses(outcome: Any) -> bool:
    """An outcome outside the reductions with NaN where a number is wanted."""
    return outcome.family != "agg" and any("got NaN" in miss for miss in outcome.misses)
