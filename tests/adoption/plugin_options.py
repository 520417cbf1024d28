"""How pytest is told of the plugin: by its entry point where the distribution is installed, by name from a bare checkout."""

from __future__ import annotations

from importlib.metadata import entry_points

NAMED = [] if entry_points(group="pytest11", name="rlcorr") else ["-p", "rlcorr_ref.pytest_plugin"]
