"""The local executor: cells in worker processes of one thread each, with progress, and a store that survives kills.

The parent starts ``python -m repro.cells.worker`` N times and talks to each in JSON lines: a job on its stdin, events on
its stdout. What can go wrong:

* the trainer raises: the cell is reported with its message, the worker takes the next one;
* a worker dies (killed, out of memory): its cell is reported, a new worker takes the next one;
* Ctrl-C or SIGTERM: the workers are ended, `Interrupted` is raised, the store stays valid;
* the parent is killed with -9: each worker sees the end of its stdin and leaves at once, which releases its lock.

Finished cells are never computed again; a started one continues from the trainer's own checkpoint folder.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from repro.cells.progress import Progress
from repro.cells.store import Store
from repro.errors import LaboratoryError
from repro.manifest import RUNNER, Cell
from repro.provenance import ROOT, usable_cores

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class ExecutorError(LaboratoryError):
    """A run that cannot start as asked."""


class Interrupted(LaboratoryError):
    """The run was ended by Ctrl-C or SIGTERM; the store is valid."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell; ``error`` is None when it is finished."""

    cell: Cell
    error: str | None = None


class _Worker:
    def __init__(self, log: Path) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "repro.cells.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends the workers itself
            )

    def events(self, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a job and yield its events; the last one is "done", "failed", or "failed" made up for a dead worker."""
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                event = json.loads(line)
                yield event
                if event["event"] in ("done", "failed"):
                    return
        except BrokenPipeError:
            pass
        yield {"event": "failed", "error": self._epitaph()}

    def _epitaph(self) -> str:
        code = self.process.wait()
        if code == -signal.SIGKILL:
            return "its worker was killed (signal 9), possibly for want of memory: free some, or use fewer --workers"
        cause = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"its worker process ended with {cause}; see workers.log in the store"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    workers: int | None = None,
    runner: str = RUNNER,
    command: str = "",
    out: TextIO | None = None,
) -> list[Outcome]:
    """Compute the unfinished ``cells`` and return one outcome per cell, in the order of ``cells``.

    ``workers`` defaults to the number of usable cores, at most one per cell. Raises `Interrupted` on Ctrl-C or
    SIGTERM and `ExecutorError` for a worker count below 1. Progress goes to ``out`` (default: standard output).
    """
    out = out or sys.stdout
    if workers is not None and workers < 1:
        raise ExecutorError(f"workers: expected at least 1, got {workers}")
    outcomes = {cell.name: Outcome(cell) for cell in cells if store.status(cell).state == "done"}
    todo: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in cells:
        if cell.name not in outcomes:
            todo.put(cell)
    count = min(workers or usable_cores(), todo.qsize())
    progress = Progress(out, {cell.name: cell.config["steps"] for cell in cells}, finished=set(outcomes), workers=count)
    events: queue.SimpleQueue[tuple[Cell, dict[str, Any]]] = queue.SimpleQueue()
    living: list[_Worker] = []
    stopping = threading.Event()

    def serve() -> None:
        worker = None
        while not stopping.is_set():
            try:
                cell = todo.get_nowait()
            except queue.Empty:
                break
            if worker is None or worker.process.poll() is not None:
                worker = _Worker(store.root / "workers.log")
                living.append(worker)
            job = {"store": str(store.root.resolve()), "cell": asdict(cell), "runner": runner, "command": command}
            for event in worker.events(job):
                events.put((cell, event))
        if worker is not None:
            worker.end()

    with _sigterm_as_interrupt():
        threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
        try:
            for thread in threads:
                thread.start()
            while len(outcomes) < len(cells):
                cell, event = events.get()
                if event["event"] == "step":
                    progress.step(cell.name, event["steps_done"])
                    continue
                error = event.get("error")
                outcomes[cell.name] = Outcome(cell, error)
                progress.finished(cell.name, error)
        except KeyboardInterrupt:
            done = sum(outcome.error is None for outcome in outcomes.values())
            raise Interrupted(f"{done} of {len(cells)} cells finished") from None
        finally:
            stopping.set()
            for worker in living:
                worker.end()
            progress.close()
        for thread in threads:
            thread.join()
    return [outcomes[cell.name] for cell in cells]


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers; the caller's own stays in force
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
