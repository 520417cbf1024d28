"""Figures that are drawn from shipped data but belong to no training row; `python -m repro draw NAME` knows them by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from repro.figures.conformance import draw_conformance
from repro.figures.conformance_report import OUTPUT as CONFORMANCE
from repro.measure.report import draw_measure
from repro.provenance import ROOT

Drawer = Callable[[Path | None], Path]


SMOLLM2 = ROOT / "paper_figures" / "measure_smollm2"


def drawers() -> dict[str, Drawer]:
    """Name -> function of the folder to draw into (None: the shipped one) that returns the executed notebook."""
    return {
        "conformance_matrix": lambda folder: draw_conformance(folder or CONFORMANCE),
        "measure_smollm2": lambda folder: draw_measure(_with_data(SMOLLM2, folder)),
    }


def _with_data(shipped: Path, folder: Path | None) -> Path:
    """``folder`` with a copy of the shipped data and record; the shipped folder itself for None."""
    if folder is None:
        return shipped
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data.csv", "meta.json"):
        shutil.copyfile(shipped / name, folder / name)
    return folder
