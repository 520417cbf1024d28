"""The figure of a sampler's departure from the trainer, from token records (``repro.measure.statistics``).

Six panels: |d log p| and the spread of the sequence log-ratio along the response, the tail of |d log p| over tokens, ESS, head
mass, and the gradient against the float64 reference. One colour and marker per sampler, in the order of the data.
"""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from repro.figures.styles import FigureDataError, house_style
from repro.figures.training import ORACLE_LIMIT as LIMIT
from repro.measure.statistics import bin_edges, value, widths

LOOKS = (  # colour (Okabe-Ito), marker, dashes
    ("#000000", "s", "solid"),
    ("#0072B2", "o", (0, (5, 1.5))),
    ("#E69F00", "^", (0, (3, 1))),
    ("#D55E00", "D", (0, (7, 1.5, 1.2, 1.5))),
    ("#009E73", "v", (0, (1, 1.2))),
    ("#CC79A7", "P", (0, (5, 1, 1, 1, 1, 1))),
    ("#56B4E9", "X", "solid"),
)
LOWEST = 1e-8  # nats; below float32's resolution of a log-prob


def looks(records: pd.DataFrame) -> dict[str, tuple]:
    """Sampler -> colour, marker, dashes; `FigureDataError` for more samplers than can be told apart."""
    samplers = list(dict.fromkeys(records["sampler"]))
    if len(samplers) > len(LOOKS):
        raise FigureDataError(f"data: expected at most {len(LOOKS)} samplers, got {len(samplers)}")
    return dict(zip(samplers, LOOKS, strict=False))


