"""Invented training curves for tests of everything downstream of the trainer. They come from no measurement."""

from __future__ import annotations

import math

import numpy as np

ARMS = ("onpolicy", "pg", "tis", "sc", "tis_sc")
FINAL = {"onpolicy": 0.5, "pg": 0.08, "tis": 0.33, "sc": 0.44, "tis_sc": 0.42}


def metrics(arm: str, seed: int, step: int, steps: int, eval_every: int) -> dict[str, float | int | None]:
    """One step's metrics (steps count from 1) with the columns that the figure needs and a few more."""
    rng = np.random.default_rng([ARMS.index(arm), seed, step])
    share = (step - 1) / max(steps - 1, 1)
    accuracy = float(0.28 + (FINAL[arm] - 0.28) * share + 0.03 * rng.standard_normal())
    evaluated = step == 1 or step % eval_every == 0
    mismatch = 0.0 if arm == "onpolicy" else 0.06 * (1 + share * (arm == "tis"))
    return {
        "step": step,
        "train_accuracy": accuracy,
        "heldout_accuracy_trainer": accuracy + 0.02 if evaluated else None,
        "heldout_accuracy_sampler": accuracy if evaluated else math.nan,
        "kl_sampler_trainer": mismatch * (1 + 0.1 * rng.random()),
        "ess": 1.0 - 3 * mismatch * rng.random(),
        "eos_rate": 0.99 - 0.6 * share * (arm == "pg"),
        "grad_norm": 3.0 * math.exp(0.3 * rng.standard_normal()),
        "oracle_error": 1e-6 * (1 + rng.random()) if step == 1 or step % 10 == 0 else None,
        "seconds": 0.5,
    }


def curves(steps: int = 60, seeds: int = 3, arms: tuple[str, ...] = ARMS) -> list[dict[str, float | int | str | None]]:
    """Rows of a long table: arm, seed and metrics."""
    return [
        {"row": "countdown-fig4", "tier": "tiny", "arm": arm, "seed": seed, **metrics(arm, seed, step, steps, 20)}
        for arm in arms
        for seed in range(seeds)
        for step in range(1, steps + 1)
    ]
