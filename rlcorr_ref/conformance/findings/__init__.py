"""Findings: where a package returns something else than what it documents or names. Every number on a page is
observed when it is written.
"""

from __future__ import annotations

from .records import Finding, Observation, observe, of_package

__all__ = ["Finding", "Observation", "observe", "of_package"]
