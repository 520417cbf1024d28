"""Who else gives these wrong numbers: a named wrong implementation of the catalogue, or a published dialect value.

A suspect must agree with the answer within a few tolerances at every judged entry and must itself fail the published case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import mutants
from ...errors import ContractError
from .. import judge, store
from ..model import ACCUMULATOR_ROUNDOFF, UNIT_ROUNDOFF

# A wrong value is conditioned differently from the right one: its tolerance is this many times the case's, and relative too.
WIDER = 8.0
RELATIVE = 64.0
NAMED = 2


def suspects(case: Mapping[str, Any], given: Mapping[str, Any], level: str, dtype: str) -> list[mutants.Mutant]:
    """At most two known faults with the numbers of `given`, the most specific first."""
    answered = _answered(case, given, level)
    if not answered or case["function"] == "quantise":
        return []
    found = []
    question, published = store.envelope(dict(case)), store.get(case["id"])
    metrics = case["function"] != "objective" or any(name.startswith("diagnostics.") for name in answered)
    for mutant in mutants.mutants().values():
        # where the set records which faults a case rejects, the others cannot be the one
        if case["function"] not in mutant.functions or (case["kills"] and mutant.name not in case["kills"]):
            continue
        try:
            other = mutant.implementation(metrics).answer(question)
            refused = judge.judge(
                published, {name.split(".")[0]: other[name.split(".")[0]] for name in answered}, dtype, level
            )
        except (ContractError, ArithmeticError, IndexError, KeyError, TypeError, ValueError):
            continue  # a mutant may raise where the reference answers: that is its fault, and no number to compare
        if any(miss.index is not None for miss in refused.misses) and _same(case, answered, other, dtype):
            found.append(mutant)
    return sorted(found, key=lambda m: (len(m.functions), m.name))[:NAMED]


def same_dialect(case: Mapping[str, Any], given: Mapping[str, Any], level: str, dtype: str) -> str:
    """The name of a published dialect value that the answer equals where the canonical value is missed, or ""."""
    answered = _answered(case, given, level)
    for name, dialect in case.get("dialects", {}).items():
        common = {output: value for output, value in answered.items() if output in dialect["expected"]}
        if common and _same(case, common, dialect["expected"], dtype):
            return name
    return ""


def _answered(case: Mapping[str, Any], given: Mapping[str, Any], level: str) -> dict[str, Any]:
    entry = case["levels"][level]
    values = {name: _pick(given, name) for name in (*entry["required"], *entry.get("optional", ()))}
    return {name: value for name, value in values.items() if value is not None}


def _pick(values: Mapping[str, Any], name: str) -> Any:
    if name in values:
        return values[name]
    value: Any = values
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _same(case: Mapping[str, Any], answered: Mapping[str, Any], other: Mapping[str, Any], dtype: str) -> bool:
    for name, value in answered.items():
        theirs = _pick(other, name)
        if theirs is None:
            return False
        mine, their = _array(value), _array(theirs)
        if mine.shape != their.shape or not np.array_equal(np.isfinite(mine), np.isfinite(their)):
            return False
        finite = np.isfinite(mine)
        if not np.array_equal(mine[~finite], their[~finite], equal_nan=True):
            return False
        record = case["expected"][name]
        scale = np.broadcast_to(_array(record.get("err_scale", 0.0)), mine.shape)
        u, accumulated = UNIT_ROUNDOFF[dtype], ACCUMULATOR_ROUNDOFF[dtype] * record.get("acc_scale", 0.0)
        tolerance = WIDER * judge.MULTIPLE * (u * scale + accumulated) + RELATIVE * u * np.abs(
            np.where(finite, their, 0.0)
        )
        if (np.abs(mine[finite] - their[finite]) > tolerance[finite]).any():
            return False
    return True


def _array(value: Any) -> np.ndarray:
    return np.array(_floats(value), dtype=np.float64)


def _floats(value: Any) -> Any:
    return (
        [_floats(item) for item in value]
        if isinstance(value, list)
        else float("nan")
        if value is None
        else float(value)
    )
