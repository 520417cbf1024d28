"""Every notebook as it is stored: no outputs, no paths, described parameters for those that draw figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from repro.provenance import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
NOTEBOOKS = [path for path in NOTEBOOKS if ".ipynb_checkpoints" not in path.parts]
FIGURES = [path for path in NOTEBOOKS if path.parent.name == "figures"]
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
