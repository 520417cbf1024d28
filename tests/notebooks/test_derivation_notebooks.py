"""The derivation notebooks: their form, their anchors (notebook = derive = vectors = docstrings), and that they run."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

import rlcorr_ref
from rlcorr_ref.derive.symbolic import derivations
from rlcorr_ref.vectors import registry

PACKAGE = Path(rlcorr_ref.__file__).parent
FOLDER = PACKAGE.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
ANCHOR = re.compile(r'<a id="([a-z0-9-]+)"></a>')
CITED = re.compile(r"\b([01][0-9])#([a-z0-9-]+)")
EQUATION = re.compile(r"\beq-[a-z0-9]+(?:-[a-z0-9]+)*")
VECTOR = re.compile(rf"\b({'|'.join(registry.FAMILIES)})\.(\d{{4}})\b")
PROSE_ONLY = {"symbols", "paths", "exercises"}  # sections that derive nothing


@cache
def cells(path: Path) -> list[dict]:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in found]


def text(path: Path, kind: str) -> str:
    return "\n".join(cell["source"] for cell in cells(path) if cell["cell_type"] == kind)


def anchors(path: Path) -> list[str]:
    return ANCHOR.findall(text(path, "markdown"))


def sections(path: Path) -> list[tuple[str, str, str]]:
    """(anchor, prose, code) of every second-level heading; the anchor is the line above it."""
    out: list[tuple[str, str, str]] = []
    for cell in cells(path):
        if cell["cell_type"] == "code":
            if out:
                out[-1] = (out[-1][0], out[-1][1], out[-1][2] + "\n" + cell["source"])
            continue
        head = re.search(r'<a id="([a-z0-9-]+)"></a>\n## ', cell["source"])
        if head:
            out.append((head[1], cell["source"], ""))
        elif out:
            out[-1] = (out[-1][0], out[-1][1] + "\n" + cell["source"], out[-1][2])
    return out


each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_the_set_is_complete_and_numbered():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{i:02d}" for i in range(12)]


@each
def test_opening_and_parameters(path):
    first = cells(path)[0]["source"]
    assert first.startswith(f"# {path.name[:2]} ")
    assert "**What you will be able to do**" in first and first.count("\n* ") == 3
    assert re.search(r"Reading time: \d+ minutes", first)
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    tagged = [cell for cell in code if "parameters" in cell["metadata"].get("tags", [])]
    assert tagged == code[:1]
    for line in tagged[0]["source"].splitlines():
        assert re.fullmatch(r"\w+ = (True|False|-?[\d.]+|\"[^\"]*\")  # .+ \(.+\).*", line), line
    assert tagged[0]["source"].startswith("fast = False  # ")


@each
def test_stored_without_outputs_and_without_hidden_state(path):
    for cell in cells(path):
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None
        assert not re.search(r"(?m)^\s*[%!]", cell["source"]), "a magic or a shell command"
        assert not re.search(r"np\.random\.(?!default_rng|Generator)", cell["source"]), "a global random state"
        assert not re.search(r"default_rng\(\)|\bopen\(|to_csv|savefig|\b(In|Out)\[", cell["source"])
    ids = [cell["id"] for cell in cells(path)]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-z0-9-]+", name) for name in ids)


@each
def test_sections_go_from_equation_to_code_to_assertion(path):
    found = sections(path)
    assert len(found) >= 4
    known = {name for other in NOTEBOOKS for name in anchors(other)}
    for name, prose, code in found:
        if name in PROSE_ONLY:
            continue
        assert "$$" in prose or known & set(EQUATION.findall(prose)), f"{name}: neither shows nor names an equation"
        assert re.search(r"(?m)^\s*assert ", code), f"{name}: nothing is asserted"


@each
def test_equations_are_labelled_by_their_anchor(path):
    prose = text(path, "markdown")
    equations = [name for name in anchors(path) if name.startswith("eq-")]
    assert equations
    for name in equations:
        assert rf"\text{{({name})}}" in prose, f"{name}: the equation does not carry its name"
    assert sorted(re.findall(r"\\text\{\((eq-[a-z0-9-]+)\)\}", prose)) == sorted(equations)


@each
def test_three_exercises_with_hidden_worked_answers(path):
    by_id = {cell["id"]: cell for cell in cells(path)}
    for number in (1, 2, 3):
        exercise, solution = by_id[f"exercise-{number}"], by_id[f"solution-{number}"]
        assert exercise["metadata"]["tags"] == ["exercise"] and f"exercise_{number}.check(" in exercise["source"]
        assert "assert" not in exercise["source"]
        assert solution["metadata"]["jupyter"]["source_hidden"] and "solution" in solution["metadata"]["tags"]
        assert f"assert exercise_{number}.check(" in solution["source"]
        assert by_id[f"exercise-{number}-text"]["source"].startswith(f"**{number}.** ")
    assert "exercise-4" not in by_id


@each
def test_links_lead_somewhere(path):
    own = set(anchors(path))
    for target in re.findall(r"\]\(([^)]+)\)", text(path, "markdown")):
        file, _, anchor = target.partition("#")
        if file:
            assert (FOLDER / file).is_file(), target
        else:
            assert anchor in own, target


def test_anchors_are_unique_over_all_notebooks_where_they_name_equations():
    names = [name for path in NOTEBOOKS for name in anchors(path) if name.startswith("eq-")]
    assert sorted(set(names)) == sorted(names)
    for path in NOTEBOOKS:
        assert len(set(anchors(path))) == len(anchors(path))


def test_derivations_shown_are_those_of_the_package():
    shown = {}
    for path in NOTEBOOKS:
        for name in re.findall(r'teaching\.derivation\("([^"]+)"', text(path, "code")):
            assert name in anchors(path), f"{path.name} derives {name} but has no such anchor"
            assert name not in shown, f"{name} is derived twice"
            shown[name] = path.name
    assert set(shown) == set(derivations())


def test_cited_anchors_exist():
    where = {path.name[:2]: set(anchors(path)) for path in NOTEBOOKS}
    equations = {name for names in where.values() for name in names if name.startswith("eq-")}
    cited = {(match[1], match[2]) for family in registry.families() for match in _derivations(family)}
    for source in PACKAGE.rglob("*.py"):
        content = source.read_text(encoding="utf-8")
        cited |= {(match[1], match[2]) for match in CITED.finditer(content)}
        missing = set(EQUATION.findall(content)) - equations
        assert not missing, f"{source.name} cites {missing}"
    assert len(cited) > 15
    absent = sorted(f"{number}#{name}" for number, name in cited if name not in where.get(number, ()))
    assert not absent


def _derivations(family):
    for build in family.builders.values():
        match = CITED.fullmatch(build().derivation)
        assert match, "a vector without a notebook anchor"
        yield match


def test_vectors_named_in_notebooks_exist():
    named = {match for path in NOTEBOOKS for match in VECTOR.findall(text(path, "code") + text(path, "markdown"))}
    assert len(named) > 10
    for family, serial in named:
        assert f"{family}.{serial}" in registry.family(family).builders


@each
def test_there_is_something_to_touch(path):
    dials = [cell for cell in cells(path) if "teaching.dials(" in cell["source"]]
    assert dials and all(cell["id"].endswith("-dial") for cell in dials)


@each
def test_equations_named_in_prose_exist(path):
    known = {name for other in NOTEBOOKS for name in anchors(other)}
    assert set(EQUATION.findall(text(path, "markdown"))) <= known


@pytest.mark.slow
@each
def test_runs_top_to_bottom_in_fast_mode(path, tmp_path, monkeypatch):
    papermill = pytest.importorskip("papermill")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RLCORR_WIDGETS", raising=False)
    out = tmp_path / path.name
    run = papermill.execute_notebook(
        path,
        out,
        parameters={"fast": True},
        cwd=FOLDER,
        kernel_name="python3",
        progress_bar=False,
        execution_timeout=240,
    )
    by_id = {cell["id"]: cell for cell in run["cells"]}
    for cell in run["cells"]:
        if cell["cell_type"] != "code":
            continue
        kinds = [kind for output in cell["outputs"] for kind in output.get("data", {})]
        streams = [output["name"] for output in cell["outputs"] if output["output_type"] == "stream"]
        assert "stderr" not in streams, cell["outputs"]
        assert not any("widget" in kind for kind in kinds), "a widget was shown although nobody can move it"
        if re.search(r"teaching\.(show|dials|break_it)\(", cell["source"]):
            assert "image/png" in kinds, f"{cell['id']}: no picture"
    for number in (1, 2, 3):
        said = "".join(output.get("text", "") for output in by_id[f"solution-{number}"]["outputs"])
        assert "Right: " in said
        unanswered = "".join(output.get("text", "") for output in by_id[f"exercise-{number}"]["outputs"])
        assert unanswered.startswith(("Not answered yet", "Not yet: ")), "the exercise as stored must not pass"
