"""Kill and resume: bit for bit, and clear errors when a state cannot be written, read or continued."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_run import cell, without_time

from repro import policies
from repro.state import FILE, StateError, load_state
from repro.trainer import run_cell

ROOT = Path(__file__).resolve().parents[2]

KILLED = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from repro.trainer import run_cell
def on_step(metrics):
    if metrics["step"] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
run_cell(json.loads(sys.argv[1]), on_step=on_step, checkpoint_dir=Path(sys.argv[2]))
"""


@pytest.mark.parametrize(
    "settings",
    [cell("sc", steps=6), cell("tis_sc", steps=6, staleness=2, weight_noise=0.01, eval_every=2)],
    ids=["fresh", "stale and noisy"],
)
def test_a_killed_run_resumes_bit_for_bit(tmp_path, settings):
    whole = run_cell(settings, checkpoint_dir=tmp_path / "whole")
    for kill_at in (3, 5):
        process = subprocess.run(
            [sys.executable, "-c", KILLED, json.dumps(settings), str(tmp_path / "killed"), str(kill_at)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, timeout=300,
        )  # fmt: skip
        assert process.returncode == -signal.SIGKILL
        assert load_state(tmp_path / "killed").step == kill_at - 1
    computed = []
    resumed = run_cell(settings, on_step=computed.append, checkpoint_dir=tmp_path / "killed")
    assert [row["step"] for row in computed] == [5, 6]
    assert without_time(resumed) == without_time(whole)
    one, other = load_state(tmp_path / "whole"), load_state(tmp_path / "killed")
    assert all(torch.equal(one.policy[name], other.policy[name]) for name in one.policy)
    assert torch.equal(one.generator, other.generator) and one.problems_rng == other.problems_rng


def test_a_finished_run_returns_its_rows_and_more_steps_continue_it(tmp_path):
    first = run_cell(cell(steps=2), checkpoint_dir=tmp_path)
    again = run_cell(cell(steps=2), on_step=lambda metrics: pytest.fail("recomputed"), checkpoint_dir=tmp_path)
    assert again == first
    longer = run_cell(cell(steps=3), checkpoint_dir=tmp_path)
    assert longer[:2] == first and len(longer) == 3
    assert without_time(longer) == without_time(run_cell(cell(steps=3)))
    assert run_cell(cell(steps=2), checkpoint_dir=tmp_path) == first


def test_seeds_and_arms_differ():
    rows = [without_time(run_cell(cell(steps=1, **c)))[0] for c in ({}, {}, {"seed": 4}, {"arm": "pg"})]
    assert rows[0] == rows[1] != rows[2]
    assert rows[0]["grad_norm"] != rows[3]["grad_norm"]
    assert rows[0]["train_accuracy"] == rows[3]["train_accuracy"]  # the first batch of two arms is the same


def test_a_state_of_other_settings_is_refused_by_name(tmp_path):
    run_cell(cell(steps=2), checkpoint_dir=tmp_path)
    with pytest.raises(StateError, match=r"lr: saved 0.003, asked for 0.1; seed: saved 3, asked for 4"):
        run_cell(cell(steps=2, lr=0.1, seed=4), checkpoint_dir=tmp_path)


def test_damaged_states_are_refused_by_name(tmp_path):
    run_cell(cell(steps=2), checkpoint_dir=tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"junk" * 100):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(StateError, match="not a readable training state"):
            run_cell(cell(steps=2), checkpoint_dir=tmp_path)


def test_a_full_disk_keeps_the_previous_state(tmp_path, monkeypatch):
    run_cell(cell(steps=2), checkpoint_dir=tmp_path)
    before = (tmp_path / FILE).read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(policies.os, "fsync", full)
    with pytest.raises(StateError, match="after step 4 .No space left on device.; the previous state is intact"):
        run_cell(cell(steps=4), checkpoint_dir=tmp_path)
    monkeypatch.undo()
    assert (tmp_path / FILE).read_bytes() == before
    assert len(run_cell(cell(steps=4), checkpoint_dir=tmp_path)) == 4


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError, match="could not save the state after step 2"):
        run_cell(cell(steps=2), checkpoint_dir=tmp_path / "file" / "state")
