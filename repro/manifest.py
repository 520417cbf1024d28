"""The manifest: one typed row per result, read from ``manifest.toml``.

A row names what is claimed, the arms that are compared, the settings they share, the variants in which a setting
differs and, per tier, how much of it is run (`repro.rows`).

An unknown key, a missing key or a value of the wrong type is a `ManifestError` that names the row and the key.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from repro.rows import BASE, NO_SETTINGS, Cell, GpuSettings, ManifestError, Row, Settings, settings_of

__all__ = ["Cell", "ManifestError", "Row", "find", "load"]

LAYOUTS = ("", "map")
RUNNER = "repro.trainer:run_cell"
MANIFEST = Path(__file__).with_name("manifest.toml")


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
    if kind is Any:
        return value
    if kind is Settings and isinstance(value, dict) and "device" in value:
        kind = GpuSettings
    if hasattr(kind, "__dataclass_fields__"):
        return _build(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:  # not isinstance: true is no seed
        raise ManifestError(f"{where}: expected {kind.__name__}, got {type(value).__name__} ({value!r})")
    return value


def _overrides(values: dict[str, Any], settings: Settings, where: str) -> dict[str, Any]:
    """``values`` with every entry checked to be one of ``settings`` and of the right type."""
    hints = get_type_hints(type(settings))
    for name in values:
        if name not in hints:
            raise ManifestError(f"{where}: unknown key {name!r}; known: {', '.join(hints)}")
    return {name: _convert(hints[name], value, f"{where}.{name}") for name, value in values.items()}


def _names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _consistent(row: Row) -> Row:
    for name, values in (("arms", row.arms), ("tiers", row.tiers), ("variants", row.variants)):
        if not values:
            raise ManifestError(f"row {row.id}.{name}: expected at least one")
    if row.layout not in LAYOUTS:
        raise ManifestError(
            f"row {row.id}.layout: expected one of {', '.join(LAYOUTS[1:])} or none, got {row.layout!r}"
        )
    for name, changes in row.variants.items():
        for key in NO_SETTINGS:
            if not _names(changes.get(key, ["a name"])):
                raise ManifestError(
                    f"row {row.id}.variants.{name}.{key}: expected a list of names, got {changes[key]!r}"
                )
        _overrides(settings_of(changes), row.settings, f"row {row.id}.variants.{name}")
    named = [c for pair in row.check.comparisons for c in (pair.better, pair.worse)]
    for condition in (*named, *row.check.improves, *row.published.ordering):
        if condition not in row.conditions():
            raise ManifestError(f"row {row.id}: {condition!r} is no condition of it: {', '.join(row.conditions())}")
    for name, tier in row.tiers.items():
        _overrides(tier.settings, row.settings, f"row {row.id}.tiers.{name}.settings")
        if tier.steps < 1 or tier.eval_every < 1 or not tier.seeds or not tier.checkpoints:
            raise ManifestError(f"row {row.id}.tiers.{name}: steps, eval_every, seeds and checkpoints must be >= 1")
    return row


def _completed(entry: dict[str, Any], shared: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """``entry`` with its settings laid over the shared table that ``base`` names, and one variant where it has none."""
    entry = dict(entry)
    base = entry.pop("base", None)
    if base not in shared:
        raise ManifestError(
            f"row {name}.base: expected one of {', '.join(shared) or 'no shared settings'}, got {base!r}"
        )
    tiers = entry.get("tiers", {})
    if isinstance(tiers, dict):
        defaults = {"settings": {}, "runner": RUNNER}
        tiers = {key: {**defaults, **tier} if isinstance(tier, dict) else tier for key, tier in tiers.items()}
    return {
        **entry,
        "settings": {**shared[base], **entry.get("settings", {})},
        "variants": entry.get("variants", {BASE: {}}),
        "layout": entry.get("layout", ""),
        "tiers": tiers,
    }


def load(path: Path = MANIFEST) -> dict[str, Row]:
    """All rows by id, in file order."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: expected a readable manifest, got {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path}: not valid TOML: {error}") from error
    unknown = sorted(set(data) - {"row", "settings"})
    if unknown:
        raise ManifestError(f"{path.name}: unknown key {unknown[0]!r}; known: row, settings")
    rows: dict[str, Row] = {}
    for number, entry in enumerate(data.get("row", [])):
        name = entry.get("id", f"number {number + 1}")
        entry = _completed(entry, data.get("settings", {}), name)
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
