"""What the conformance matrix draws: the report of a run as a table, its record, its headline and its caption.

Nothing is judged here: states, counts and findings are those of the ``report.json`` that `rlcorr conformance --report`
wrote. Every number of the headline and of the caption is counted from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from repro.cells.publication import META, PublicationError
from repro.figures.training import FigureDataError
from repro.provenance import ROOT, _git, file_sha256, portable

REPORT = ROOT / "paper_figures" / "conformance" / "report.json"
OUTPUT = ROOT / "paper_figures" / "conformance_matrix"
COMMAND = "rlcorr conformance --report paper_figures/conformance"
RAN = ("pass", "by definition", "departs")
SYMBOLS = {  # what stands in a cell and what it says
    "pass": ("✓", "pass: the published value"),
    "by definition": ("≠", "differs by definition, as documented"),
    "departs": ("✕", "departs from what is documented or named"),
    "not supported": ("–", "not supported or not reached"),
    "not run": ("?", "not run"),
}


def load(report: Path, record: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report and its record; `PublicationError` unless both are there, readable and belong together."""
    documents = []
    for path in (report, record):
        if not path.is_file():
            raise PublicationError(f"{portable(str(path))}: not there; make the report with `{COMMAND}`")
        try:
            documents.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise PublicationError(f"{portable(str(path))}: not valid JSON ({error}); restore it") from error
    found = file_sha256(report)
    if documents[1].get("data_sha256") != found:
        raise PublicationError(
            f"{portable(str(report))}: sha256 {found[:12]}..., its record says "
            f"{str(documents[1].get('data_sha256'))[:12]}...: draw with `python -m repro draw --all`, which renews the record"
        )
    return documents[0], documents[1]


def record_of(report: Path, shipped: Path = OUTPUT / META) -> dict[str, Any]:
    """The record embedded in the figure: the shipped one where it is of this report as committed, else a new one.

    ``commit`` is the last one that changed the report, ``dirty`` whether it was changed since; both None without git.
    The shipped record is kept because a copy without history must give the same bytes.
    """
    sha = file_sha256(report)
    if shipped.is_file():
        known = json.loads(shipped.read_text(encoding="utf-8"))
        if known.get("data_sha256") == sha and known.get("dirty") is False:
            return known
    document = json.loads(report.read_text(encoding="utf-8"))
    inside = report.resolve().is_relative_to(ROOT)
    commit = _git("log", "-1", "--format=%H", "--", str(report.resolve())) if inside else None
    status = _git("status", "--porcelain", "--", str(report.resolve())) if inside else None
    return {
        "figure": "conformance_matrix",
        "data": portable(str(report.resolve())),
        "date": document["date"],
        "vectors": f"rlcorr-vectors {document['set_version']}",
        "packages": {p["title"]: p["version"] or None for p in document["packages"]},
        "command": COMMAND,
        "commit": commit or None,
        "dirty": None if status is None else bool(status),
        "data_sha256": sha,
        "versions": {"rlcorr_ref": document["rlcorr_ref"], **document["environment"]},
    }


def table(report: Mapping[str, Any]) -> pd.DataFrame:
    """One row per cell: family, package, state, vectors (of the family) and the count of every state.

    Raises `FigureDataError` where a count of the report is not the number of cases listed behind it, or a cell is
    missing or given twice.
    """
    rows = []
    names = [p["name"] for p in report["packages"]]
    for cell in report["cells"]:
        place = f"report: cell {cell['family']}/{cell['package']}"
        if cell["state"] not in SYMBOLS or set(cell["counts"]) - set(SYMBOLS):
            raise FigureDataError(f"{place}: unknown state among {cell['state']!r}, {sorted(cell['counts'])}")
        listed = {state: sum(case["state"] == state for case in cell["cases"]) for state in RAN}
        listed["not supported"] = sum(len(ids) for ids in cell["declined"].values())
        for state, number in listed.items():
            if cell["counts"].get(state, 0) != number:
                raise FigureDataError(f"{place}: counts {cell['counts'].get(state, 0)} {state!r}, lists {number}")
        rows.append(
            {"family": cell["family"], "package": cell["package"], "state": cell["state"], **listed}
            | {"findings": tuple(numbers(report, cell["package"], cell["family"]))}
        )
    found = pd.DataFrame(rows)
    wanted = sorted((family, name) for family in report["families"] for name in names)
    if not wanted or sorted(zip(found["family"], found["package"], strict=True)) != wanted:
        raise FigureDataError("report: expected exactly one cell per family and package")
    asked = found[[*RAN, "not supported"]].sum(axis=1)
    return found.assign(vectors=asked.groupby(found["family"]).transform("max"))


