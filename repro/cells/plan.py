"""What a command of the laboratory is about: a row, the cells chosen from it, and the store that they belong to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro import manifest
from repro.errors import LaboratoryError
from repro.manifest import Cell
from repro.provenance import ROOT, file_sha256, portable


class UsageError(LaboratoryError):
    """A request that cannot be carried out."""


def input_hashes(checkpoints: Sequence[str]) -> dict[str, dict[str, str]]:
    """sha256 of the files that the cells start from, by warm start; they are part of every key."""
    hashes: dict[str, dict[str, str]] = {}
    for checkpoint in checkpoints:
        files = [ROOT / checkpoint / name for name in ("config.json", "model.safetensors")]
        for path in files:
            if not path.is_file():
                raise UsageError(f"{portable(str(path))}: the start of a run is missing; {_how_to_get(checkpoint)}")
        hashes[checkpoint] = {path.name: file_sha256(path) for path in files}
    return hashes


def _how_to_get(checkpoint: str) -> str:
    if checkpoint.startswith("repro/checkpoints/"):
        return f"make it with `python -m repro.warmstart --seed N --out {checkpoint}`"
    return f"put a Hugging Face model (config, safetensors, tokenizer) into the folder {checkpoint} of the checkout"


class Plan:
    """A row, its cells under the given overrides, and the store they belong to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.row = manifest.find(manifest.load(arguments.manifest), arguments.row)
        self.tier_name = arguments.tier
        self.tier = self.row.tier(arguments.tier)
        self.cells: list[Cell] = self.row.cells(
            arguments.tier, variants=arguments.variants, arms=arguments.arms, seeds=arguments.seeds,
            checkpoints=arguments.checkpoints, steps=arguments.steps,
        )  # fmt: skip
        if not self.cells:
            raise UsageError(f"row {self.row.id}: no cell has all of the chosen variants, arms and warm starts")
        self.whole = self.cells == self.row.cells(arguments.tier)
        self.root: Path = arguments.store or ROOT / "repro" / "runs" / self.row.id / self.tier_name
        self.runner: str = arguments.runner or self.tier.runner

    def header(self) -> dict[str, Any]:
        """What the store must have been written for."""
        return {
            "row": self.row.id,
            "tier": self.tier_name,
            "runner": self.runner,
            "inputs": input_hashes(self.row.starts(self.tier_name)),
            "settings": {**vars(self.row.settings), **self.tier.settings, "steps": self.cells[0].config["steps"]},
        }

    def published(self) -> Path:
        """Where figures of this row lie in the checkout."""
        return ROOT / self.row.output
