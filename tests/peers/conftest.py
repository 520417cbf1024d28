"""Packages that are not importable here are reported, not failed: one line each at the end of the run."""

from __future__ import annotations

NOT_RUN: dict[str, str] = {}


def pytest_terminal_summary(terminalreporter) -> None:
    """Say which packages were not run, and why."""
    if NOT_RUN:
        terminalreporter.section("packages not run")
        for name, reason in NOT_RUN.items():
            terminalreporter.line(f"{name}: not run: {reason}")
