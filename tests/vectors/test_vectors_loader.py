"""The loader that others vendor: standard library only, printed in INTERPRETING.md as shipped, the same verdicts as the judge."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import plain_stages
import pytest

from rlcorr_ref.errors import ContractError
from rlcorr_ref.vectors import judge, loader_minimal, store
from rlcorr_ref.vectors.command import answer


def test_the_printed_loader_is_the_shipped_one():
    text = (store.ROOT / "INTERPRETING.md").read_text()
    shipped = (store.ROOT / "loader_minimal.py").read_text()
    assert f"```python\n{shipped}```" in text
    assert len(shipped.splitlines()) <= 45


def test_it_runs_alone(tmp_path):
    """Copied away with one data file, in an interpreter without site packages."""
    shutil.copy(store.ROOT / "loader_minimal.py", tmp_path)
    shutil.copy(store.ROOT / "v1" / "agg.json", tmp_path)
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "import loader_minimal as l\n"
        "cases = l.load('agg.json')\n"
        "case = cases['agg.0001']\n"
        "print(len(cases), l.judge(case, {'value': 0.75}, 'fp64'), l.judge(case, {'value': 0.7}, 'fp32')['ok'])\n"
    )
    out = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert out.stdout.strip() == "21 {'ok': True, 'used': 0.0} False", out.stderr


@pytest.mark.parametrize("path", sorted((store.ROOT / "v1").glob("*.json")), ids=lambda p: p.stem)
def test_it_judges_as_the_judge_does(path):
    for case in loader_minimal.load(path).values():
        level = next(name for name in ("logits", "logprobs", "weights") if name in case["levels"])
        names = (*case["levels"][level]["required"], *case["levels"][level].get("optional", ()))
        got = {k: v for k, v in plain_stages.answer(case).items() if k in names and v is not None}
        mine = loader_minimal.judge(case, got, "fp32")
        complete = {**case, "levels": {level: {"required": list(got), "optional": []}}}
        theirs = judge.judge(complete, got, "fp32", level)
        assert mine["ok"] == theirs.passed and mine["used"] == pytest.approx(theirs.used, rel=1e-9)


def test_it_sees_wrong_answers_and_shapes():
    case = loader_minimal.load(store.ROOT / "v1" / "grad.json")["grad.0002"]
    good = answer(case)
    assert loader_minimal.judge(case, {"mask": good["mask"], "loss": good["loss"]}, "fp64")["used"] == 0.0
    assert loader_minimal.judge(case, {"mask": [[0.0]]}, "bf16")["used"] == float("inf")
    assert not loader_minimal.judge(case, {"loss": good["loss"] * 1.01}, "fp32")["ok"]
    with pytest.raises(AssertionError, match="wrong shape"):
        loader_minimal.judge(case, {"mask": [[1, 1]]}, "fp64")


def test_a_withdrawn_case_is_skipped(tmp_path):
    doc = json.loads((store.ROOT / "v1" / "agg.json").read_text())
    doc["cases"][0]["status"] = "withdrawn"
    (tmp_path / "agg.json").write_text(json.dumps(doc))
    assert "agg.0001" not in loader_minimal.load(tmp_path / "agg.json")


def test_selection():
    assert {case["id"] for case in store.load("grad.006")} == {f"grad.006{i}" for i in range(10)}
    assert all("bf16" in case["dtypes"] for case in store.load(dtype="bf16"))
    assert all("weights" in case["levels"] for case in store.load(level="weights"))
    plain = store.load(features={"function:ratio"})
    assert plain and all(case["features"] == ["function:ratio"] for case in plain)
    assert store.load("ratio", flag="SegmentBoundary") and store.get("ratio.0001")["id"] == "ratio.0001"
    with pytest.raises(ContractError, match="unknown name 'nope'"):
        store.load("nope")
    assert store.envelope(store.get("grad.0010")).keys() == {"function", "inputs", "definition"}


def test_the_set_is_small():
    """At most 600 KiB compressed; every file below the size that a code host still shows (512 KiB)."""
    import gzip

    files = [p for p in store.ROOT.rglob("*") if p.suffix in (".json", ".md") and "__pycache__" not in str(p)]
    assert sum(len(gzip.compress(p.read_bytes())) for p in files) < 600 * 1024
    assert max(p.stat().st_size for p in files) < 512 * 1024