def numbers(report: Mapping[str, Any], package: str, family: str | None) -> list[int]:
    """Numbers (from 1, in the report's order within the package) of the findings that a vector of ``family`` shows.

    ``family`` None asks for those that no vector shows.
    """
    mine = [f for f in report["findings"] if f["package"] == package]
    if family is None:
        return [n for n, f in enumerate(mine, 1) if not f["cases"]]
    return [n for n, f in enumerate(mine, 1) if any(c.rpartition(".")[0] == family for c in f["cases"])]


def order(cells: pd.DataFrame) -> list[str]:
    """Families from most to fewest departing vectors, then differing, then passing; those that nobody supports come last."""
    sums = cells.groupby("family")[list(RAN)].sum()
    return sorted(sums.index, key=lambda f: (*(-sums.loc[f, s] for s in ("departs", "by definition", "pass")), f))


def headline(cells: pd.DataFrame) -> str:
    """What the matrix says, counted: packages that depart somewhere, areas that none supports or lets reach."""
    departing = cells[cells["departs"] > 0]["package"].nunique()
    offered = cells[cells[list(RAN)].sum(axis=1) > 0]["family"].nunique()
    packages, families = cells["package"].nunique(), cells["family"].nunique()
    return (
        f"{departing} of {packages} packages depart from at least one vector; "
        f"{families - offered} of {families} areas are reached in none"
    )


def caption(report: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """The caption in Markdown: what the symbols say, the totals per package, every finding with its page."""
    cells = table(report)
    totals = cells.groupby("package")[[*RAN, "not supported"]].sum()
    total = int(cells.groupby("family")["vectors"].first().sum())
    sums = "  ".join(f"{int(cells[state].sum())} {SYMBOLS[state][0]}" for state in RAN)
    lines = [
        f"**{headline(cells)}** ({total} vectors of set {report['set_version']} in {cells['family'].nunique()} areas, "
        f"run on {report['date']}; all packages together {sums}).",
        "",
        "A cell shows the most serious outcome among the vectors of its area, how many vectors had which outcome, their shares "
        "of the area's vectors (bar) and the findings that they show. One departing vector marks the cell: the counts say "
        "how many did not. What is not supported (no such option, or no function to reach) was not asked: it is neither "
        "agreement nor departure.",
        "",
        *(f"- {symbol} {words}" for symbol, words in SYMBOLS.values()),
        "",
        "| package | version | entry, precision | ✓ | ≠ | ✕ | not supported |",
        "|---|---|---|---|---|---|---|",
    ]
    for package in report["packages"]:
        found = totals.loc[package["name"]]
        entry = package["entry"] if package["status"] == "ready" else f"not run: {package['reason']}"
        numbers_ = " | ".join(str(int(found[state])) for state in (*RAN, "not supported"))
        lines.append(f"| {package['title']} | {package['version'] or '-'} | {entry}, {package['dtype']} | {numbers_} |")
    lines += ["", f"Findings ({len(report['findings'])}), numbered within their package:", ""]
    for package in report["packages"]:
        mine = [f for f in report["findings"] if f["package"] == package["name"]]
        if mine:
            links = ", ".join(f"#{n} [{f['id']}](../conformance/findings/{f['id']}.md)" for n, f in enumerate(mine, 1))
            lines.append(f"- {package['title']}: {links}")
    explained = "Every departing vector belongs to a finding."
    if report["unexplained"]:
        explained = f"{len(report['unexplained'])} departing vectors belong to no finding."
    state = "" if record["dirty"] is False else ", changed since or unknown"
    lines += [
        "",
        f"{explained} Data: `{record['data']}`, commit {record['commit']}{state}, made by `{record['command']}`.",
    ]
    return "\n".join([*lines, ""])
