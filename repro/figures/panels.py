"""The panels of training figures: curves against step, ends as dots, fraction not collapsed, ends against a setting.

Each function draws on one ``Axes`` from the long table of one variant (`end_against_setting`: of all). Statistics come from
`repro.statistics.claims` and `repro.statistics.survival`, so that a panel shows the numbers of the caption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from repro.figures.styles import OTHER, Style, label
from repro.rows import Check
from repro.statistics.claims import BOOTSTRAP_SEED, NotComparable, curves, window_means
from repro.statistics.inference import Interval, Replicate, hierarchical_interval, moving_average
from repro.statistics.survival import survival

SMOOTHING = 10  # steps of the moving average in runs of 100 steps and more, as in the paper's figures
NAMES = {
    "train_accuracy": "correct training samples [%]",
    "heldout_accuracy_trainer": "correct held-out responses [%]",
    "heldout_accuracy_sampler": "correct held-out responses of the sampler [%]",
    "kl_sampler_trainer": r"KL$(q\,\|\,p)$ [nats/token]",
    "ess": "effective sample size [fraction]",
    "eos_rate": "responses that end [fraction]",
    "grad_norm": "gradient norm",
}
MARKS, BAR = (-0.36, -0.08), 0.18  # places in a line of a dot plot: warm starts from the top one on, mean and interval
BARS = 4  # intervals per curve of the fraction not collapsed
STEP = "optimizer step"


def smoothing_of(steps: int) -> int:
    """Width of the moving average: a tenth of the run, at most `SMOOTHING`, so that a short run keeps its shape."""
    return max(1, min(SMOOTHING, steps // 10))


def name_of(metric: str) -> str:
    """The name of ``metric`` with its unit, for axes and titles."""
    return NAMES.get(metric, metric)


def metric_axis(axes: Axes, metric: str, which: str = "y") -> None:
    """Name the x or y axis after ``metric``; accuracies are shown in per cent."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text(name_of(metric))
    if name_of(metric).endswith("[%]"):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def step_axis(axes: Axes, data: pd.DataFrame) -> None:
    """The optimizer step on x, with the limits of all of ``data``."""
    first, last = data["step"].min(), data["step"].max()
    padding = 0.02 * max(last - first, 1)
    axes.set_xlabel(STEP)
    axes.set_xlim(first - padding, last + padding)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def step_curves(axes: Axes, data: pd.DataFrame, metric: str, styles: Mapping[str, Style], smoothing: int) -> None:
    """Every run thin and, per arm, the mean thick (over checkpoints of the mean over seeds).

    ``smoothing`` 1: only the measured steps, with the arm's marker at each.
    """
    for arm, style in styles.items():
        runs = {replicate: run.dropna() for replicate, run in curves(data, arm, metric).items()}
        runs = {replicate: run for replicate, run in runs.items() if len(run)}
        if not runs:
            continue
        runs = {r: pd.Series(moving_average(run, smoothing), run.index) for r, run in runs.items()}
        for run in runs.values():
            faint = 0.45 if len(runs) <= 4 else 0.25
            axes.plot(run.index, run, color=style.colour, linewidth=0.6, alpha=faint, zorder=1.5)
        marker = {} if smoothing > 1 else {"marker": style.marker, "markersize": 4.5}
        mean = mean_curve(runs)
        axes.plot(mean.index, mean, color=style.colour, linestyle=style.dashes, linewidth=1.9, **marker)


def mean_curve(runs: Mapping[Replicate, pd.Series]) -> pd.Series:
    """Mean over checkpoints of the mean over seeds, at the steps that every run has: a shorter run does not bend it."""
    common = pd.concat(list(runs.values()), axis=1, join="inner")
    return common.T.groupby([replicate.checkpoint for replicate in runs]).mean().mean()


def logarithmic(axes: Axes, values: pd.Series) -> None:
    """A logarithmic y axis, unless a value is not positive: a dead run has exact zeros."""
    if not (values.dropna() > 0).all():
        return
    axes.set_yscale("log")
    narrow = values.max() < 5 * values.min()  # where a decade's own ticks may all lie outside
    axes.yaxis.set_major_locator(MaxNLocator(4) if narrow else LogLocator(subs=(1, 1.5, 2, 3, 5, 7), numticks=15))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def ends_of(data: pd.DataFrame, arms: Sequence[str], check: Check) -> dict[str, dict[Replicate, float]]:
    """Arm -> last-window mean of every replicate, of the arms that were run; `NotComparable` where runs are too short."""
    ran = set(data["arm"])
    return {arm: window_means(data, arm, check.metric, check.window) for arm in arms if arm in ran}


def interval_of(values: Mapping[Replicate, float]) -> Interval:
    """The hierarchical 95 % interval, as the caption has it."""
    return hierarchical_interval(values, np.random.default_rng(BOOTSTRAP_SEED))


