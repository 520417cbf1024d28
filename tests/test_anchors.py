"""Equation anchors are one set of names: defined by a derivation, cited beside their formula in the code, reached from
the vectors, shown in a notebook.

A vector cites equations through the notebook section named in its `derivation` ("07#three-policies"): it cites those that
the section shows or names. A notebook may show equations of its own that have no symbolic derivation; the code and the
derivations may not name those.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

import rlcorr_ref
from rlcorr_ref.derive import symbolic
from rlcorr_ref.vectors import store

PACKAGE = Path(rlcorr_ref.__file__).parent
NOTEBOOKS = sorted((PACKAGE.parent / "notebooks").glob("[0-9][0-9]_*.ipynb"))
EQUATION = re.compile(r"(?<![\w\"'-])eq-[a-z0-9]+(?:-[a-z0-9]+)*")  # in quotes it is an argument, no citation
DEFINED = frozenset(symbolic.derivations())
# Where each equation is implemented, and a part of its formula that has to stand beside the citation there.
IMPLEMENTED = {
    "eq-score": ("categorical", "(1[u = v] - p_u)/temperature"),
    "eq-centered": ("full_centering", "A (e_y - q)/temperature"),
    "eq-head-only": ("centering", "sum_H (q_v - rho p_v) s_v"),
    "eq-alpha": ("centering", "alpha = rho g(tail)"),
    "eq-tis-bias": ("weights", "-sum_v (p_v - C q_v)_+ R_v s_v"),
    "eq-aggregation": ("aggregation", "(S_1/n_1 + S_2/n_2)/2"),
    "eq-k1": ("surrogates", "E_p[s] = 0"),
    "eq-drift": ("population/tree", "V_q(h) s_bar(h) + Cov_q(R, s | h)"),
}
each = pytest.mark.parametrize("anchor", sorted(DEFINED))


def docstrings(source: str) -> list[str]:
    """Docstrings of a module, its classes and functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [text for text in found if text]


def beside(text: str, anchor: str) -> list[str]:
    """The line of every citation of `anchor` in a docstring, together with the line before it."""
    lines = text.splitlines()
    return ["\n".join(lines[max(n - 1, 0) : n + 1]) for n, line in enumerate(lines) if anchor in EQUATION.findall(line)]


@cache
def cited_in_code() -> dict[str, dict[str, list[str]]]:
    """anchor -> module (without .py) -> the places of its citations; the derivations themselves are left out."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if module.startswith("derive/"):
            continue
        for text in docstrings(path.read_text(encoding="utf-8")):
            for anchor in set(EQUATION.findall(text)):
                found.setdefault(anchor, {}).setdefault(module, []).extend(beside(text, anchor))
    return found


@cache
def sections() -> dict[str, set[str]]:
    """ "NN#section" -> equations that its prose shows or names. A section goes to the next anchored heading."""
    found: dict[str, set[str]] = {}
    for path in NOTEBOOKS:
        current: set[str] = set()
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] != "markdown":
                continue
            text = "".join(cell["source"])
            heading = re.search(r'<a id="([a-z0-9-]+)"></a>\n## ', text)
            if heading:
                current = found.setdefault(f"{path.name[:2]}#{heading[1]}", set())
            current |= set(EQUATION.findall(re.sub(r'<a id="[^"]*"></a>', "", text)))
    return found


@cache
def cited_by_vectors() -> dict[str, list[str]]:
    """anchor -> ids of the vectors whose derivation section shows or names it."""
    found: dict[str, list[str]] = {}
    for case in store.load():
        for anchor in sections()[case["derivation"]]:
            found.setdefault(anchor, []).append(case["id"])
    return found


def labelled() -> set[str]:
    """Equations that carry their anchor as a label in a notebook."""
    text = "".join(path.read_text(encoding="utf-8") for path in NOTEBOOKS)
    return set(re.findall(r'<a id=\\"(eq-[a-z0-9-]+)\\"></a>', text))


def test_every_derivation_has_its_own_anchor_and_the_list_in_the_module_is_complete():
    assert set(IMPLEMENTED) == DEFINED
    listed = re.findall(r"^ {4}(eq-[a-z0-9-]+)  ", symbolic.__doc__, re.MULTILINE)
    assert sorted(listed) == sorted(DEFINED)
    for anchor, derive in symbolic.derivations().items():
        assert derive.__doc__.startswith(f"{anchor}: "), f"{derive.__name__} does not open with its anchor"


def test_the_code_cites_only_what_is_derived():
    stray = {anchor: sorted(modules) for anchor, modules in cited_in_code().items() if anchor not in DEFINED}
    assert not stray, "cited in a docstring, but no derivation has this name"


def test_notebooks_cite_only_what_is_derived_or_labelled():
    named = set().union(*sections().values())
    assert named - labelled() == set() and DEFINED <= labelled()


@each
def test_the_implementing_module_cites_it_beside_its_formula(anchor):
    module, formula = IMPLEMENTED[anchor]
    places = cited_in_code().get(anchor, {})
    assert module in places, f"{module}.py implements {anchor} and does not cite it"
    assert any(formula in place for place in places[module]), f"{module}.py: {formula!r} is not beside ({anchor})"


@each
def test_every_citation_in_code_stands_beside_a_formula(anchor):
    for module, places in cited_in_code()[anchor].items():
        for place in places:
            assert re.search(r"[=/(]\S*.*[-+*/|_^]", place.replace(anchor, "")), (
                f"{module}.py: {anchor} without a formula"
            )


@each
def test_a_vector_and_a_notebook_cite_it(anchor):
    assert cited_by_vectors().get(anchor), f"no vector's derivation section shows or names {anchor}"
    assert [place for place, names in sections().items() if anchor in names]


def test_the_rules_see_what_they_forbid():
    text = 'Score.\n\n    ds/dz = (e_y - p)/temperature    (eq-score)\n\nSee `derivation("eq-drift")` and seq-mean-token-sum.'
    assert beside(text, "eq-score") == ["\n    ds/dz = (e_y - p)/temperature    (eq-score)"]
    assert EQUATION.findall(text) == ["eq-score"]
    assert docstrings('def f():\n    "one (eq-k1)"\n\nclass C:\n    "two"\n') == ["one (eq-k1)", "two"]
