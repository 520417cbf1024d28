"""The map of a result over conditions that differ in more than one number: where something happens and where nothing does.

One line per variant, in the manifest's order. Left the mismatch it starts with, then where its arms end, then how far the
plain policy gradient ends below the other arms in pairs: a line whose bars touch zero is a place where nothing happens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from repro.figures import panels
from repro.figures.styles import OTHER, Style, curve_styles
from repro.rows import Row
from repro.statistics.claims import NotComparable, window_means
from repro.statistics.inference import paired_differences

WIDTH, LINE = 9.6, 0.52  # inches: of the page, of one variant
FIRST = 10  # steps over which the mismatch is averaged: before the runs go apart
RIVAL = "pg"


def map_figure(row: Row, data: pd.DataFrame) -> Figure:
    """The three columns of `row` from checked data without tuning seeds, still without title and note."""
    names = [name for name in row.variants if name in set(data["variant"])]
    parts = {name: data[data["variant"] == name] for name in names}
    styles = curve_styles([arm for arm in row.arms if arm in set(data["arm"])])
    figure = Figure(figsize=(WIDTH, 1.9 + LINE * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 3, height_ratios=(0.24, LINE * len(names) + 0.5), width_ratios=(0.75, 1.2, 1))
    mismatch, ends, gaps = (figure.add_subplot(grid[1, column]) for column in range(3))
    for axes in (mismatch, ends, gaps):
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0, labelleft=axes is mismatch)
        axes.grid(axis="y", visible=False)
        for line in range(1, len(names)):
            axes.axhline(line - 0.5, color="#e6e6e6", linewidth=0.6)
    _mismatch(mismatch, parts)
    _ends(ends, row, parts, styles)
    _gaps(gaps, row, parts, styles)
    _legend(figure.add_subplot(grid[0, :]), styles)
    return figure


def _mismatch(axes: Axes, parts: Mapping[str, pd.DataFrame]) -> None:
    """KL of the plain policy gradient's sampler in its first steps, one dot per replicate and their mean."""
    for place, part in enumerate(parts.values()):
        early = part[(part["arm"] == RIVAL) & (part["step"] <= FIRST)]
        values = early.groupby(["checkpoint", "seed"])["kl_sampler_trainer"].mean()
        axes.plot(values, [place] * len(values), "o", color=OTHER, markersize=3, markerfacecolor="none", alpha=0.8)
        axes.plot(values.mean(), place, "o", color="black", markersize=5)
        axes.annotate(f"{values.mean():.2g}", (values.mean(), place), (0, 7), textcoords="offset points", ha="center",
                      fontsize=7.5)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel(panels.NAMES["kl_sampler_trainer"])
    axes.set_title(f"Mismatch, first {FIRST} steps", loc="left")
    axes.margins(x=0.15)


def _offsets(count: int) -> np.ndarray:
    return np.linspace(-0.26, 0.26, count) if count > 1 else np.zeros(1)


def _ends(axes: Axes, row: Row, parts: Mapping[str, pd.DataFrame], styles: Mapping[str, Style]) -> None:
    for place, part in enumerate(parts.values()):
        for (arm, style), shift in zip(styles.items(), _offsets(len(styles)), strict=True):
            if arm in set(part["arm"]):
                _bar(axes, place + shift, window_means(part, arm, row.check.metric, row.check.window), style)
    axes.axvline(row.check.collapse, color="#999999", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    panels.metric_axis(axes, row.check.metric, "x")
    axes.set_xlim(left=0)
    axes.set_title(f"Ends: mean of the last {row.check.window} steps", loc="left")


def _gaps(axes: Axes, row: Row, parts: Mapping[str, pd.DataFrame], styles: Mapping[str, Style]) -> None:
    """Every arm's end minus that of the plain policy gradient with the same warm start and seed."""
    rivals = [arm for arm in styles if arm != RIVAL]
    for place, part in enumerate(parts.values()):
        for arm, shift in zip(rivals, _offsets(len(rivals)), strict=True):
            try:
                mine, other = (window_means(part, one, row.check.metric, row.check.window) for one in (arm, RIVAL))
            except NotComparable:
                continue
            _bar(axes, place + shift, paired_differences(mine, other).by_replicate(), styles[arm])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("difference to PG [percentage points]")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{100 * value:g}"))
    axes.set_title("Above the plain policy gradient", loc="left")


def _bar(axes: Axes, place: float, values: Mapping, style: Style) -> None:
    """Every replicate hollow, their mean and 95 % interval."""
    axes.plot(list(values.values()), [place] * len(values), style.marker, color=style.colour, markersize=3,
              markerfacecolor="none", markeredgewidth=0.6, alpha=0.8)  # fmt: skip
    one = panels.interval_of(values)
    axes.plot([one.low, one.high], [place, place], color=style.colour, linewidth=1.8, solid_capstyle="butt")
    axes.plot(one.mean, place, style.marker, color=style.colour, markersize=5, markeredgecolor="white")


def _legend(axes: Axes, styles: Mapping[str, Style]) -> None:
    axes.set_axis_off()
    marks = [
        Line2D([], [], color=s.colour, marker=s.marker, markersize=5, linewidth=1.8, label=s.label)
        for s in styles.values()
    ]
    axes.legend(handles=marks, loc="upper left", ncols=len(marks), borderpad=0, borderaxespad=0, columnspacing=1.8)
