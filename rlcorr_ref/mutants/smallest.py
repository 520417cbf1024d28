"""Builders of the smallest inputs: a handful of numbers, everything else at its default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Rows = Sequence[Sequence[float]]


def ones(rows: Rows, value: Any = 1) -> list[list[Any]]:
    """[B, T] of one value in the shape of `rows`."""
    return [[value] * len(row) for row in rows]


def logps(
    function: str, p: Rows, q: Rows, *, mask: Any = None, a: Any = None, o: Any = None, **parameters: Any
) -> dict:
    """A case that starts at log-probs: trainer p, sampler q, anchor o [B, T] in nats; advantages `a` default to 1."""
    inputs: dict[str, Any] = {"logp_trainer": p, "logp_sampler": q, "mask": mask or ones(p)}
    if a is not None:
        inputs["advantages"] = a
    if o is not None:
        inputs["logp_anchor"] = o
    return {"function": function, "inputs": inputs, "parameters": parameters}


def chosen(
    p: Rows, q: Any = None, *, mask: Any = None, a: Any = None, o: Any = None, ref: Any = None, **definition: Any
) -> dict:
    """An objective on two logits per token whose sampled id 0 has log-prob p [B, T]; q defaults to p."""
    inputs: dict[str, Any] = {
        "logits": [[[x, math.log(-math.expm1(x))] for x in row] for row in p],
        "tokens": ones(p, 0),
        "mask": mask or ones(p),
        "advantages": a or ones(p, 1.0),
        "logp_sampler": p if q is None else q,
    }
    if o is not None:
        inputs["logp_anchor"] = o
    if ref is not None:
        inputs["logp_reference"] = ref
    return {"function": "objective", "inputs": inputs, "definition": definition}


def log(values: Sequence[float]) -> list[Any]:
    """Natural logs in wire form: log 0 is "-Infinity"."""
    return [math.log(x) if x > 0 else "-Infinity" for x in values]


def vocabulary(
    p: Sequence[float],
    q: Sequence[float],
    y: int,
    *,
    a: float = 1.0,
    head: Any = None,
    o: Any = None,
    **definition: Any,
) -> dict:
    """One token over a small vocabulary: probabilities p (as logits), q and o, sampled id y, centered.

    With `head` the ids recorded, else whole rows and tail "exact"; centering is on unless the definition says otherwise.
    """
    logq = log(q)
    inputs: dict[str, Any] = {
        "logits": [[log(p)]],
        "tokens": [[y]],
        "mask": [[1]],
        "advantages": [[a]],
        "logp_sampler": [[logq[y]]],
    }
    if head is None:
        inputs["logp_sampler_full"] = [[logq]]
    else:
        inputs["head_ids"] = [[list(head)]]
        inputs["head_logp_sampler"] = [[[logq[i] if i >= 0 else "-Infinity" for i in head]]]
    if o is not None:
        logo = log(o)
        inputs["logp_anchor"] = [[logo[y]]]
        if head is None:
            inputs["logp_anchor_full"] = [[logo]]
        else:
            inputs["head_logp_anchor"] = [[[logo[i] for i in head]]]
    centering = {"tail": "exact" if head is None else "rescaled"}
    return {"function": "objective", "inputs": inputs, "definition": {"centering": centering, **definition}}


def values(x: Rows, mask: Any = None, **parameters: Any) -> dict:
    """A reduction of per-token values."""
    return {"function": "aggregate", "inputs": {"values": x, "mask": mask or ones(x)}, "parameters": parameters}


def softmax(logits: Any, y: Any = None, support: Any = None, **parameters: Any) -> dict:
    """Log-softmax of one row of logits [V]."""
    inputs: dict[str, Any] = {"logits": [[list(logits)]]}
    if y is not None:
        inputs["tokens"] = [[y]]
    if support is not None:
        inputs["support"] = [[list(support)]]
    return {"function": "log_softmax", "inputs": inputs, "parameters": parameters}


def rewards(r: Sequence[float], groups: Sequence[int], **parameters: Any) -> dict:
    """Group advantages."""
    return {"function": "advantages", "inputs": {"rewards": list(r), "groups": list(groups)}, "parameters": parameters}


def grid(x: Rows, **parameters: Any) -> dict:
    """Quantise-dequantise."""
    return {"function": "quantise", "inputs": {"values": x}, "parameters": parameters}


def shards(case: dict, parts: Sequence[Sequence[int]], denominators: str = "global") -> dict:
    """An objective evaluated in shards (lists of rows)."""
    parameters = {"definition": case["definition"], "shards": [list(p) for p in parts], "denominators": denominators}
    return {"function": "shard", "inputs": case["inputs"], "parameters": parameters}
