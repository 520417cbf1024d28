"""The wire format: one JSON envelope for everything that can be asked, plain values in and out.

    {"function": NAME, "inputs": {...}, "parameters": {...}}        "objective" takes "definition" for "parameters"

Non-finite numbers travel as the strings "NaN", "Infinity", "-Infinity": bare NaN is not JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from . import functions, shards
from .batch import Batch
from .contract import Objective
from .errors import ContractError, check_keys
from .objective import Evaluation


def evaluate_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate one case of the contract and return plain JSON values.

    `case` = {"function": "objective" (default), "inputs": {...}, "definition": {...}}. Raises `ContractError` for an unknown
    function, unknown keys and everything that the function itself refuses.
    """
    if not isinstance(case, Mapping):
        raise ContractError(f"case: expected an object with inputs and definition, got {type(case).__name__}")
    name = case.get("function", "objective")
    if name not in FUNCTIONS:
        raise ContractError(f"function: unknown name {name!r}; known: {', '.join(FUNCTIONS)}")
    settings = "definition" if name == "objective" else "parameters"
    check_keys("case", case, ("function", "inputs", settings), ("inputs",))
    return to_wire(FUNCTIONS[name](case["inputs"], case.get(settings) or {}))


def objective(inputs: Mapping[str, Any], definition: Mapping[str, Any]) -> dict[str, Any]:
    """The objective itself; output keys are the fields of `Evaluation`."""
    result = Objective.from_dict(definition).evaluate(Batch.from_dict(inputs))
    return {f.name: getattr(result, f.name) for f in fields(Evaluation)}


FUNCTIONS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]] = {
    "objective": objective,
    "log_softmax": functions.log_softmax,
    "ratio": functions.ratio,
    "weight": functions.weight,
    "reject": functions.reject,
    "surrogate": functions.surrogate,
    "head_coefficients": functions.head_coefficients,
    "aggregate": functions.aggregate,
    "advantages": functions.advantages,
    "diagnostics": functions.diagnostics,
    "quantise": functions.quantise,
    "shard": shards.shard,
}


def to_wire(value: Any) -> Any:
    """Plain JSON values: arrays as nested lists, non-finite numbers as strings."""
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return to_wire(value.tolist())
    if isinstance(value, (list, tuple)):
        return [to_wire(item) for item in value]
    if isinstance(value, (np.floating, np.integer, np.bool_)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
