"""Scaffolds: the written files follow the host project's convention, run where it is installed, and never overwrite."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_options import NAMED

from rlcorr_ref import cli
from rlcorr_ref.vectors import store
from rlcorr_ref.vectors.adopt import scaffold, templates
from rlcorr_ref.vectors.adopt.selection import read_request, select

ROOT = Path(__file__).parents[2]
TESTS = {
    "verl": ["test_importance_weights", "test_rejection_mask", "test_agg_loss", "test_policy_loss_gradient"],
    "slime": ["test_policy_loss_value_and_slope", "test_mismatch_weights"],
}
NAMES = {"verl": "test_rlcorr_vectors_on_cpu.py", "slime": "test_rlcorr_vectors.py"}


def run(capsys, *arguments):
    status = cli.main(["vectors", "scaffold", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("project", sorted(TESTS))
def test_file_follows_the_convention(project, capsys, tmp_path):
    out = tmp_path / "tests" / NAMES[project]
    status, printed, _ = run(capsys, "--for", project, "--out", out)
    assert status == 0
    written = [Path(line) for line in printed.splitlines()]
    assert written[0] == out and all(path.is_file() for path in written)
    text = out.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    assert functions == TESTS[project]
    imported = {node.module.split(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert project in imported, "the project's public functions are tested, not a copy of them"
    if project == "verl":
        assert out.name.endswith("_on_cpu.py")
        assert (
            text.startswith("# Copyright") and "Licensed under the Apache License, Version 2.0" in text.split('"""')[0]
        )
        assert len(written) == 1
    else:
        assert "NUM_GPUS = 0" in text and "raise SystemExit(pytest.main([__file__]))" in text
        assert {path.name for path in written[1:]} == {"loader_minimal.py", "surrogate.json", "weight.json"}
        assert "rlcorr_ref" not in {
            node.names[0].name.split(".")[0] for node in tree.body if isinstance(node, ast.Import)
        }


def test_without_out_the_file_is_printed(capsys):
    status, printed, _ = run(capsys, "--for", "verl")
    assert status == 0
    assert printed == (Path(templates.__file__).parent / "verl.py").read_text(encoding="utf-8") == scaffold.text("verl")


def test_vendored_files_are_the_published_ones(tmp_path, capsys):
    scaffold.write("slime", tmp_path / "test_x.py")
    folder = tmp_path / "rlcorr_vectors"
    for family in scaffold.CONVENTIONS["slime"].vendored:
        assert cli.main(["vectors", "verify", str(folder / f"{family}.json")]) == 0
    assert (folder / "loader_minimal.py").read_bytes() == (store.ROOT / "loader_minimal.py").read_bytes()
    capsys.readouterr()


def test_nothing_is_overwritten_and_wrong_names_are_refused(capsys, tmp_path):
    status, _, error = run(capsys, "--for", "verl", "--out", tmp_path / "test_vectors.py")
    assert status == 2 and "expected a name test_*_on_cpu.py, verl's CPU job collects only such files" in error
    (tmp_path / "rlcorr_vectors").mkdir()
    (tmp_path / "rlcorr_vectors" / "weight.json").write_text("mine", encoding="utf-8")
    status, _, error = run(capsys, "--for", "slime", "--out", tmp_path / "test_rlcorr_vectors.py")
    assert status == 2 and "weight.json exists; nothing was written" in error
    assert not (tmp_path / "test_rlcorr_vectors.py").exists()
    with pytest.raises(SystemExit):
        run(capsys, "--for", "nobody")


def marks(project):
    """The `rlcorr.cases` calls of a template, evaluated with its constants."""
    tree = ast.parse(scaffold.text(project))
    constants = [node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id.isupper()]
    names: dict = {"torch": __import__("torch")}
    exec(compile(ast.Module(constants, []), project, "exec"), names)
    names["cases"] = lambda *families, **options: (families, options)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "rlcorr.cases":
            node.func = ast.Name("cases", ast.Load())
            yield eval(compile(ast.fix_missing_locations(ast.Expression(node)), project, "eval"), names)


def test_every_case_and_expected_failure_of_the_verl_file_exists():
    ran = set()
    for families, options in marks("verl"):
        found = select(read_request(families, options))
        assert found.runs
        ran |= {run.case["id"] for run in found.runs}
        expected = options["xfails"]
    assert len(ran) >= 100
    assert expected and set(expected) <= ran, "an expected failure that no test runs would never be noticed"


def test_slime_file_runs_against_a_faithful_stand_in(tmp_path):
    """The vendored file needs nothing installed but torch: run it on functions that a checkout would hold, right and wrong."""
    for wrong, status in (("", 0), (" * 1.001", 1)):
        checkout = tmp_path / f"checkout{status}"
        package, example = checkout / "slime" / "utils", checkout / "examples" / "train_infer_mismatch_helper"
        package.mkdir(parents=True)
        example.mkdir(parents=True)
        (package / "ppo_utils.py").write_text(STAND_IN.replace("FAULT", wrong), encoding="utf-8")
        (example / "mis.py").write_text(STAND_IN_MIS, encoding="utf-8")
        scaffold.write("slime", checkout / "tests" / NAMES["slime"])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
        done = subprocess.run(
            command,
            cwd=checkout,
            env={"PYTHONPATH": ".", "OMP_NUM_THREADS": "1", "PATH": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stdout[-2000:]
        assert "passed" in done.stdout
        if status:
            assert "x tolerance" in done.stdout


STAND_IN = """
import torch

def compute_policy_loss(ppo_kl, advantages, eps_clip, eps_clip_high, eps_clip_c=None):
    ratio = (-ppo_kl).exp()
    losses = torch.maximum(-ratio * advantages, -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages)
    if eps_clip_c is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -eps_clip_c * advantages), losses)
    return losses FAULT, None

def compute_cispo_loss(ppo_kl, log_probs, advantages, eps_clip, eps_clip_high):
    ratio = (-ppo_kl).exp().clamp(1 - eps_clip, 1 + eps_clip_high).detach()
    return -ratio * advantages * log_probs FAULT, None
"""
STAND_IN_MIS = """
import torch

def compute_mis_weights(args, *, train_log_probs, rollout_log_probs, loss_masks):
    out = []
    for p, q, m in zip(train_log_probs, rollout_log_probs, loss_masks, strict=True):
        d = (p - q) * m
        if args.tis_level != "token":
            d = d.sum().expand_as(d)
        if args.tis_level == "geometric":
            d = d / m.sum().clamp(min=1)
        out.append(d.clamp(-20, 20).exp().clamp(args.tis_lower_bound or 0, args.tis_upper_bound) * m)
    return out, loss_masks, {}
"""


def test_verl_file_runs_against_verl(tmp_path):
    """Where verl is installed: no unexpected failure, and every expected one still fails."""
    pytest.importorskip("verl", reason="not run: verl is not installed; see the versions in the scaffold's XFAILS")
    out = tmp_path / NAMES["verl"]
    scaffold.write("verl", out)
    command = [sys.executable, "-m", "pytest", "-q", *NAMED, "-p", "no:cacheprovider", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "xfailed" in done.stdout
