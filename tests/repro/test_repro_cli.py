"""``python -m repro``: what each command prints, writes and returns."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro import __main__ as cli
from repro.manifest import MANIFEST
from repro.provenance import ROOT

RUNNER = ["--runner", "fake_trainer:run_cell"]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv("FAKE_FAIL", raising=False)
    monkeypatch.delenv("FAKE_DELAY", raising=False)


@pytest.fixture
def request_(tmp_path):
    """Options of a small request: a store in a temporary folder, 42 steps, the stand-in trainer."""

    def options(*more: str) -> list[str]:
        return ["countdown-fig4", "--store", str(tmp_path / "store"), "--steps", "42", *RUNNER, *more]

    return options


def test_list(capsys):
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    assert "countdown-fig4: Score centering" in text and "claim: " in text
    assert "tier tiny: 15 cells x 100 steps, about 10 min on 2 cores, 4 GiB" in text


def test_plan_writes_nothing(capsys, request_, tmp_path):
    assert cli.main(["plan", *request_("--arms", "sc", "pg")]) == 0
    text = capsys.readouterr().out
    assert text.count("missing") == 6 and "(not there yet)" in text
    assert re.search(r"  sc-countdown_tiny_seed2-seed10-[0-9a-f]{16} ", text)
    assert "6 of 6 cells to do, about 2 min on 2 cores" in text  # 10 min * (6 * 42) / (15 * 100)
    assert list(tmp_path.iterdir()) == []


def test_run_then_plan_then_verify(capsys, request_, tmp_path):
    assert cli.main(["run", *request_("--no-draw", "--workers", "2")]) == 0
    assert "15 of 15 cells" in capsys.readouterr().out
    assert cli.main(["plan", *request_()]) == 0
    assert "0 of 15 cells to do, about 0 s" in capsys.readouterr().out
    assert cli.main(["verify", *request_("--out", str(tmp_path / "none"))]) == 0
    text = capsys.readouterr().out
    assert text.count(": done") == 15 and "store: UNDERPOWERED: sc ends above pg by more than 0.05" in text
    assert "store: claim " in text and "store: claim FAILS" not in text
    assert not (tmp_path / "store" / "figure").exists()

    (path,) = (tmp_path / "store").glob("pg-countdown_tiny_seed1-*/metrics.csv")
    path.write_bytes(path.read_bytes()[:-1])
    assert cli.main(["verify", *request_("--out", str(tmp_path / "none"))]) == 1
    text = capsys.readouterr().out
    assert "pg countdown_tiny_seed1 seed 10: damaged" in text and text.count(": done") == 14
    assert cli.main(["resume", *request_("--no-draw")]) == 1
    captured = capsys.readouterr()
    assert "1 of 15 cells failed (pg countdown_tiny_seed1 seed 10); nothing was drawn" in captured.err
    path.parent.rename(tmp_path / "aside")
    assert cli.main(["resume", *request_("--no-draw")]) == 0
    assert "14 of 15 cells were finished before" in capsys.readouterr().out


@pytest.mark.slow
def test_run_draws_and_everything_is_verified(capsys, request_, tmp_path):
    assert cli.main(["run", *request_()]) == 0
    assert "countdown-fig4: drawn" in capsys.readouterr().out
    folder = tmp_path / "store" / "figure"  # not the whole tier (other steps), so not the shipped folder
    assert {"data.csv", "meta.json", "countdown_fig4.svg"} <= {path.name for path in folder.iterdir()}
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["command"].startswith("python -m repro run countdown-fig4 --store .../store --steps 42")
    assert cli.main(["verify", *request_("--out", str(folder))]) == 0
    text = capsys.readouterr().out
    assert "data: 630 rows, hash as recorded" in text
    assert "countdown_fig4.png: drawn from these data" in text and "countdown_fig4.svg: drawn from these data" in text

    assert cli.main(["figure-info", str(folder / "countdown_fig4.svg")]) == 0
    assert json.loads(capsys.readouterr().out)["data_sha256"] == meta["data_sha256"]

    svg = folder / "countdown_fig4.svg"
    svg.write_text(svg.read_text().replace(meta["data_sha256"], "0" * 64))
    assert cli.main(["verify", *request_("--out", str(folder))]) == 1
    assert "countdown_fig4.svg: drawn from OTHER data" in capsys.readouterr().out

    changed = tmp_path / "changed"
    changed.mkdir()
    for path in folder.iterdir():
        (changed / path.name).write_bytes(path.read_bytes())
    (changed / "data.csv").write_text((folder / "data.csv").read_text() + "\n")
    assert cli.main(["verify", *request_("--out", str(changed))]) == 2
    assert "the data were changed" in capsys.readouterr().err


@pytest.mark.slow
def test_draw_all_from_shipped_data_into_another_folder(capsys, request_, tmp_path):
    shipped = tmp_path / "shipped"
    assert cli.main(["run", *request_("--out", str(shipped))]) == 0
    comment, row, *_ = MANIFEST.read_text().split("\n[[row]]\n")
    assert 'output = "paper_figures/countdown_fig4"' in row
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(f"{comment}\n[[row]]\n{row}".replace("paper_figures/countdown_fig4", str(shipped)))
    assert cli.main(["draw", "--all", "--manifest", str(manifest), "--out", str(tmp_path / "redrawn")]) == 0
    for name in ("countdown_fig4.svg", "countdown_fig4.png", "countdown_fig4.ipynb"):
        assert (tmp_path / "redrawn" / "shipped" / name).read_bytes() == (shipped / name).read_bytes()


def test_a_claim_that_fails_is_exit_status_one(capsys, request_, tmp_path):
    """Twelve replicates, because fewer than six can reject nothing."""
    manifest = tmp_path / "manifest.toml"
    turned = MANIFEST.read_text().replace('better = "sc", worse = "pg"', 'better = "pg", worse = "sc"')
    manifest.write_text(turned)
    part = ["--arms", "sc", "pg", "--seeds", "0", "1", "2", "3"]
    assert cli.main(["run", *request_("--no-draw", *part)]) == 0
    verify = ["verify", *request_(*part, "--out", str(tmp_path / "none"))]
    assert cli.main(verify) == 0
    text = capsys.readouterr().out
    assert "store: HOLDS: sc ends above pg" in text and "claim UNDERPOWERED" in text  # the other arms were not run
    assert cli.main([*verify, "--manifest", str(manifest)]) == 1
    assert "store: FAILS: pg ends above sc" in capsys.readouterr().out


def test_a_failing_cell_is_exit_status_one(capsys, request_, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL", "tis")
    assert cli.main(["run", *request_("--checkpoints", "countdown_tiny_seed0")]) == 1
    captured = capsys.readouterr()
    assert "tis countdown_tiny_seed0 seed 10: ArithmeticError: planted failure at step 3" in captured.err
    assert "1 of 5 cells failed (tis countdown_tiny_seed0 seed 10); nothing was drawn" in captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "fig9"], "row 'fig9': known rows: countdown-fig4"),
        (["run", "countdown-fig4", "--tier", "gpu"], "tier 'gpu': row countdown-fig4 has the tiers: tiny"),
        (["run", "countdown-fig4", "--arms", "ppo"], "arm 'ppo': row countdown-fig4 has: onpolicy"),
        (["run", "countdown-fig4", "--workers", "0"], "workers: expected at least 1"),
        (["resume", "countdown-fig4"], "no store here"),
        (["verify", "countdown-fig4", "--out", "no/such/folder"], "neither a store at"),
        (["draw"], "name one row or figure, or give --all"),
        (["draw", "countdown-fig4", "--all"], "name one row or figure, or give --all"),
        (["draw", "fig9"], "known rows and figures: countdown-fig4, "),
        (["figure-info", "no-such.png"], "readable figure file"),
        (["list", "--manifest", "no-such.toml"], "expected a readable manifest"),
    ],
)
def test_what_cannot_be_done_is_exit_status_two(capsys, arguments, words, tmp_path):
    if arguments[0] in ("run", "resume", "verify"):
        arguments = [*arguments, "--store", str(tmp_path / "store")]
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and words in captured.err and captured.err.count("\n") == 1


def test_unknown_commands_and_options_are_exit_status_two(capsys):
    for arguments in (["paint"], ["run"], ["run", "countdown-fig4", "--steps", "many"]):
        with pytest.raises(SystemExit) as leaving:
            cli.main(arguments)
        assert leaving.value.code == 2


def test_another_setting_needs_another_store_or_fresh(capsys, request_, tmp_path):
    small = ["--arms", "sc", "--checkpoints", "countdown_tiny_seed0", "--no-draw"]
    assert cli.main(["run", *request_(*small)]) == 0
    changed = ["run", *request_(*small, "--steps", "43")]
    assert cli.main(changed) == 2
    assert "settings.steps: the store has 42, asked for 43" in capsys.readouterr().err
    assert cli.main([*changed, "--fresh"]) == 0
    assert len(list(tmp_path.glob("store.superseded-*"))) == 1


def test_a_missing_warm_start_says_how_to_make_it(capsys, tmp_path):
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(MANIFEST.read_text().replace("countdown_tiny_seed1", "countdown_tiny_none"))
    assert cli.main(["plan", "countdown-fig4", "--manifest", str(manifest)]) == 2
    assert "python -m repro.warmstart --seed N --out repro/checkpoints/countdown_tiny_none" in capsys.readouterr().err


def test_help_documents_the_exit_statuses():
    done = subprocess.run(
        [sys.executable, "-m", "repro", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "exit status:" in done.stdout and all(f"\n  {code}  " in done.stdout for code in (0, 1, 2))


def test_listing_needs_neither_torch_nor_pandas():
    heavy = "sorted({'torch', 'pandas', 'matplotlib'} & set(sys.modules))"
    code = f"import sys; from repro.__main__ import main; main(['list']); print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_interrupted_run_says_how_to_go_on(request_, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "repro", "run", *request_("--no-draw", "--checkpoints", "countdown_tiny_seed0")],
        cwd=ROOT,
        env={**os.environ, "FAKE_DELAY": "0.05"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("store/*/computed.txt")):
        assert time.monotonic() < deadline, "no cell started"
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted: 0 of 5 cells finished; `python -m repro resume` with the same options continues" in stderr
    assert cli.main(["resume", *request_("--no-draw", "--checkpoints", "countdown_tiny_seed0")]) == 0
