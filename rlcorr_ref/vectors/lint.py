"""Keeping the published files in step with the cases, without ever changing a published value.

    render    all files of the set as the code declares them
    lint      what differs from the files on disk, and every rule that is broken
    write     put the rendered files in place; on a broken rule the old file stays and the new text goes to <file>.rej

The ledger `published/<set version>.json` lists id -> sha256 of every published case. Its lines are never changed or removed:
a wrong value is withdrawn and superseded by a new id.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from .. import __version__
from ..errors import ContractError
from . import model
from .build import record
from .canonical import canonical, document, read, write_rejected, write_text
from .flags import NOTES
from .model import plain
from .registry import Family, families
from .schema import schemas
from .store import DATA, ROOT

AXES = {
    "logits": "B T V",
    "tokens": "B T",
    "mask": "B T",
    "advantages": "B T",
    "logp_trainer": "B T",
    "logp_anchor": "B T",
    "logp_sampler": "B T",
    "logp_reference": "B T",
    "head_ids": "B T K",
    "head_logp_sampler": "B T K",
    "head_logp_trainer": "B T K",
    "head_logp_anchor": "B T K",
    "logp_sampler_full": "B T V",
    "logp_anchor_full": "B T V",
    "support": "B T V",
    "values": "B T",
    "rewards": "B",
    "groups": "B",
}
SCALE_KEYS = ("err_scale", "acc_scale")


class Problems(list):
    """Broken rules, one clear line each."""


def ledger_path(root: Path) -> Path:
    """The ledger of the current set version."""
    return root / "published" / f"{model.SET_VERSION}.json"


def ledger(root: Path) -> dict[str, str]:
    """id -> sha256 of every published case, over all sets."""
    out: dict[str, str] = {}
    for path in sorted((root / "published").glob("*.json")):
        out.update(read(path)["cases"])
    return out


def render(
    root: Path = ROOT, with_scales: bool = True, progress: Callable[[str], None] | None = None
) -> tuple[dict[str, str], Problems]:
    """Texts of all files by relative path, and the rules that are broken.

    Without `with_scales` the error scales of existing records are kept instead of recomputed (values always are).
    """
    published, problems = ledger(root), Problems()
    texts: dict[str, str] = {}
    found: dict[str, dict[str, Any]] = {}
    for entry in families():
        if progress:
            progress(entry.name)
        doc = _family(entry, root, with_scales, published, problems)
        texts[f"{DATA}/{entry.name}.json"] = document(doc, "cases")
        found.update({case["id"]: case for case in doc["cases"]})
    for name, sha in published.items():
        if name not in found:
            problems.append(f"{name}: published and now removed; withdraw it instead")
        elif found[name]["sha256"] != sha:
            problems.append(
                f"{name}: its published value changed (sha256 {found[name]['sha256'][:12]}, published {sha[:12]})"
            )
    texts["MANIFEST.json"] = document(_manifest(root, texts, found), "cases")
    texts["CHANGES.md"] = changes(found)
    for name, schema in schemas().items():
        texts[f"schema/{name}.json"] = document(schema, "$defs")
    return texts, problems


def _family(
    entry: Family, root: Path, with_scales: bool, published: dict[str, str], problems: Problems
) -> dict[str, Any]:
    path = root / DATA / f"{entry.name}.json"
    old = {case["id"]: case for case in read(path)["cases"]} if path.is_file() else {}
    cases = []
    for name, build in sorted(entry.builders.items()):
        before = old.get(name)
        if before is not None and before["status"] == "withdrawn":
            cases.append(before)
            continue
        try:
            case = record(build(), before, with_scales)
        except ContractError as error:
            problems.append(str(error))
            continue
        if before is not None and published.get(name) == case["sha256"]:
            _errata(before, case, problems)
        cases.append(case)
    declared = set(entry.builders)
    for name, before in sorted(old.items()):
        if name not in declared and before["status"] == "withdrawn":
            cases.append(before)
    cases.sort(key=lambda case: case["id"])
    used = sorted({flag for case in cases for flag in case["flags"]})
    doc = model.FamilyFile(
        family=entry.name,
        title=entry.title,
        schema=model.SCHEMA_VERSION,
        set_version=model.SET_VERSION,
        axes={key: AXES[key] for key in sorted({key for case in cases for key in case["inputs"]})},
        notes={flag: NOTES[flag] for flag in used},
        number_of_cases=len(cases),
        cases=cases,
    )
    return plain(doc)


def _errata(before: dict[str, Any], case: dict[str, Any], problems: Problems) -> None:
    """Text of a published case may be corrected and its scales widened: counted as errata. Scales never shrink."""
    for name, entry in case["expected"].items():
        for key in SCALE_KEYS:
            if _narrower(before["expected"].get(name, {}).get(key), entry.get(key)):
                problems.append(
                    f"{case['id']}: {key} of {name} is narrower than published; a passing consumer could fail"
                )
    skip = ("errata", "status", "kills")
    if canonical({k: v for k, v in before.items() if k not in skip}) != canonical(
        {k: v for k, v in case.items() if k not in skip}
    ):
        case["errata"] = before.get("errata", 0) + 1
        case["status"] = "errata"


def _narrower(old: Any, new: Any) -> bool:
    if isinstance(old, list) and isinstance(new, list):
        return any(_narrower(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, list):
        return any(_narrower(a, new) for a in old)
    if isinstance(new, list):
        return any(_narrower(old, b) for b in new)
    return old is not None and new is not None and new < old * (1 - 1e-9)


def _manifest(root: Path, texts: dict[str, str], found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    files = {}
    for path, text in texts.items():
        data = text.encode("utf-8")
        name = path.split("/")[-1]
        count = sum(1 for case in found.values() if case["id"].rpartition(".")[0] == name[: -len(".json")])
        files[name] = model.ManifestFile(hashlib.sha256(data).hexdigest(), len(data), count)
    counts = {
        status: sum(case["status"] == status for case in found.values()) for status in ("active", "withdrawn", "errata")
    }
    versions = {
        "rlcorr_ref": __version__,
        "numpy": np.__version__,
        "mpmath": mpmath.__version__,
        "python": platform.python_version(),
    }
    out = model.Manifest(
        schema=model.SCHEMA_VERSION,
        set_version=model.SET_VERSION,
        interpreting=interpreting_version(root),
        counts={"total": len(found), **counts},
        files=files,
        cases={name: case["sha256"] for name, case in sorted(found.items())},
        generator=versions,
    )
    new = plain(out)
    path = root / "MANIFEST.json"
    if path.is_file():  # the versions are those that last changed something
        old = read(path)
        if {k: v for k, v in old.items() if k != "generator"} == {k: v for k, v in new.items() if k != "generator"}:
            new["generator"] = old["generator"]
    return new


def interpreting_version(root: Path) -> str:
    """Version of the normative text, from its second line "Version N.M"."""
    lines = (root / "INTERPRETING.md").read_text(encoding="utf-8").splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Version "))


def changes(found: dict[str, dict[str, Any]]) -> str:
    """CHANGES.md: per set version what was added, corrected and withdrawn, and why."""
    out = [
        "# Changes",
        "",
        "Generated from the records. A published value is never edited: it is withdrawn and superseded.",
        "",
    ]
    for version in sorted({case["since"] for case in found.values()}, reverse=True):
        rows = [case for case in found.values() if case["since"] == version]
        gone = [case for case in rows if case["status"] == "withdrawn"]
        out += [f"## {version}", "", "| id | case | why |", "|---|---|---|"]
        for case in sorted(rows, key=lambda c: c["id"]):
            threads = [s["cite"] for s in case["source"] if s["role"] == "regression"]
            links = threads or sorted(
                {link for flag in case["flags"] for link in NOTES[flag].links} if not threads else []
            )
            out.append(f"| {case['id']} | {case['title']} | {'; '.join(links[:3]) or ', '.join(case['flags'])} |")
        if gone:
            out += ["", "Withdrawn:", ""]
            out += [
                f"- {case['id']}: {case['withdrawn_because']}"
                + (f" (superseded by {case['superseded_by']})" if case.get("superseded_by") else "")
                for case in gone
            ]
        out.append("")
    return "\n".join(out)


def lint(root: Path = ROOT, with_scales: bool = True) -> Problems:
    """Every broken rule, and every file that is not what the code declares."""
    texts, problems = render(root, with_scales)
    for path, text in texts.items():
        target = root / path
        if not target.is_file():
            problems.append(f"{path}: missing; run `rlcorr vectors lint --write`")
        elif not _same(path, target.read_text(encoding="utf-8"), text):
            problems.append(
                f"{path}: not what the cases give{_which(path, target, text)}; run `rlcorr vectors lint --write`"
            )
    return problems


def _same(path: str, old: str, new: str) -> bool:
    if path != "MANIFEST.json":
        return old == new
    a, b = json.loads(old), json.loads(new)
    return {**a, "generator": None} == {**b, "generator": None}


def _which(path: str, target: Path, text: str) -> str:
    """Up to three ids that differ, for a family file."""
    if not path.startswith(DATA):
        return ""
    old = {case["id"]: case for case in read(target)["cases"]}
    new = {case["id"]: case for case in json.loads(text)["cases"]}
    differ = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return f" ({', '.join(differ[:3])}{', ...' if len(differ) > 3 else ''})" if differ else ""


def write(root: Path = ROOT, with_scales: bool = True, publish: bool = False, progress=None) -> Problems:
    """Render and put the files in place; with `publish` add new cases to the ledger. Nothing is changed on a problem."""
    texts, problems = render(root, with_scales, progress)
    if problems:
        for path, text in texts.items():
            target = root / path
            if target.is_file() and not _same(path, target.read_text(encoding="utf-8"), text):
                write_rejected(target, text)
        return problems
    for path, text in texts.items():
        target = root / path
        if not target.is_file() or not _same(path, target.read_text(encoding="utf-8"), text):
            write_text(target, text)
        target.with_name(target.name + ".rej").unlink(missing_ok=True)
    if publish:
        append_to_ledger(root)
    return problems


def append_to_ledger(root: Path) -> int:
    """Add the set's new cases to the ledger; returns how many. Existing lines are never touched."""
    known = ledger(root)
    path = ledger_path(root)
    current = read(path)["cases"] if path.is_file() else {}
    new = {name: sha for name, sha in read(root / "MANIFEST.json")["cases"].items() if name not in known}
    write_text(path, document({"set_version": model.SET_VERSION, "cases": {**current, **new}}, "cases"))
    return len(new)
