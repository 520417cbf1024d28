"""The plugin costs a run that does not use it next to nothing: no vectors loaded, no imports of its own beyond the library."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from plugin_options import NAMED

from rlcorr_ref import pytest_plugin

ROOT = Path(__file__).parents[2]


def test_module_level_imports_are_the_standard_library_and_pytest():
    tree = ast.parse(Path(pytest_plugin.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 0}
    assert {name for name in names if name.split(".")[0] not in sys.stdlib_module_names} == {"pytest"}
    assert not [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]


def test_importing_it_adds_nothing_but_itself_to_the_package():
    code = (
        "import sys, json, pytest, rlcorr_ref; before = set(sys.modules); import rlcorr_ref.pytest_plugin; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    added = json.loads(done.stdout)
    assert "rlcorr_ref.pytest_plugin" in added
    assert all(name == "rlcorr_ref.pytest_plugin" or name.split(".")[0] in sys.stdlib_module_names for name in added)


def test_a_run_that_does_not_use_it_loads_no_vectors(tmp_path):
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_a():\n    assert not [m for m in sys.modules if m.startswith('rlcorr_ref.vectors.adopt')]\n"
        "    assert 'rlcorr_ref.pytest_plugin' in sys.modules\n    assert 'torch' not in sys.modules\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-q", *NAMED, "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout and "rlcorr vectors" not in done.stdout
