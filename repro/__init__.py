"""The laboratory: small, seeded training runs that show what rollout correction does to a policy.

It runs from a checkout (``python -m repro ...``) and is not part of the installed distribution. It imports
``rlcorr_ref``, which never imports it back.
"""

from importlib import import_module
from typing import Any

# The notebooks of the figures import these from `repro`; their executed copies are results and stay as they are.
IN_NOTEBOOKS = {
    "conformance_figure": "repro.figures.conformance",
    "conformance_report": "repro.figures.conformance_report",
    "figure_steps": "repro.figures.steps",
    "measure_figure": "repro.measure.figure",
    "measure_report": "repro.measure.report",
    "measure_statistics": "repro.measure.statistics",
    "publication": "repro.cells.publication",
}


def __getattr__(name: str) -> Any:
    if name in IN_NOTEBOOKS:
        return import_module(IN_NOTEBOOKS[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
