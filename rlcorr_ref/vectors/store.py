"""Reading a vector set: families, cases by id, checksums. Standard library only; the whole set loads in milliseconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import ContractError
from .canonical import parse, read, sha256
from .model import value_part

ROOT = Path(__file__).parent
DATA = "v1"
ENVELOPE = ("function", "inputs", "definition", "parameters")


def manifest(root: Path = ROOT) -> dict[str, Any]:
    """The set's MANIFEST.json."""
    return read(root / "MANIFEST.json")


@lru_cache(maxsize=4)
def _families(root: Path) -> dict[str, dict[str, Any]]:
    """All family files, each checked against the manifest's checksum of its bytes."""
    out = {}
    for name, entry in manifest(root)["files"].items():
        path = root / DATA / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ContractError(f"{path}: cannot be read ({error.strerror})") from None
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise ContractError(f"{path}: sha256 differs from MANIFEST.json; the file was edited or truncated")
        document = json.loads(data)
        out[document["family"]] = document
    return out


def family_file(name: str, root: Path = ROOT) -> dict[str, Any]:
    """One family's document. Raises `ContractError` for an unknown family."""
    found = _families(root)
    if name not in found:
        raise ContractError(f"family: unknown name {name!r}; known: {', '.join(sorted(found))}")
    return found[name]


def load(
    family: str | None = None,
    *,
    dtype: str | None = None,
    level: str | None = None,
    flag: str | None = None,
    features: Iterable[str] | None = None,
    withdrawn: bool = False,
    root: Path = ROOT,
) -> list[dict[str, Any]]:
    """Cases in id order. The records are shared: treat them as read-only.

    `family` takes a name or a prefix of an id ("grad", "grad.00"); `dtype` and `level` keep what a case claims; `features`
    keeps the cases that need nothing outside the given set. Withdrawn cases are left out unless asked for.
    """
    known = None if features is None else set(features)
    names = sorted(_families(root))
    if family is not None:
        names = [name for name in names if name == family.split(".")[0]]
        if not names:
            raise ContractError(f"family: unknown name {family!r}; known: {', '.join(sorted(_families(root)))}")
    return [
        case
        for name in names
        for case in _families(root)[name]["cases"]
        if (withdrawn or case["status"] != "withdrawn")
        and (family is None or case["id"] == family or case["id"].startswith(family if "." in family else family + "."))
        and (dtype is None or dtype in case["dtypes"])
        and (level is None or level in case["levels"])
        and (flag is None or flag in case["flags"])
        and (known is None or known.issuperset(case["features"]))
    ]


def get(name: str, root: Path = ROOT) -> dict[str, Any]:
    """The case with this id, withdrawn ones included. Raises `ContractError` naming the nearest ids of its family."""
    stem = name.rpartition(".")[0]
    found = _families(root)
    if stem not in found:
        raise ContractError(
            f"id: unknown case {name!r}; ids look like 'grad.0001', families: {', '.join(sorted(found))}"
        )
    for case in found[stem]["cases"]:
        if case["id"] == name:
            return case
    ids = [case["id"] for case in found[stem]["cases"]]
    raise ContractError(f"id: unknown case {name!r}; {stem} has {ids[0]} to {ids[-1]}")


def note_of(flag: str, family: str, root: Path = ROOT) -> dict[str, Any]:
    """The note of a flag as the family's file carries it."""
    return _families(root)[family]["notes"][flag]


def envelope(case: dict[str, Any]) -> dict[str, Any]:
    """The wire form of a case: what `evaluate_case` takes."""
    return {key: case[key] for key in ENVELOPE if key in case}


def verify(path: Path, reference: Path = ROOT) -> list[str]:
    """Check a set, a folder of family files or one (vendored) file; returns one line per file.

    Every case's checksum is recomputed from its values and compared with the record and, where the id is known here, with the
    installed manifest. Raises `ContractError` for anything edited, truncated or foreign.
    """
    known = manifest(reference)["cases"]
    if path.is_dir():
        inner = path / DATA if (path / DATA).is_dir() else path
        files = sorted(p for p in inner.glob("*.json") if p.name != "MANIFEST.json")
        if not files:
            raise ContractError(f"{path}: no vector files (*.json) in this folder")
        if (path / "MANIFEST.json").is_file():
            _verify_manifest(path, files)
    else:
        files = [path]
    return [f"{file}: {_verify_file(file, known)} cases, checksums agree" for file in files]


def _verify_manifest(root: Path, files: list[Path]) -> None:
    listed = manifest(root)["files"]
    present = {file.name for file in files}
    if set(listed) != present:
        raise ContractError(f"{root}: MANIFEST.json lists {sorted(listed)}, the folder holds {sorted(present)}")
    for file in files:
        if hashlib.sha256(file.read_bytes()).hexdigest() != listed[file.name]["sha256"]:
            raise ContractError(f"{file}: sha256 differs from MANIFEST.json; the file was edited or truncated")


def _verify_file(path: Path, known: dict[str, str]) -> int:
    try:
        document = parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ContractError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ContractError(f"{path}: not UTF-8 text") from None
    if not isinstance(document, dict) or not isinstance(document.get("cases"), list):
        raise ContractError(f"{path}: not a vector file: expected an object with a list of cases")
    for case in document["cases"]:
        try:
            name, stated, actual = case["id"], case["sha256"], sha256(value_part(case))
        except (KeyError, TypeError, AttributeError):
            raise ContractError(f"{path}: a case lacks id, sha256, expected or levels") from None
        if actual != stated:
            raise ContractError(
                f"{path}: {name}: sha256 is {actual[:12]}, the record says {stated[:12]}; its values were edited"
            )
        if name in known and known[name] != actual:
            raise ContractError(
                f"{path}: {name}: sha256 {actual[:12]} differs from the installed set's {known[name][:12]}"
            )
    if document.get("number_of_cases") != len(document["cases"]):
        raise ContractError(
            f"{path}: number_of_cases is {document.get('number_of_cases')}, found {len(document['cases'])}; truncated?"
        )
    return len(document["cases"])
