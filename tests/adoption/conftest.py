"""Fixtures of the adoption tests: a consumer's project in a temporary folder, tested with the plugin in-process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from rlcorr_ref import mutants, pytest_plugin
from rlcorr_ref.vectors.adopt import verdict

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from plugin_options import NAMED  # noqa: E402

# An inner run drops the modules that it imports: torch and those with registries have to be there before it starts.
LOADED = (torch, mutants.mutants(), pytest_plugin, verdict)

HEAD = """
import sys
sys.path.insert(0, {here!r})
import torch
import torch_consumer
from rlcorr_ref import pytest_plugin as rlcorr
"""


@pytest.fixture
def consumer(pytester, monkeypatch):
    """Run `pytest` on one test file `text` with the given options; `.report()` runs and reads the report."""
    for name in ("CI", "BUILD_NUMBER"):  # under CI pytest prints every summary line in full: the same output everywhere
        monkeypatch.delenv(name, raising=False)

    class Consumer:
        def run(self, text, *options):
            pytester.makepyfile(test_consumer=HEAD.format(here=str(HERE)) + text)
            return pytester.runpytest_inprocess(*NAMED, "-p", "no:cacheprovider", *map(str, options))

        def report(self, text, *options):
            path = pytester.path / "report.json"
            result = self.run(text, "--rlcorr-report", path, *options)
            return result, json.loads(path.read_text(encoding="utf-8"))

        def write(self, name, text):
            path = pytester.path / name
            path.write_text(text, encoding="utf-8")
            return path

    return Consumer()
