"""Canonical JSON, checksums and safe writing.

Canonical form = RFC 8785 (JSON Canonicalization Scheme): UTF-8, keys sorted, no blanks, numbers as ECMAScript prints them, so
that a checksum can be recomputed in any language. Non-finite numbers are the strings "NaN", "Infinity", "-Infinity".
Numbers are shortest round-trip decimals: every IEEE-correct parser gets the same double back. -0 is written 0.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ContractError


def number(x: float) -> str:
    """One finite double as ECMAScript prints it (RFC 8785, section 3.2.2.3): 1, 0.1, 1e-7, 1.5e+21."""
    if not math.isfinite(x):
        raise ContractError(f'canonical JSON: {x!r} is not JSON; write the string "NaN", "Infinity" or "-Infinity"')
    if abs(x) < 2.0**53 and x == int(x):
        return str(int(x))
    mantissa, _, exponent = repr(x).partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent or 0)  # position of the decimal point in the digit string
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped.rstrip("0")
    if 0 < point <= 21:
        padded = digits.ljust(point, "0")
        return sign + padded[:point] + ("." + padded[point:] if len(padded) > point else "")
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    power = point - 1
    head = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{sign}{head}e{'+' if power > 0 else ''}{power}"


def canonical(value: Any) -> str:
    """The canonical text of plain JSON values (dict, list, str, int, float, bool, None)."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return number(float(value))
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(canonical, value)) + "]"
    raise ContractError(f"canonical JSON: expected plain JSON values, got {type(value).__name__}")


def sha256(value: Any) -> str:
    """Hex SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(value).encode("utf-8")).hexdigest()


def document(value: Mapping[str, Any], lines_of: str = "") -> str:
    """A file: canonical values, one top-level key per line; the list or object under `lines_of` one entry per line.

    One line per case keeps diffs readable while every value stays in canonical form.
    """
    rows = []
    for key in sorted(value):
        item = value[key]
        if key == lines_of and isinstance(item, list):
            text = "[\n" + ",\n".join(map(canonical, item)) + "\n]"
        elif key == lines_of and isinstance(item, Mapping):
            text = "{\n" + ",\n".join(f"{canonical(k)}:{canonical(item[k])}" for k in sorted(item)) + "\n}"
        else:
            text = canonical(item)
        rows.append(f"{canonical(key)}:{text}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def write_text(path: Path, text: str) -> None:
    """Write to a temporary file beside `path` and rename it over: a reader sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_rejected(path: Path, text: str) -> Path:
    """Keep what was refused as `<file>.rej`, leaving the file itself alone; returns the path written."""
    target = path.with_name(path.name + ".rej")
    write_text(target, text)
    return target


def parse(text: str, where: str) -> Any:
    """Strict JSON: bare NaN or Infinity and duplicate keys are refused, errors name the line."""

    def refuse(token: str) -> None:
        raise ContractError(f'{where}: bare {token} is not JSON; write it as the string "{token}"')

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            keys = [key for key, _ in pairs]
            raise ContractError(f"{where}: key {next(k for k in keys if keys.count(k) > 1)!r} appears twice")
        return out

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ContractError(f"{where}: not valid JSON, line {error.lineno}: {error.msg}") from None


def read(path: Path | str) -> Any:
    """Read a strict JSON file; one clear `ContractError` naming the file where that fails."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ContractError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ContractError(f"{path}: not UTF-8 text") from None
