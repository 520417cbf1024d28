"""Changing the set by tool: a new case from an envelope, and withdrawing a case. The old file survives every failure."""

from __future__ import annotations

import hashlib
import pprint
from pathlib import Path
from typing import Any

from ..errors import ContractError, check_keys
from .build import record
from .canonical import document, read, write_rejected, write_text
from .flags import note
from .lint import changes, ledger
from .registry import FAMILIES, SLUG, Draft, family
from .store import DATA, ROOT

WIRE_KEYS = ("function", "inputs", "definition", "parameters")


def next_serial(name: str, root: Path = ROOT) -> int:
    """The next free serial of a family, above every one that was ever used (withdrawn and published ones included)."""
    used = [int(key.rpartition(".")[2]) for key in family(name).builders]
    path = root / DATA / f"{name}.json"
    if path.is_file():
        used += [int(case["id"].rpartition(".")[2]) for case in read(path)["cases"]]
    used += [int(key.rpartition(".")[2]) for key in ledger(root) if key.rpartition(".")[0] == name]
    return max(used, default=0) + 1


def new_case(
    name: str, slug: str, title: str, description: str, flags: list[str], envelope: dict[str, Any], root: Path = ROOT
) -> str:
    """Append a case to `cases/<family>.py` and return its id.

    The case is built first (values, witness, margin, dtypes): one that cannot be built is refused, the file is left alone and
    the refused source is kept as `<file>.rej`.
    """
    if name not in FAMILIES:
        raise ContractError(f"family: unknown name {name!r}; known: {', '.join(FAMILIES)}")
    if not SLUG.fullmatch(slug):
        raise ContractError(f"slug: expected words-with-hyphens, got {slug!r}")
    for flag in flags:
        note(flag)
    check_keys("case", envelope, WIRE_KEYS, ("inputs",))
    path = root / "cases" / f"{name}.py"
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ContractError(f"{path}: cannot be read ({error.strerror})") from None
    if f'"{slug}"' in source:
        raise ContractError(f"slug: {slug!r} is already used in {path.name}; choose another")
    serial = next_serial(name, root)
    text = source.rstrip("\n") + "\n\n\n" + _source(serial, slug, title, description, flags, envelope)
    function = envelope.get("function", "objective")
    settings = envelope.get("definition") or envelope.get("parameters") or {}
    draft = Draft(function, envelope["inputs"], settings, id=f"{name}.{serial:04d}", flags=flags)
    try:
        compile(text, str(path), "exec")
        record(draft)
    except (ContractError, SyntaxError) as error:
        kept = write_rejected(path, text)
        raise ContractError(f"{error} (refused; {path.name} is unchanged, the refused source is {kept.name})") from None
    write_text(path, text)
    return draft.id


def _source(serial: int, slug: str, title: str, description: str, flags: list[str], envelope: dict[str, Any]) -> str:
    function = envelope.get("function", "objective")
    settings = envelope.get("definition") or envelope.get("parameters") or {}

    def literal(value: Any) -> str:
        return pprint.pformat(value, width=112, compact=True, sort_dicts=False).replace("\n", "\n    ")

    quoted = ", ".join(f'"{flag}"' for flag in flags)
    return (
        f'@FAMILY.case({serial}, "{slug}", flags=[{quoted}])\n'
        f"def _() -> Draft:\n"
        f'    """{title}.\n\n    {description}\n    """\n'
        f"    inputs = {literal(envelope['inputs'])}\n"
        f"    settings = {literal(settings)}\n"
        f'    return envelope("{function}", inputs, settings)\n'
    )


def withdraw(name: str, reason: str, superseded_by: str | None = None, root: Path = ROOT) -> None:
    """Mark a case as withdrawn in its family file, MANIFEST.json and CHANGES.md; its value stays where it is."""
    stem = name.rpartition(".")[0]
    path = root / DATA / f"{stem}.json"
    if stem not in FAMILIES or not path.is_file():
        raise ContractError(f"id: unknown case {name!r}; see `rlcorr vectors list`")
    doc = read(path)
    found = {case["id"]: case for case in doc["cases"]}
    if name not in found:
        raise ContractError(f"id: unknown case {name!r}; {stem} has {min(found)} to {max(found)}")
    case = found[name]
    if case["status"] == "withdrawn":
        raise ContractError(f"{name}: already withdrawn: {case['withdrawn_because']}")
    if not reason.strip():
        raise ContractError("reason: expected a sentence, got nothing")
    known = read(root / "MANIFEST.json")
    if superseded_by is not None and (superseded_by not in known["cases"] or superseded_by == name):
        raise ContractError(f"superseded-by: unknown case {superseded_by!r}; add it first")
    case.update(status="withdrawn", withdrawn_because=reason.strip())
    if superseded_by:
        case["superseded_by"] = superseded_by
    text = document(doc, "cases")
    write_text(path, text)
    _refresh(root, path, text)


def set_kills(kills: dict[str, list[str]], root: Path = ROOT) -> None:
    """Record which named wrong implementations each case rejects; cases that are not mentioned keep their list.

    Outside the checksum of a case: a kill record grows with the mutants, the case stays the same.
    """
    known = read(root / "MANIFEST.json")["cases"]
    strange = sorted(set(kills) - set(known))
    if strange:
        raise ContractError(f"kills: unknown case {strange[0]!r}; see `rlcorr vectors list`")
    for path in sorted((root / DATA).glob("*.json")):
        doc = read(path)
        for case in doc["cases"]:
            case["kills"] = sorted(kills.get(case["id"], case["kills"]))
        text = document(doc, "cases")
        if text != path.read_text(encoding="utf-8"):
            write_text(path, text)
            _refresh(root, path, text)


def _refresh(root: Path, path: Path, text: str) -> None:
    """MANIFEST.json and CHANGES.md after one family file changed."""
    everything = {}
    for file in (root / DATA).glob("*.json"):
        everything.update({case["id"]: case for case in read(file)["cases"]})
    known = read(root / "MANIFEST.json")
    data = text.encode("utf-8")
    known["files"][path.name].update(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    for status in ("active", "withdrawn", "errata"):
        known["counts"][status] = sum(case["status"] == status for case in everything.values())
    write_text(root / "MANIFEST.json", document(known, "cases"))
    write_text(root / "CHANGES.md", changes(everything))
