"""The manifest: one typed row per result, read from ``manifest.toml``.

A row names what is claimed, the arms that are compared, the settings they share and, per tier, how much of it is run.
`Row.cells` turns a row and a tier into the cells that the executor runs: one cell per arm and seed, each with the
plain ``config`` dict that ``repro.trainer.run_cell`` takes.

An unknown key, a missing key or a value of the wrong type is a `ManifestError` that names the row and the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from repro.errors import LaboratoryError

MANIFEST = Path(__file__).with_name("manifest.toml")


class ManifestError(LaboratoryError):
    """A manifest that cannot be read, or a request for a row, tier, arm or seed that it does not have."""


@dataclass(frozen=True)
class Settings:
    """What all arms and seeds of a row share: every setting of the trainer, so that no default can change a key's
    meaning. ``weights``, ``activations`` and ``kv`` name the sampler's simulated formats, the ``*_every`` are in steps."""

    task: str
    checkpoint: str
    lr: float
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
class Published:
    """What the literature reports for this figure, in words; nothing here enters a computation."""

    paper: str
    rerun: str


@dataclass(frozen=True)
class Above:
    """``better`` ends above ``worse`` by more than ``margin`` (in the unit of the check's metric)."""

    better: str
    worse: str
    margin: float


@dataclass(frozen=True)
class Check:
    """The claim as arithmetic: means of ``metric`` over the last ``window`` steps, compared in pairs over seeds."""

    metric: str
    window: int
    above: tuple[Above, ...]
    improves: tuple[str, ...]


@dataclass(frozen=True)
class Tier:
    """How much of a row is run: ``minutes`` of wall time on a machine with ``needs``."""

    seeds: tuple[int, ...]
    steps: int
    eval_every: int
    minutes: float
    needs: str


@dataclass(frozen=True)
class Cell:
    """One arm and seed of a row; ``config`` is the trainer's argument."""

    row: str
    tier: str
    arm: str
    seed: int
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """Readable name for progress lines and messages."""
        return f"{self.arm} seed {self.seed}"


@dataclass(frozen=True)
class Row:
    """One result: its claim, its arms and how to run it."""

    id: str
    title: str
    figure: str
    claim: str
    arms: tuple[str, ...]
    notebook: str
    output: str
    scaled_down: tuple[str, ...]
    settings: Settings
    published: Published
    check: Check
    tiers: dict[str, Tier]

    def tier(self, name: str) -> Tier:
        """The tier called ``name``; an error that lists the row's tiers when there is none."""
        if name not in self.tiers:
            raise ManifestError(f"tier {name!r}: row {self.id} has the tiers: {', '.join(self.tiers)}")
        return self.tiers[name]

    def cells(
        self,
        tier: str,
        *,
        arms: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        steps: int | None = None,
    ) -> list[Cell]:
        """The cells of ``tier``, seed by seed so that every arm has its first seed early.

        ``arms``, ``seeds`` and ``steps`` replace the tier's own; they enter the configs, hence the keys.
        """
        plan = self.tier(tier)
        for arm in arms or ():
            if arm not in self.arms:
                raise ManifestError(f"arm {arm!r}: row {self.id} has the arms: {', '.join(self.arms)}")
        if steps is not None and steps < 1:
            raise ManifestError(f"steps: expected at least 1, got {steps}")
        seeds = plan.seeds if seeds is None else tuple(seeds)
        for seed in seeds:
            if seed < 0:
                raise ManifestError(f"seeds: expected non-negative numbers, got {seed}")
        shared = vars(self.settings) | {
            "steps": plan.steps if steps is None else steps,
            "eval_every": plan.eval_every,
        }
        return [
            Cell(self.id, tier, arm, seed, {**shared, "arm": arm, "seed": seed})
            for seed in dict.fromkeys(seeds)
            for arm in dict.fromkeys(arms or self.arms)
        ]


def _build(cls: type, data: object, where: str) -> Any:
    """``data`` (parsed TOML) as an instance of the dataclass ``cls``; every message starts with ``where``."""
    if not isinstance(data, dict):
        raise ManifestError(f"{where}: expected a table, got {type(data).__name__}")
    known = [field.name for field in fields(cls)]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ManifestError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(known)}")
    missing = [name for name in known if name not in data]
    if missing:
        raise ManifestError(f"{where}: missing key {missing[0]!r}")
    hints = get_type_hints(cls)
    return cls(**{name: _convert(hints[name], data[name], f"{where}.{name}") for name in known})


def _convert(kind: Any, value: object, where: str) -> Any:
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ManifestError(f"{where}: expected a list, got {type(value).__name__}")
        return tuple(_convert(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise ManifestError(f"{where}: expected a table, got {type(value).__name__}")
        return {name: _convert(get_args(kind)[1], item, f"{where}.{name}") for name, item in value.items()}
    if hasattr(kind, "__dataclass_fields__"):
        return _build(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:  # not isinstance: true is no seed
        raise ManifestError(f"{where}: expected {kind.__name__}, got {type(value).__name__} ({value!r})")
    return value


def _consistent(row: Row) -> Row:
    for name, values in (("arms", row.arms), ("tiers", row.tiers)):
        if not values:
            raise ManifestError(f"row {row.id}.{name}: expected at least one")
    named = [arm for pair in row.check.above for arm in (pair.better, pair.worse)] + list(row.check.improves)
    for arm in named:
        if arm not in row.arms:
            raise ManifestError(f"row {row.id}.check: {arm!r} is not among its arms: {', '.join(row.arms)}")
    for name, tier in row.tiers.items():
        if tier.steps < 1 or tier.eval_every < 1 or not tier.seeds:
            raise ManifestError(f"row {row.id}.tiers.{name}: steps, eval_every and the number of seeds must be >= 1")
    return row


def load(path: Path = MANIFEST) -> dict[str, Row]:
    """All rows by id, in file order."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: expected a readable manifest, got {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path}: not valid TOML: {error}") from error
    unknown = sorted(set(data) - {"row"})
    if unknown:
        raise ManifestError(f"{path.name}: unknown key {unknown[0]!r}; known: row")
    rows: dict[str, Row] = {}
    for number, entry in enumerate(data.get("row", [])):
        name = entry.get("id", f"number {number + 1}")
        row = _consistent(_build(Row, entry, f"row {name}"))
        if row.id in rows:
            raise ManifestError(f"row {row.id}: the id occurs twice")
        rows[row.id] = row
    return rows


def find(rows: dict[str, Row], name: str) -> Row:
    """The row called ``name``; an error that lists the known ones when there is none."""
    if name not in rows:
        raise ManifestError(f"row {name!r}: known rows: {', '.join(rows) or 'none'}")
    return rows[name]
