"""The `rlcorr` command: answers on standard output, one clear line and status 2 on malformed input."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from cases_helper import one_token

from rlcorr_ref import cli, evaluate_case

CASE = one_token(np.log([0.5, 0.3, 0.2]), [0.4, 0.4, 0.2], 0, 1.0, [0, 1], {"centering": {}})


def test_evaluate_prints_strict_json(tmp_path, capsys):
    path = tmp_path / "case.json"
    path.write_text(json.dumps(CASE))
    assert cli.main(["evaluate", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == evaluate_case(CASE)


def test_evaluate_reads_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(CASE)))
    assert cli.main(["evaluate", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == evaluate_case(CASE)["loss"]


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"inputs": ', "not valid JSON, line 1"),
        ('{"inputs": NaN}', "bare NaN is not JSON"),
        ("[]", "expected an object"),
        ('{"inputs": {}, "function": "weights"}', "unknown name 'weights'"),
    ],
)
def test_malformed_input(tmp_path, capsys, text, words):
    path = tmp_path / "case.json"
    path.write_text(text)
    assert cli.main(["evaluate", str(path)]) == cli.MALFORMED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and words in captured.err


def test_missing_file(tmp_path, capsys):
    assert cli.main(["evaluate", str(tmp_path / "none.json")]) == cli.MALFORMED
    assert "cannot be read" in capsys.readouterr().err


def test_import_is_light():
    """The reference package pulls in neither torch nor pandas nor its own extras."""
    heavy = ("torch", "pandas", "mpmath", "sympy", "scipy")
    code = f"import sys, rlcorr_ref, rlcorr_ref.cli; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
