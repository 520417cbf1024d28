"""From a store to a figure folder, with a stand-in trainer and the real notebook in a real kernel."""

from __future__ import annotations

import builtins
import io
import json
import math
from pathlib import Path

import pandas as pd
import pytest

from repro import manifest
from repro.cells import publication
from repro.cells.executors import run_cells
from repro.cells.publication import PublicationError
from repro.cells.store import Store
from repro.provenance import ROOT, file_sha256, read_figure

ROW = manifest.load()["countdown-fig4"]
RUNNER = "fake_trainer:run_cell"
MADE = ["caption.md", "countdown_fig4.ipynb", "countdown_fig4.png", "countdown_fig4.svg", "data.csv", "meta.json"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished store of all arms, three warm starts, 40 steps, and the folder with its collected data."""
    cells = ROW.cells("tiny", steps=40)
    settings = publication.shared_settings(cells)
    header = {"row": ROW.id, "tier": "tiny", "runner": RUNNER, "inputs": {"model": "ab"}, "settings": settings}
    store = Store.open(tmp_path_factory.mktemp("runs") / "store", header)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        run_cells(cells, store, workers=2, runner=RUNNER, out=io.StringIO())
    folder = tmp_path_factory.mktemp("figure")
    publication.collect(store, cells, folder, "python -m repro run countdown-fig4")
    return store, cells, folder


@pytest.fixture(scope="module")
def drawn(finished):
    publication.draw(ROW, finished[2])
    return finished[2]


def copy(folder: Path, target: Path) -> Path:
    target.mkdir(parents=True)
    for name in ("data.csv", "meta.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    return target


def test_data_csv_holds_every_step_of_every_cell(finished):
    store, cells, folder = finished
    data, meta = publication.load(folder / "data.csv")
    assert list(data.columns[:8]) == [*publication.IDENTIFIERS, "step", "train_accuracy"]
    replicate = ["variant", "arm", "checkpoint", "seed"]
    assert len(data) == 15 * 40 and data.groupby(replicate).size().eq(40).all()
    rows, _ = store.read(cells[-1])
    last = (data[replicate] == [getattr(cells[-1], name) for name in replicate]).all(axis=1)
    shipped = data[last].to_dict("records")
    for stored, row in zip(rows, shipped, strict=True):
        for name, value in stored.items():
            assert math.isnan(row[name]) if math.isnan(value) else row[name] == pytest.approx(value, rel=1e-8)
    assert meta["data_sha256"] == file_sha256(folder / "data.csv")
    assert meta["arms"] == list(ROW.arms) and meta["variants"] == ["base"] and meta["steps"] == 40
    assert meta["checkpoints"] == [f"countdown_tiny_seed{k}" for k in range(3)] and meta["seeds"] == [10]
    assert meta["command"] == "python -m repro run countdown-fig4" and meta["runner"] == RUNNER
    assert {"arm", "checkpoint", "steps"}.isdisjoint(meta["settings"]) and meta["settings"]["lr"] == ROW.settings.lr


def test_what_is_not_finished_is_left_out_and_counted(finished, tmp_path):
    store, cells, _ = finished
    unfinished = ROW.cells("tiny", seeds=[9], steps=40)
    publication.collect(store, [*cells, *unfinished], tmp_path / "x", "c")
    data, meta = publication.load(tmp_path / "x" / "data.csv")
    assert meta["planned_cells"] == len(cells) + len(unfinished) and len(meta["cells"]) == len(cells)
    assert 9 not in set(data["seed"])


def test_disagreeing_environments_are_all_listed():
    assert publication._all(["a", "a"]) == "a"
    assert publication._all([{"torch": "1"}, {"torch": "2"}, {"torch": "1"}]) == [{"torch": "1"}, {"torch": "2"}]


@pytest.mark.slow
def test_the_notebook_leaves_exactly_these_files(drawn):
    assert sorted(path.name for path in drawn.iterdir()) == MADE


@pytest.mark.slow
def test_figures_carry_their_record(drawn):
    meta = json.loads((drawn / "meta.json").read_text())
    for name in ("countdown_fig4.png", "countdown_fig4.svg"):
        record = read_figure(drawn / name)
        assert record == {key: meta[key] for key in publication.IN_FIGURE}
        assert record["data_sha256"] == file_sha256(drawn / "data.csv")


@pytest.mark.slow
def test_nothing_that_is_shipped_holds_a_path_of_this_machine(drawn):
    for path in drawn.iterdir():
        text = path.read_bytes()
        for place in (str(ROOT), str(drawn), str(Path.home()) + "/", "/tmp/"):
            assert place.encode() not in text, f"{path.name} holds {place}"


@pytest.mark.slow
def test_the_executed_notebook_shows_figure_claim_and_caption(drawn):
    notebook = json.loads((drawn / "countdown_fig4.ipynb").read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["metadata"]["papermill"]["parameters"] == {
        "row": "countdown-fig4", "tier": "tiny", "data": "data.csv", "output": "."
    }  # fmt: skip
    outputs = json.dumps([cell.get("outputs") for cell in notebook["cells"]])
    assert "image/png" in outputs and "ends above pg by more than 0.05" in outputs and "claim: " in outputs
    assert not [o for cell in notebook["cells"] for o in cell.get("outputs", []) if o["output_type"] == "error"]
    caption = (drawn / "caption.md").read_text()
    assert "5 conditions x 3 checkpoints x 1 seed x 40 steps" in caption and "Ordering by train_accuracy" in caption


@pytest.mark.slow
def test_redrawing_elsewhere_gives_the_same_bytes(drawn, tmp_path):
    again = copy(drawn, tmp_path / "elsewhere")
    publication.draw(ROW, again)
    for name in MADE:
        assert (again / name).read_bytes() == (drawn / name).read_bytes(), name


def with_data(folder: Path, change) -> None:
    """Change data.csv and let its record agree."""
    change(pd.read_csv(folder / "data.csv")).to_csv(folder / "data.csv", index=False)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "data_sha256": file_sha256(folder / "data.csv")}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        # a run whose gradient was wrong
        (
            lambda data: data.assign(oracle_error=data["oracle_error"] * 1e3),
            r"FigureDataError: oracle_error: largest \S+e-03 exceeds the limit 2e-05",
        ),
        (lambda data: data.replace({"arm": {"tis": "magic"}}), "FigureDataError: data: unknown arm 'magic'"),
    ],
)
def test_a_notebook_that_fails_says_where_and_is_kept_apart(finished, tmp_path, change, words):
    folder = copy(finished[2], tmp_path / "f")
    with_data(folder, change)
    with pytest.raises(PublicationError, match=words):
        publication.draw(ROW, folder)
    assert not (folder / "countdown_fig4.ipynb").exists()
    text = (folder / "countdown_fig4.failed.ipynb").read_text()
    assert "Error" in text and str(ROOT) not in text and str(folder) not in text


def test_data_and_record_must_belong_together(finished, tmp_path):
    folder = copy(finished[2], tmp_path / "f")
    (folder / "data.csv").write_text((folder / "data.csv").read_text().replace("0.", "0.1", 1))
    with pytest.raises(PublicationError, match="the data were changed after they were written"):
        publication.draw(ROW, folder)
    (folder / "meta.json").write_text("{")
    with pytest.raises(PublicationError, match="not valid JSON"):
        publication.load(folder / "data.csv")
    (folder / "meta.json").unlink()
    with pytest.raises(PublicationError, match="meta.json: not there; make it with"):
        publication.load(folder / "data.csv")


def test_data_of_another_row(finished, tmp_path):
    folder = copy(finished[2], tmp_path / "f")
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "row": "other"}))
    with pytest.raises(PublicationError, match="holds row 'other', expected 'countdown-fig4'"):
        publication.draw(ROW, folder)


@pytest.mark.parametrize("package", ["papermill", "ipykernel"])
def test_missing_packages_are_named_with_the_extra(finished, monkeypatch, package):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PublicationError, match=rf"needs the package '{package}': pip install 'rlcorr-ref\[repro\]'"):
        publication.draw(ROW, finished[2])


@pytest.mark.slow
def test_a_kernel_that_does_not_start_is_one_message(finished, monkeypatch, tmp_path):
    monkeypatch.setattr(publication.sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(PublicationError, match="the kernel could not run it"):
        publication.draw(ROW, copy(finished[2], tmp_path / "f"))
