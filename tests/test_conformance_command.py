"""`rlcorr conformance` from the outside, with the adapter of the documentation: right, and broken on purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcorr_ref import cli, conformance

README = Path(conformance.__file__).parent / "README.md"


@pytest.fixture
def example() -> str:
    """The 20-line adapter of the README."""
    return README.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def run(capsys, *words):
    status = cli.main(["conformance", *map(str, words)])
    out = capsys.readouterr()
    return status, out.out, out.err


def test_the_documented_adapter_is_short_and_passes(example, tmp_path, capsys):
    assert len([line for line in example.splitlines() if line.strip()]) <= 25
    file = tmp_path / "my_trainer.py"
    file.write_text(example, encoding="utf-8")
    status, out, _ = run(capsys, "--adapter", file, "--report", tmp_path / "out")
    assert status == 0 and "departs" not in out
    doc = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    states = {c["family"]: c["state"] for c in doc["cells"]}
    assert states["grad"] == "pass" and states["weight"] == "pass" and states["centre"] == "not supported"


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ("logp.detach()", "logp", "weight-attached"),
        ("logp - logp_sampler, 0.0).exp()", "logp_sampler - logp, 0.0).exp()", "ratio-inverted"),
        ('ratio.clamp(max=rule["high"])', 'torch.where(ratio > rule["high"], 0.0, ratio)', "clip-read-as-zero"),
    ],
)
def test_a_broken_implementation_is_named_by_its_fault(example, right, wrong, fault, tmp_path, capsys):
    assert right in example
    file = tmp_path / "my_broken.py"
    file.write_text(example.replace(right, wrong), encoding="utf-8")
    status, out, _ = run(capsys, "--adapter", file)
    assert status == 1
    ranked = next(line for line in out.splitlines() if "faults by number of cases" in line)
    assert ranked.split(": ")[1].split(" ")[0] == fault, ranked


def test_one_family_can_be_asked_for(example, tmp_path, capsys):
    file = tmp_path / "my_trainer.py"
    file.write_text(example, encoding="utf-8")
    status, out, _ = run(capsys, "--adapter", file, "--family", "grad.00")
    assert status == 0 and out.startswith("my-trainer (fp32): ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verll"], "unknown package 'verll'"),
        (["--adapter", "no_such_file.py"], "no such file"),
        (["--family", "nonsense"], "unknown name 'nonsense'"),
        (["--finding", "verl-ess-above-one"], "name one package"),
    ],
)
def test_malformed_requests_are_one_clear_line(words, message, capsys):
    status, _, err = run(capsys, *words)
    assert status == 2 and message in err and err.count("\n") == 1


def test_a_file_that_fails_to_import_is_malformed(tmp_path, capsys):
    file = tmp_path / "broken.py"
    file.write_text("raise RuntimeError('no device')\n", encoding="utf-8")
    status, _, err = run(capsys, "--adapter", file)
    assert status == 2 and "raised RuntimeError: no device" in err


def test_packages_that_are_not_here_are_not_run(capsys, monkeypatch):
    def missing(name):
        raise conformance.protocol.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(conformance.protocol.importlib.metadata, "version", missing)
    status, out, _ = run(capsys, "verl", "trl")
    assert status == 0
    assert out.splitlines() == [
        "verl: not run: not installed; pip install --no-deps verl==0.9.1",
        "TRL: not run: not installed; pip install --no-deps trl==1.16.0",
    ]
    status, _, err = run(capsys, "verl", "--finding", "verl-ess-above-one")
    assert status == 2 and "not run" in err
