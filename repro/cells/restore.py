"""Nothing is computed twice: finished cells come into a store from other stores and from shipped data.

A cell is taken when its key is the one that the store gives it: the same configuration, trainer and input files, in
whatever row it was run. From a store it comes to the last bit, from a ``data.csv`` to the nine digits that the table holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro.cells.publication import DATA, IDENTIFIERS, IN_CELL, META, load
from repro.cells.store import HEADER, STORE_FIELDS, Store
from repro.manifest import Cell


def adopt(store: Store, cells: Sequence[Cell], roots: Iterable[Path]) -> dict[str, int]:
    """Copy every cell that ``store`` lacks and another store has finished; returns row -> number of cells taken."""
    taken: dict[str, int] = {}
    for root in roots:
        if root == store.root or not (root / HEADER).is_file():
            continue
        other = Store(root, store.header)  # looks the cells up by the keys and identities that `store` gives them
        for cell in cells:
            if store.status(cell).state == "missing" and other.status(cell).state == "done":
                rows, meta = other.read(cell)
                with store.lock(cell):
                    store.write(cell, rows, {name: value for name, value in meta.items() if name not in STORE_FIELDS})
                row = Store.attach(root).header["row"]
                taken[row] = taken.get(row, 0) + 1
    return taken


def restore(store: Store, cells: Sequence[Cell], folders: Iterable[Path]) -> dict[str, int]:
    """Write every cell that the store lacks and one of ``folders`` has; returns folder name -> number of cells taken."""
    taken: dict[str, int] = {}
    missing = {store.key(cell): cell for cell in cells if store.status(cell).state == "missing"}
    for folder in folders:
        if not (folder / DATA).is_file() or not (folder / META).is_file():
            continue
        shipped = json.loads((folder / META).read_text(encoding="utf-8")).get("cells", {})
        found = {key: missing.pop(key) for key in list(missing) if key in shipped}
        if not found:
            continue
        data, meta = load(folder / DATA)
        for key, cell in found.items():
            _write(store, cell, data, meta, shipped[key])
        taken[folder.name] = len(found)
    return taken


def _write(store: Store, cell: Cell, data, meta: dict, place: dict) -> None:
    rows = data
    for name in IN_CELL:
        rows = rows[rows[name] == place[name]]
    rows = rows.drop(columns=list(IDENTIFIERS)).dropna(axis="columns", how="all").sort_values("step")
    record = {name: meta[name] for name in ("started", "finished", "command")}
    environment = {name: meta[name] for name in ("commit", "dirty", "versions", "hardware")}
    record |= {"wall_seconds": place["wall_seconds"], "steps_computed": 0, "restored_from": meta["data_sha256"]}
    with store.lock(cell):
        store.write(cell, rows.to_dict("records"), {**record, "environment": environment})
