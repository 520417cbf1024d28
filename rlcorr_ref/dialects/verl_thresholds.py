"""verl's threshold strings: importance bounds and rejection rules, without the readings that its parser allows silently.

Source: verl 0.9.1 `rollout_corr_helper.py` (a string is split at the first "_" and each part goes through `float`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ContractError

STATISTICS = ("k1", "k2", "k3")
REDUCTIONS = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "max"}
RS_OPTIONS = tuple(
    f"{where}_{stat}" for where in REDUCTIONS for stat in STATISTICS if not (where == "seq_max" and stat == "k1")
)


def number(where: str, text: Any) -> float:
    """A positive number from a number or a string; NaN is refused, infinity is allowed (no cap)."""
    if isinstance(text, bool):
        raise ContractError(f"{where}: expected a number, got {text!r}; verl raises TypeError")
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise ContractError(f"{where}: expected a number or 'low_high', got {text!r}; verl raises ValueError") from None
    if math.isnan(value):
        raise ContractError(
            f"{where}: {text!r} is refused; verl accepts it, because nan <= 0 is false, and every weight becomes NaN "
            "(in a pair: 0)"
        )
    if value <= 0:
        raise ContractError(f"{where}: expected a number > 0, got {text!r}; verl raises ValueError")
    return value


def pair(where: str, text: str) -> tuple[float, float]:
    """(low, high) from 'low_high'. More than one "_" is refused: Python's float reads '2.0_3' as 2.03."""
    parts = text.split("_")
    if len(parts) != 2:
        rest = text.split("_", 1)[1]
        try:
            reading = f"({float(parts[0])}, {float(rest)}), silently, because float() accepts underscores"
        except ValueError:
            reading = "an error"
        raise ContractError(
            f"{where}: {text!r} has {len(parts) - 1} underscores, expected 'low_high'; verl reads it as {reading}"
        )
    low, high = number(where, parts[0]), number(where, parts[1])
    if low > high:
        raise ContractError(f"{where}: low {low:g} is above high {high:g} in {text!r}; verl raises ValueError")
    return low, high


def importance_bounds(value: Any) -> tuple[float | None, float | None]:
    """(low, high) of rollout_is_threshold: (None, cap) for a number, the band for 'low_high'; high None is no cap."""
    where = "verl.rollout_is_threshold"
    if isinstance(value, str) and "_" in value:
        low, high = pair(where, value)
    else:
        low, high = None, number(where, value)
    return low, None if high == math.inf else high


def rejection_rules(o: Mapping[str, Any], numerator: str, denominator: str) -> list[dict[str, Any]]:
    """The rejection list of rollout_rs and rollout_rs_threshold. k1 thresholds are bounds on q/n; k1 itself is its log."""
    if o["rollout_rs"] is None:
        return []
    where = "verl.rollout_rs"
    names = list(dict.fromkeys(part.strip() for part in str(o["rollout_rs"]).split(",") if part.strip()))
    unknown = [name for name in names if name not in RS_OPTIONS]
    if unknown or not names:
        raise ContractError(
            f"{where}: unknown option {', '.join(map(repr, unknown)) or 'none'}; known: {', '.join(RS_OPTIONS)}"
        )
    given = o["rollout_rs_threshold"]
    if given is None:
        raise ContractError("verl.rollout_rs_threshold: required because rollout_rs is set; verl raises ValueError")
    texts = [part.strip() for part in given.split(",")] if isinstance(given, str) else [given]
    if len(texts) not in (1, len(names)):
        raise ContractError(f"verl.rollout_rs_threshold: expected 1 or {len(names)} thresholds, got {len(texts)}")
    texts = texts * len(names) if len(texts) == 1 else texts
    return [_rule(name, text, numerator, denominator) for name, text in zip(names, texts, strict=True)]


def _rule(name: str, text: Any, numerator: str, denominator: str) -> dict[str, Any]:
    where = f"verl.rollout_rs_threshold of {name}"
    reduction, statistic = name.rsplit("_", 1)
    rule = {
        "statistic": statistic,
        "reduce": REDUCTIONS[reduction],
        "log_clamp": 20.0,
        "numerator": numerator,
        "denominator": denominator,
    }
    two = isinstance(text, str) and "_" in text
    if statistic != "k1":
        if two:
            raise ContractError(f"{where}: {statistic} takes an upper bound only, got {text!r}; verl raises ValueError")
        return {**rule, "high": number(where, text)}
    if two:
        low, high = pair(where, text)
    else:
        high = number(where, text)
        low = 1.0 / high
        if low > high:
            raise ContractError(
                f"{where}: a single k1 bound is the upper one and 1/{high:g} the lower; give a number >= 1"
            )
    return {**rule, "low": math.log(low), "high": math.log(high)}
