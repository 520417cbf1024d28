"""The settings of the short training runs that the tests make."""

from __future__ import annotations

SMALL = {
    "seed": 3,
    "steps": 4,
    "checkpoint": "repro/checkpoints/countdown_tiny_seed1",
    "prompts_per_step": 6,
    "samples_per_prompt": 4,
    "eval_problems": 8,
    "eval_every": 3,
    "oracle_every": 2,
    "checkpoint_every": 2,
}


def cell(arm="sc", **changes):
    return {**SMALL, "arm": arm, **changes}


def without_time(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
