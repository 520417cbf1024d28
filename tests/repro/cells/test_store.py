"""The store: keys, states, faults of the disk, locks."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from repro.cells import metrics, store
from repro.cells.store import Store, StoreError
from repro.manifest import Cell
from repro.provenance import ROOT

HEADER = {
    "row": "r",
    "tier": "tiny",
    "runner": "m:f",
    "inputs": {"w0": {"model.safetensors": "ab"}, "w1": {"model.safetensors": "ff"}},
    "settings": {"lr": 0.003, "steps": 4},
}


CONFIG = {"lr": 0.003, "steps": 4, "checkpoint": "w0"}


def cell(arm: str = "sc", seed: int = 0, **changes) -> Cell:
    return Cell("r", "tiny", "base", arm, "w0", seed, {**CONFIG, "arm": arm, "seed": seed, **changes})


def rows(steps: int = 4) -> list[dict]:
    return [
        {"step": i, "loss": 0.1 * i, "heldout": 0.5 if i % 2 else None, "count": i * i} for i in range(1, steps + 1)
    ]


@pytest.fixture
def fresh(tmp_path) -> Store:
    return Store.open(tmp_path / "store", HEADER)


def test_the_key_is_readable_and_depends_on_everything_that_determines_the_numbers(fresh, tmp_path):
    base = fresh.key(cell())
    assert base.startswith("sc-w0-seed0-") and len(base) == len("sc-w0-seed0-") + 16
    shuffled = Cell("r", "tiny", "base", "sc", "w0", 0, dict(reversed(cell().config.items())))
    assert fresh.key(shuffled) == base
    other = Store.open(tmp_path / "other", {**HEADER, "inputs": {"w0": {"model.safetensors": "cd"}}})
    keys = {base, fresh.key(cell(seed=1)), fresh.key(cell(arm="pg")), fresh.key(cell(lr=0.004)), other.key(cell())}
    keys.add(fresh.key(cell(checkpoint="w1")))
    assert len(keys) == 6
    # what does not determine the numbers is not in the key: rows and tiers that need the same run share it
    assert fresh.key(replace(cell(), tier="cpu", row="another", variant="lag-2")) == base
    unused = Store.open(tmp_path / "unused", {**HEADER, "inputs": {**HEADER["inputs"], "w1": {}}})
    assert unused.key(cell()) == base


def test_canonical_json_is_pinned():
    # sha256 keys of old stores depend on these bytes
    assert store.canonical({"b": 1.0, "a": [0.1, "é", None]}) == '{"a":[0.1,"é",null],"b":1.0}'
    with pytest.raises(ValueError):
        store.canonical(math.nan)


def test_metrics_survive_the_file_exactly():
    table = [
        {"step": 1, "x": 0.1 + 0.2, "sparse": None, "n": 3, "big": math.inf},
        {"step": 2, "x": 5e-324, "sparse": 1 / 3, "n": -4, "big": -math.inf},
        {"step": 3, "x": 1e22, "sparse": math.nan, "n": 0, "big": 0.0},
    ]
    data, schema = metrics.encode(table)
    assert schema == {"step": "int", "x": "float", "sparse": "float", "n": "int", "big": "float"}
    back = metrics.decode(data, schema)
    for before, after in zip(table, back, strict=True):
        for name, value in before.items():
            missing = value is None or (isinstance(value, float) and math.isnan(value))
            assert math.isnan(after[name]) if missing else (after[name] == value and type(after[name]) is type(value))
    assert metrics.encode(back)[0] == data


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([], "at least one step"),
        ([{"x": 1.0}], "'step' column"),
        ([{"step": 1, "x": 1.0}, {"step": 3, "x": 1.0}], "expected step 2, got 3"),
        ([{"step": 0, "x": 1.0}], "expected step 1, got 0"),
        ([{"step": 1, "x": 1.0}, {"step": 2, "y": 1.0}], "differ from those of the first step: x, y"),
        ([{"step": 1, "x": True}], "step 1, column x: expected a plain int or float, got bool"),
        ([{"step": 1, "x": "1"}], "column x: .* got str"),
    ],
)
def test_metrics_that_are_no_table_of_numbers(table, words):
    with pytest.raises(metrics.MetricsError, match=words):
        metrics.encode(table)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line"),
        ("step\n1\n", "expected the columns"),
        ("step,x\n1\n", "line 2: expected 2"),
        ("step,x\na,1\n", "line 2"),
    ],
)
def test_a_metrics_file_that_does_not_fit_its_schema(text, words):
    with pytest.raises(metrics.MetricsError, match=words):
        metrics.decode(text.encode(), {"step": "int", "x": "float"})


def test_a_cell_goes_from_missing_to_started_to_done(fresh):
    one = cell()
    assert fresh.status(one).state == "missing"
    with fresh.lock(one):
        fresh.note_progress(one, 3)
        assert fresh.status(one) == ("running", f"3 of 4 steps, process {os.getpid()}")
    assert fresh.status(one) == ("started", "3 of 4 steps")
    fresh.write(one, rows(), {"wall_seconds": 1.5})
    assert fresh.status(one).state == "done"
    table, meta = fresh.read(one)
    assert [row["step"] for row in table] == [1, 2, 3, 4] and math.isnan(table[1]["heldout"])
    assert meta["wall_seconds"] == 1.5 and meta["identity"]["config"] == one.config
    assert Store.attach(fresh.root).read(one)[0][0] == table[0]


def test_a_run_of_the_wrong_length_is_not_stored(fresh):
    with pytest.raises(StoreError, match="sc w0 seed 0: the trainer returned 3 steps, expected 4"):
        fresh.write(cell(), rows(3), {})
    assert fresh.status(cell()).state == "missing"


def test_a_store_of_other_settings_names_what_differs(fresh):
    changed = {**HEADER, "settings": {"lr": 0.01, "steps": 4, "head_k": 8}, "row": "other"}
    with pytest.raises(StoreError) as refusal:
        Store.open(fresh.root, changed)
    message = str(refusal.value)
    assert "row: the store has r, asked for other" in message
    assert "settings.lr: the store has 0.003, asked for 0.01" in message
    assert "settings.head_k: the store has nothing, asked for 8" in message
    assert "steps" not in message and "--store" in message and "--fresh" in message


def test_fresh_moves_the_old_results_aside(fresh):
    fresh.write(cell(), rows(), {})
    again = Store.open(fresh.root, {**HEADER, "settings": {"lr": 1.0}}, fresh=True)
    assert again.status(cell()).state == "missing"
    (old,) = fresh.root.parent.glob("store.superseded-*")
    assert Store.attach(old).status(cell()).state == "done"


def test_another_schema_is_refused(fresh):
    path = fresh.root / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(StoreError, match="written with schema 99, this version reads 1"):
        Store.open(fresh.root, HEADER)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_header_is_an_error(fresh, text):
    (fresh.root / "store.json").write_text(text)
    with pytest.raises(StoreError, match="store.json: expected a JSON object"):
        Store.open(fresh.root, HEADER)


def test_a_folder_of_somebody_else_is_not_taken(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="exists and is no store"):
        Store.open(tmp_path, HEADER)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_resume_demands_a_store(tmp_path):
    with pytest.raises(StoreError, match="no store here"):
        Store.open(tmp_path / "none", HEADER, create=False)
    assert not (tmp_path / "none").exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write .*: Not a directory.*--store"):
        Store.open(tmp_path / "file" / "store", HEADER)


@pytest.mark.parametrize("full_at", ["metrics.csv", "meta.json"])
def test_a_full_disk_leaves_finished_cells_valid_and_no_litter(fresh, monkeypatch, full_at):
    fresh.write(cell(seed=1), rows(), {})
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if full_at in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreError, match=f"{full_at}: the disk is full: free some space and resume"):
        fresh.write(cell(), rows(), {})
    monkeypatch.undo()
    assert fresh.status(cell()).state == "started" and fresh.status(cell(seed=1)).state == "done"
    assert not list(fresh.root.glob("*/.*"))
    fresh.write(cell(), rows(), {})
    assert fresh.status(cell()).state == "done"


@pytest.mark.parametrize("name", ["metrics.csv", "meta.json"])
def test_a_truncated_file_is_damage_and_not_a_missing_cell(fresh, name):
    fresh.write(cell(), rows(), {})
    fresh.write(cell(seed=1), rows(), {})
    path = fresh.folder(cell()) / name
    path.write_bytes(path.read_bytes()[:-5])
    status = fresh.status(cell())
    assert status.state == "damaged" and name in status.detail
    assert fresh.status(cell(seed=1)).state == "done"


def test_a_changed_digit_is_damage(fresh):
    fresh.write(cell(), rows(), {})
    path = fresh.folder(cell()) / "metrics.csv"
    path.write_bytes(path.read_bytes().replace(b"0.1,", b"0.9,"))
    with pytest.raises(StoreError, match="truncated or changed .* move the folder sc-w0-seed0-.* and resume"):
        fresh.read(cell())


def test_a_folder_copied_from_another_cell_is_damage(fresh):
    fresh.write(cell(), rows(), {})
    fresh.folder(cell()).rename(fresh.folder(cell(seed=1)))
    assert "describes another cell" in fresh.status(cell(seed=1)).detail


HOLD = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from repro.manifest import Cell
from repro.cells.store import Store
with Store.attach(Path({store!r})).lock(Cell("r", "tiny", "base", "sc", "w0", 0, {config!r})):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(one: Store) -> subprocess.Popen:
    code = HOLD.format(root=str(ROOT), store=str(one.root), config=cell().config)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_live_process_keeps_its_cell_and_is_named(fresh):
    process = hold(fresh)
    try:
        with (
            pytest.raises(StoreError, match=f"sc w0 seed 0 is being computed by process {process.pid}"),
            fresh.lock(cell(), wait=0.1),
        ):
            pass
        assert fresh.status(cell()).state == "running" and str(process.pid) in fresh.status(cell()).detail
        with fresh.lock(cell(seed=1), wait=0):  # other cells are free
            pass
        with pytest.raises(StoreError, match=f"process {process.pid} is still computing"):
            Store.open(fresh.root, HEADER, fresh=True)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_lock_of_a_killed_process_is_taken_over(fresh):
    process = hold(fresh)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    lock = fresh.folder(cell()) / "lock"
    assert lock.read_text() == f"{process.pid}\n"  # what a dead process leaves behind
    (lock.parent / ".metrics.csv.1.tmp").write_text("half")
    assert fresh.status(cell()).state == "started"
    with fresh.lock(cell(), wait=0):
        assert lock.read_text() == f"{os.getpid()}\n"
        assert not list(lock.parent.glob(".*.tmp"))
