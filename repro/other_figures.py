"""Figures that are drawn from shipped data but belong to no training row; `python -m repro draw NAME` knows them by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from repro.conformance_figure import draw_conformance
from repro.conformance_report import OUTPUT as CONFORMANCE

Drawer = Callable[[Path | None], Path]


def drawers() -> dict[str, Drawer]:
    """Name -> function of the folder to draw into (None: the shipped one) that returns the executed notebook."""
    return {"conformance_matrix": lambda folder: draw_conformance(folder or CONFORMANCE)}
