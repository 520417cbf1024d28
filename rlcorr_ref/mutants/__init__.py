"""Mutants: named wrong implementations of the contract, one per kind of fault seen in public reports, and what catches them.

    from rlcorr_ref import mutants
    wrong = mutants.get("weight-attached").answer(case)     # same format as evaluate_case(case)
    print(mutants.report())                                 # which vectors reject which mutant

`Plain` (float64 or float32) and `Sharded` (float32, vocabulary in two halves) are correct implementations that share no
mathematics with the reference; every vector has to accept them.
"""

from __future__ import annotations

from .plain import Plain
from .registry import Mutant, get, mutants


def report() -> str:
    """The stored kill matrix as text; see `matrix`."""
    from .matrix import report as stored

    return stored()


__all__ = ["Mutant", "Plain", "get", "mutants", "report"]
