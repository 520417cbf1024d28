"""The report of a conformance run as one JSON document (`schema.json`), and the files written from it.

Cells are families x packages. A cell shows the most serious state among its cases; "pass" needs at least one case
that really ran.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import ContractError
from ..vectors import store
from .findings import observe
from .protocol import Adapter
from .render_html import html
from .render_markdown import finding_page, findings_index, matrix
from .runner import STATES, Outcome

SCHEMA = 1
SERIOUS = ("departs", "by definition", "pass")


def build(runs: Sequence[tuple[Adapter, list[Outcome]]], today: str | None = None) -> dict[str, Any]:
    """The document of a run. `today`: ISO date, the current UTC date by default."""
    stated = today or datetime.datetime.now(datetime.UTC).date().isoformat()
    families = sorted({case["id"].rpartition(".")[0] for case in store.load()})
    findings = [found for adapter, outcomes in runs for found in observe(adapter, outcomes)]
    explained = {(f["package"], case) for f in findings if f["present"] for case in f["cases"]}
    return {
        "schema": SCHEMA,
        "date": stated,
        "rlcorr_ref": __version__,
        "set_version": store.manifest()["set_version"],
        "environment": _environment(),
        "packages": [_package(adapter) for adapter, _ in runs],
        "families": families,
        "titles": {family: store.family_file(family)["title"] for family in families},
        "cells": [_cell(family, adapter, outcomes) for family in families for adapter, outcomes in runs],
        "findings": findings,
        "unexplained": [
            {"package": adapter.name, "case": o.id}
            for adapter, outcomes in runs
            for o in outcomes
            if o.state == "departs" and (adapter.name, o.id) not in explained
        ],
    }


def _environment() -> dict[str, str]:
    out = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("numpy", "torch"):
        if name in sys.modules:
            out[name] = str(sys.modules[name].__version__)
    return out


def _package(adapter: Adapter) -> dict[str, str]:
    keys = ("name", "title", "version", "verified", "status", "reason", "entry", "dtype")
    return {key: getattr(adapter, key) for key in keys}


def _cell(family: str, adapter: Adapter, outcomes: list[Outcome]) -> dict[str, Any]:
    mine = [o for o in outcomes if o.family == family]
    if adapter.status != "ready" or not mine:
        return {
            "family": family,
            "package": adapter.name,
            "state": "not run",
            "counts": {},
            "cases": [],
            "declined": {},
        }
    counts = {state: sum(o.state == state for o in mine) for state in STATES}
    declined = defaultdict(list)
    for o in mine:
        if o.state == "not supported":
            declined[o.why].append(o.id)
    run = [o for o in mine if o.state != "not supported"]
    shares = [o.used for o in run if o.used is not None]
    return {
        "family": family,
        "package": adapter.name,
        "state": next((s for s in SERIOUS if counts[s]), "not supported"),
        "counts": {state: n for state, n in counts.items() if n},
        "levels": sorted({o.level for o in run}),
        "used": max(shares) if shares else None,
        "cases": [{k: v for k, v in asdict(o).items() if v not in (None, "", [], {}) and k != "family"} for o in run],
        "declined": dict(declined),
    }


def write(directory: Path, document: dict[str, Any]) -> list[Path]:
    """Write report.json, matrix.md, matrix.html and findings/*.md; every file through a temporary name.

    Raises `ContractError` where the folder is a file.
    """
    if directory.exists() and not directory.is_dir():
        raise ContractError(f"--report {directory}: expected a folder, found a file")
    files = {
        "report.json": json.dumps(document, indent=1, allow_nan=False) + "\n",
        "matrix.md": matrix(document),
        "matrix.html": html(document),
    }
    if document["findings"]:
        files["findings/README.md"] = findings_index(document)
    for finding in document["findings"]:
        files[f"findings/{finding['id']}.md"] = finding_page(finding, document)
    written = []
    for name, text in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(target.suffix + ".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, target)
        written.append(target)
    return written