@house_style()
def measure_figure(records: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Six panels of ``records`` and of their ``summary`` (`repro.measure.statistics.summarise`)."""
    styles = looks(records)
    figure = Figure(figsize=(11.5, 6.9))
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(2, 3, place + 1) for place in range(6)]
    length = int(records["position"].max()) + 1
    _by_position(panels[0], summary, styles, "abs_mean", length)
    panels[0].set(title="Mean |Δ log p| by position", ylabel="nats per token")
    _by_position(panels[1], summary, styles, "sequence_sd", length)
    panels[1].set(title="Spread of the sequence log-ratio", ylabel="sd of Σ (log p - log q), nats")
    _exceedance(panels[2], records, styles)
    _ess(panels[3], summary, styles)
    _heads(panels[4], records, summary, styles)
    _oracle(panels[5], records, styles)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="upper left", bbox_to_anchor=(0.008, 0.935), ncols=len(styles), fontsize=9)
    figure.suptitle(textwrap.fill(title, 120), x=0.012, y=0.988, ha="left", fontsize=11, fontweight="bold")
    figure.subplots_adjust(left=0.07, right=0.985, top=0.84, bottom=0.08, wspace=0.3, hspace=0.42)
    return figure


def _by_position(axes: Axes, summary: pd.DataFrame, styles: dict, metric: str, length: int) -> None:
    edges = bin_edges(length)
    centres = {
        number: (a + b - 1) / 2 + 1
        for number, a, b in zip(sorted(set(summary["bin"]) - {-1}), edges[:-1], edges[1:], strict=True)
    }
    for place, (sampler, (colour, marker, dashes)) in enumerate(styles.items()):
        at = summary[(summary["sampler"] == sampler) & (summary["metric"] == metric) & (summary["bin"] >= 0)]
        x = at["bin"].map(centres) + (place - (len(styles) - 1) / 2) * 0.008 * length
        y, low, high = (at[name].clip(lower=LOWEST).to_numpy() for name in ("value", "low", "high"))
        axes.plot(x, y, color=colour, marker=marker, markersize=4, linestyle=dashes, linewidth=1.3, label=sampler)
        axes.vlines(x, low, high, color=colour, linewidth=0.9)
    axes.set(yscale="log", xlabel="token of the response")


def _exceedance(axes: Axes, records: pd.DataFrame, styles: dict) -> None:
    """Fraction of tokens whose |d log p| is at least x."""
    for sampler, (colour, _, dashes) in styles.items():
        mine = records[records["sampler"] == sampler]
        gaps = np.sort((mine["logp_trainer"] - mine["logp_sampler"]).abs().clip(lower=LOWEST))
        axes.step(
            gaps, 1 - np.arange(len(gaps)) / len(gaps), color=colour, linestyle=dashes, linewidth=1.3, where="pre"
        )
    axes.axvline(np.log(2.0), color="#888888", linewidth=0.8, linestyle=(0, (2, 2)))
    axes.text(np.log(2.0) * 0.8, 1.0, "log 2", fontsize=7.5, color="#555555", ha="right", va="top")
    axes.set(xscale="log", yscale="log", title="Tokens beyond a difference", xlabel="|Δ log p|, nats")
    axes.set_ylabel("fraction of tokens")


def _rows(axes: Axes, styles: dict) -> None:
    axes.set_yticks(range(len(styles)), list(styles), fontsize=7.5)
    axes.set_ylim(len(styles) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, pad=1)
    axes.grid(axis="y", visible=False)


def _ess(axes: Axes, summary: pd.DataFrame, styles: dict) -> None:
    """Raw ratios filled, capped ones hollow, with intervals."""
    for place, (sampler, (colour, marker, _)) in enumerate(styles.items()):
        for shift, metric, filled in ((-0.13, "ess_raw", True), (0.13, "ess_cap2", False)):
            one = value(summary, sampler, metric)
            axes.hlines(place + shift, one["low"], one["high"], color=colour, linewidth=1.1)
            face = colour if filled else "white"
            axes.plot(one["value"], place + shift, marker, color=colour, markerfacecolor=face, markersize=5)
    _rows(axes, styles)
    axes.set_yticklabels([])
    axes.set(title="Effective sample size", xlabel="fraction of tokens (filled: raw, hollow: capped at 2)")


def _heads(axes: Axes, records: pd.DataFrame, summary: pd.DataFrame, styles: dict) -> None:
    """Mass of the sampler's k most likely tokens, under q (filled) and p (hollow)."""
    ks = widths(records)
    for place, (sampler, (colour, marker, _)) in enumerate(styles.items()):
        for side, filled in (("q", True), ("p", False)):
            found = [value(summary, sampler, f"head_{side}_{k}") for k in ks]
            x = np.arange(len(ks)) + (place - (len(styles) - 1) / 2) * 0.16 + (0.03 if side == "p" else -0.03)
            face = colour if filled else "white"
            axes.vlines(x, [f["low"] for f in found], [f["high"] for f in found], color=colour, linewidth=0.9)
            axes.plot(x, [f["value"] for f in found], marker, color=colour, markerfacecolor=face, markersize=4)
    axes.set_xticks(range(len(ks)), [f"k = {k}" for k in ks])
    axes.set(title="Mass of the sampler's head", ylabel="mean probability")
    axes.set_xlabel("filled: under q, hollow: under p")


def _oracle(axes: Axes, records: pd.DataFrame, styles: dict) -> None:
    """Scaled gradient error of every compared response, and the limit at which a training run stops."""
    for place, (sampler, (colour, marker, _)) in enumerate(styles.items()):
        mine = records[(records["sampler"] == sampler) & records["oracle_error"].notna()]
        errors = mine.groupby("sequence")["oracle_error"].max().to_numpy()
        spread = place + 0.5 * (np.arange(len(errors)) % 7 - 3) / 7
        axes.plot(errors, spread, marker, color=colour, markersize=3.5, alpha=0.7, linestyle="none")
    axes.axvline(LIMIT, color="#888888", linewidth=0.8, linestyle=(0, (2, 2)))
    axes.text(LIMIT * 0.85, -0.45, f"limit {LIMIT:.0e}", fontsize=7.5, color="#555555", ha="right", va="top")
    _rows(axes, styles)
    axes.set_yticklabels([])
    axes.set(xscale="log", title="TIS + SC gradient against float64", xlabel="largest scaled error of a response")
