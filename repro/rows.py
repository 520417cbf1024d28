"""What a row of the manifest is: its settings, variants, tiers and claim, and the cells that they make.

A replicate is a warm start and a seed; a condition is a variant and an arm. `repro.manifest` reads rows from TOML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.errors import LaboratoryError

BASE = "base"  # the one variant of a row without variants
NO_SETTINGS = ("arms", "checkpoints")  # what a variant may replace beside settings


class ManifestError(LaboratoryError):
    """A manifest that cannot be read, or a request for a row, tier, arm or seed that it does not have."""


@dataclass(frozen=True)
class Settings:
    """Every setting of the trainer but arm, seed, steps and warm start: no default of the code can change a key's meaning.

    ``weights``, ``activations`` and ``kv`` name the simulated formats of the torch sampler, "" for none; ``engine_*`` are
    vLLM's own settings; the ``*_every`` are in steps; ``updates_per_rollout`` > 1 makes the trainer's, the anchor's and the
    sampler's policy three different ones.
    """

    task: str
    optimizer: str
    lr: float
    updates_per_rollout: int
    advantage: str
    aggregation: str
    engine: str
    engine_dtype: str
    engine_kv: str
    engine_quantization: str
    weights: str
    activations: str
    kv: str
    weight_noise: float
    staleness: int
    head_k: int
    prompts_per_step: int
    samples_per_prompt: int
    max_tokens: int
    temperature: float
    eval_problems: int
    oracle_every: int
    oracle_rows: int
    checkpoint_every: int


@dataclass(frozen=True)
class GpuSettings(Settings):
    """The settings of `repro.gpu`, which says what the five more mean."""

    device: str
    compute: str
    micro_batch: int
    data_rows: int
    eval_samples: int


@dataclass(frozen=True)
class Published:
    """What the literature reports for this figure; nothing here enters a computation. ``ordering`` lists conditions from
    best to worst as published, for the table "published / here"; it is empty where no ordering was published."""

    paper: str
    rerun: str
    ordering: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """``better`` ends above ``worse`` by more than ``margin`` (in the unit of the check's metric). Both are conditions:
    an arm, or variant/arm in a row with several variants."""

    better: str
    worse: str
    margin: float


@dataclass(frozen=True)
class Check:
    """The claim as arithmetic on means of ``metric`` over the last ``window`` steps, compared in pairs over replicates.

    ``collapse``: a replicate counts as collapsed once its trailing window mean lies below it. ``improves``: conditions
    that end above their own first window. ``not_tested``: parts of the published claim that this scale cannot test.
    """

    metric: str
    window: int
    collapse: float
    comparisons: tuple[Comparison, ...]
    improves: tuple[str, ...]
    not_tested: tuple[str, ...]


@dataclass(frozen=True)
class Tier:
    """How much of a row is run: every seed from every warm start, ``minutes`` of wall time on a machine with ``needs``.
    ``settings`` replace single settings of the row; ``runner`` is the trainer's entry point, module:function."""

    checkpoints: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    eval_every: int
    minutes: float
    needs: str
    settings: dict[str, Any]
    runner: str


@dataclass(frozen=True)
class Cell:
    """One variant, arm, warm start and seed of a row; ``config`` is the trainer's argument."""

    row: str
    tier: str
    variant: str
    arm: str
    checkpoint: str
    seed: int
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """Readable name for progress lines and messages."""
        variant = "" if self.variant == BASE else f"{self.variant}/"
        return f"{variant}{self.arm} {self.checkpoint} seed {self.seed}"


@dataclass(frozen=True)
class Row:
    """One result: its claim, its arms and how to run it.

    ``variants`` maps a name to the settings (and ``arms``, and the tiers' ``checkpoints``) that it replaces; a row with one
    way to run has one, "base". ``layout`` names a figure of its own; "" leaves the choice to the data.
    ``tuning_seeds`` are those on which its settings were chosen; no figure uses them.
    """

    id: str
    title: str
    figure: str
    claim: str
    arms: tuple[str, ...]
    notebook: str
    output: str
    layout: str
    scaled_down: tuple[str, ...]
    settings: Settings
    variants: dict[str, dict[str, Any]]
    tuning_seeds: tuple[int, ...]
    published: Published
    check: Check
    tiers: dict[str, Tier]

    def tier(self, name: str) -> Tier:
        """The tier called ``name``; an error that lists the row's tiers when there is none."""
        if name not in self.tiers:
            raise ManifestError(f"tier {name!r}: row {self.id} has the tiers: {', '.join(self.tiers)}")
        return self.tiers[name]

    def starts(self, tier: str) -> list[str]:
        """The folders that the cells of ``tier`` start from, each once."""
        return list(dict.fromkeys(cell.config["checkpoint"] for cell in self.cells(tier)))

    def conditions(self) -> list[str]:
        """Every condition: an arm, or variant/arm where there are several variants."""
        return [
            arm if len(self.variants) == 1 else f"{name}/{arm}"
            for name, changes in self.variants.items()
            for arm in changes.get("arms", self.arms)
        ]

    def cells(
        self,
        tier: str,
        *,
        variants: Sequence[str] | None = None,
        arms: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        checkpoints: Sequence[str] | None = None,
        steps: int | None = None,
    ) -> list[Cell]:
        """The cells of ``tier``: seed by seed, warm start by warm start, so that every condition has its first replicate
        early. The other arguments replace the tier's own; they enter the configs, hence the keys.
        """
        plan = self.tier(tier)
        starts = {name: changes.get("checkpoints", plan.checkpoints) for name, changes in self.variants.items()}
        known_arms = list(dict.fromkeys([*self.arms, *(a for c in self.variants.values() for a in c.get("arms", ()))]))
        for name, chosen, known in (
            ("arm", arms, known_arms),
            ("variant", variants, list(self.variants)),
            ("checkpoint", checkpoints, [checkpoint_name(c) for one in starts.values() for c in one]),
        ):
            for value in chosen or ():
                if value not in known:
                    raise ManifestError(f"{name} {value!r}: row {self.id} has: {', '.join(known)}")
        if steps is not None and steps < 1:
            raise ManifestError(f"steps: expected at least 1, got {steps}")
        seeds = plan.seeds if seeds is None else tuple(seeds)
        for seed in seeds:
            if seed < 0:
                raise ManifestError(f"seeds: expected non-negative numbers, got {seed}")
        run = {"steps": plan.steps if steps is None else steps, "eval_every": plan.eval_every}
        return [
            Cell(
                self.id, tier, variant, arm, checkpoint_name(checkpoint), seed,
                {**vars(self.settings), **plan.settings, **settings_of(changes), **run,
                 "arm": arm, "checkpoint": checkpoint, "seed": seed},
            )
            for seed in dict.fromkeys(seeds)
            for place in range(max(map(len, starts.values())))
            for variant, changes in self.variants.items()
            if variants is None or variant in variants
            for checkpoint in starts[variant][place : place + 1]
            if checkpoints is None or checkpoint_name(checkpoint) in checkpoints
            for arm in changes.get("arms", self.arms)
            if arms is None or arm in arms
        ]  # fmt: skip


def checkpoint_name(path: str) -> str:
    """The last part of a warm start's folder, as tables and messages show it."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def settings_of(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name not in NO_SETTINGS}