def end_dots(
    axes: Axes,
    data: pd.DataFrame,
    arms: Sequence[str],
    check: Check,
    styles: Mapping[str, Style],
    shapes: Mapping[str, str],
) -> None:
    """One line per arm of ``arms`` from the top: mean and 95 % interval, every replicate with its warm start's shape.

    On the right the number of replicates that collapsed at some step. Data that are too short for the window are named
    in the panel instead.
    """
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.set_yticks(range(len(arms)), [label(arm) for arm in arms])
    axes.tick_params(axis="y", length=0)
    try:
        ends = ends_of(data, arms, check)
        collapses = {arm: len(survival(data, arm, check).first_steps) for arm in ends}
    except NotComparable as lacking:
        _refuse(axes, lacking)
        return
    offset = dict(zip(shapes, np.linspace(*MARKS, len(shapes)), strict=True))
    right = {"transform": axes.get_yaxis_transform(), "ha": "right", "fontsize": 7.5, "color": "#444444"}
    for place, arm in enumerate(arms):
        if arm not in ends:
            continue
        colour = styles[arm].colour if arm in styles else OTHER
        for (start, _), value in ends[arm].items():
            axes.plot(value, place + offset[start], shapes[start], color=colour, markersize=3.4, markerfacecolor="none",
                      markeredgewidth=0.7, alpha=0.8)  # fmt: skip
        one = interval_of(ends[arm])
        axes.plot([one.low, one.high], [place + BAR] * 2, color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot(
            one.mean, place + BAR, "o", color=colour, markersize=5.5, markeredgecolor="white", markeredgewidth=0.8
        )
        axes.text(1.12, place, f"{collapses[arm]}/{one.count}", va="center", **right)
    axes.text(1.12, -0.65, "collapsed", va="bottom", **right)
    axes.axvline(check.collapse, color="#999999", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    metric_axis(axes, check.metric, "x")
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def survival_curves(axes: Axes, data: pd.DataFrame, check: Check, styles: Mapping[str, Style]) -> None:
    """Fraction of replicates not collapsed against step; its interval and the arm's marker at a few steps of each curve.

    The steps differ from arm to arm, so that arms with one curve can be seen side by side.
    """
    try:
        found = {arm: survival(data, arm, check) for arm in styles}
    except NotComparable as lacking:
        _refuse(axes, lacking)
        return
    for number, (arm, one) in enumerate(found.items()):
        style = styles[arm]
        axes.step(one.steps, one.fraction, where="post", color=style.colour, linestyle=style.dashes, linewidth=1.7)
        share = (np.arange(BARS) + (number + 0.5) / len(found)) / BARS
        at = np.unique((share * len(one.steps)).astype(int))
        axes.vlines(one.steps[at], one.low[at], one.high[at], color=style.colour, linewidth=0.9, alpha=0.7)
        axes.plot(one.steps[at], one.fraction[at], style.marker, color=style.colour, markersize=4.5)
    axes.set_ylim(-0.03, 1.05)
    axes.set_ylabel("runs [fraction]")


def last_measured(data: pd.DataFrame, arm: str, metric: str) -> dict[Replicate, float]:
    """Replicate -> its last value of a metric that is measured at some steps only; replicates without one are left out."""
    runs = {replicate: run.dropna() for replicate, run in curves(data, arm, metric).items()}
    return {replicate: float(run.iloc[-1]) for replicate, run in runs.items() if len(run)}


def end_against_setting(
    axes: Axes, data: pd.DataFrame, values: Mapping[str, float], check: Check, metric: str, styles: Mapping[str, Style]
) -> None:
    """End value of ``metric`` against a setting (variant -> its value), logarithmic: mean, 95 % interval, every replicate.

    The end is the last window's mean of the check's metric and the last evaluation of any other. Neighbouring arms are set
    apart by a few per cent so that their intervals do not cover each other.
    """
    windowed = metric == check.metric
    axes.set_title(
        f"mean of the last {check.window} steps" if windowed else "at the last evaluation", loc="left", fontsize=8.5
    )
    parts = {name: data[data["variant"] == name] for name in values}
    try:
        ends = {
            name: ends_of(part, list(styles), check)
            if windowed
            else {a: last_measured(part, a, metric) for a in styles}
            for name, part in parts.items()
        }
    except NotComparable as lacking:
        _refuse(axes, lacking)
        return
    axes.set_xscale("log")
    for number, (arm, style) in enumerate(styles.items()):
        shift = 1.03 ** (number - (len(styles) - 1) / 2)
        ran = {values[name] * shift: by[arm] for name, by in ends.items() if by.get(arm)}
        for place, runs in ran.items():
            axes.plot([place] * len(runs), list(runs.values()), "o", color=style.colour, markersize=3, markerfacecolor="none",
                      markeredgewidth=0.6, alpha=0.8)  # fmt: skip
        found = [interval_of(runs) for runs in ran.values()]
        means = [one.mean for one in found]
        axes.vlines(
            list(ran), [one.low for one in found], [one.high for one in found], color=style.colour, linewidth=1.2
        )
        axes.plot(
            list(ran),
            means,
            color=style.colour,
            linestyle=style.dashes,
            marker=style.marker,
            markersize=5,
            linewidth=1.7,
        )
    axes.set_xticks(list(values.values()), [f"{value:g}" for value in values.values()])
    axes.xaxis.set_minor_locator(NullLocator())
    metric_axis(axes, metric)


def _refuse(axes: Axes, reason: Exception) -> None:
    axes.text(0.5, 0.5, str(reason), transform=axes.transAxes, ha="center", va="center", fontsize=8, wrap=True)
