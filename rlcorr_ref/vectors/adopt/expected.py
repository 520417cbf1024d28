"""The values a consumer is judged against: the published ones, or those of its profile where it differs by definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...wire import evaluate_case
from .profile import Profile

# Slack of a value that the set does not publish: terms of a few roundings each, relative to the new value.
RELATIVE = 32.0
ROUNDED = 1e-12


def under(case: Mapping[str, Any], profile: Profile | None) -> tuple[Mapping[str, Any], str]:
    """The case with the expected values that hold under the profile, and what differs ("" where nothing does)."""
    if profile is None:
        return case, ""
    values: dict[str, Any] = {}
    reasons = []
    settings = _overridden(case, profile.overrides)
    if settings is not None:
        found = evaluate_case({"function": case["function"], "inputs": case["inputs"], **settings})
        values = {name: _pick(found, name) for name in case["expected"] if _pick(found, name) is not None}
        keys = [f"{block}.{k}={v}" for block, of in profile.overrides.items() for k, v in of.items()]
        reasons.append(", ".join(keys))
    for name in profile.dialects:
        if name in case.get("dialects", {}):
            values.update(case["dialects"][name]["expected"])
            reasons.append(f"dialect {name}: {case['dialects'][name]['note']}")
    changed = {name: value for name, value in values.items() if _differs(case["expected"][name], value)}
    if not changed:
        return case, ""
    expected = dict(case["expected"])
    for name, value in changed.items():
        record = expected[name]
        scale = _scale(record["data"], value, record.get("err_scale", 0.0))
        expected[name] = {**record, "data": value, "err_scale": scale}
    return {**case, "expected": expected}, "; ".join(reasons)


def _overridden(case: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The case's settings with the overrides in every block that it has; None where none applies."""
    key = "definition" if case["function"] == "objective" else "parameters"
    settings = dict(case.get(key) or {})
    touched = False
    for block, keys in overrides.items():
        if block == "weight" and case["function"] in ("weight", "ratio"):
            settings = {**settings, **keys}
        elif block == "rejection" and case["function"] == "reject" and "rejection" not in settings:
            settings = {**settings, **keys}
        elif block == "rejection" and settings.get(block):
            settings[block] = [{**rule, **keys} for rule in settings[block]]
        elif block != "rejection" and isinstance(settings.get(block), Mapping):
            settings[block] = {**settings[block], **keys}
        else:
            continue
        touched = True
    return {key: settings} if touched else None


def _pick(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _differs(record: Mapping[str, Any], value: Any) -> bool:
    return _any(record["data"], value, record.get("err_scale", 0.0))


def _any(old: Any, new: Any, err: Any) -> bool:
    if isinstance(old, list):
        return any(
            _any(o, n, err[i] if isinstance(err, list) else err) for i, (o, n) in enumerate(zip(old, new, strict=True))
        )
    if isinstance(old, str) or isinstance(new, str):
        return old != new
    return abs(float(new) - float(old)) > ROUNDED * (abs(float(old)) + err)


def _scale(old: Any, new: Any, err: Any) -> Any:
    """Error scale of a replaced value: the published one, grown with the value where the value grew."""
    if isinstance(new, list):
        return [
            _scale(o, n, err[i] if isinstance(err, list) else err)
            for i, (o, n) in enumerate(zip(old, new, strict=True))
        ]
    return max(err, 0.0 if isinstance(new, str) else RELATIVE * abs(float(new)))
