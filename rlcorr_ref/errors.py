"""Errors of the contract: one exception type, and the checks that raise it.

Every message names the argument, what was expected and what came, so that it can be shown to a user as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


class ContractError(ValueError):
    """Input that the contract refuses. A `ValueError`, so that callers need not import this package to catch it."""


def check_keys(where: str, given: Mapping[str, Any], allowed: Iterable[str], required: Iterable[str] = ()) -> None:
    """Refuse unknown and missing keys of a mapping, naming them and listing what is known."""
    if not isinstance(given, Mapping):
        raise ContractError(f"{where}: expected an object with named keys, got {type(given).__name__}")
    allowed = list(allowed)
    unknown = [key for key in given if key not in allowed]
    if unknown:
        raise ContractError(f"{where}: unknown key {', '.join(map(repr, unknown))}; known keys: {', '.join(allowed)}")
    missing = [key for key in required if key not in given]
    if missing:
        raise ContractError(f"{where}: missing key {', '.join(map(repr, missing))}")


def check_choice(where: str, value: Any, choices: Iterable[Any]) -> Any:
    """Refuse a value that is not one of `choices`, listing them."""
    choices = list(choices)
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        known = ", ".join("null" if c is None else repr(c) for c in choices)
        raise ContractError(f"{where}: expected one of {known}; got {value!r}")
    return value


def check_bool(where: str, value: Any) -> bool:
    """Refuse anything but true and false."""
    if not isinstance(value, bool):
        raise ContractError(f"{where}: expected true or false, got {value!r}")
    return value


def check_number(
    where: str,
    value: Any,
    *,
    optional: bool = False,
    above: float | None = None,
    at_least: float | None = None,
) -> float | None:
    """Return a finite float, or None where `optional`; bool, NaN, infinite and out-of-range values are refused."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        kind = "a finite number or null" if optional else "a finite number"
        raise ContractError(f"{where}: expected {kind}, got {value!r}")
    if above is not None and not value > above:
        raise ContractError(f"{where}: expected a number > {above:g}, got {value!r}")
    if at_least is not None and not value >= at_least:
        raise ContractError(f"{where}: expected a number >= {at_least:g}, got {value!r}")
    return float(value)
