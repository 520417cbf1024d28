"""The report: cells say what ran, the schema holds, and the committed matrix is what its JSON says."""

from __future__ import annotations

import json
import types
from pathlib import Path

import jsonschema
import pytest

from rlcorr_ref import conformance
from rlcorr_ref.conformance import report
from rlcorr_ref.conformance.protocol import prepare, read_adapter
from rlcorr_ref.conformance.render_html import html
from rlcorr_ref.conformance.render_markdown import cell, finding_page, findings_index, matrix
from rlcorr_ref.conformance.runner import run
from rlcorr_ref.errors import ContractError
from rlcorr_ref.vectors import store
from rlcorr_ref.wire import evaluate_case

SCHEMA = json.loads((Path(conformance.__file__).parent / "schema.json").read_text(encoding="utf-8"))
COMMITTED = Path(__file__).parent.parent / "paper_figures" / "conformance"


def small(wrong: bool = False):
    """An adapter for the ratio family: the reference, or its reciprocal."""
    module = types.ModuleType("rlcorr_adapter_small")
    module.NAME, module.DTYPE, module.ARRAYS = "small", "fp64", "lists"

    def ratio(parameters, **inputs):
        if wrong:
            inputs["logp_trainer"], inputs["logp_sampler"] = inputs["logp_sampler"], inputs["logp_trainer"]
        return evaluate_case({"function": "ratio", "inputs": inputs, "parameters": parameters})

    module.ratio = ratio
    return prepare(module, "small")


def absent():
    module = types.ModuleType("absent")
    module.NAME, module.DISTRIBUTION, module.VERIFIED = "absent", "no-such-distribution-name", ("1.0", "1.1")
    module.ratio = lambda **_: {}
    return prepare(module, "absent")


def document(*adapters):
    return report.build([(a, run(a)) for a in adapters], today="2026-11-29")


def cells(doc, package):
    return {c["family"]: c for c in doc["cells"] if c["package"] == package}


def test_a_cell_is_never_a_pass_without_a_run():
    doc = document(small(), absent())
    jsonschema.Draft202012Validator(SCHEMA).validate(doc)
    assert {c["state"] for c in cells(doc, "absent").values()} == {"not run"}
    mine = cells(doc, "small")
    assert mine["ratio"]["state"] == "pass" and mine["ratio"]["counts"]["pass"] == len(store.load("ratio"))
    assert {c["state"] for family, c in mine.items() if family not in ("ratio", "faults")} == {"not supported"}
    text = matrix(doc)
    assert (
        "| absent | - | >=1.0,<1.1 | not run: not installed; pip install --no-deps no-such-distribution-name==1.0"
        in text
    )
    row = next(line for line in text.splitlines() if line.startswith("| ratio: "))
    assert row.endswith("| not run |") and "**pass**" in row and "of tolerance" in row


def test_departures_without_a_finding_are_listed():
    doc = document(small(wrong=True))
    jsonschema.Draft202012Validator(SCHEMA).validate(doc)
    mine = cells(doc, "small")["ratio"]
    wrong = [c["id"] for c in mine["cases"] if c["state"] == "departs"]
    assert mine["state"] == "departs" and "ratio.0001" in wrong
    listed = [u["case"] for u in doc["unexplained"]]
    assert set(wrong) <= set(listed) and wrong[0] in matrix(doc).split("without a finding page")[1]
    assert "ratio-inverted" in next(c for c in mine["cases"] if c["id"] == "ratio.0001")["faults"]
    assert "<code>ratio.0001</code>" in html(doc)


def test_the_most_serious_state_names_the_cell():
    entry = {"state": "departs", "counts": {"pass": 3, "departs": 1}, "used": 0.25}
    assert cell(entry) == "**departs** (3 pass, 1 depart; 0.25 of tolerance)"
    assert cell({"state": "not run"}) == "not run"


