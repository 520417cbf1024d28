"""The steps that every figure notebook takes: load and check the data, draw, check the gradients, write the caption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from repro import manifest
from repro.cells import publication
from repro.figures import captions, training
from repro.provenance import write_atomic
from repro.rows import Row, checkpoint_name
from repro.statistics import claims

CELL = ["variant", "arm", "checkpoint", "seed"]
SUMMARY = ["train_accuracy", "kl_sampler_trainer", "ess", "eos_rate"]


def load(row: str, tier: str, data: str | Path) -> tuple[Row, pd.DataFrame, dict[str, Any]]:
    """The manifest's row, the table in ``data`` without tuning seeds, and the record beside it.

    Raises `publication.PublicationError` when the table is not the recorded one, belongs to another row or tier, or
    lacks a step of a run.
    """
    entry = manifest.find(manifest.load(), row)
    table, meta = publication.load(Path(data))
    for name, wanted in (("row", row), ("tier", tier)):
        if meta[name] != wanted:
            raise publication.PublicationError(f"{data}: expected {name} {wanted!r}, got {meta[name]!r}")
    table = claims.complete(table, checkpoint_name(meta["settings"].get("checkpoint", "warm start")))
    table = training.shown(entry, table)
    steps = table.groupby(CELL, sort=False).size()
    short = steps[steps != meta["steps"]]
    if len(short):
        cell = ", ".join(map(str, short.index[0]))
        raise publication.PublicationError(f"{data}: expected {meta['steps']} steps of {cell}, got {short.iloc[0]}")
    return entry, table, meta


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Means over all steps and replicates per condition; accuracy, effective sample size and ends are fractions, KL in nats."""
    keys = ["variant", "arm"] if table["variant"].nunique() > 1 else ["arm"]
    return table.groupby(keys, sort=False)[SUMMARY].mean().round(3)


def draw(entry: Row, table: pd.DataFrame, meta: Mapping[str, Any], output: str | Path) -> Path:
    """Write the row's figure as SVG and PNG into ``output``, with its record inside; returns the PNG's path."""
    figure = training.figure_for(entry, table)
    record = publication.figure_record(dict(meta))
    return training.save(figure, Path(output), Path(entry.notebook).stem, record, entry.title)[1]


def gradient_check(table: pd.DataFrame) -> str:
    """The largest gradient error in words; `training.FigureDataError` when there is none or it exceeds the limit."""
    largest = training.largest_oracle_error(table)
    if largest is None:
        raise training.FigureDataError("oracle_error: no step was compared with the reference")
    if largest > training.ORACLE_LIMIT:
        raise training.FigureDataError(
            f"oracle_error: largest {largest:.1e} exceeds the limit {training.ORACLE_LIMIT:.0e}"
        )
    return f"largest gradient error {largest:.1e}, limit {training.ORACLE_LIMIT:.0e}"


def verdicts(entry: Row, table: pd.DataFrame) -> str:
    """The row's claim, one line per comparison and the overall verdict."""
    found = claims.evaluate(entry.check, table)
    return "\n".join([*map(str, found), f"claim: {claims.overall(found)}"])


def published(entry: Row, table: pd.DataFrame) -> str:
    """What was published, with the ordering beside the one here where there is one, in Markdown."""
    ordered = captions.ordering_table(table, entry.published.ordering, entry.check.metric, entry.check.window)
    text = " ".join(filter(None, (entry.published.paper, entry.published.rerun)))
    return "\n\n".join(filter(None, (text, ordered)))


def write_caption(entry: Row, table: pd.DataFrame, meta: Mapping[str, Any], output: str | Path) -> str:
    """Write the caption, computed from the data, the record and the manifest, into ``output``; returns its Markdown."""
    text = captions.caption(entry, table, meta)
    write_atomic(Path(output) / publication.CAPTION, text.encode())
    return text
