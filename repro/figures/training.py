"""Figures of training runs: `figure_for` takes a row of the manifest and the long table of its ``data.csv``.

A row with one variant gets curves, a dot plot of all arms and the fraction not collapsed; a row with several variants gets
one column per variant; a row of constant rewards gets what a drift destroys. `save` writes SVG and PNG whose bytes depend on
the data and the record alone (fixed hash salt, no dates), with the record embedded.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from repro.arms import ARMS
from repro.figures import panels
from repro.figures.layouts import SMALL_PANELS, arms_figure, constant_figure, layout_of, map_figure
from repro.figures.styles import STYLES, FigureDataError, house_style
from repro.provenance import embed, write_atomic
from repro.rows import Row
from repro.statistics.claims import complete, extent_per_condition

__all__ = ["ORACLE_LIMIT", "STYLES", "FigureDataError", "check_data", "figure_for", "house_style", "largest_oracle_error",
           "note", "save", "shown"]  # fmt: skip

ORACLE_LIMIT = 2e-5  # largest row-scaled gradient error at which a run may continue
REQUIRED = ("arm", "seed", "step", "train_accuracy", "heldout_accuracy_trainer", "oracle_error", *SMALL_PANELS)
QUANTISED = ("weights", "activations", "kv")


def check_data(data: pd.DataFrame) -> None:
    """Raise `FigureDataError` unless ``data`` has every column, rows, and only arms of the laboratory."""
    missing = [name for name in REQUIRED if name not in data.columns]
    if missing:
        raise FigureDataError(f"data: missing column {missing[0]!r}; has {', '.join(data.columns)}")
    if data.empty:
        raise FigureDataError("data: expected at least one row")
    unknown = sorted(set(data["arm"]) - set(ARMS))
    if unknown:
        raise FigureDataError(f"data: unknown arm {unknown[0]!r}; known: {', '.join(ARMS)}")


def shown(row: Row, data: pd.DataFrame) -> pd.DataFrame:
    """``data`` without the tuning seeds, on which the row's settings were chosen; the rest must not be empty."""
    kept = complete(data[~data["seed"].isin(row.tuning_seeds)])
    if kept.empty and not data.empty:
        seeds = ", ".join(map(str, sorted(set(data["seed"]))))
        raise FigureDataError(
            f"data: every seed ({seeds}) is a tuning seed of {row.id}, and figures show none of those"
        )
    return kept


def largest_oracle_error(data: pd.DataFrame) -> float | None:
    """The largest ``oracle_error`` of all runs; None when no step was compared with the reference."""
    errors = data["oracle_error"].dropna()
    return None if errors.empty else float(errors.max())


@house_style()
def figure_for(row: Row, data: pd.DataFrame) -> Figure:
    """The figure of ``row`` from ``data``, one row per variant, arm, checkpoint, seed and step with the columns `REQUIRED`.

    Held-out fields are empty between evaluations. Tuning seeds are left out. Raises `FigureDataError`.
    """
    check_data(data)
    data = shown(row, data)
    figure = layout_of(row, data)(row, data)
    figure.suptitle(row.title, x=0.008, ha="left", fontsize=11, fontweight="bold")
    text = textwrap.fill(note(row, data), 166)
    figure.supxlabel(text, x=0.008, ha="left", fontsize=7.5, color="#444444")
    _freeze_layout(figure)
    return figure


def _freeze_layout(figure: Figure) -> None:
    """Lay out once and round the panels' corners: the solver's last bits differ from call to call, and with them
    the bytes of the file."""
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(value, 4) for value in axes.get_position().bounds])


def note(row: Row, data: pd.DataFrame) -> str:
    """The lines below the panels: number of runs, what is drawn how, what is simulated, agreement with the reference."""
    error, layout = largest_oracle_error(data), layout_of(row, data)
    smoothing = panels.smoothing_of(int(data["step"].max()))
    marks = (
        "their mean over warm starts of the mean over seeds, bars 95% intervals (warm starts and seeds resampled), the dashed "
        "line is the threshold of collapse"
    )
    drawn = f"thin lines and hollow marks are single runs, thick lines and dots {marks}"
    if layout is constant_figure:
        drawn = "thin lines are single runs, thick lines their mean over warm starts of the mean over seeds"
    elif layout is map_figure:
        drawn = f"hollow marks are single runs, filled ones {marks}"
    raw = ", held-out accuracies are not" if layout is arms_figure else ""
    smoothed = smoothing > 1 and layout is not map_figure
    average = f" Curves are {smoothing}-step moving averages{raw}." if smoothed else ""
    quantised = " Quantisation is simulated." if _simulated(row, data) else ""
    oracle = (
        "Gradients were not compared with the reference."
        if error is None
        else f"Largest gradient error against the float64 reference: {error:.1e} (limit {ORACLE_LIMIT:.0e})."
    )
    return f"{extent_per_condition(data)} per condition: {drawn}.{average}{quantised} {oracle}"


def _simulated(row: Row, data: pd.DataFrame) -> bool:
    """Whether a condition of ``data`` has a sampler of simulated formats."""
    tiers = [row.tiers[name].settings for name in dict.fromkeys(data.get("tier", [])) if name in row.tiers]
    variants = [row.variants.get(name, {}) for name in dict.fromkeys(complete(data)["variant"])]
    settings = [{**vars(row.settings), **tier, **variant} for tier in tiers or [{}] for variant in variants]
    return any(one["engine"] == "torch" and any(one[name] for name in QUANTISED) for one in settings)


@house_style()
def save(figure: Figure, folder: Path, stem: str, record: Mapping[str, Any], title: str) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png`` (150 dpi) with ``record`` inside; the same input gives the same bytes."""
    png, svg = embed(dict(record), title)
    paths = []
    for suffix, metadata in (("svg", svg), ("png", png)):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
        paths.append(folder / f"{stem}.{suffix}")
        write_atomic(paths[-1], buffer.getvalue())
    return paths