def test_files_are_written_whole_and_html_escapes(tmp_path):
    doc = document(small(wrong=True))
    doc["packages"][0]["title"] = "<small>"
    written = report.write(tmp_path / "deep" / "out", doc)
    assert [p.name for p in written] == ["report.json", "matrix.md", "matrix.html"]
    assert not list(tmp_path.rglob("*.partial"))
    page = written[2].read_text(encoding="utf-8")
    assert "&lt;small&gt;" in page and "<small>" not in page
    assert json.loads(written[0].read_text(encoding="utf-8")) == doc


@pytest.fixture(scope="module")
def committed():
    return json.loads((COMMITTED / "report.json").read_text(encoding="utf-8"))


def test_the_committed_report_fits_its_schema_and_names_what_ran(committed):
    jsonschema.Draft202012Validator(SCHEMA).validate(committed)
    versions = {p["name"]: (p["version"], p["status"]) for p in committed["packages"]}
    assert versions["verl"] == ("0.9.1", "ready") and versions["trl"] == ("1.16.0", "ready")
    for p in committed["packages"]:
        ran = [c for c in committed["cells"] if c["package"] == p["name"] and c["cases"]]
        assert bool(ran) == (p["status"] == "ready")
    assert "torch" in committed["environment"]


def test_the_committed_pages_are_those_of_the_committed_report(committed):
    assert (COMMITTED / "matrix.md").read_text(encoding="utf-8") == matrix(committed)
    assert (COMMITTED / "matrix.html").read_text(encoding="utf-8") == html(committed)
    assert (COMMITTED / "findings" / "README.md").read_text(encoding="utf-8") == findings_index(committed)
    pages = {path.name for path in (COMMITTED / "findings").glob("*.md")} - {"README.md"}
    assert pages == {f"{f['id']}.md" for f in committed["findings"]}
    for f in committed["findings"]:
        assert (COMMITTED / "findings" / f"{f['id']}.md").read_text(encoding="utf-8") == finding_page(f, committed)


def test_every_committed_departure_has_a_page_and_every_finding_was_seen(committed):
    assert committed["unexplained"] == []
    assert all(f["present"] for f in committed["findings"])
    known = {case["id"] for case in store.load(withdrawn=True)}
    seen = {case["id"] for c in committed["cells"] for case in c["cases"]}
    assert seen <= known


def test_the_findings_expected_of_the_packages_are_there(committed):
    returned = {f["id"]: f["returned"] for f in committed["findings"]}
    assert returned["verl-ess-all-dropped"].startswith("raises ZeroDivisionError")
    assert returned["verl-ess-above-one"] == "34.2418"
    assert returned["verl-k1-band-reciprocal"] == "[[1, 0]]"
    assert returned["verl-nan-under-mask-rows"] == "nan"
    assert returned["verl-threshold-underscores"] == "[0.5, 2.03]"
    assert returned["ms-swift-ess-all-dropped"] == "1" and returned["ms-swift-weighted-kl"] == "[[-2]]"
    assert returned["openrlhf-empty-row-filtered"] == "0.5" and returned["areal-k3-reciprocal"] == "0.431946"
    assert returned["skyrl-statistics-padding"].startswith("[0, ")


def test_built_in_adapters_state_a_version_range_and_an_entry():
    for name in conformance.protocol.BUILT_IN:
        found = read_adapter(name)
        assert found.verified.startswith(">=") and found.entry.endswith("from log-probs")
        assert found.status in ("ready", "not run") and (found.status == "ready" or found.reason)


def test_the_peer_environment_pins_what_the_adapters_were_verified_against():
    text = (Path(__file__).parent / "peers" / "packages.txt").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in text.splitlines() if "==" in line)
    found = [read_adapter(name) for name in conformance.protocol.BUILT_IN]
    assert pins == {a.module.DISTRIBUTION: a.module.VERIFIED[0] for a in found}


def test_a_report_needs_a_folder(tmp_path):
    file = tmp_path / "report.json"
    file.write_text("", encoding="utf-8")
    with pytest.raises(ContractError, match="expected a folder, found a file"):
        report.write(file, document(absent()))
