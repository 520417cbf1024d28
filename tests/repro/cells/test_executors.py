"""The local executor with a stand-in trainer: failures, kills of worker and parent, signals, progress."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_trainer
import pytest
from synthetic import metrics

from repro.cells import worker
from repro.cells.executors import ExecutorError, Interrupted, run_cells
from repro.cells.store import Store, StoreError
from repro.manifest import Cell
from repro.provenance import ROOT

HERE = Path(__file__).parent
BESIDE = HERE.parent  # holds the stand-in trainer
RUNNER = "fake_trainer:run_cell"
STEPS = 20
HEADER = {"row": "r", "tier": "tiny", "runner": RUNNER, "inputs": {}, "settings": {"eval_every": 5, "steps": STEPS}}


def cells(*arms: str, seeds: tuple[int, ...] = (0,)) -> list[Cell]:
    return [
        Cell("r", "tiny", "base", arm, "w0", seed, {"eval_every": 5, "steps": STEPS, "arm": arm, "seed": seed})
        for seed in seeds
        for arm in arms
    ]


def expected(cell: Cell) -> list[dict]:
    return [metrics(cell.arm, cell.seed, step, STEPS, 5) for step in range(1, STEPS + 1)]


def same(stored: list[dict], wanted: list[dict]) -> bool:
    """Equality with missing values equal to each other."""

    def plain(row: dict) -> dict:
        return {name: None if value is None or value != value else value for name, value in row.items()}

    return [plain(row) for row in stored] == [plain(row) for row in wanted]


def computed(store: Store, cell: Cell) -> list[int]:
    """Every step the stand-in computed for the cell, in order, repetitions included."""
    lines = (store.folder(cell) / "computed.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines]


def wait_for(condition, seconds: float = 60.0) -> None:
    """Poll until ``condition()``; the limit only bounds a broken run."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the run did not get there"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(BESIDE))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what the caller has set does not reach the workers
    for name in ("FAKE_DELAY", "FAKE_FAIL", "FAKE_DIE", "FAKE_DIE_ONCE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(tmp_path / "store", HEADER)


def test_every_cell_is_computed_once_with_one_thread(store):
    plan = cells("pg", "sc", seeds=(0, 1))
    out = io.StringIO()
    outcomes = run_cells(plan, store, workers=2, runner=RUNNER, command="python -m repro run r", out=out)
    assert [(outcome.cell, outcome.error) for outcome in outcomes] == [(cell, None) for cell in plan]
    for cell in plan:
        rows, meta = store.read(cell)
        assert same(rows, expected(cell))
        assert meta["command"] == "python -m repro run r" and meta["steps_computed"] == STEPS
        assert {"commit", "dirty", "versions", "hardware"} <= set(meta["environment"])
        assert {line.split()[1] for line in (store.folder(cell) / "computed.txt").read_text().splitlines()} == {"1"}
        assert f"{cell.arm} starts at step 1" in (store.folder(cell) / "log.txt").read_text()
    lines = out.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("pg w0 seed 1: ") and "%" in line]) == 10
    assert any(line.startswith("pg w0 seed 1: 50% (step 10 of 20)") and "s/step" in line for line in lines)
    assert "4 of 4 cells" in lines[-1] and "\r" not in out.getvalue()

    again = io.StringIO()
    run_cells(plan, store, runner=RUNNER, out=again)
    assert again.getvalue() == "4 of 4 cells were finished before\n"
    assert all(computed(store, cell) == list(range(1, STEPS + 1)) for cell in plan)


def test_a_failing_cell_is_reported_and_the_others_finish(store, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL", "tis")
    plan = cells("tis", "pg", "sc")
    out = io.StringIO()
    errors = {o.cell.arm: o.error for o in run_cells(plan, store, workers=1, runner=RUNNER, out=out)}
    assert errors == {"tis": "ArithmeticError: planted failure at step 3", "pg": None, "sc": None}
    assert "tis w0 seed 0: FAILED: ArithmeticError: planted failure at step 3" in out.getvalue()
    assert "Traceback" in (store.folder(plan[0]) / "log.txt").read_text()
    monkeypatch.delenv("FAKE_FAIL")
    assert run_cells(plan, store, runner=RUNNER, out=io.StringIO())[0].error is None
    assert computed(store, plan[0]) == list(range(1, STEPS + 1)), "the two steps before the failure are not redone"


def test_a_killed_worker_costs_its_cell_only_and_the_cell_resumes(store, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_DIE", "pg")
    monkeypatch.setenv("FAKE_DIE_ONCE", str(tmp_path / "died"))
    plan = cells("pg", "sc", "tis")
    errors = {o.cell.arm: o.error for o in run_cells(plan, store, workers=1, runner=RUNNER, out=io.StringIO())}
    assert errors["sc"] is None and errors["tis"] is None
    assert "killed (signal 9)" in errors["pg"] and "--workers" in errors["pg"]
    assert store.status(plan[0]).state == "started"
    assert run_cells(plan, store, runner=RUNNER, out=io.StringIO())[0].error is None
    assert computed(store, plan[0]) == list(range(1, STEPS + 1))
    assert same(store.read(plan[0])[0], expected(plan[0]))


PARENT = """
import sys
sys.path[:0] = [{root!r}, {here!r}, {beside!r}]
from pathlib import Path
from test_executors import RUNNER, cells
from repro.cells.executors import Interrupted, run_cells
from repro.cells.store import Store
try:
    run_cells(cells("pg", "sc", "tis", "tis_sc"), Store.attach(Path({store!r})), workers=2, runner=RUNNER)
except Interrupted as interruption:
    print(interruption, file=sys.stderr)
    sys.exit(1)
"""


def start_parent(store: Store, delay: str = "0.12") -> subprocess.Popen:
    code = PARENT.format(root=str(ROOT), here=str(HERE), beside=str(BESIDE), store=str(store.root))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAKE_DELAY": delay},
    )


def one_done_another_under_way(store: Store, plan: list[Cell]) -> bool:
    states = [store.status(cell).state for cell in plan]
    under_way = [
        c for c, s in zip(plan, states, strict=True) if s == "running" and (store.folder(c) / "computed.txt").exists()
    ]
    return "done" in states and len(under_way) == 2 and all(len(computed(store, c)) >= 3 for c in under_way)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_continues_where_it_was(store, number):
    plan = cells("pg", "sc", "tis", "tis_sc")
    parent = start_parent(store)
    wait_for(lambda: one_done_another_under_way(store, plan))
    parent.send_signal(number)
    _, stderr = parent.communicate(timeout=60)
    assert parent.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 1)
    if number != signal.SIGKILL:
        assert "of 4 cells finished" in stderr and "Traceback" not in stderr
    wait_for(lambda: all(store.status(cell).state != "running" for cell in plan))  # the workers leave by themselves
    done = [cell for cell in plan if store.status(cell).state == "done"]
    begun = {cell.name: computed(store, cell) for cell in plan if store.status(cell).state == "started"}
    assert done and begun and all(0 < len(steps) < STEPS for steps in begun.values())
    outcomes = run_cells(plan, store, workers=2, runner=RUNNER, out=io.StringIO())
    assert [outcome.error for outcome in outcomes] == [None] * 4
    for cell in plan:
        assert same(store.read(cell)[0], expected(cell)), "a resumed run gives what an uninterrupted one gives"
        # the stand-in may be killed between saving a step and noting it, so at most that line can be missing
        steps = computed(store, cell)
        assert steps == sorted(set(steps)) and len(steps) >= STEPS - 1, f"{cell.name} was computed again: {steps}"


