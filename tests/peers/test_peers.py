"""The adapters against the installed packages. What is not installed here is recorded as not run and must say what to
install.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcorr_ref.conformance.findings import observe, of_package
from rlcorr_ref.conformance.protocol import BUILT_IN, read_adapter
from rlcorr_ref.conformance.runner import run

from .conftest import NOT_RUN

COMMITTED = Path(__file__).parents[2] / "paper_figures" / "conformance" / "report.json"


@pytest.mark.parametrize("name", BUILT_IN)
def test_package(name):
    """The package's outcomes are those of the committed report, and every departure belongs to a finding seen again
    now.
    """
    adapter = read_adapter(name)
    if adapter.status != "ready":
        NOT_RUN[adapter.name] = adapter.reason
        assert run(adapter) == []
        assert adapter.reason.startswith(("not installed; pip install", "cannot be imported", "version "))
        return
    outcomes = run(adapter)
    assert any(o.state == "pass" for o in outcomes)
    found = observe(adapter, outcomes)
    assert [f["id"] for f in found if not f["present"]] == []
    assert len(found) == len(of_package(adapter.name))
    explained = {case for f in found for case in f["cases"]}
    assert {o.id for o in outcomes if o.state == "departs"} <= explained
    report = json.loads(COMMITTED.read_text(encoding="utf-8"))
    committed = {
        c["id"]: c["state"] for cell in report["cells"] if cell["package"] == adapter.name for c in cell["cases"]
    }
    now = {o.id: o.state for o in outcomes if o.id in committed}
    assert now == {case: state for case, state in committed.items() if case in now}
    assert {f["id"]: f["returned"] for f in found} == {
        f["id"]: f["returned"] for f in report["findings"] if f["package"] == adapter.name
    }
