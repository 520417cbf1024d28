"""Features of a case: what an implementation must support to answer it. Derived from the envelope, never typed in.

A consumer skips cases by feature; the list of all features is also the list of options that have a vector.
"""

from __future__ import annotations

from typing import Any

# Values that ask for nothing: the defaults of a weight, a gate and a rejection rule.
PLAIN = {"level": "token", "inside": "ratio", "sign": "both", "clamp_order": "aggregate", "denominator": "kept"}


def features(function: str, inputs: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Sorted feature names, such as "function:ratio", "weight.level:sequence", "centering.tail:exact"."""
    found = {f"function:{function}"}
    definition = dict(settings)
    if function == "shard":
        found.add(f"shard.denominators:{settings.get('denominators', 'global')}")
        definition = dict(settings.get("definition") or {})
    if function in ("weight", "ratio"):
        gate = definition.pop("gate", None)
        definition = {"weight": definition, "gate": gate}
    elif function == "reject":
        definition = {"rejection": settings.get("rejection", [settings])}
    elif function == "surrogate":
        definition = {"surrogate": {"kind": "reinforce", **settings}}
    elif function == "aggregate":
        definition = {"aggregation": settings}
    elif function in ("advantages", "quantise"):
        found |= {f"{function}.{key}:{value}" for key, value in settings.items() if isinstance(value, str)}
        definition = {}
    for name in ("logp_anchor", "head_ids", "logp_sampler_full", "support", "logp_reference", "head_logp_anchor"):
        if inputs.get(name) is not None:
            found.add(f"input:{name}")
    if definition.get("temperature", 1.0) != 1.0:
        found.add("temperature")
    for block in ("surrogate", "weight", "gate", "centering", "aggregation", "kl"):
        if definition.get(block):
            found |= _block(block, definition[block])
    for rule in definition.get("rejection") or ():
        found |= _block("rejection", rule)
    if definition.get("entropy"):
        found.add("entropy")
    if definition.get("allow_double_ratio"):
        found.add("double-ratio")
    rows = inputs.get("mask")
    if rows and rows[0] and sum(map(sum, rows)) and max(sum(row) for row in rows) > 64:
        found.add("fp32-logprobs")  # storage error of bf16 log-probs alone exceeds a sequence ratio's meaning
    return sorted(found)


def _block(name: str, given: dict[str, Any]) -> set[str]:
    found = {name}
    for key, value in given.items():
        if name == "weight" and (key, value) == ("statistic", "ratio"):
            continue
        if isinstance(value, str) and PLAIN.get(key) != value:
            found.add(f"{name}.{key}:{value}")
        elif isinstance(value, dict):
            found.add(f"{name}.{key}")
        elif key in ("log_clamp", "dual", "tokens", "sequences") and value is not None:
            found.add(f"{name}.{key}")
        elif key in ("low", "eps_low") and value:
            found.add(f"{name}.{key}")
        elif key == "closed" and value is False:
            found.add(f"{name}.open")
        elif key == "weighted" and value:
            found.add(f"{name}.weighted")
        elif key in ("floor_sampler", "floor_trainer") and value is None:
            found.add(f"{name}.{key}:none")
    return found
