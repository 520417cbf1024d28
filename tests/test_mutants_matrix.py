"""The kill matrix: stored as computed, every mutant rejected at least twice, written whole or not at all."""

from __future__ import annotations

import importlib
import json

import pytest

from rlcorr_ref import mutants as package
from rlcorr_ref import vectors
from rlcorr_ref.mutants import matrix
from rlcorr_ref.mutants.plain import Plain
from rlcorr_ref.mutants.registry import get, mutants
from rlcorr_ref.vectors.build import record
from rlcorr_ref.vectors.canonical import document


@pytest.fixture(scope="module")
def computed() -> dict[str, list[str]]:
    return matrix.compute()


@pytest.fixture(scope="module")
def second_witnesses() -> dict[str, list[str]]:
    """Kills of the cases that were written for mutants with too few, built afresh from their declarations."""
    family = importlib.import_module("rlcorr_ref.vectors.cases.faults").FAMILY
    for more in ("faults_objective", "faults_head"):
        importlib.import_module(f"rlcorr_ref.vectors.cases.{more}")
    cases = [record(build()) for build in family.builders.values()]
    for case in cases:
        assert matrix.used(Plain(), case, "fp64") <= 1.0, case["id"]
    return matrix.compute(cases)


@pytest.mark.slow
def test_stored_matrix_is_the_computed_one(computed: dict[str, list[str]]) -> None:
    assert matrix.stored() == computed


@pytest.mark.slow
def test_every_mutant_is_killed_by_two_cases(computed: dict, second_witnesses: dict) -> None:
    assert matrix.survivors({**computed, **second_witnesses}) == {}


@pytest.mark.slow
def test_a_case_kills_only_mutants_of_its_function(computed: dict[str, list[str]]) -> None:
    functions = {case["id"]: case["function"] for case in vectors.load()}
    for case, names in computed.items():
        assert all(functions[case] in get(name).functions for name in names), case
    assert sum(map(len, computed.values())) > 5000


def test_survivors_and_report_name_what_is_missing() -> None:
    few = matrix.survivors({"grad.0001": ["weight-attached"], "grad.0002": ["weight-attached", "ratio-inverted"]})
    assert "weight-attached" not in few and few["ratio-inverted"] == ["grad.0002"]
    assert len(few) == len(mutants()) - 1
    text = matrix.report({"grad.0001": ["weight-attached"]})
    assert "   1  weight-attached  [grad.0001]" in text and "ratio-inverted (0)" in text
    assert package.report().splitlines()[-2].startswith(f"{len(mutants())} mutants, ")


def test_a_kill_needs_sixteen_tolerances() -> None:
    case = vectors.get("grad.0001")

    class Near(Plain):
        factor = 0.0

        def loss_weights(self, w):
            return w * (1 + self.factor)

    share = []
    for factor in (1e-6, 1e-3):
        near = Near()
        near.factor = factor
        share.append(matrix.used(near, case))
    assert share[0] < matrix.SHARPNESS < share[1]
    assert share[1] / share[0] == pytest.approx(1e3, rel=0.05)


def test_raising_counts_as_rejected() -> None:
    class Broken(Plain):
        def ratio(self, d):
            raise ValueError("shape")

    assert matrix.used(Broken(), vectors.get("weight.0001")) == float("inf")


def test_write_and_command(tmp_path, monkeypatch, capsys) -> None:
    target = tmp_path / "kill_matrix.json"
    small = {"grad.0001": sorted(mutants()), "grad.0002": sorted(mutants())}
    monkeypatch.setattr(matrix, "compute", lambda: small)
    monkeypatch.setattr(matrix, "STORED", target)
    monkeypatch.setattr(matrix, "write", lambda found: _write(found, target))
    monkeypatch.setattr(matrix, "stored", lambda: json.loads(target.read_text())["kills"])
    assert matrix.main([]) == 1  # nothing stored yet
    assert matrix.main(["--write"]) == 0
    assert matrix.main([]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kill_matrix.json"]
    small["grad.0002"] = small["grad.0002"][1:]
    assert matrix.main([]) == 1
    out = capsys.readouterr().out
    assert f"grad.0002: -{sorted(mutants())[0]}" in out and "is killed by 1 case(s): grad.0001" in out


def _write(found: dict, target) -> None:
    target.write_text(document({"kills": found}, lines_of="kills"))
