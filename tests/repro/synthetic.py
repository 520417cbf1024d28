"""Invented training curves for tests of everything downstream of the trainer. They come from no measurement."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from repro.rows import Row, checkpoint_name

ARMS = ("onpolicy", "pg", "tis", "sc", "tis_sc")
FINAL = {  # accuracy at the last step; 0.4 for any other arm
    "onpolicy": 0.5, "pg": 0.08, "is": 0.31, "tis": 0.33, "sc": 0.44, "tis_sc": 0.42, "pg_norm": 0.1, "placebo": 0.05,
    "pg_clip": 0.2, "onpolicy_minus": 0.2, "pg_minus": 0.02, "sc_minus": 0.18,
}  # fmt: skip


def metrics(
    arm: str, seed: int, step: int, steps: int, eval_every: int, *, checkpoint: str = "", hardness: float = 1.0
) -> dict[str, float | int | None]:
    """One step's metrics (steps count from 1) with the columns that the figures need and a few more.

    ``hardness`` scales how far the arm moves from where it starts.
    """
    name = zlib.crc32(f"{arm} {checkpoint}".encode())
    rng, start = np.random.default_rng([name, seed, step]), np.random.default_rng([name, seed])
    share = (step - 1) / max(steps - 1, 1)
    final = 0.28 + hardness * (FINAL.get(arm, 0.4) - 0.28) + 0.04 * share * start.standard_normal()
    accuracy = float(np.clip(0.28 + (final - 0.28) * share + 0.03 * rng.standard_normal(), 0, 1))
    evaluated = step == 1 or step % eval_every == 0
    mismatch = 0.0 if arm.startswith("onpolicy") else 0.06 * (1 + share * (arm == "tis"))
    return {
        "step": step,
        "train_accuracy": accuracy,
        "reward_mean": 2 * accuracy - 1,
        "heldout_accuracy_trainer": accuracy + 0.02 if evaluated else None,
        "heldout_accuracy_sampler": accuracy if evaluated else math.nan,
        "kl_sampler_trainer": mismatch * (1 + 0.1 * rng.random()),
        "ess": 1.0 - 3 * mismatch * rng.random(),
        "eos_rate": 0.99 - 0.6 * share * arm.startswith("pg"),
        "grad_norm": 3.0 * math.exp(0.3 * rng.standard_normal()),
        "oracle_error": 1e-6 * (1 + rng.random()) if step == 1 or step % 10 == 0 else None,
        "seconds": 0.5,
    }


def curves(
    steps: int = 60,
    seeds: int = 3,
    arms: Sequence[str] = ARMS,
    checkpoints: Sequence[str] = ("warm0",),
    variants: Sequence[str] = ("base",),
) -> list[dict[str, float | int | str | None]]:
    """Rows of a long table: identifiers and metrics."""
    return [
        {
            "row": "countdown-fig4", "tier": "tiny", "variant": variant, "arm": arm, "checkpoint": checkpoint, "seed": 10 + seed,
            **metrics(arm, seed, step, steps, 20, checkpoint=checkpoint, hardness=(place + 1) / len(variants)),
        }
        for seed in range(seeds)
        for checkpoint in checkpoints
        for place, variant in enumerate(variants)
        for arm in arms
        for step in range(1, steps + 1)
    ]  # fmt: skip


def table(row: Row, steps: int | None = None) -> pd.DataFrame:
    """A long table with every cell of the first tier of ``row``."""
    cells, tier = [], next(iter(row.tiers))
    places = {name: (place + 1) / len(row.variants) for place, name in enumerate(row.variants)}
    for cell in row.cells(tier, steps=steps):
        last, every = cell.config["steps"], cell.config["eval_every"]
        start = checkpoint_name(cell.config["checkpoint"])
        cells += [
            {
                "row": row.id, "tier": tier, "variant": cell.variant, "arm": cell.arm, "checkpoint": start, "seed": cell.seed,
                **metrics(cell.arm, cell.seed, step, last, every, checkpoint=start, hardness=places[cell.variant]),
            }
            for step in range(1, last + 1)
        ]  # fmt: skip
    return pd.DataFrame(cells)
