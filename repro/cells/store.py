"""The store: one folder per variant, arm, warm start and seed: absent, started, finished or damaged - and it says which.

::

    <root>/store.json              schema version, row, tier, trainer and the settings that all cells share
    <root>/<arm>-<warm start>-seed<N>-<hash>/
        metrics.csv                one row per optimizer step
        meta.json                  written last: the cell is finished exactly when it is there and matches metrics.csv
        checkpoint/                the trainer's own state; an interrupted cell continues from it
        progress.json, log.txt     how far it came; what it printed
        lock                       held (flock) by the process that computes the cell

The hash is sha256 of the canonical JSON of everything that determines the numbers: config, trainer and the hashes of its
input files. Files are written beside their place, flushed and renamed. The kernel drops the lock of a
process that dies, so a stale lock needs no clean-up and two processes can never both take it over. POSIX only (flock).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from repro.cells import metrics
from repro.errors import LaboratoryError
from repro.manifest import Cell
from repro.provenance import file_sha256, write_atomic

SCHEMA = 1
STORE_FIELDS = ("identity", "metrics_sha256", "schema")  # of a meta.json; the rest is the caller's record
HEADER, METRICS, META, PROGRESS, LOCK = "store.json", "metrics.csv", "meta.json", "progress.json", "lock"


class StoreError(LaboratoryError):
    """A store that cannot be used as asked; the message says what is wrong and what to do next."""


class Status(NamedTuple):
    """``state`` is missing, started, running, done or damaged; ``detail`` explains it in words."""

    state: str
    detail: str = ""


def canonical(value: object) -> str:
    """Canonical JSON: sorted keys, no spaces, shortest round-trip numbers; NaN and infinities are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def now() -> str:
    """The current UTC time to the second, ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _explain(error: OSError, path: Path) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "the disk is full: free some space and resume; finished cells are intact"
    else:
        advice = f"{error.strerror or error}: make the folder writable or choose another with --store"
    return StoreError(f"cannot write {path}: {advice}")


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except OSError as error:
        raise _explain(error, path) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: expected a JSON object, got {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


class Store:
    """The folder ``root`` for one row, tier, trainer and set of shared settings (the header)."""

    def __init__(self, root: Path, header: dict[str, Any]) -> None:
        self.root = root
        self.header = header

    @classmethod
    def attach(cls, root: Path) -> Store:
        """The store that exists at ``root``."""
        if not (root / HEADER).is_file():
            raise StoreError(f"{root}: no store here; start one with `python -m repro run`")
        header = _read_json(root / HEADER)
        if header.get("schema") != SCHEMA:
            raise StoreError(
                f"{root}: written with schema {header.get('schema')}, this version reads {SCHEMA}; "
                "use --fresh to move it aside or --store for another folder"
            )
        return cls(root, header)

    @classmethod
    def open(cls, root: Path, header: Mapping[str, Any], *, fresh: bool = False, create: bool = True) -> Store:
        """The store at ``root`` for ``header``, created when absent.

        A store written for other settings is an error that names every differing setting. ``fresh`` moves whatever is
        there aside (never deletes it); ``create=False`` demands that the store exists.
        """
        wanted = {"schema": SCHEMA, **header}
        if fresh and root.exists():
            cls._move_aside(root)
        if not (root / HEADER).exists() and create:
            if root.exists() and (not root.is_dir() or any(root.iterdir())):
                raise StoreError(f"{root}: exists and is no store; choose a new or empty folder with --store")
            _write(root / HEADER, (json.dumps(wanted, indent=1, sort_keys=True) + "\n").encode())
        store = cls.attach(root)
        differing = list(_differences(store.header, wanted))
        if differing:
            raise StoreError(
                f"{root} was written with other settings:\n  " + "\n  ".join(differing) + "\n"
                "choose another folder with --store, or move the old results aside with --fresh"
            )
        return store

    @staticmethod
    def _move_aside(root: Path) -> None:
        for lock in root.glob(f"*/{LOCK}"):
            owner = _live_owner(lock)
            if owner:
                raise StoreError(f"{root}: process {owner} is still computing {lock.parent.name}; stop it first")
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
        try:
            root.rename(root.with_name(f"{root.name}.superseded-{stamp}"))
        except OSError as error:
            raise _explain(error, root) from error

    def identity(self, cell: Cell) -> dict[str, Any]:
        """Everything that determines a cell's numbers, and nothing else: rows that need the same run share its key."""
        inputs = self.header["inputs"].get(cell.config.get("checkpoint"), {})
        return {"config": cell.config, "runner": self.header["runner"], "inputs": inputs}

    def key(self, cell: Cell) -> str:
        """``<arm>-<warm start>-seed<N>-<first 16 hex digits of sha256(canonical identity)>``."""
        digest = hashlib.sha256(canonical(self.identity(cell)).encode()).hexdigest()
        return f"{cell.arm}-{cell.checkpoint}-seed{cell.seed}-{digest[:16]}"

    def folder(self, cell: Cell) -> Path:
        """The cell's own folder; it may not exist yet."""
        return self.root / self.key(cell)

    def status(self, cell: Cell) -> Status:
        """How far the cell is, from what is on the disk."""
        folder = self.folder(cell)
        if (folder / META).exists():
            try:
                self.read(cell)
            except StoreError as error:
                return Status("damaged", str(error))
            return Status("done")
        owner = _live_owner(folder / LOCK)
        steps = 0
        if (folder / PROGRESS).exists():
            steps = _read_json(folder / PROGRESS).get("steps_done", 0)
        progress = f"{steps} of {cell.config['steps']} steps"
        if owner:
            return Status("running", f"{progress}, process {owner}")
        return Status("started", progress) if folder.exists() else Status("missing")

    def read(self, cell: Cell) -> tuple[metrics.Rows, dict[str, Any]]:
        """Metrics and meta of a finished cell; a `StoreError` that names the file when anything does not match."""
        folder = self.folder(cell)
        meta = _read_json(folder / META)
        path = folder / METRICS
        repair = f"move the folder {folder.name} out of the store and resume to compute it again"
        if not path.exists() or file_sha256(path) != meta.get("metrics_sha256"):
            raise StoreError(f"{path}: missing, truncated or changed since it was written; {repair}")
        if meta.get("identity") != self.identity(cell):
            raise StoreError(f"{folder / META}: describes another cell; {repair}")
        try:
            rows = metrics.decode(path.read_bytes(), meta["schema"])
        except (metrics.MetricsError, KeyError) as error:
            raise StoreError(f"{path}: {error}; {repair}") from error
        if len(rows) != cell.config["steps"]:
            raise StoreError(f"{path}: expected {cell.config['steps']} steps, found {len(rows)}; {repair}")
        return rows, meta

    def write(self, cell: Cell, rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> None:
        """Store a finished cell: metrics.csv first, meta.json (which makes it finished) last."""
        if len(rows) != cell.config["steps"]:
            raise StoreError(f"{cell.name}: the trainer returned {len(rows)} steps, expected {cell.config['steps']}")
        try:
            data, schema = metrics.encode(rows)
        except metrics.MetricsError as error:
            raise StoreError(f"{cell.name}: {error}") from error
        folder = self.folder(cell)
        _write(folder / METRICS, data)
        own = (self.identity(cell), hashlib.sha256(data).hexdigest(), schema)
        meta = {**dict(zip(STORE_FIELDS, own, strict=True)), **record}
        _write(folder / META, (json.dumps(meta, indent=1) + "\n").encode())

    def note_progress(self, cell: Cell, steps_done: int) -> None:
        """Record how far an unfinished cell is, for ``plan``."""
        _write(self.folder(cell) / PROGRESS, canonical({"steps_done": steps_done, "at": now()}).encode())

    @contextmanager
    def lock(self, cell: Cell, wait: float = 5.0) -> Iterator[Path]:
        """Hold the cell's lock and yield its folder. Waits ``wait`` seconds for another holder to go away (a killed
        run's workers need a moment), then refuses, naming its process."""
        path = self.folder(cell) / LOCK
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _explain(error, path) from error
        try:
            deadline = time.monotonic() + wait
            while not _try_lock(descriptor):
                if time.monotonic() >= deadline:
                    raise StoreError(
                        f"{cell.name} is being computed by process {_owner(path)}; wait for it, stop it, or use --store"
                    )
                time.sleep(0.05)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            for litter in path.parent.glob(".*.tmp"):  # left by a process that was killed while writing
                litter.unlink()
            yield path.parent
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)  # also releases the lock


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(path: Path) -> str:
    return path.read_text().strip() or "unknown"


def _live_owner(path: Path) -> str | None:
    """The process that holds the lock file now, None when nobody does (whatever process id is written in it)."""
    if not path.exists():
        return None
    with open(path) as handle:
        return None if _try_lock(handle.fileno()) else _owner(path)


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in sorted(set(found) | set(wanted)):
        old, new = found.get(name, "nothing"), wanted.get(name, "nothing")
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}: the store has {old}, asked for {new}"
