"""JSON Schema (2020-12) generated from the typed models, so that the two cannot disagree.

python -m rlcorr_ref.cli vectors lint --write      rewrites rlcorr_ref/vectors/schema/*.json
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from . import model

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NESTED = {
    "anyOf": [
        {"type": ["number", "null"]},
        {"enum": ["NaN", "Infinity", "-Infinity"]},
        {"type": "array", "items": {"$ref": "#/$defs/Nested"}},
    ]
}
PATTERNS = {
    "id": r"^[a-z]+(\.[a-z]+)*\.[0-9]{4}$",
    "superseded_by": r"^[a-z]+(\.[a-z]+)*\.[0-9]{4}$",
    "slug": r"^[a-z0-9]+(-[a-z0-9]+)*$",
    "sha256": r"^[0-9a-f]{64}$",
    "set_version": r"^[0-9]{4}\.[0-9]+$",
    "since": r"^[0-9]{4}\.[0-9]+$",
}
ROOTS = {"family": model.FamilyFile, "manifest": model.Manifest}


def schemas() -> dict[str, dict[str, Any]]:
    """All schema documents by file stem."""
    out = {}
    for name, cls in ROOTS.items():
        definitions: dict[str, Any] = {"Nested": NESTED}
        root = _record(cls, definitions)
        out[name] = {"$schema": DIALECT, "title": cls.__name__, **root, "$defs": definitions}
    out["response"] = _response()
    return out


def _record(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    properties, required = {}, []
    for f in dataclasses.fields(cls):
        properties[f.name] = _type(hints[f.name], definitions)
        if f.name in PATTERNS and f.name in hints:
            properties[f.name] = {"type": "string", "pattern": PATTERNS[f.name]}
        has_default = f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        if not has_default:
            required.append(f.name)
    doc = (cls.__doc__ or "").strip().split("\n")[0]
    return {
        "type": "object",
        "description": doc,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is model.Nested:
        return {"$ref": "#/$defs/Nested"}
    if dataclasses.is_dataclass(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # placeholder against recursion
            definitions[hint.__name__] = _record(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if origin is typing.Literal:
        values = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        return {"enum": list(values)}
    if origin is list:
        return {"type": "array", "items": _type(args[0], definitions)}
    if origin is dict:
        # definition and parameters are checked by the contract itself, key by key; here only that they are objects
        return {"type": "object", "additionalProperties": True if args[1] is Any else _type(args[1], definitions)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_type(arg, definitions) for arg in args]}
    names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return {"type": names[hint]}


def _response() -> dict[str, Any]:
    answer = _record(model.Answer, {})
    return {
        "$schema": DIALECT,
        "title": "Response",
        "type": "object",
        "description": "Answers by case id: outputs by name. A top-level dtype or level holds for all answers that state none.",
        "properties": dict(answer["properties"]),
        "patternProperties": {
            PATTERNS["id"]: {
                "type": "object",
                "properties": dict(answer["properties"]),
                "additionalProperties": True,
            }
        },
        "additionalProperties": False,
    }
