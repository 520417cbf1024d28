"""One case as a page of text: question, worked numbers, dialect values, faults it exposes, sources, citation."""

from __future__ import annotations

import json
import textwrap
from typing import Any

WIDTH = 110


def render(case: dict[str, Any], family: dict[str, Any]) -> str:
    """The page of `rlcorr vectors show ID`."""
    precision = case["precision"]
    settings = case.get("definition") or case.get("parameters") or {}
    lines = [
        f"{case['id']}  {case['slug']}  [{case['status']}]",
        case["title"],
        "",
        *textwrap.wrap(case["description"], WIDTH),
        "",
        f"function    {case['function']}",
        f"settings    {json.dumps(settings, sort_keys=True)}",
        *(f"{name:<28}{_numbers(value)}" for name, value in sorted(case["inputs"].items())),
        "",
    ]
    if case["status"] == "withdrawn":
        lines[2:2] = [
            f"withdrawn: {case['withdrawn_because']}",
            f"superseded by: {case.get('superseded_by', 'nothing')}",
        ]
    for level, entry in case["levels"].items():
        optional = f"; optional {', '.join(entry['optional'])}" if entry.get("optional") else ""
        lines.append(f"enter at {level}: required {', '.join(entry['required'])}{optional}")
        lines += [f"  given {name:<20}{_numbers(value)}" for name, value in sorted(entry.get("inputs", {}).items())]
    lines += ["", "expected"]
    lines += [f"  {name:<28}{_numbers(entry['data'])}" for name, entry in sorted(case["expected"].items())]
    for name, dialect in sorted(case.get("dialects", {}).items()):
        lines += ["", f"dialect {name}: {dialect['note']}"]
        lines += [f"  {output:<28}{_numbers(value)}" for output, value in sorted(dialect["expected"].items())]
    lines += ["", "exposes"]
    for flag in case["flags"]:
        note = family["notes"][flag]
        links = f" ({', '.join(note['links'])})" if note["links"] else ""
        lines += textwrap.wrap(
            f"{note['bug_type']} {flag}: {note['description']}; {note['effect']}{links}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    lines += [
        "",
        f"kills       {_kills(case['kills'])}",
        f"dtypes      {', '.join(case['dtypes'])}; nearest threshold {case['margin'] if case['margin'] is not None else 'none'}",
        f"precision   {precision['digits']} digits; {precision['witness']} within {precision['disagreement']:g} error scales",
        f"derivation  notebook {case['derivation']}",
        *(f"{source['role']:<12}{source['cite']}" for source in case["source"]),
        f"cite        rlcorr-vectors {family['set_version']}, {case['id']}, sha256:{case['sha256'][:12]}",
    ]
    return "\n".join(lines)


def _numbers(value: Any) -> str:
    """Nested numbers at 9 digits, cut where the line would run over."""
    text = _text(value)
    return text if len(text) <= 4 * WIDTH else text[: 4 * WIDTH] + " ..."


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(_text, value)) + "]"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _kills(names: list[str], shown: int = 6) -> str:
    """The first few wrong implementations that the case rejects, and how many more there are."""
    if not names:
        return "not computed"
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more; see the case's file" if more > 0 else "")
