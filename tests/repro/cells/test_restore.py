"""Shipped data give finished cells back to a store, of whatever row they were run for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import metrics

from repro.cells import publication
from repro.cells.restore import adopt, restore
from repro.cells.store import Store
from repro.manifest import Cell

HEADER = {"row": "r", "tier": "tiny", "runner": "m:f", "inputs": {"w0": {"a": "1"}}, "settings": {}}
RECORD = {
    "command": "c", "started": "2026-01-01T00:00:00Z", "finished": "2026-01-01T00:01:00Z", "wall_seconds": 2.5,
    "steps_computed": 4, "environment": {"commit": "abc", "dirty": False, "versions": {}, "hardware": {}},
}  # fmt: skip


def cell(arm: str, **place) -> Cell:
    config = {"steps": 4, "eval_every": 2, "checkpoint": "w0", "arm": arm, "seed": 3}
    return Cell(
        **{"row": "r", "tier": "tiny", "variant": "base", "checkpoint": "w0", **place}, arm=arm, seed=3, config=config
    )


def fill(store: Store, cells) -> None:
    for one in cells:
        store.write(one, [metrics(one.arm, 3, step, 4, 2) for step in range(1, 5)], RECORD)


@pytest.fixture
def shipped(tmp_path):
    """A folder with the cells pg and sc, of which tis was planned too."""
    store = Store.open(tmp_path / "first", HEADER)
    fill(store, [cell("pg"), cell("sc")])
    publication.collect(store, [cell("pg"), cell("sc"), cell("tis")], tmp_path / "figure", "python -m repro publish r")
    return store, tmp_path / "figure"


def test_a_partial_tier_is_published_and_says_so(shipped):
    store, folder = shipped
    data, meta = publication.load(folder / "data.csv")
    assert meta["planned_cells"] == 3 and set(meta["cells"]) == {store.key(cell("pg")), store.key(cell("sc"))}
    assert set(data["arm"]) == {"pg", "sc"} and len(data) == 8
    with pytest.raises(publication.PublicationError, match="no cell is finished, nothing to publish"):
        publication.collect(store, [cell("tis")], folder, "x")


def test_cells_come_back_under_another_row_and_variant(shipped, tmp_path):
    first, folder = shipped
    second = Store.open(tmp_path / "second", {**HEADER, "row": "other", "tier": "cpu"})
    wanted = [cell(arm, row="other", tier="cpu", variant="v") for arm in ("sc", "tis")]
    assert restore(second, wanted, [tmp_path / "empty", folder]) == {"figure": 1}
    assert [second.status(one).state for one in wanted] == ["done", "missing"]
    rows, meta = second.read(wanted[0])
    original = first.read(cell("sc"))[0]
    for before, after in zip(original, rows, strict=True):
        assert before.keys() == after.keys()
        assert all(after[name] == pytest.approx(value, rel=1e-8, nan_ok=True) for name, value in before.items())
    assert meta["restored_from"] == publication.load(folder / "data.csv")[1]["data_sha256"]
    assert restore(second, wanted, [folder]) == {}


def test_a_cell_of_other_settings_is_not_taken(shipped, tmp_path):
    _, folder = shipped
    store = Store.open(tmp_path / "second", HEADER)
    other = replace(cell("sc"), config={**cell("sc").config, "lr": 1.0})
    assert restore(store, [other], [folder]) == {} and store.status(other).state == "missing"


def test_another_rows_run_is_taken_to_the_last_bit(shipped, tmp_path):
    first, _ = shipped
    store = Store.open(tmp_path / "second", {**HEADER, "row": "other", "tier": "cpu"})
    wanted = [cell(arm, row="other", tier="cpu", variant="v") for arm in ("sc", "tis")]
    stranger = replace(cell("pg"), config={**cell("pg").config, "lr": 1.0})
    (tmp_path / "superseded").mkdir()
    roots = [tmp_path / "superseded", store.root, first.root]
    assert adopt(store, [*wanted, stranger], roots) == {"r": 1}
    assert [store.status(one).state for one in (*wanted, stranger)] == ["done", "missing", "missing"]
    assert repr(store.read(wanted[0])) == repr(first.read(cell("sc")))  # by its text: NaN differs from itself
    assert adopt(store, wanted, roots) == {}


def test_an_unfinished_or_damaged_cell_is_not_taken(shipped, tmp_path):
    first, _ = shipped
    store = Store.open(tmp_path / "second", HEADER)
    (first.folder(cell("pg")) / "metrics.csv").write_text("step\n1\n")
    (first.folder(cell("sc")) / "meta.json").unlink()
    assert adopt(store, [cell("pg"), cell("sc")], [first.root]) == {}


def test_commits_stay_one_flat_list_however_often_cells_are_taken(shipped, tmp_path):
    _, folder = shipped
    for number, commit in enumerate(("def", "abc", "ghi")):
        store = Store.open(tmp_path / f"next{number}", HEADER)
        restore(store, [cell("pg"), cell("sc")], [folder])
        own = cell(f"arm{number}")
        rows = [metrics(own.arm, 3, step, 4, 2) for step in range(1, 5)]
        store.write(own, rows, {**RECORD, "environment": {**RECORD["environment"], "commit": commit}})
        folder = tmp_path / f"figure{number}"
        publication.collect(store, [cell("pg"), cell("sc"), own], folder, "c")
    assert publication.load(folder / "data.csv")[1]["commit"] == ["abc", "def", "ghi"]
