"""The report of a test run: what every case did, how much of its tolerance it used, and what has no vector or no test.

`schema/report.json` beside this file is its JSON Schema. Outcomes: passed; near (passed, more than half of a tolerance used);
failed; error (the consumer raised, or never answered); xfailed; xpassed (expected to fail and passed); skipped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from .. import store
from ..canonical import write_text
from .profile import Profile
from .selection import Request, read_request, select

NEAR = 0.5
SCHEMA = 1
STAGES = ("weight.level:", "weight.outside:", "gate.level:", "surrogate.kind:", "centering.tail:", "rejection.reduce:")
OUTCOMES = ("passed", "near", "failed", "error", "xfailed", "xpassed", "skipped")


def outcome(entry: Mapping[str, Any]) -> str:
    """The outcome of one run from pytest's word for it and the share of tolerance used."""
    word = entry["pytest"]
    if word == "passed" and (entry.get("used") or 0.0) > NEAR:
        return "near"
    if word == "failed" and not entry.get("misses") and (not entry.get("checked") or entry.get("used") is not None):
        return "error"
    return word


def build(entries: list[dict[str, Any]], profile: Profile | None, xfails: Mapping[str, str]) -> dict[str, Any]:
    """The report of the runs `entries` (summary, test, request, pytest's outcome)."""
    manifest = store.manifest()
    requests = [read_request(*json.loads(text)) for text in sorted({entry["request"] for entry in entries})]
    profiles = {p.name: p for p in (profile, *(request.profile for request in requests)) if p is not None}
    xfails = {name: why for given in (xfails, *(request.xfails for request in requests)) for name, why in given.items()}
    runs = []
    for entry in sorted(entries, key=lambda e: (e["case"], e["level"], e["dtype"], e["test"])):
        case = store.get(entry["case"])
        run = {key: entry[key] for key in ("case", "level", "dtype", "test")}
        run.update(outcome=outcome(entry), used=entry.get("used"), flags=case["flags"])
        for key in ("misses", "by_definition", "reason", "suspects"):
            if entry.get(key):
                run[key] = entry[key]
        runs.append(run)
    tested = {run["case"] for run in runs}
    active = store.load()
    families: dict[str, dict[str, int]] = {}
    for case in active:
        row = families.setdefault(case["id"].rpartition(".")[0], {"cases": 0, "tested": 0})
        row["cases"] += 1
        row["tested"] += case["id"] in tested
    return {
        "schema": SCHEMA,
        "set_version": manifest["set_version"],
        "interpreting": manifest["interpreting"],
        "profile": ", ".join(profiles) or None,
        "counts": {name: sum(run["outcome"] == name for run in runs) for name in OUTCOMES},
        "largest_used": max((run["used"] for run in runs if run["outcome"] in ("passed", "near")), default=None),
        "runs": runs,
        "not_run": _not_run(requests, profile, tested),
        "families": families,
        "families_without_test": sorted(name for name, row in families.items() if not row["tested"]),
        "options_without_vector": {
            name: why for p in profiles.values() for name, why in options_without_vector(p, active).items()
        },
        "xfails_unused": sorted(name for name in xfails if not any(_under(name, case) for case in tested)),
        "bug_classes": bug_classes(runs),
        "known_faults": dict(
            Counter(
                name for run in runs if run["outcome"] == "failed" for name in run.get("suspects", ())
            ).most_common()
        ),
    }


def _under(name: str, case: str) -> bool:
    return case == name or case.startswith(name if "." in name else name + ".")


def _not_run(requests: list[Request], profile: Profile | None, tested: set[str]) -> dict[str, list[str]]:
    """Reason -> ids of cases in the families asked for that no test ran."""
    out: dict[str, set[str]] = {}
    for request in requests:
        for reason, names in select(request, profile).left_out.items():
            out.setdefault(reason, set()).update(name for name in names if name not in tested)
    return {reason: sorted(names) for reason, names in sorted(out.items()) if names}


def options_without_vector(profile: Profile, active: list[dict[str, Any]]) -> dict[str, str]:
    """Option of the profile -> why no vector tests it: no definition has it, or a feature or a pair of stages has no case.

    Stages meet in pairs (a row weight and a clipped surrogate, a band and a tail model): a pair that no case has is untested
    even where each of the two is; the reductions and penalties are independent of the rest and count alone.
    """
    have = [set(case["features"]) for case in active]
    known = set().union(*have)
    out = {}
    for name, needed in profile.options.items():
        if isinstance(needed, str):
            out[name] = needed
            continue
        missing = sorted(f for f in needed - known if not f.startswith("function:"))
        stages = sorted(f for f in needed if f.startswith(STAGES))
        apart = [pair for pair in combinations(stages, 2) if not any(features.issuperset(pair) for features in have)]
        if missing:
            out[name] = f"no case has {', '.join(missing)}"
        elif apart:
            out[name] = "no case combines " + ", ".join(" with ".join(pair) for pair in apart)
    return out


def bug_classes(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Flags of failing cases, the most telling first: the share of the runs with that flag that fail."""
    failing = Counter(flag for run in runs if run["outcome"] == "failed" for flag in run["flags"])
    everything = Counter(
        flag for run in runs if run["outcome"] in ("passed", "near", "failed") for flag in run["flags"]
    )
    rows = [{"flag": flag, "failed": count, "runs": everything[flag]} for flag, count in failing.items()]
    return sorted(rows, key=lambda row: (-row["failed"] / row["runs"], -row["failed"], row["flag"]))


def write(path: str, report: Mapping[str, Any]) -> None:
    """Write the report through a temporary file."""
    write_text(Path(path), json.dumps(report, indent=1, sort_keys=True, allow_nan=False) + "\n")


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report in a few lines, for the end of the test run."""
    counts = ", ".join(f"{count} {name}" for name, count in report["counts"].items() if count)
    used = report["largest_used"]
    out = [
        f"set {report['set_version']}: {counts}" + ("" if used is None else f"; largest share of tolerance {used:.2g}")
    ]
    failed = report["counts"]["failed"]
    for name, count in list(report["known_faults"].items())[:1]:
        if 2 * count >= failed:
            out.append(f"known fault {name}: same numbers in {count} of {failed} failing cases")
    for row in report["bug_classes"][:3]:
        out.append(f"{row['flag']}: {row['failed']} of {row['runs']} cases with this bug class fail")
    left = sum(map(len, report["not_run"].values()))
    if left:
        out.append(
            f"{left} cases not run: " + "; ".join(f"{len(ids)} {reason}" for reason, ids in report["not_run"].items())
        )
    if report["options_without_vector"]:
        out.append(f"options without a vector: {', '.join(report['options_without_vector'])}")
    return out
