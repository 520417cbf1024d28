"""Figures of training runs: accuracy of sampler and trainer, and the four curves that say how a run is doing.

`training_figure` takes the long table of ``data.csv`` and returns a matplotlib figure; `save` writes SVG and PNG whose
bytes depend on the data and the record alone (fixed hash salt, no dates), with the record embedded. Colours are the
Okabe-Ito set, which stays apart under the common colour-vision deficiencies; arms also differ in line style.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from repro.provenance import embed, write_atomic
from repro.statistics import moving_average

SMOOTHING = 10  # steps of the moving average, as in the paper's figures
ORACLE_LIMIT = 2e-5  # largest row-scaled gradient error at which a run may continue


class Style(NamedTuple):
    """How an arm looks in every panel."""

    label: str
    colour: str
    dashes: str | tuple[int, tuple[float, ...]]
    marker: str


STYLES = {
    "onpolicy": Style("on-policy control", "#000000", (0, (1, 1.2)), "s"),
    "pg": Style("PG", "#D55E00", "solid", "o"),
    "tis": Style("TIS (cap 2)", "#E69F00", (0, (5, 1.5)), "^"),
    "sc": Style("SC", "#0072B2", (0, (7, 1.5, 1.2, 1.5)), "D"),
    "tis_sc": Style("TIS + SC", "#009E73", (0, (3, 1)), "v"),
}
SMALL_PANELS = (
    ("kl_sampler_trainer", r"KL$(q\,\|\,p)$ [nats/token]", "linear"),
    ("ess", "effective sample size [fraction]", "linear"),
    ("eos_rate", "responses that end [fraction]", "linear"),
    ("grad_norm", "gradient norm", "log"),
)
REQUIRED = ("arm", "seed", "step", "train_accuracy", "heldout_accuracy_trainer", "oracle_error") + tuple(
    name for name, _, _ in SMALL_PANELS
)
RC = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "rlcorr",
    "svg.fonttype": "path",
    "path.simplify_threshold": 0.25,
}


class FigureDataError(ValueError):
    """Data that cannot be drawn: a missing column, an unknown arm, no rows."""


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's defaults, seaborn's "ticks" style and `RC`: a reader's own matplotlibrc does not change the figure."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(seaborn.axes_style("ticks"))
        matplotlib.rcParams.update(RC)
        yield


def check_data(data: pd.DataFrame) -> None:
    """Raise `FigureDataError` unless ``data`` has every column and only arms with a style."""
    missing = [name for name in REQUIRED if name not in data.columns]
    if missing:
        raise FigureDataError(f"data: missing column {missing[0]!r}; has {', '.join(data.columns)}")
    if data.empty:
        raise FigureDataError("data: expected at least one row")
    unknown = sorted(set(data["arm"]) - set(STYLES))
    if unknown:
        raise FigureDataError(f"data: arm {unknown[0]!r} has no style; known: {', '.join(STYLES)}")


def largest_oracle_error(data: pd.DataFrame) -> float | None:
    """The largest ``oracle_error`` of all runs; None when no step was compared with the reference."""
    errors = data["oracle_error"].dropna()
    return None if errors.empty else float(errors.max())


def _smooth(column: pd.Series) -> pd.Series:
    measured = column.dropna()
    return pd.Series(moving_average(measured, SMOOTHING), measured.index)


def _curves(axes: Axes, data: pd.DataFrame, metric: str, *, smooth: bool) -> None:
    """Every seed as a thin line and the mean over seeds as a thick one, per arm."""
    for arm, style in STYLES.items():
        table = data[data["arm"] == arm].pivot(index="step", columns="seed", values=metric).dropna(how="all")
        if table.empty:
            continue
        if smooth:
            table = table.apply(_smooth)
        marker = {} if smooth else {"marker": style.marker, "markersize": 4.5}
        for seed in table.columns:
            axes.plot(table.index, table[seed], color=style.colour, linewidth=0.6, alpha=0.45)
        # the mean is drawn where every seed has a value, so that a shorter run does not bend it
        mean = table.dropna().mean(axis=1)
        axes.plot(mean.index, mean, color=style.colour, linestyle=style.dashes, linewidth=1.9, **marker)


@house_style()
def training_figure(data: pd.DataFrame, title: str, note: str = "") -> Figure:
    """Two large panels (sampler accuracy, held-out trainer accuracy) over four small ones, legend above.

    data: one row per arm, seed and step with the columns `REQUIRED`; empty held-out fields between evaluations.
    ``note`` is printed below the panels.
    """
    check_data(data)
    figure = Figure(figsize=(9.6, 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(3, 4, height_ratios=(0.1, 1.75, 1))
    train, heldout = figure.add_subplot(grid[1, :2]), figure.add_subplot(grid[1, 2:])
    _curves(train, data, "train_accuracy", smooth=True)
    train.set_title(f"Sampler accuracy in training ({SMOOTHING}-step moving average)", loc="left")
    _curves(heldout, data, "heldout_accuracy_trainer", smooth=False)
    heldout.set_title("Trainer accuracy on held-out problems", loc="left")
    top = 1.08 * max(_top(train), _top(heldout))
    for axes in (train, heldout):
        axes.set_ylim(0, max(top, 0.05))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylabel("correct responses [%]")
    first, last = data["step"].min(), data["step"].max()
    padding = 0.02 * max(last - first, 1)
    smalls = []
    for column, (metric, label, scale) in enumerate(SMALL_PANELS):
        axes = figure.add_subplot(grid[2, column])
        if scale == "log" and (data[metric].dropna() > 0).all():  # a dead run has exact zeros: those need a linear axis
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7), numticks=15))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        _curves(axes, data, metric, smooth=True)
        axes.set_title(label, loc="left", fontsize=8.5)
        smalls.append(axes)
    for axes in smalls[1:3]:
        axes.set_ylim(0, 1.05)
    smalls[0].set_ylim(bottom=min(0.0, smalls[0].get_ylim()[0]))
    for axes in (train, heldout, *smalls):
        axes.set_xlabel("optimizer step")
        axes.set_xlim(first - padding, last + padding)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    handles = [
        Line2D(
            [], [], color=s.colour, linestyle=s.dashes, marker=s.marker, markersize=4.5, linewidth=1.9, label=s.label
        )
        for arm, s in STYLES.items()
        if arm in set(data["arm"])
    ]
    figure.suptitle(title, x=0.008, ha="left", fontsize=11, fontweight="bold")
    header = figure.add_subplot(grid[0, :])  # a row of its own keeps the legend off the data and off the title
    header.set_axis_off()
    header.legend(
        handles=handles, loc="center left", ncols=len(handles), handlelength=3.4, columnspacing=2.0, borderpad=0
    )
    if note:
        figure.supxlabel(note, x=0.008, ha="left", fontsize=7.5, color="#444444")
    _freeze_layout(figure)
    return figure


def _freeze_layout(figure: Figure) -> None:
    """Lay out once and round the panels' corners: the solver's last bits differ from call to call, and with them
    the bytes of the file."""
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(value, 4) for value in axes.get_position().bounds])


def _top(axes: Axes) -> float:
    values = [line.get_ydata() for line in axes.get_lines()]
    return float(np.nanmax(np.concatenate(values))) if values else 0.0


def note(data: pd.DataFrame) -> str:
    """The line below the panels: number of seeds, what is simulated, agreement with the reference gradient."""
    seeds = data["seed"].nunique()
    error = largest_oracle_error(data)
    oracle = (
        "Gradients were not compared with the reference."
        if error is None
        else f"Largest gradient error against the float64 reference: {error:.1e} (limit {ORACLE_LIMIT:.0e})."
    )
    arms = f"{seeds} {'seed' if seeds == 1 else 'seeds'} per arm: thin lines single seeds, thick lines their mean."
    return f"{arms} Quantisation is simulated. {oracle}"


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