@pytest.mark.slow
def test_workers_leave_with_their_parent_even_in_the_middle_of_a_step(store):
    plan = cells("pg", "sc", "tis", "tis_sc")
    parent = start_parent(store, delay="300")
    wait_for(lambda: sum(store.status(cell).state == "running" for cell in plan) == 2)
    parent.kill()
    parent.communicate()
    wait_for(lambda: not any(store.status(cell).state == "running" for cell in plan))


class Impatient(io.StringIO):
    """A terminal at which Ctrl-C is pressed as soon as something is printed."""

    def write(self, text: str) -> int:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_call_ends_its_workers(store, monkeypatch):
    monkeypatch.setenv("FAKE_DELAY", "0.2")
    plan = cells("pg", "sc", "tis")
    with pytest.raises(Interrupted, match="0 of 3 cells finished"):
        run_cells(plan, store, workers=2, runner=RUNNER, out=Impatient())
    wait_for(lambda: not any(store.status(cell).state == "running" for cell in plan))
    assert sorted(store.status(cell).state for cell in plan) == ["missing", "started", "started"]


def test_a_stray_print_does_not_reach_the_protocol():
    code = """
import sys
from repro.cells import worker
worker.environment = lambda: print("stray", flush=True) or print("printed", file=sys.stderr, flush=True)
worker.work()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        while process.stderr.readline() != "printed\n":
            assert process.poll() is None
        assert process.communicate()[0] == ""


def test_a_cell_held_by_another_process_fails_alone(store):
    plan = cells("pg", "sc")
    with store.lock(plan[0]):
        outcomes = run_cells(plan, store, workers=2, runner=RUNNER, out=io.StringIO())
    assert f"being computed by process {os.getpid()}" in outcomes[0].error
    assert outcomes[1].error is None


def test_a_damaged_cell_is_not_silently_redone(store):
    (cell,) = cells("pg")
    run_cells([cell], store, runner=RUNNER, out=io.StringIO())
    path = store.folder(cell) / "metrics.csv"
    path.write_bytes(path.read_bytes()[:-3])
    (outcome,) = run_cells([cell], store, runner=RUNNER, out=io.StringIO())
    assert "truncated or changed" in outcome.error and "resume" in outcome.error
    assert len(computed(store, cell)) == STEPS


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        ("no_such_module:run", "runner 'no_such_module:run': expected module:function; ModuleNotFoundError"),
        ("fake_trainer:nothing", "AttributeError"),
        ("fake_trainer", "expected module:function"),
        ("fake_trainer:NOT_A_FUNCTION", "expected a function, got int"),
    ],
)
def test_a_runner_that_is_none(runner, words):
    assert fake_trainer.NOT_A_FUNCTION == 3
    with pytest.raises(worker.RunnerError, match=words):
        worker.resolve(runner)


def test_workers_below_one(store):
    with pytest.raises(ExecutorError, match="workers: expected at least 1, got 0"):
        run_cells(cells("pg"), store, workers=0, runner=RUNNER)


def test_compute_needs_no_process_of_its_own(store, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (cell,) = cells("sc")
    events: list[dict] = []
    assert worker.compute(store, cell, RUNNER, {"command": "c"}, lambda **event: events.append(event))
    assert [event["steps_done"] for event in events] == list(range(1, STEPS + 1))
    assert not worker.compute(store, cell, RUNNER, {"command": "c"})
    (store.folder(cell) / "meta.json").write_text("{")
    with pytest.raises(StoreError, match="meta.json"):
        worker.compute(store, cell, RUNNER, {"command": "c"})
