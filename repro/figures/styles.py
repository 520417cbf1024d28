"""How arms, warm starts and the page look: colours, dashes, markers, names and matplotlib settings.

Colours are the Okabe-Ito set, which stays apart under the common colour-vision deficiencies; arms drawn together also differ
in dashes and marker. Arms with the same role in different rows (control, uncorrected, truncated) share a colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import matplotlib
import seaborn

from repro.arms import ARMS

MOST_CURVES = 7  # more curves than this cannot be told apart in one panel
MESSAGE = ("onpolicy", "pg", "tis", "sc", "tis_sc")  # the arms drawn as curves where a row has more than MOST_CURVES
OTHER = "#666666"  # arms that are in dot plots only
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*")  # of the warm starts, in dot plots


class FigureDataError(ValueError):
    """Data that cannot be drawn: a missing column, an unknown arm, no rows."""


class Style(NamedTuple):
    """How an arm looks in every panel."""

    label: str
    colour: str
    dashes: str | tuple[int, tuple[float, ...]]
    marker: str


DOTTED, LONG, MEDIUM = (0, (1, 1.2)), (0, (5, 1.5)), (0, (3, 1))
DASH_DOT, DASH_DOT_DOT = (0, (7, 1.5, 1.2, 1.5)), (0, (5, 1, 1, 1, 1, 1))
STYLES = {
    "onpolicy": Style("on-policy control", "#000000", DOTTED, "s"),
    "pg": Style("PG", "#D55E00", "solid", "o"),
    "tis": Style("TIS (cap 2)", "#E69F00", LONG, "^"),
    "sc": Style("SC", "#0072B2", DASH_DOT, "D"),
    "tis_sc": Style("TIS + SC", "#009E73", MEDIUM, "v"),
    "onpolicy_minus": Style("on-policy, A = -1", "#000000", DOTTED, "s"),
    "pg_minus": Style("PG, A = -1", "#D55E00", "solid", "o"),
    "pg_plus": Style("PG, A = +1", "#CC79A7", LONG, "P"),
    "sc_minus": Style("SC, A = -1", "#0072B2", DASH_DOT, "D"),
    "grpo_onpolicy": Style("GRPO clip, on-policy sampler", "#000000", DOTTED, "s"),
    "grpo": Style("GRPO clip, no correction", "#D55E00", "solid", "o"),
    "grpo_tis": Style("GRPO clip, TIS (cap 2)", "#E69F00", LONG, "^"),
    "swift_token_truncate": Style("token truncate", "#E69F00", LONG, "^"),
    "swift_token_mask": Style("token mask", "#56B4E9", MEDIUM, "v"),
    "swift_sequence_truncate": Style("sequence truncate", "#CC79A7", DASH_DOT, "D"),
    "swift_sequence_mask": Style("sequence mask", "#009E73", DASH_DOT_DOT, "P"),
}
SPARE = (  # for arms without a style, where nothing better known is drawn
    ("#CC79A7", DASH_DOT_DOT, "P"),
    ("#56B4E9", DASH_DOT, "X"),
    ("#666666", MEDIUM, "*"),
    ("#B8A800", LONG, "<"),
)
SHORT = {"mis_sc": "MIS + SC"}  # named as the arms with a style are
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


def label(arm: str) -> str:
    """The name of ``arm`` in legends and dot plots."""
    return STYLES[arm].label if arm in STYLES else SHORT.get(arm) or ARMS[arm].label


def curve_styles(arms: Sequence[str]) -> dict[str, Style]:
    """Arm -> style for those of ``arms`` that are drawn as curves, at most `MOST_CURVES`, in the order of ``arms``.

    All of them where they are few, else those of `MESSAGE`; arms without a style of their own take the `SPARE` ones.
    """
    few = list(arms) if len(arms) <= MOST_CURVES else [arm for arm in arms if arm in MESSAGE] or list(arms)
    spare, found = iter(SPARE), {}
    for arm in few:
        if arm in STYLES:
            found[arm] = STYLES[arm]
        elif (look := next(spare, None)) is not None:
            found[arm] = Style(label(arm), *look)
    return found


def start_shapes(checkpoints: Sequence[str]) -> dict[str, str]:
    """Warm start -> marker; `FigureDataError` when there are more warm starts than shapes."""
    if len(checkpoints) > len(SHAPES):
        raise FigureDataError(f"data: expected at most {len(SHAPES)} warm starts, got {len(checkpoints)}")
    return dict(zip(checkpoints, SHAPES, strict=False))


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's defaults, seaborn's "ticks" style and `RC`: a reader's own matplotlibrc does not change the figure."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(seaborn.axes_style("ticks"))
        matplotlib.rcParams.update(RC)
        yield
