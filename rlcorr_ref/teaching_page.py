"""What goes on a notebook's page: figures in one style, pictures with their description, and whether anybody can answer.

    drawn, axes = figure(2, width=6.0); legend(drawn, axes[0]); show(drawn, "what it shows, in words")
    display("Markdown", "*a sentence*")
    front_end()                       whether a person's front end asked for the running cell

Matplotlib and IPython are imported on first use.
"""

from __future__ import annotations

import base64
import html
import io
import os
from typing import Any

# Okabe & Ito (2008): stays apart under the common colour-vision deficiencies. Yellow is left out, it vanishes on white.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8a8a8a"
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
}
DOTS_PER_INCH = 160
LIVE_WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 5.6, 2.9, 2.9


def figure(columns: int = 1, width: float = 5.2, height: float = 3.0, **share: Any) -> tuple[Any, Any]:
    """A matplotlib figure in the notebooks' style with one row of axes; returns (figure, axes or array of axes)."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    drawn = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(drawn)
    return drawn, drawn.subplots(1, columns, **share)


def legend(drawn: Any, axes: Any, columns: int = 3) -> None:
    """One legend for the figure, below the data, from the labelled artists of `axes`."""
    handles, labels = axes.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=columns)


def show(drawn: Any, alt: str) -> None:
    """Display a figure as PNG. `alt` says in words what it shows, for readers who cannot see it."""
    width = round(drawn.get_figwidth() * 100)
    display("Image", data=png(drawn), width=width, alt=alt)


def front_end() -> bool:
    """Whether a person's front end asked for the running cell, so that widgets can answer.

    JupyterLab, Notebook 7 and VS Code name the cell in the request; papermill, nbclient and nbconvert do not. The
    environment variable RLCORR_WIDGETS = 1 or 0 decides for other front ends.
    """
    wanted = os.environ.get("RLCORR_WIDGETS", "")
    if wanted in ("0", "1"):
        return wanted == "1"
    try:
        from IPython import get_ipython

        kernel = getattr(get_ipython(), "kernel", None)
    except ImportError:
        return False
    return kernel is not None and "cellId" in (kernel.get_parent("shell").get("metadata") or {})


def png(drawn: Any) -> bytes:
    """A figure as the bytes of a PNG file."""
    out = io.BytesIO()
    drawn.savefig(out, format="png")
    return out.getvalue()


def picture(drawn: Any, alt: str) -> str:
    """A figure with its description as an HTML `img`, for a widget: the image widget of ipywidgets 8 takes no description."""
    data = base64.b64encode(png(drawn)).decode("ascii")
    width = round(drawn.get_figwidth() * 100)
    return f'<img src="data:image/png;base64,{data}" width="{width}" alt="{html.escape(alt)}">'


def display(kind: str, *args: Any, **kwargs: Any) -> None:
    """Put an object of `IPython.display` on the page: "Markdown", "HTML" or "Image" with its arguments."""
    from IPython import display as shown

    shown.display(getattr(shown, kind)(*args, **kwargs))
