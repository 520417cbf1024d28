"""Reading a framework's configuration fragment: YAML or JSON, nested or dotted, in the framework's own names.

    verl:
      algorithm:
        rollout_correction: {rollout_is: token, rollout_is_threshold: 2.0}

A key names an option when it is the option's name or ends with "." and the option's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ContractError
from . import get, names
from .records import Dialect
from .settings import CIRCUMSTANCES, canonical


def read_fragment(path: str) -> Any:
    """The content of a .json, .yaml or .yml file. Raises `ContractError` for an unreadable or malformed file."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise ContractError(f"{path}: expected a file that ends in .json, .yaml or .yml")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ContractError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ContractError(f"{path}: not UTF-8 text") from None
    if suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ContractError(f"{path}: not valid JSON, line {error.lineno}: {error.msg}") from None
    try:
        import yaml
    except ImportError:
        raise ContractError(
            f"{path}: reading YAML needs the package yaml, which is not installed; pip install pyyaml, or convert "
            "the file to JSON"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ContractError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def split(content: Any, framework: str | None) -> tuple[Dialect, dict[str, Any]]:
    """The dialect and its options from a fragment.

    The framework is `framework`, or the only top-level key. Raises `ContractError` where neither names a known one, where a
    key is no option, or where two keys give one option different values.
    """
    if not isinstance(content, Mapping):
        raise ContractError(f"config: expected an object at the top, got {type(content).__name__}")
    if len(content) == 1 and next(iter(content)) in names() and framework in (None, next(iter(content))):
        framework, content = next(iter(content.items()))
        content = {} if content is None else content
    if framework is None:
        raise ContractError(
            "config: name the framework by one top-level key or by --framework; found "
            f"{', '.join(map(repr, content))}; "
            f"known: {', '.join(names())}"
        )
    dialect = get(framework)
    if not isinstance(content, Mapping):
        raise ContractError(f"config.{framework}: expected an object with options, got {type(content).__name__}")
    return dialect, options(dialect, content)


def options(dialect: Dialect, content: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a nested fragment sets, by the dialect's names."""
    known = {option.name: option.kind for option in (*dialect.options, *CIRCUMSTANCES)}
    out: dict[str, Any] = {}
    unknown: list[str] = []

    def walk(prefix: str, value: Any) -> None:
        name = match(prefix, known) if prefix else None
        if name is None and isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{prefix}.{canonical(str(key))}" if prefix else canonical(str(key)), inner)
        elif name is None:
            unknown.append(prefix)
        elif name in out and out[name] != value:
            raise ContractError(f"config: {name} is set twice with different values, {out[name]!r} and {value!r}")
        else:
            out[name] = value

    walk("", content)
    if unknown:
        raise ContractError(
            f"config: unknown option {', '.join(map(repr, unknown))} of {dialect.name}; known: {', '.join(known)}. "
            "Pass only "
            "the part of the configuration that concerns the loss"
        )
    return out


def match(path: str, known: Mapping[str, str]) -> str | None:
    """The option that a dotted path names: the longest known name that is the path or a dotted suffix of it."""
    parts = path.split(".")
    for start in range(len(parts)):
        name = ".".join(parts[start:])
        if name in known:
            return name
    return None
