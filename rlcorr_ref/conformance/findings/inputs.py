"""Small inputs shared by the findings, and right values from the reference.

Log-ratios d = log p - log q are given directly: the sampler's log-prob is -1 - d and the trainer's -1, so that
their difference is d.
"""

from __future__ import annotations

from typing import Any

from ...wire import evaluate_case


def tensor(values: Any, whole: bool = False) -> Any:
    """float32 torch tensor [B, T] (int64 where `whole`)."""
    import torch

    return torch.tensor(values, dtype=torch.int64 if whole else torch.float32)


def ones(rows: list[list[float]]) -> list[list[int]]:
    """A mask that keeps everything."""
    return [[1] * len(row) for row in rows]


def right(function: str, output: str, d: list[list[float]], settings: dict[str, Any], mask: Any = None) -> Any:
    """The reference's value of an output for log-ratios d [B, T]."""
    inputs = {
        "logp_trainer": [[-1.0 for _ in row] for row in d],
        "logp_sampler": [[-1.0 - x for x in row] for row in d],
        "mask": ones(d) if mask is None else mask,
    }
    return evaluate_case({"function": function, "inputs": inputs, "parameters": settings})[output]


def nearly(a: float, b: float, tolerance: float = 1e-4) -> bool:
    """Equal up to float32 noise."""
    return abs(a - b) <= tolerance * max(1.0, abs(b))
