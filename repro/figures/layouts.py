"""How the panels of a training figure are arranged: the layouts for one variant, several variants and constant rewards.

Each takes the manifest's row and checked data without tuning seeds (`repro.figures.training.figure_for`) and returns a
page with its legends, still without title and note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec, SubplotSpec
from matplotlib.lines import Line2D

from repro.arms import ARMS
from repro.figures import panels
from repro.figures.map import map_figure
from repro.figures.styles import OTHER, Style, curve_styles, start_shapes
from repro.rows import Row, settings_of
from repro.statistics.claims import NotComparable

SMALL_PANELS = ("kl_sampler_trainer", "ess", "eos_rate", "grad_norm")
WIDTH, HEADER, DOTS = 9.6, 0.24, 0.22  # inches: of the page, of a line of the legend, per arm of a dot plot
SETTINGS = {  # of sweeps: name with unit for an axis, title of one value's panel
    "lr": ("learning rate [step size of the optimizer]", "learning rate {:g}"),
    "staleness": ("largest age of the sampler [optimizer steps]", "sampler up to {:g} steps old"),
}


def swept(row: Row) -> tuple[str, dict[str, float]] | None:
    """The one number in which the variants differ, and its value in each; None when they differ in more or otherwise."""
    changes = [settings_of(one) for one in row.variants.values()]
    names = {name for one in changes for name in one}
    if len(changes) < 2 or len(names) != 1 or not all(changes):
        return None
    (name,) = names
    values = {variant: one[name] for variant, one in zip(row.variants, changes, strict=True)}
    positive = all(type(value) in (int, float) and value > 0 for value in values.values())
    return (name, values) if positive else None


def layout_of(row: Row, data: pd.DataFrame) -> Callable[[Row, pd.DataFrame], Figure]:
    """Which of the functions below, or of `repro.figures.map`, draws ``data``."""
    if row.layout == "map":
        return map_figure
    if len(row.variants) > 1:
        return variants_figure
    constant = all(ARMS[arm].control.constant is not None for arm in set(data["arm"]))
    return constant_figure if constant else arms_figure


def arms_figure(row: Row, data: pd.DataFrame) -> Figure:
    """Accuracies over dots of all arms beside the fraction not collapsed, over four small panels."""
    arms = _by_end(row, data)
    styles, shapes = curve_styles([arm for arm in row.arms if arm in arms]), start_shapes(_starts(data))
    smoothing = panels.smoothing_of(int(data["step"].max()))
    figure, grid = _page((2.7, 0.6 + DOTS * max(len(arms), 6), 1.35), 2)
    train, heldout = _across(figure, grid[1], (1, 1))
    panels.step_curves(train, data, "train_accuracy", styles, smoothing)
    train.set_title("Accuracy of the training samples", loc="left")
    panels.step_curves(heldout, data, "heldout_accuracy_trainer", styles, 1)
    heldout.set_title("Accuracy of the trainer on held-out problems", loc="left")
    top = 1.04 * max(axes.dataLim.y1 for axes in (train, heldout))
    for axes, metric in ((train, "train_accuracy"), (heldout, "heldout_accuracy_trainer")):
        axes.set_ylim(0, max(top, 0.05))
        panels.metric_axis(axes, metric)
    dots, alive = _across(figure, grid[2], (1.15, 1))
    panels.end_dots(dots, data, arms, row.check, styles, shapes)
    dots.set_title(
        f"{'All arms' if len(styles) < len(arms) else 'Ends'}: mean of the last {row.check.window} steps", loc="left"
    )
    panels.survival_curves(alive, data, row.check, styles)
    alive.set_title(f"Not collapsed: {row.check.window}-step mean at or above {row.check.collapse:g}", loc="left")
    smalls = _across(figure, grid[3], (1, 1, 1, 1))
    for axes, metric in zip(smalls, SMALL_PANELS, strict=True):
        if metric == "grad_norm":
            panels.logarithmic(axes, data[metric])
        panels.step_curves(axes, data, metric, styles, smoothing)
        axes.set_title(panels.name_of(metric), loc="left", fontsize=8.5)
    for axes in smalls[1:3]:
        axes.set_ylim(0, 1.05)
    smalls[0].set_ylim(bottom=min(0.0, smalls[0].get_ylim()[0]))
    for axes in (train, heldout, alive, *smalls):
        panels.step_axis(axes, data)
    _legends(figure, grid, styles, shapes)
    return figure


def variants_figure(row: Row, data: pd.DataFrame) -> Figure:
    """A column per variant: curves, then the ends of its arms; below both the ends against the setting that was swept."""
    names = [name for name in row.variants if name in set(data["variant"])]
    arms = _by_end(row, data)
    order = [arm for one in (row.arms, *(c.get("arms", ()) for c in row.variants.values())) for arm in one]
    styles, shapes = curve_styles([arm for arm in dict.fromkeys(order) if arm in arms]), start_shapes(_starts(data))
    smoothing = panels.smoothing_of(int(data["step"].max()))
    sweep = swept(row) if len(names) > 1 else None  # a line needs two values
    figure, grid = _page((2.5, 0.6 + DOTS * max(len(arms), 4), *((2.3,) if sweep else ())), 2)
    above, below = (_across(figure, grid[line], [1] * len(names)) for line in (1, 2))
    for name, top, dots in zip(names, above, below, strict=True):
        part = data[data["variant"] == name]
        if top is not above[0]:
            top.sharey(above[0])
            dots.sharex(below[0])
        panels.step_curves(top, part, "train_accuracy", styles, smoothing)
        panels.step_axis(top, data)
        top.set_title(_variant_title(row, name), loc="left")
        panels.end_dots(dots, part, arms, row.check, styles, shapes)
        dots.set_title(f"mean of the last {row.check.window} steps", loc="left", fontsize=8.5)
        for axes in (top, dots):
            axes.tick_params(labelleft=top is above[0])
    panels.metric_axis(above[0], "train_accuracy")
    above[0].set_ylim(bottom=0)
    if sweep:
        setting, values = sweep[0], {name: sweep[1][name] for name in names}
        for axes, metric in zip(
            _across(figure, grid[3], (1, 1)), (row.check.metric, "heldout_accuracy_trainer"), strict=True
        ):
            panels.end_against_setting(axes, data, values, row.check, metric, styles)
            axes.set_xlabel(SETTINGS.get(setting, (setting,))[0])
    _legends(figure, grid, styles, shapes)
    return figure


def constant_figure(row: Row, data: pd.DataFrame) -> Figure:
    """Accuracy, responses that end and KL against step: what is left of a policy when the reward says nothing."""
    styles = curve_styles([arm for arm in row.arms if arm in set(data["arm"])])
    smoothing = panels.smoothing_of(int(data["step"].max()))
    figure, grid = _page((2.9,), 1)
    metrics = ("train_accuracy", "eos_rate", "kl_sampler_trainer")
    for axes, metric in zip(_across(figure, grid[1], (1, 1, 1)), metrics, strict=True):
        panels.step_curves(axes, data, metric, styles, smoothing)
        panels.step_axis(axes, data)
        panels.metric_axis(axes, metric)
        axes.set_ylim(bottom=0)
    _legends(figure, grid, styles, {})
    return figure


def _variant_title(row: Row, name: str) -> str:
    sweep = swept(row)
    return SETTINGS.get(sweep[0], (sweep[0], f"{sweep[0]} {{:g}}"))[1].format(sweep[1][name]) if sweep else name


def _by_end(row: Row, data: pd.DataFrame) -> list[str]:
    """The arms of ``data``, best end first (mean over everything that the arm was run on); unordered if runs are short."""
    ran = [arm for arm in ARMS if arm in set(data["arm"])]
    try:
        parts = [panels.ends_of(part, ran, row.check) for _, part in data.groupby("variant")]
    except NotComparable:
        return ran
    means = {
        arm: pd.Series([panels.interval_of(part[arm]).mean for part in parts if arm in part]).mean() for arm in ran
    }
    return sorted(ran, key=lambda arm: -means[arm])


def _starts(data: pd.DataFrame) -> list[str]:
    return sorted(set(data["checkpoint"]))


def _page(heights: Sequence[float], legends: int) -> tuple[Figure, GridSpec]:
    """A page whose first line holds ``legends`` lines of legend and the others panels of ``heights`` inches."""
    heights = (HEADER * legends, *(height + 0.5 for height in heights))
    figure = Figure(figsize=(WIDTH, round(sum(heights) + 0.75, 2)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_gridspec(len(heights), 1, height_ratios=heights)


def _across(figure: Figure, line: SubplotSpec, widths: Sequence[float]) -> list[Axes]:
    """Panels side by side in one line of the page, whatever the other lines hold."""
    grid = line.subgridspec(1, len(widths), width_ratios=widths)
    return [figure.add_subplot(grid[0, column]) for column in range(len(widths))]


def _legends(figure: Figure, grid: GridSpec, styles: Mapping[str, Style], shapes: Mapping[str, str]) -> None:
    """Arms, and below them the warm starts' shapes, in a line of their own: off the data and off the title."""
    header = figure.add_subplot(grid[0])
    header.set_axis_off()
    lines = [
        [Line2D([], [], color=s.colour, linestyle=s.dashes, marker=s.marker, markersize=4.5, linewidth=1.9, label=s.label)
         for s in styles.values()],
        [Line2D([], [], color=OTHER, linestyle="", marker=shape, markersize=4, markerfacecolor="none", label=f"warm start {name}")
         for name, shape in shapes.items()],
    ]  # fmt: skip
    lines = [line for line in lines if line]
    for number, handles in enumerate(lines):
        legend = header.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0.006, 1 - number / len(lines)), ncols=len(handles),
            handlelength=3.4 if number == 0 else 1.2, columnspacing=1.8, borderpad=0, borderaxespad=0,
        )  # fmt: skip
        if number + 1 < len(lines):  # a second legend would replace the first one
            header.add_artist(legend)
