"""The blind protocol with a consumer that shares no code and no language: export, answer, check; planted faults are found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rlcorr_ref import cli
from rlcorr_ref.vectors import store

CONSUMER = Path(__file__).parent / "consumer.mjs"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None, reason="not run: node is not installed, the JavaScript consumer was not exercised"
)

# fault -> (family in which it shows, flag that some failing case carries)
FAULTS = {
    "unshifted": ("logsoftmax", "LogSoftmaxOverflow"),
    "reversed": ("ratio", "RatioDirection"),
    "geometric": ("weight", "SeqProductVsGeomean"),
    "one-sided": ("weight", "LowerClip"),
    "padded-mean": ("agg", "AggDenominator"),
    "attached": ("grad", "WeightNotDetached"),
    "head-only-mass": ("centre", "TailModel"),
    "tail-dropped": ("centre", "TailModel"),
}


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    assert cli.main(["vectors", "export", str(folder), "--prompt-only"]) == 0
    return folder


def answer(questions, target, *fault):
    done = subprocess.run([NODE, str(CONSUMER), str(questions), str(target), *fault], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def judged(capsys, target, report):
    capsys.readouterr()
    status = cli.main(["vectors", "check", str(target), "--report", str(report)])
    capsys.readouterr()
    return status, json.loads(report.read_text(encoding="utf-8"))


def test_questions_carry_no_answers(questions):
    text = "".join(path.read_text(encoding="utf-8") for path in questions.rglob("*.json"))
    assert "expected" not in text and "err_scale" not in text and not (questions / "answers.json").exists()


@needs_node
def test_consumer_passes_every_case_that_it_answers(questions, tmp_path, capsys):
    target = tmp_path / "response.json"
    printed = answer(questions, target)
    status, report = judged(capsys, target, tmp_path / "report.json")
    assert status == 0 and not report["failed"] and not report["not_judged"]
    assert len(report["passed"]) == int(re.match(r"\d+", printed)[0]) >= 150
    families = {name.partition(".")[0] for name in report["passed"]}
    assert {"logsoftmax", "ratio", "weight", "agg", "grad", "centre"} <= families
    assert all(store.get(name)["function"] != "diagnostics" for name in report["passed"])
    assert max(row["used"] for row in report["passed"].values()) <= 1


@needs_node
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(questions, tmp_path, capsys, fault):
    target = tmp_path / "response.json"
    answer(questions, target, fault)
    status, report = judged(capsys, target, tmp_path / "report.json")
    family, flag = FAULTS[fault]
    failing = [name for name in report["failed"] if name.startswith(family)]
    assert status == 1 and failing
    assert any(flag in store.get(name)["flags"] for name in failing)
    assert report["passed"], "a fault is local: what it does not touch still passes"


@needs_node
def test_consumer_refuses_what_it_does_not_know(questions, tmp_path):
    for arguments in ([], [str(questions)], [str(questions), str(tmp_path / "r.json"), "no-such-fault"]):
        done = subprocess.run([NODE, str(CONSUMER), *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith("usage: ")
    assert not (tmp_path / "r.json").exists()
