"""Per-step metrics as a CSV file with a schema: what a trainer returns, what a store keeps, what a figure reads.

One row per optimizer step, columns in the trainer's order, shortest decimals that give the same double back. A metric
that was not measured at a step (a held-out accuracy between evaluations) is an empty field and reads back as NaN.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

FIRST_STEP = 1
Rows = list[dict[str, int | float]]


class MetricsError(ValueError):
    """Metrics that are no table of numbers over consecutive steps; the message names step and column."""


def encode(rows: Sequence[Mapping[str, Any]]) -> tuple[bytes, dict[str, str]]:
    """CSV bytes and schema (column -> "int" or "float").

    None and NaN become an empty field. Raises `MetricsError` naming step and column for any other non-number, for
    columns that differ between steps, and for steps that do not count up from `FIRST_STEP` by one.
    """
    if not rows or "step" not in rows[0]:
        raise MetricsError("metrics: expected at least one step with a 'step' column")
    columns = list(rows[0])
    schema = dict.fromkeys(columns, "int")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for number, row in enumerate(rows, start=FIRST_STEP):
        if set(row) != set(columns):
            odd = ", ".join(sorted(set(row) ^ set(columns)))
            raise MetricsError(f"metrics, step {number}: columns differ from those of the first step: {odd}")
        if row["step"] != number:
            raise MetricsError(f"metrics: expected step {number}, got {row['step']!r}")
        fields = []
        for column in columns:
            value = row[column]
            if value is None or (isinstance(value, float) and math.isnan(value)):
                schema[column] = "float"
                fields.append("")
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                schema[column] = "float" if isinstance(value, float) else schema[column]
                fields.append(repr(value))
            else:
                raise MetricsError(
                    f"metrics, step {number}, column {column}: expected a plain int or float, got "
                    f"{type(value).__name__}"
                )
        writer.writerow(fields)
    return text.getvalue().encode(), schema


def decode(data: bytes, schema: Mapping[str, str]) -> Rows:
    """The rows that `encode` wrote. Raises `MetricsError` when columns, field counts or numbers do not fit."""
    lines = list(csv.reader(io.StringIO(data.decode("utf-8"))))
    if not lines or lines[0] != list(schema):
        raise MetricsError(f"metrics: expected the columns {list(schema)}, got {lines[0] if lines else 'no line'}")
    rows: Rows = []
    for line in lines[1:]:
        if len(line) != len(schema):
            raise MetricsError(f"metrics, line {len(rows) + 2}: expected {len(schema)} fields, got {len(line)}")
        try:
            rows.append(
                {
                    column: int(field) if schema[column] == "int" else float(field or "nan")
                    for column, field in zip(schema, line, strict=True)
                }
            )
        except ValueError as error:
            raise MetricsError(f"metrics, line {len(rows) + 2}: {error}") from error
    return rows
