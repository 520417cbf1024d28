"""A worker process: takes cells from its parent, computes each under its lock, stores it, reports every step.

Run by `repro.cells.executors` as ``python -m repro.cells.worker``, one thread in the environment before torch is imported.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repro.cells.metrics import FIRST_STEP
from repro.cells.store import Store, StoreError, now
from repro.errors import LaboratoryError
from repro.manifest import Cell
from repro.provenance import environment


class RunnerError(LaboratoryError):
    """The name of a trainer's entry point does not lead to a function."""


def resolve(runner: str) -> Callable[..., list[dict[str, Any]]]:
    """The callable named ``module:function``."""
    module, _, name = runner.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunnerError(f"runner {runner!r}: expected module:function; {type(error).__name__}: {error}") from error
    if not callable(function):
        raise RunnerError(f"runner {runner!r}: expected a function, got {type(function).__name__}")
    return function


def compute(
    store: Store, cell: Cell, runner: str, record: dict[str, Any], emit: Callable[..., None] = lambda **event: None
) -> bool:
    """Compute one cell under its lock and store it; False when it was finished already.

    ``record`` (command, environment) goes into the cell's meta.json. ``emit`` receives one event per step.
    """
    with store.lock(cell) as folder:
        status = store.status(cell)
        if status.state == "done":
            return False
        if status.state == "damaged":
            raise StoreError(status.detail)
        started, clock, computed = now(), time.perf_counter(), 0
        steps = cell.config["steps"]

        def on_step(metrics: dict[str, Any]) -> None:
            nonlocal computed
            computed += 1
            done = metrics["step"] - FIRST_STEP + 1
            emit(event="step", steps_done=done)
            if done * 10 // steps > (done - 1) * 10 // steps:
                store.note_progress(cell, done)

        with _output_to(folder / "log.txt"):
            try:
                rows = resolve(runner)(config=cell.config, on_step=on_step, checkpoint_dir=folder / "checkpoint")
            except Exception:
                traceback.print_exc()
                raise
        wall = time.perf_counter() - clock
        times = {"started": started, "finished": now(), "wall_seconds": round(wall, 3), "steps_computed": computed}
        store.write(cell, rows, {**times, **record})
        return True


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Append everything this process prints to ``path``."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, number in zip(kept, (1, 2), strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def work() -> None:
    """The worker's loop; returns when the parent closes stdin between jobs, exits at once when it dies during one."""
    protocol = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a trainer that prints must not write into the protocol
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            jobs.put(line)
        os._exit(0)  # the parent is gone or done; every file is written by rename, so leaving here is safe

    threading.Thread(target=listen, daemon=True).start()
    known = environment()

    def emit(**event: Any) -> None:
        protocol.write(json.dumps(event) + "\n")

    while True:
        job = json.loads(jobs.get())
        try:
            store = Store.attach(Path(job["store"]))
            compute(store, Cell(**job["cell"]), job["runner"], {"command": job["command"], "environment": known}, emit)
            emit(event="done")
        except Exception as error:
            emit(event="failed", error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    work()
