"""Fixtures of the vector tests: a private copy of the set that a test may damage, and the `rlcorr` command in-process."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from rlcorr_ref import cli
from rlcorr_ref.vectors import store

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def copy(tmp_path):
    """A copy of the installed set, without the ledger."""
    root = tmp_path / "set"
    shutil.copytree(store.ROOT, root, ignore=shutil.ignore_patterns("__pycache__", "published"))
    return root


@pytest.fixture
def rlcorr(capsys):
    """Run `rlcorr ...`; returns (status, standard output, standard error)."""

    def run(*args):
        status = cli.main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
