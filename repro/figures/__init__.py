"""Figures from shipped data: of training runs (`training`, `captions`, the notebooks' `steps`) and of conformance.

`layouts` and `map` arrange `panels`, `styles` says how an arm looks, `others` knows the figures that belong to no row.
"""

from repro.figures.training import ORACLE_LIMIT, save

__all__ = ["ORACLE_LIMIT", "save"]  # what notebooks/figures/ take from here; everything else is asked of its module
