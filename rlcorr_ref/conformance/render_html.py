"""The matrix as one self-contained HTML page: no script, no external file; colours carry words as well."""

from __future__ import annotations

from html import escape
from typing import Any

from .render_markdown import LEGEND, MARKS, SHORT

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { border: 1px solid #d0d7de; padding: .35rem .5rem; text-align: left; vertical-align: top; }
thead th { position: sticky; top: 0; background: #f6f8fa; }
.pass { background: #e3f4e6; } .definition { background: #e6effb; } .departs { background: #fbe7e1; }
.unsupported, .notrun { color: #6a737d; } .notrun { background: #f6f8fa; }
th span { font-weight: normal; } details summary { cursor: pointer; } code { font-size: 12px; }
"""
CLASSES = {
    "pass": "pass",
    "by definition": "definition",
    "departs": "departs",
    "not supported": "unsupported",
    "not run": "notrun",
}
SHOWN = 3


def html(document: dict[str, Any]) -> str:
    """The page of a report."""
    packages = document["packages"]
    cells = {(c["family"], c["package"]): c for c in document["cells"]}
    heads = "".join(f"<th>{escape(p['title'])}<br>{escape(p['version'] or p['reason'][:40])}</th>" for p in packages)
    rows = "".join(
        f"<tr><th>{escape(family)}<br><span>{escape(document['titles'][family])}</span></th>"
        + "".join(_cell(cells[family, p["name"]]) for p in packages)
        + "</tr>\n"
        for family in document["families"]
    )
    versions = ", ".join(f"{escape(k)} {escape(v)}" for k, v in document["environment"].items())
    legend = "".join(f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in LEGEND)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Conformance</title><style>{STYLE}</style>'
        "</head><body>\n<h1>Conformance of released packages with the vectors</h1>\n"
        f"<p>Run on {escape(document['date'])}, vectors {escape(document['set_version'])}, {versions}.</p>"
        f"<ul>{legend}</ul>\n<table><thead><tr><th>family</th>{heads}</tr></thead><tbody>\n{rows}</tbody></table>\n"
        f"{_findings(document)}</body></html>\n"
    )


def _cell(entry: dict[str, Any]) -> str:
    state = entry["state"]
    reasons = "".join(
        f"<li>{escape(why)}: {len(ids)} ({escape(', '.join(ids[:SHOWN]))}{', ...' if len(ids) > SHOWN else ''})</li>"
        for why, ids in entry["declined"].items()
    )
    if state == "not run":
        return f'<td class="{CLASSES[state]}">{MARKS[state]}</td>'
    if state == "not supported":
        return (
            f'<td class="{CLASSES[state]}"><details><summary>{MARKS[state]}</summary><ul>{reasons}</ul></details></td>'
        )
    counts = ", ".join(f"{n} {SHORT[s]}" for s, n in entry["counts"].items())
    used = "" if entry["used"] is None else f"<br>{entry['used']:.2g} of tolerance"
    items = []
    for case in entry["cases"]:
        text = "; ".join([*case.get("misses", [])[:SHOWN], *([case["why"]] if case.get("why") else [])])
        faults = f" [{', '.join(case['faults'])}]" if case.get("faults") else ""
        items.append(
            f"<li><code>{escape(case['id'])}</code> {MARKS[case['state']]}{escape(faults)} {escape(text)}</li>"
        )
    level = ", ".join(entry["levels"])
    return (
        f'<td class="{CLASSES[state]}"><details><summary><b>{MARKS[state]}</b><br>{escape(counts)}{used}'
        f"<br>entry: {escape(level)}</summary><ul>{''.join(items)}{reasons}</ul></details></td>"
    )


def _findings(document: dict[str, Any]) -> str:
    if not document["findings"]:
        return ""
    rows = "".join(
        f"<tr><td>{escape(f['package'])} {escape(f['version'])}</td>"
        f'<td><a href="findings/{escape(f["id"])}.md">{escape(f["title"])}</a></td><td>{escape(f["input"])}</td>'
        f"<td><code>{escape(f['returned'])}</code></td><td><code>{escape(f['right'])}</code></td>"
        f"<td>{'yes' if f['present'] else 'no longer'}</td></tr>\n"
        for f in document["findings"]
    )
    heads = "".join(f"<th>{h}</th>" for h in ("package", "finding", "input", "returned", "right", "observed"))
    return f"<h2>Findings</h2>\n<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table>\n"
