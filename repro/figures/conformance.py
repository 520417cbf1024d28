"""The conformance matrix as a figure: areas of the contract x released packages.

`matrix` draws the report (see `repro.figures.conformance_report`), `repro.figures.save` writes it, `draw_conformance` does
all of that through the notebook. Every state has a symbol of its own, so that the figure reads without colour; the colours
are close to the Okabe-Ito set, dark enough for text.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from repro.cells.publication import META, PublicationError, execute
from repro.figures.conformance_report import COMMAND, RAN, REPORT, SYMBOLS, headline, order, record_of, table
from repro.figures.training import house_style
from repro.provenance import ROOT, portable, write_atomic

NOTEBOOK = ROOT / "notebooks" / "figures" / "conformance_matrix.ipynb"
COLOURS = {  # tint of the cell, colour of symbol and bar
    "pass": ("#d6e9f5", "#0072B2"),
    "by definition": ("#fbf3c0", "#8a6d00"),
    "departs": ("#f9d9c4", "#B04A00"),
    "not supported": ("#ffffff", "#8c8c8c"),
    "not run": ("#ececec", "#444444"),
}
LABEL, COLUMN, ROW, THIN, LINE = 2.95, 1.21, 0.42, 0.34, 0.135  # widths and heights in inches


@house_style()
def matrix(report: Mapping[str, Any]) -> Figure:
    """Areas (rows) x packages (columns): most serious state by symbol and tint, counts, shares as a bar, findings.

    Findings are numbered (#) within their package; the list below the matrix gives their ids. The drawn symbols carry the
    gid ``state-FAMILY-PACKAGE``.
    """
    cells = table(report)
    packages, families = report["packages"], order(cells)
    by = {(row["family"], row["package"]): row for row in cells.to_dict("records")}
    heights = {f: ROW if cells[cells["family"] == f][list(RAN)].to_numpy().sum() else THIN for f in families}
    longest = max(sum(f["package"] == p["name"] for f in report["findings"]) for p in packages)
    top, below = 1.72, 0.3 + LINE * max(longest, 5)
    width, height = max(LABEL + COLUMN * len(packages) + 0.1, 11.0), top + sum(heights.values()) + below
    figure = Figure(figsize=(width, round(height, 2)))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    _head(axes, report, cells, width)
    for column, package in enumerate(packages):
        mine = cells[cells["package"] == package["name"]]
        x = LABEL + COLUMN * (column + 0.5)
        axes.text(x, top - 0.5, package["title"], ha="center", fontsize=9.5, fontweight="bold")
        axes.text(x, top - 0.31, package["version"] or "no version", ha="center", fontsize=8.5)
        nothing = "nothing supported" if package["status"] == "ready" else "not run"
        axes.text(x, top - 0.11, _counts(mine[list(RAN)].sum()) or nothing, ha="center", fontsize=8, color="#444444")
    y = top
    for family in families:
        _label(axes, family, report["titles"][family], by[family, packages[0]["name"]]["vectors"], y, heights[family])
        for column, package in enumerate(packages):
            _cell(axes, by[family, package["name"]], LABEL + COLUMN * column, y, heights[family])
        y += heights[family]
    _findings(axes, report, y + 0.06)
    return figure


def drawn_states(figure: Figure) -> dict[tuple[str, str], str]:
    """(family, package) -> state, read back from the symbols of a figure that `matrix` returned."""
    symbols = {symbol: state for state, (symbol, _) in SYMBOLS.items()}
    texts = [text for text in figure.axes[0].texts if (text.get_gid() or "").startswith("state-")]
    return {tuple(text.get_gid().split("-", 2)[1:]): symbols[text.get_text()] for text in texts}


def _head(axes: Axes, report: Mapping[str, Any], cells: pd.DataFrame, width: float) -> None:
    """Title, what was run, and the legend: all above the matrix."""
    axes.text(0.1, 0.27, headline(cells), fontsize=12.5, fontweight="bold")
    total = int(cells.groupby("family")["vectors"].first().sum())
    environment = ", ".join(f"{name} {version}" for name, version in report["environment"].items())
    text = (
        f"{total} vectors (set {report['set_version']}, rlcorr-ref {report['rlcorr_ref']}) on {report['date']}, {environment}. "
        "A cell shows its most serious outcome, the vectors per outcome, their shares of the area (bar) and its findings (#)."
    )
    axes.text(0.1, 0.5, "\n".join(textwrap.wrap(text, int(width * 15.5))), fontsize=8, color="#444444", va="top")
    x = 0.1
    for state, (symbol, words) in SYMBOLS.items():
        tint, colour = COLOURS[state]
        axes.add_patch(Rectangle((x, 0.84), 0.24, 0.2, facecolor=tint, edgecolor="#999999", linewidth=0.6))
        axes.text(x + 0.12, 0.945, symbol, ha="center", va="center", fontsize=10, fontweight="bold", color=colour)
        axes.text(x + 0.29, 0.945, words, va="center", fontsize=8)
        x += 0.5 + 0.0625 * len(words)


def _label(axes: Axes, family: str, title: str, vectors: int, y: float, height: float) -> None:
    middle = y + height / 2
    axes.text(0.1, middle - 0.065, family, va="center", fontsize=9, fontweight="bold")
    axes.text(LABEL - 0.1, middle - 0.065, f"{vectors} vectors", va="center", ha="right", fontsize=7.5, color="#444444")
    short = textwrap.shorten(title, 58, placeholder=" ...")
    axes.text(0.1, middle + 0.09, short, va="center", fontsize=6.5, color="#444444")


def _counts(row: Mapping[str, Any] | pd.Series) -> str:
    """``20 ✓  1 ✕``: the vectors per outcome, those that are zero left out."""
    return "  ".join(f"{int(row[s])} {SYMBOLS[s][0]}" for s in RAN if row[s])


def _cell(axes: Axes, row: Mapping[str, Any], x: float, y: float, height: float) -> None:
    symbol, (tint, colour) = SYMBOLS[row["state"]][0], COLOURS[row["state"]]
    hatch = "////" if row["state"] == "not run" else None
    axes.add_patch(Rectangle((x, y), COLUMN, height, facecolor=tint, edgecolor="#ffffff", linewidth=0, hatch=hatch))
    axes.add_patch(Rectangle((x, y), COLUMN, height, fill=False, edgecolor="#bbbbbb", linewidth=0.6))
    drawn = {"gid": f"state-{row['family']}-{row['package']}", "va": "center", "ha": "center", "color": colour}
    if not any(row[state] for state in RAN):
        axes.text(x + COLUMN / 2, y + height / 2, symbol, fontsize=11, **drawn)
        return
    axes.text(x + 0.15, y + height / 2 - 0.02, symbol, fontsize=14, fontweight="bold", **drawn)
    shift = 0.085 if row["findings"] else 0.02
    axes.text(x + 0.3, y + height / 2 - shift, _counts(row), va="center", fontsize=8)
    if row["findings"]:
        text = "# " + " ".join(map(str, row["findings"]))
        axes.text(x + 0.3, y + height / 2 + 0.075, text, va="center", fontsize=6.8, color="#333333")
    left = x
    for state in (state for state in RAN if row[state]):
        share = COLUMN * row[state] / row["vectors"]
        colour = COLOURS[state][1]
        axes.add_patch(Rectangle((left, y + height - 0.045), share, 0.045, facecolor=colour, linewidth=0))
        left += share


def _findings(axes: Axes, report: Mapping[str, Any], y: float) -> None:
    """The ids of the numbered findings, a column below each package; those without a vector in italics."""
    words = (
        "# Findings, numbered by package",
        "italic: no vector asks for it,",
        "`rlcorr conformance --finding ID` does",
        "id: the package's name, a hyphen, this name",
        "page: conformance/findings/ID.md",
    )
    for line, text in enumerate(words):
        weight, style = ("bold" if line == 0 else "normal"), ("italic" if line == 1 else "normal")
        axes.text(
            0.1, y + LINE * (line + 1), text, fontsize=8.5 if line == 0 else 7, fontweight=weight, fontstyle=style
        )
    for column, package in enumerate(report["packages"]):
        mine = [f for f in report["findings"] if f["package"] == package["name"]]
        for number, finding in enumerate(mine, 1):
            name = finding["id"].removeprefix(f"{package['name']}-")
            axes.text(
                LABEL + COLUMN * column + 0.03,
                y + LINE * number,
                f"{number} {name}",
                fontsize=6.5,
                fontstyle="normal" if finding["cases"] else "italic",
            )


def draw_conformance(folder: Path, report: Path = REPORT) -> Path:
    """Draw ``report`` through the notebook into ``folder``: SVG, PNG, caption, record and the executed notebook.

    Returns the executed notebook. Raises `PublicationError` as `repro.cells.publication.execute` does, and when the report is
    missing or not JSON.
    """
    try:
        record = record_of(report)
    except (OSError, ValueError, KeyError) as error:
        raise PublicationError(
            f"{portable(str(report))}: no conformance report ({type(error).__name__}: {error}); make it with `{COMMAND}`"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / META, (json.dumps(record, indent=1) + "\n").encode())
    return execute(NOTEBOOK, folder, {"report": str(report.resolve()), "output": "."})
