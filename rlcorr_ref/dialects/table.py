"""The comparison of dialects as plain text (150 columns at most), Markdown or JSON, and one framework in full."""

from __future__ import annotations

import textwrap
from typing import Any

from . import REGISTRY, translate
from .records import COLUMNS, Dialect, NotExpressible, Option

WIDTHS = (15, 15, 15, 17, 10, 14, 16, 8, 11, 11)
LINE = 150


def rows() -> list[dict[str, str]]:
    """One row per framework: name, version and the cells of `COLUMNS`."""
    return [
        {"framework": d.name, "version": d.version, **{key: d.columns[key] for key, _ in COLUMNS}}
        for d in REGISTRY.values()
    ]


def plain() -> str:
    """The table as text; cells are wrapped, no line is longer than 150 columns."""
    heads = ("framework", *(heading for _, heading in COLUMNS))
    lines = [*_wrapped(heads), "-" * (sum(WIDTHS) + 2 * (len(WIDTHS) - 1))]
    for row in rows():
        lines += _wrapped((row["framework"], *(row[key] for key, _ in COLUMNS)))
        lines.append("")
    lines.append("Versions: " + "; ".join(f"{row['framework']} {row['version']}" for row in rows()))
    return "\n".join([*lines[:-1], textwrap.fill(lines[-1], LINE, break_on_hyphens=False)])


def _wrapped(cells: tuple[str, ...]) -> list[str]:
    columns = [
        textwrap.wrap(cell, width, break_on_hyphens=False) or [""] for cell, width in zip(cells, WIDTHS, strict=True)
    ]
    height = max(map(len, columns))
    lines = (
        "  ".join((c[i] if i < len(c) else "").ljust(width) for c, width in zip(columns, WIDTHS, strict=True))
        for i in range(height)
    )
    return [line.rstrip() for line in lines]


def markdown() -> str:
    """The table as GitHub Markdown."""
    heads = ("framework", "version", *(heading for _, heading in COLUMNS))
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows():
        cells = (row["framework"], row["version"], *(row[key] for key, _ in COLUMNS))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def record(dialect: Dialect) -> dict[str, Any]:
    """A framework as plain values: what was read, options, settings with their meaning, traps."""
    settings = []
    for entry in dialect.entries:
        value: dict[str, Any] = {"label": entry.label, "options": dict(entry.options)}
        try:
            meaning = translate(dialect.name, entry.options)
            value |= {
                "definition": meaning.definition,
                "formula": meaning.formula,
                "policies": meaning.policies,
                "notes": list(meaning.notes),
            }
        except NotExpressible as reason:
            value |= {"definition": None, "reason": str(reason)}
        settings.append(value)
    return {
        "framework": dialect.name,
        "title": dialect.title,
        "version": dialect.version,
        "read": dialect.read,
        "sources": list(dialect.sources),
        "options": [_option(option) for option in dialect.options],
        "settings": settings,
        "traps": list(dialect.traps),
        "comparison": dict(dialect.columns),
    }


def _option(option: Option) -> dict[str, Any]:
    out = {"name": option.name, "default": option.default, "selects": option.selects, "meaning": option.meaning}
    if option.choices:
        out["values"] = {_name(key): str(text) for key, text in option.choices.items()}
    if option.refused:
        out["not_expressible"] = {_name(key): reason for key, reason in option.refused.items()}
    return out


def _name(value: Any) -> str:
    return "null" if value is None else str(value)


def page(dialect: Dialect) -> str:
    """One framework as text of at most 150 columns."""
    data = record(dialect)
    lines = [
        f"{data['title']} {data['version']} (read {data['read']})",
        f"sources: {', '.join(data['sources'])}",
        "",
        "options",
    ]
    for option in data["options"]:
        lines += _fill(f"{option['name']} = {option['default']}: {option['meaning']} ({option['selects']})", "  ")
        for key in ("values", "not_expressible"):
            for value, text in option.get(key, {}).items():
                meaning = "" if value == text else f": {'not expressible, ' if key != 'values' else ''}{text}"
                lines += _fill(f"{value}{meaning}", "      ")
    lines += ["", "settings"]
    for setting in data["settings"]:
        given = ", ".join(f"{key}={value!r}" for key, value in setting["options"].items()) or "defaults"
        lines += _fill(f"{setting['label']}: {given}", "  ")
        lines += _fill(setting["reason"] if setting["definition"] is None else setting["formula"], "      ")
        for note in setting.get("notes", ()):
            lines += _fill(f"note: {note}", "      ")
    lines += ["", "traps"]
    for trap in data["traps"]:
        lines += _fill(f"- {trap}", "  ")
    return "\n".join(lines)


def _fill(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        LINE,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
