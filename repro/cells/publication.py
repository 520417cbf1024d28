"""From a finished store to a figure folder: ``data.csv``, ``meta.json``, SVG, PNG, caption and the executed notebook.

`collect` writes the data and their record; `draw` runs the row's notebook on them in the interpreter that is running
now. Drawing needs no store: whoever has the two files can redraw the figure, and gets the same bytes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from repro.cells.store import Store
from repro.errors import LaboratoryError
from repro.manifest import Cell, Row
from repro.provenance import ROOT, file_sha256, write_atomic

DATA, META, CAPTION = "data.csv", "meta.json", "caption.md"
KERNEL = "rlcorr-repro"
IDENTIFIERS = ("row", "tier", "variant", "arm", "checkpoint", "seed")
IN_CELL = ("variant", "arm", "checkpoint", "seed")
IN_FIGURE = (
    "row", "tier", "arms", "variants", "checkpoints", "seeds", "steps", "commit", "dirty", "command", "data_sha256",
    "versions",
)  # fmt: skip


class PublicationError(LaboratoryError):
    """Data or a notebook from which no figure can be made; the message says what is missing."""


def table(store: Store, cells: Sequence[Cell]) -> pd.DataFrame:
    """All metrics of ``cells`` (which must be finished) as one long table: identifiers, step, metrics."""
    frames = []
    for cell in cells:
        frame = pd.DataFrame(store.read(cell)[0])
        for place, name in enumerate(IDENTIFIERS):
            frame.insert(place, name, getattr(cell, name))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def collect(store: Store, planned: Sequence[Cell], folder: Path, command: str) -> None:
    """Write ``data.csv`` (nine significant digits, as many as a float32 has) and ``meta.json`` into ``folder``.

    Cells of ``planned`` that are not finished are left out; the record says how many were planned, and which key every
    finished one has, so that a later run can continue from these files (`repro.cells.restore`). Raises `PublicationError`
    when none is finished.
    """
    cells = [cell for cell in planned if store.status(cell).state == "done"]
    if not cells:
        raise PublicationError(f"{store.root}: no cell is finished, nothing to publish")
    data = table(store, cells)
    metas = [store.read(cell)[1] for cell in cells]
    environments = [meta["environment"] for meta in metas]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / DATA, data.to_csv(index=False, float_format="%.9g", lineterminator="\n").encode())
    record = {
        "row": cells[0].row,
        "tier": cells[0].tier,
        "arms": list(dict.fromkeys(cell.arm for cell in cells)),
        "variants": list(dict.fromkeys(cell.variant for cell in cells)),
        "checkpoints": list(dict.fromkeys(cell.checkpoint for cell in cells)),
        "seeds": sorted({cell.seed for cell in cells}),
        "steps": cells[0].config["steps"],
        "settings": shared_settings(cells),
        "inputs": store.header["inputs"],
        "runner": store.header["runner"],
        "command": command,
        "commit": _all(environment["commit"] for environment in environments),
        "dirty": any(environment["dirty"] is not False for environment in environments),
        "versions": _all(environment["versions"] for environment in environments),
        "hardware": _all(environment["hardware"] for environment in environments),
        "started": min(meta["started"] for meta in metas),
        "finished": max(meta["finished"] for meta in metas),
        "wall_seconds_of_cells": round(sum(meta["wall_seconds"] for meta in metas), 1),
        "planned_cells": len(planned),
        "cells": {
            store.key(cell): {name: getattr(cell, name) for name in IN_CELL} | {"wall_seconds": meta["wall_seconds"]}
            for cell, meta in zip(cells, metas, strict=True)
        },
        "data_sha256": file_sha256(folder / DATA),
    }
    write_atomic(folder / META, (json.dumps(record, indent=1) + "\n").encode())


def shared_settings(cells: Sequence[Cell]) -> dict[str, Any]:
    """The settings that all ``cells`` have in common, without the number of steps."""
    first = cells[0].config
    return {k: v for k, v in first.items() if k != "steps" and all(cell.config[k] == v for cell in cells)}


def _all(values: Iterable[Any]) -> Any:
    """The one value that all cells share, else the list of the different ones in order; a cell that was taken from shipped
    data may bring such a list itself."""
    different: list[Any] = []
    pending = list(values)
    while pending:
        value = pending.pop(0)
        if isinstance(value, list):
            pending[:0] = value
        elif value not in different:
            different.append(value)
    return different[0] if len(different) == 1 else different


def load(data: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table in ``data`` and the record beside it; `PublicationError` unless the two belong together."""
    record = data.with_name(META)
    for path in (data, record):
        if not path.is_file():
            raise PublicationError(f"{path}: not there; make it with `python -m repro run`")
    try:
        meta = json.loads(record.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PublicationError(f"{record}: not valid JSON ({error}); restore it or run again") from error
    found = file_sha256(data)
    if meta.get("data_sha256") != found:
        raise PublicationError(
            f"{data}: sha256 {found[:12]}..., its record says {str(meta.get('data_sha256'))[:12]}...: "
            "the data were changed after they were written; restore both files or run again"
        )
    return pd.read_csv(data), meta


def figure_record(meta: dict[str, Any]) -> dict[str, Any]:
    """The part of ``meta.json`` that is embedded in figure files."""
    return {name: meta[name] for name in IN_FIGURE if name in meta}


def draw(row: Row, folder: Path) -> Path:
    """Run the row's notebook on the data in ``folder``; figures, caption and the executed notebook land there.

    Returns the executed notebook. Raises `PublicationError` when data, papermill or the kernel are missing, or when a
    cell of the notebook fails (the notebook up to there is kept beside it as ``*.failed.ipynb``).
    """
    meta = load(folder / DATA)[1]
    if meta["row"] != row.id:
        raise PublicationError(f"{folder / DATA}: holds row {meta['row']!r}, expected {row.id!r}")
    return execute(ROOT / row.notebook, folder, {"row": row.id, "tier": meta["tier"], "data": DATA, "output": "."})


def execute(notebook: Path, folder: Path, parameters: dict[str, Any]) -> Path:
    """Execute ``notebook`` with papermill in ``folder`` and keep the result there, free of paths and times."""
    try:
        import ipykernel  # noqa: F401 (started as a module by the kernel specification below)
        import papermill
        from papermill.exceptions import PapermillExecutionError
    except ImportError as error:
        raise PublicationError(
            f"drawing needs the package {error.name!r}: pip install 'rlcorr-ref[repro]' into this Python"
        ) from error
    target = folder / notebook.name
    failed = folder / f"{notebook.stem}.failed.ipynb"
    with tempfile.TemporaryDirectory() as scratch, _kernel_of_this_interpreter(Path(scratch)):
        result = Path(scratch) / notebook.name
        try:
            papermill.execute_notebook(
                str(notebook), str(result), parameters, kernel_name=KERNEL, cwd=str(folder), progress_bar=False
            )
        except PapermillExecutionError as error:
            write_atomic(failed, _portable_notebook(result, notebook, Path(scratch), folder))
            raise PublicationError(
                f"{notebook.name}: cell {error.exec_count} failed with {error.ename}: {error.evalue}; see {failed.name} "
                "beside the data"
            ) from error
        except Exception as error:  # papermill and jupyter_client raise many kinds when a kernel does not start
            raise PublicationError(
                f"{notebook.name}: the kernel could not run it ({type(error).__name__}: {error}); "
                "pip install 'rlcorr-ref[repro]' into this Python"
            ) from error
        write_atomic(target, _portable_notebook(result, notebook, Path(scratch), folder))
    failed.unlink(missing_ok=True)
    return target


@contextmanager
def _kernel_of_this_interpreter(scratch: Path) -> Iterator[None]:
    """Make a kernel specification for ``sys.executable`` visible: an installed "python3" one may be another Python."""
    specification = {
        "argv": [
            sys.executable,
            "-m",
            "ipykernel_launcher",
            "-f",
            "{connection_file}",
            "--IPKernelApp.log_level=ERROR",
        ],
        "display_name": "Python 3",
        "language": "python",
        "env": {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
        },
    }
    folder = scratch / "kernels" / KERNEL
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(specification))
    previous = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = os.pathsep.join([str(scratch), *filter(None, [previous])])
    try:
        yield
    finally:
        if previous is None:
            del os.environ["JUPYTER_PATH"]
        else:
            os.environ["JUPYTER_PATH"] = previous


def _portable_notebook(path: Path, source: Path, scratch: Path, folder: Path) -> bytes:
    """The executed notebook without machine paths, times and random ids, so that a redraw changes it only when its
    content changes."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    kept = notebook["metadata"].get("papermill", {})
    notebook["metadata"]["papermill"] = {"parameters": kept.get("parameters", {}), "input_path": source.name}
    notebook["metadata"]["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {name: value for name, value in cell["metadata"].items() if name == "tags"}
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    replacements = {str(folder.resolve()): ".", str(ROOT): ".", str(scratch): ".", sys.prefix: "<python>"}
    for found, replacement in [*replacements.items(), (str(Path.home()), "~")]:
        if len(found) > 1:
            text = text.replace(json.dumps(found)[1:-1], replacement)
    return text.encode()
