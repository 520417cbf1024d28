"""Every notebook as it is stored: no outputs, no paths, described parameters for those that draw figures; and one per row of
the manifest, whose cells run on a table of that row."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from synthetic import table

from repro import manifest
from repro.cells import publication
from repro.figures import captions
from repro.provenance import ROOT, file_sha256, read_figure

NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
NOTEBOOKS = [path for path in NOTEBOOKS if ".ipynb_checkpoints" not in path.parts]
FIGURES = [path for path in NOTEBOOKS if path.parent.name == "figures"]
ROWS = manifest.load()
ABSOLUTE = re.compile(r"(?<![\w./:])/(?:home|root|work|tmp|Users|usr|opt|mnt|private|var)/|[A-Za-z]:\\\\")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT / "notebooks"))


def faults(notebook: dict, figure: bool) -> list[str]:
    """What is wrong with a stored notebook, in words."""
    found = []
    ids = [cell.get("id") for cell in notebook["cells"]]
    if None in ids or len(set(ids)) != len(ids):
        found.append("cells without an id of their own")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and (cell["outputs"] or cell["execution_count"] is not None):
            found.append(f"cell {cell['id']} is stored with outputs")
    if ABSOLUTE.search(json.dumps(notebook)):
        found.append("an absolute path")
    tagged = [cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    if figure:
        if len(tagged) != 1:
            found.append(f"{len(tagged)} cells tagged parameters")
        lines = [line for cell in tagged for line in "".join(cell["source"]).splitlines()]
        found += [f"parameter without a comment: {line}" for line in lines if not re.match(r"\w+ = .+  # .{8,}", line)]
    return found


def test_there_are_notebooks_that_draw_figures():
    assert FIGURES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_stored_form(path):
    assert faults(json.loads(path.read_text(encoding="utf-8")), path in FIGURES) == []


def test_the_rules_find_what_they_forbid():
    notebook = json.loads(FIGURES[0].read_text(encoding="utf-8"))
    code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    code["execution_count"] = 3
    code["source"] = ['data = "/home/me/data.csv"  # table to draw (path)\n', "tier = 1\n"]
    notebook["cells"][-1]["id"] = notebook["cells"][0]["id"]
    found = faults(notebook, figure=True)
    assert len(found) == 4 and "an absolute path" in found
    code["metadata"] = {}
    assert "0 cells tagged parameters" in faults(notebook, figure=True)


@pytest.mark.parametrize("path", FIGURES, ids=name)
def test_figure_notebooks_train_nothing(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    source = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert not re.search(r"\btorch\b|repro\.trainer|backward\(", source)


def code_of(path: Path) -> dict[str, str]:
    """Id -> source of every code cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_every_row_has_a_notebook_of_its_own(row):
    path = ROOT / row.notebook
    assert path in FIGURES and path.stem == Path(row.output).name
    given: dict = {}
    exec(code_of(path)["parameters"], given)
    assert given["row"] == row.id and given["tier"] in row.tiers
    assert (given["data"], given["output"]) == (f"../../{row.output}/data.csv", f"../../{row.output}")
    title = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
    assert title[0] == f"# {row.title}\n"
    assert sum(line == "\n" for line in title) == 3, "what is compared, how to read it, how to make it"
    assert ("published" in code_of(path)) == bool(row.published.ordering)


def test_no_two_rows_are_explained_in_the_same_words():
    lines = [
        line for row in ROWS.values() for line in json.loads((ROOT / row.notebook).read_text())["cells"][0]["source"]
    ]
    prose = [line for line in lines if len(line) > 1 and "python -m repro" not in line]
    assert len(set(prose)) == len(prose) > 40


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_its_cells_run_on_a_table_of_the_row(row, tmp_path, monkeypatch, capsys):
    data, cells = table(row, steps=40), row.cells(next(iter(row.tiers)), steps=40)
    data.to_csv(tmp_path / "data.csv", index=False)
    meta = {
        "row": row.id, "tier": cells[0].tier, "steps": 40, "settings": publication.shared_settings(cells),
        "arms": list(row.arms), "data_sha256": file_sha256(tmp_path / "data.csv"),
    }  # fmt: skip
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    monkeypatch.chdir(tmp_path)
    sources = code_of(ROOT / row.notebook)
    shown: list = []
    space: dict = {"data": "data.csv", "output": ".", "shown": shown}
    for name, source in sources.items():
        source = re.sub(r"^(data|output) = .*$", "", source, flags=re.MULTILINE) if name == "parameters" else source
        exec(source.replace("display(", "shown.append("), space)
    stem = Path(row.notebook).stem
    assert [read_figure(tmp_path / f"{stem}.{kind}")["row"] for kind in ("png", "svg")] == [row.id] * 2
    printed = capsys.readouterr().out
    assert "largest gradient error" in printed and printed.count("\nclaim: ") == 1
    assert (tmp_path / "caption.md").read_text() == shown[-1].data == captions.caption(row, data, meta)
