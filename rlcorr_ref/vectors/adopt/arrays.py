"""Wire values to the consumer's arrays and back. torch and NumPy are imported only where a test asks for them.

Floats come in the dtype of the run; tokens, masks, ids and supports as int64. Everything keeps its contract shape: [B, T],
[B, T, K] or [B, T, V].
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from ...contract import Objective
from ...errors import ContractError

INTEGERS = ("tokens", "mask", "mask_kept", "head_ids", "support", "groups")
# What a consumer that starts at log-probs does not read: the trainer's row is given as log-probs there.
FROM_LOGITS = ("logits", "tokens", "support", "head_ids")
NAMES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"}


def arguments(case: Mapping[str, Any], level: str, dtype: str, library: str) -> dict[str, Any]:
    """The inputs of a case at a level as arrays, and its complete settings under "definition" or "parameters"."""
    given = dict(case["inputs"])
    if case["function"] == "objective" and level in ("logprobs", "weights"):
        given = {name: value for name, value in given.items() if name not in FROM_LOGITS}
    given.update(case["levels"][level].get("inputs", {}))
    out = {name: array(name, value, dtype, library) for name, value in given.items() if value is not None}
    key = "definition" if case["function"] == "objective" else "parameters"
    return {**out, key: complete(case)}


def array(name: str, value: Any, dtype: str, library: str) -> Any:
    """One input: nested lists to an array of the library; scalars stay numbers, "lists" stay plain Python floats."""
    if not isinstance(value, list):
        return value
    plain = _floats(value, name not in INTEGERS)
    if library == "lists":
        return plain
    module = importlib.import_module(library)
    kind = module.int64 if name in INTEGERS else getattr(module, NAMES[dtype])
    if library == "torch":
        return module.tensor(plain, dtype=kind)
    return module.array(plain, dtype=kind)


def _floats(value: Any, real: bool) -> Any:
    """Nested wire values as Python numbers: "NaN" and "Infinity" become floats."""
    if isinstance(value, list):
        return [_floats(item, real) for item in value]
    return float(value) if real else int(value)


def complete(case: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a case with the contract's defaults spelled out, where the contract has a record for them."""
    if case["function"] == "objective":
        return Objective.from_dict(case["definition"]).to_dict()
    given = dict(case.get("parameters") or {})
    if case["function"] == "weight":
        gate = given.pop("gate", None)
        full = Objective.from_dict({"weight": given, "gate": gate}).to_dict()
        return {**full["weight"], "gate": full["gate"]}
    if case["function"] == "ratio":
        full = Objective.from_dict({"weight": given}).to_dict()["weight"]
        return {key: full[key] for key in ("level", "log_clamp", "clamp_order", "numerator")}
    if case["function"] == "reject":
        rules = given.get("rejection", [given])
        return {"rejection": Objective.from_dict({"rejection": rules}).to_dict()["rejection"]}
    if case["function"] == "surrogate":
        return Objective.from_dict({"surrogate": {"kind": "reinforce", **given}}).to_dict()["surrogate"]
    if case["function"] == "aggregate":
        return Objective.from_dict({"aggregation": given}).to_dict()["aggregation"]
    return given


def answer(given: Any, required: list[str], name: str) -> dict[str, Any]:
    """A consumer's answer as wire values: {output: array}, or the array alone where one output is required."""
    if not isinstance(given, Mapping):
        if len(required) != 1:
            raise ContractError(
                f"{name}: this case asks for {', '.join(required)}; answer with a dict {{output: array}}, "
                f"got {type(given).__name__}"
            )
        given = {required[0]: given}
    return {key: wire(value, f"{name}: {key}") for key, value in given.items()}


def wire(value: Any, where: str) -> Any:
    """Arrays (anything with `tolist`), numbers and nested lists as plain JSON values; non-finite numbers as text."""
    if isinstance(value, Mapping):
        return {key: wire(item, where) for key, item in value.items()}
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [wire(item, where) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ContractError(f"{where}: expected an array, a number or nested lists of numbers, got {type(value).__name__}")
