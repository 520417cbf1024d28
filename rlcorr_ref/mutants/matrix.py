"""The kill matrix: which vector rejects which mutant, at float32 tolerances, by at least 16 of them.

    python -m rlcorr_ref.mutants.matrix            recompute and print what changed and which mutants survive
    python -m rlcorr_ref.mutants.matrix --write    store kill_matrix.json

A case kills a mutant when the mutant's answer, computed in its own precision, raises, has another shape, differs where the
case is exact or not finite, or lies 16 float32 tolerances off in some judged entry. Everything is computed, nothing is typed in.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import vectors
from ..vectors.canonical import document, read, write_text
from .compare import SHARPNESS, share_used, wanted
from .plain import Plain
from .registry import Mutant, mutants

STORED = Path(__file__).with_name("kill_matrix.json")
ENOUGH = 2  # cases that have to reject every mutant
DTYPE = "fp32"


def used(implementation: Plain, case: Mapping[str, Any], dtype: str = DTYPE) -> float:
    """Share of the tolerance that an implementation's answer to a case uses; inf where it raises."""
    targets = wanted(case, dtype)
    implementation.metrics = any(target.name.startswith("diagnostics.") for target in targets)
    settings = case.get("definition" if case["function"] == "objective" else "parameters") or {}
    try:
        outputs = implementation.outputs(case["function"], case["inputs"], settings)
    except (ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return np.inf
    return share_used(targets, outputs)


def kills(case: Mapping[str, Any], candidates: Iterable[Mutant]) -> list[str]:
    """Names of the mutants that a case rejects, sorted."""
    out = []
    for mutant in candidates:
        if case["function"] in mutant.functions and used(mutant.implementation(), case) >= SHARPNESS:
            out.append(mutant.name)
    return sorted(out)


def compute(cases: Iterable[Mapping[str, Any]] | None = None) -> dict[str, list[str]]:
    """{case id: mutants that it kills} for the given cases (all of the set)."""
    found = list(mutants().values())
    return {case["id"]: kills(case, found) for case in (vectors.load() if cases is None else cases)}


def by_mutant(matrix: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """{mutant: cases that kill it}; every known mutant has an entry."""
    out: dict[str, list[str]] = {name: [] for name in mutants()}
    for case, names in matrix.items():
        for name in names:
            out.setdefault(name, []).append(case)
    return out


def survivors(matrix: Mapping[str, Iterable[str]], enough: int = ENOUGH) -> dict[str, list[str]]:
    """Mutants that fewer than `enough` cases kill, with those that do."""
    return {name: cases for name, cases in by_mutant(matrix).items() if len(cases) < enough}


def stored(path: Path = STORED) -> dict[str, list[str]]:
    """The matrix as it was last written."""
    return read(path)["kills"]


def write(matrix: Mapping[str, list[str]], path: Path = STORED) -> None:
    """Store as canonical JSON, whole or not at all."""
    value = {
        "dtype": DTYPE,
        "sharpness": SHARPNESS,
        "set_version": vectors.manifest()["set_version"],
        "kills": dict(matrix),
    }
    write_text(path, document(value, lines_of="kills"))


def report(matrix: Mapping[str, list[str]] | None = None) -> str:
    """One line per mutant: how many cases kill it, the first three, and what is wrong with it."""
    matrix = stored() if matrix is None else matrix
    lines, few = [], survivors(matrix)
    for name, cases in by_mutant(matrix).items():
        mutant = mutants().get(name)
        says = "" if mutant is None else mutant.says
        shown = ", ".join(cases[:3]) + (", ..." if len(cases) > 3 else "")
        lines.append(f"{len(cases):4d}  {name}  [{shown}]\n      {says}")
    killing = sum(bool(names) for names in matrix.values())
    lines.append(f"{len(by_mutant(matrix))} mutants, {len(matrix)} cases, {killing} of which kill at least one")
    lines.append(
        f"fewer than {ENOUGH} cases: " + (", ".join(f"{name} ({len(cases)})" for name, cases in few.items()) or "none")
    )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit status 1 when a mutant survives or the stored matrix differs."""
    parser = argparse.ArgumentParser(prog="python -m rlcorr_ref.mutants.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="store the matrix as kill_matrix.json")
    options = parser.parse_args(arguments)
    matrix = compute()
    few = survivors(matrix)
    for name, cases in few.items():
        print(f"survives: {name} is killed by {len(cases)} case(s): {', '.join(cases) or 'none'}")
    if options.write:
        write(matrix)
        print(f"{STORED.name}: {len(matrix)} cases, {len(mutants())} mutants")
        return 1 if few else 0
    before = stored() if STORED.exists() else {}
    changed = [case for case in {**before, **matrix} if before.get(case) != matrix.get(case)]
    for case in changed:
        gone, new = (
            set(before.get(case, ())) - set(matrix.get(case, ())),
            set(matrix.get(case, ())) - set(before.get(case, ())),
        )
        print(f"{case}: {' '.join([f'-{n}' for n in sorted(gone)] + [f'+{n}' for n in sorted(new)]) or 'case removed'}")
    print(f"{len(matrix)} cases, {len(mutants())} mutants, {len(changed)} cases differ from {STORED.name}")
    return 1 if few or changed else 0


if __name__ == "__main__":
    sys.exit(main())
