"""Every mutant on its own smallest input: the published wrong number from the mutant, the right one from the reference."""

from __future__ import annotations

import json
import re
from copy import deepcopy

import numpy as np
import pytest

from rlcorr_ref import ContractError, evaluate_case
from rlcorr_ref.mutants import Plain, get, mutants
from rlcorr_ref.mutants.catalogue import ENTRIES, WITHOUT, catalogue, table
from rlcorr_ref.mutants.compare import as_array
from rlcorr_ref.mutants.registry import FAULTS, RAISES, Smallest, mutant

NAMES = list(mutants())
PRINTED = dict(rtol=3e-4, atol=2e-4, equal_nan=True)  # published numbers have about four digits


def pick(answer: dict, output: str) -> np.ndarray:
    for key in output.split("."):
        answer = answer[key]
    return as_array(answer)


def output_of(m) -> str:
    own = m.smallest.case["function"] == "diagnostics"
    return m.smallest.output.removeprefix("diagnostics.") if own else m.smallest.output


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_right_and_mutant_is_wrong(name: str) -> None:
    m = get(name)
    right, wrong = as_array(m.smallest.right), m.smallest.wrong
    given = deepcopy(m.smallest.case)
    np.testing.assert_allclose(pick(evaluate_case(given), output_of(m)), right, **PRINTED)
    np.testing.assert_allclose(pick(Plain().answer(given), output_of(m)), right, **PRINTED)
    if isinstance(wrong, str) and wrong == RAISES:
        with pytest.raises((KeyError, ValueError)):
            m.answer(given)
    else:
        found = pick(m.answer(given), output_of(m))
        np.testing.assert_allclose(found, as_array(wrong), **PRINTED)
        assert not np.allclose(found, right, **PRINTED)
    assert given == m.smallest.case, "the case itself must stay as it was"


@pytest.mark.parametrize("name", NAMES)
def test_record_is_complete(name: str) -> None:
    m = get(name)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", m.name)
    assert m.fault in FAULTS and m.functions and m.smallest.case["function"] in m.functions
    assert m.says.endswith(".") and len(m.says) < 400
    assert set(m.entries) <= set(ENTRIES) and (m.threads or not m.entries)
    json.dumps(m.smallest.case, allow_nan=False)


def test_every_report_has_a_mutant_or_a_reason() -> None:
    entries = catalogue()
    assert [entry.number for entry in entries] == list(range(1, 125))
    for entry in entries:
        assert entry.threads
        assert bool(entry.mutants) != bool(entry.reason), entry
    assert sum(bool(entry.mutants) for entry in entries) >= 100
    assert len(table().splitlines()) == 2 + len(entries)
    assert set(WITHOUT).isdisjoint(n for m in mutants().values() for n in m.entries)


def test_answers_have_the_wire_format_of_the_reference() -> None:
    for name in ("weight-attached", "tail-ratio-inverted", "chi-square-sign", "overflow-becomes-zero"):
        m = get(name)
        reference, answer = evaluate_case(m.smallest.case), m.answer(m.smallest.case)
        assert set(answer) == {key for key in reference if "@" not in key}
        json.dumps(answer, allow_nan=False)


def test_unknown_and_duplicate_names_are_refused() -> None:
    with pytest.raises(ContractError, match="unknown name 'weight-detached'; known: absent-slot"):
        get("weight-detached")
    smallest = Smallest({}, "loss", 0.0, 1.0)
    with pytest.raises(ContractError, match="declared twice"):
        mutant("weight-attached", [], "", "formula", ("objective",), smallest)(type("X", (Plain,), {"__doc__": "x."}))
    with pytest.raises(ContractError, match="'typo' is not one of formula"):
        mutant("other", [], "", "typo", ("objective",), smallest)
    with pytest.raises(ContractError, match="needs a docstring"):
        mutant("other", [], "", "formula", ("objective",), smallest)(type("Y", (Plain,), {"__doc__": ""}))
