"""Every public symbol of rlcorr_ref has a docstring that can be checked against its source, and a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import rlcorr_ref

ROOT = Path(rlcorr_ref.__file__).parent
TESTS = Path(__file__).parent
SOURCE = re.compile(r"arXiv|Source|verl|TRL|AReaL|OpenRLHF|ms-swift|OCP|Higham|the contract|the wire format|CONTRACT")
SHAPE = re.compile(r"\[[A-Za-z., 0-9]*\]|elementwise|any shape|scalar|fraction|divisor")
# The rooms that hold mathematics: here a reader checks a function against its paper without leaving the file.
MATHEMATICS = {
    "categorical",
    "ratios",
    "weights",
    "rejection",
    "surrogates",
    "aggregation",
    "advantages",
    "centering",
    "diagnostics",
    "quantise",
    "shards",
    "tokens",
    "vocabulary",
    "head_centering",
    "full_centering",
    "objective",
}
MODULES = sorted(p for p in ROOT.rglob("*.py") if "mutants" not in p.parts and "cases" not in p.parts)


def public_symbols(path: Path):
    """Top-level public functions and classes of a module: (name, docstring, whether arrays go in or out)."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            heads = (
                [node.args, node.returns]
                if isinstance(node, ast.FunctionDef)
                else [item.annotation for item in node.body if isinstance(item, ast.AnnAssign)]
            )
            yield node.name, ast.get_docstring(node), any("ndarray" in ast.unparse(head) for head in heads if head)


def all_test_text() -> str:
    return "\n".join(p.read_text(encoding="utf-8") for p in TESTS.rglob("*.py"))


def package_text(but: Path) -> str:
    return "\n".join(p.read_text(encoding="utf-8") for p in MODULES if p != but)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_public_symbols_are_documented(path):
    module_doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert module_doc and len(module_doc) > 30, "a module says what mathematical object it is"
    for name, doc, arrays in public_symbols(path):
        assert doc and len(doc) > 20, f"{name}: no docstring"
        if path.parent == ROOT and path.stem in MATHEMATICS:
            assert SOURCE.search(doc + module_doc), f"{name}: neither it nor its module names a source"
            assert not arrays or SHAPE.search(doc), f"{name}: no shape in the docstring"


def test_public_symbols_are_tested_or_used():
    """A symbol that neither a test names nor another module uses is dead."""
    text = all_test_text()
    dead = []
    for path in MODULES:
        own = path.read_text(encoding="utf-8")
        for name, _, _ in public_symbols(path):
            pattern = re.compile(rf"\b{re.escape(name)}\b")
            used = pattern.search(text) or pattern.search(package_text(path)) or len(pattern.findall(own)) > 1
            if not used:
                dead.append(f"{path.relative_to(ROOT)}:{name}")
    assert not dead
