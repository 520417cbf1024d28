"""The report as Markdown: the matrix, the index of findings and one page per finding. Neutral tone, numbers from the
run only.
"""

from __future__ import annotations

from typing import Any

MARKS = {
    "pass": "pass",
    "by definition": "differs by definition",
    "departs": "departs",
    "not supported": "not supported",
    "not run": "not run",
}
SHORT = {"pass": "pass", "by definition": "by definition", "departs": "depart", "not supported": "not supported"}
LEGEND = (
    ("pass", "equals the published value within its tolerance"),
    ("differs by definition", "equals what the package documents under the same name, which is another number"),
    ("departs", "equals neither; the finding states what is documented or named and what comes back"),
    ("not supported", "no option has this meaning, or its function cannot be reached; the reason is behind the cell"),
    ("not run", "nothing was executed"),
)


def matrix(document: dict[str, Any]) -> str:
    """Families x packages, with versions, date, entry level and the largest share of a tolerance that a pass used."""
    packages = document["packages"]
    cells = {(c["family"], c["package"]): c for c in document["cells"]}
    lines = [
        "# Conformance of released packages with the vectors",
        "",
        f"Run on {document['date']}, vectors {document['set_version']}, rlcorr-ref {document['rlcorr_ref']}, "
        + ", ".join(f"{k} {v}" for k, v in document["environment"].items())
        + ".",
        "",
        *(f"- {name}: {text}" for name, text in LEGEND),
        "",
        "| package | version | verified for | status | entry | precision |",
        "|---|---|---|---|---|---|",
        *(
            f"| {p['title']} | {p['version'] or '-'} | {p['verified'] or '-'} | "
            f"{'run' if p['status'] == 'ready' else 'not run: ' + p['reason']} | {p['entry']} | {p['dtype']} |"
            for p in packages
        ),
        "",
        "| family | " + " | ".join(f"{p['title']} {p['version']}".strip() for p in packages) + " |",
        "|---" * (len(packages) + 1) + "|",
    ]
    for family in document["families"]:
        lines.append(
            f"| {family}: {document['titles'][family]} | "
            + " | ".join(cell(cells[family, p["name"]]) for p in packages)
            + " |"
        )
    lines += ["", *_behind(document), *_unexplained(document), ""]
    return "\n".join(lines)


def cell(entry: dict[str, Any]) -> str:
    """One cell: the most serious state, the counts behind it and the share of tolerance."""
    if entry["state"] in ("not run", "not supported"):
        return MARKS[entry["state"]]
    counts = ", ".join(f"{n} {SHORT[s]}" for s, n in entry["counts"].items())
    used = "" if entry["used"] is None else f"; {entry['used']:.2g} of tolerance"
    return f"**{MARKS[entry['state']]}** ({counts}{used})"


def _behind(document: dict[str, Any]) -> list[str]:
    lines = ["## Cases behind the cells that are not a plain pass", ""]
    for p in document["packages"]:
        rows = []
        for c in document["cells"]:
            if c["package"] != p["name"]:
                continue
            for state in ("departs", "by definition"):
                ids = [o["id"] for o in c["cases"] if o["state"] == state]
                if ids:
                    rows.append(f"- {c['family']}, {MARKS[state]}: {', '.join(ids)}")
        if rows:
            lines += [f"### {p['title']} {p['version']}", "", *rows, ""]
    return lines


def _unexplained(document: dict[str, Any]) -> list[str]:
    if not document["unexplained"]:
        return ["Every departure above belongs to a finding."]
    ids = ", ".join(f"{u['package']} {u['case']}" for u in document["unexplained"])
    return [f"Departures without a finding page: {ids}."]


def findings_index(document: dict[str, Any]) -> str:
    """All findings of the run, by package."""
    lines = ["# Findings", "", f"Observed on {document['date']}; each page has the command that shows it.", ""]
    for p in document["packages"]:
        mine = [f for f in document["findings"] if f["package"] == p["name"]]
        if not mine:
            continue
        lines += [
            f"## {p['title']} {p['version']}",
            "",
            "| finding | kind | input | returned | right | observed |",
            "|---|---|---|---|---|---|",
        ]
        for f in mine:
            link = f"[{f['title']}]({f['id']}.md)"
            seen = "yes" if f["present"] else "no longer"
            texts = (link, f["kind"], _line(f["input"]), _line(f["returned"]), _line(f["right"]), seen)
            lines.append(f"| {' | '.join(texts)} |")
        lines.append("")
    return "\n".join(lines)


def _line(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def finding_page(finding: dict[str, Any], document: dict[str, Any]) -> str:
    """One finding: what is documented or named, what comes back, what is right, smallest input, command, since when."""
    shown = f"yes, {document['date']}" if finding["present"] else f"no ({document['date']}): it agrees now"
    cases = ", ".join(finding["cases"]) or "none: the vectors do not ask for it, the command does"
    rows = [
        ("Package", f"{finding['package']} {finding['version']}"),
        (
            "Kind",
            "departs from what it documents or names" if finding["kind"] == "departs" else "differs by definition",
        ),
        ("Documented or named", finding["documents"]),
        ("Smallest input", finding["input"]),
        ("Returned", f"`{finding['returned']}`"),
        ("Right", f"`{finding['right']}`"),
        ("Observed", shown),
        ("Since", finding["since"]),
        ("Source", finding["source"]),
        ("Vectors that show it", cases),
    ]
    lines = [f"# {finding['title']}", "", *(f"- **{key}**: {value}" for key, value in rows), ""]
    return "\n".join([*lines, finding["explanation"], "", "```sh", finding["command"], "```", ""])
