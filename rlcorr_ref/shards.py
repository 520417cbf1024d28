"""Micro-batch and rank shards: with global denominators the shards' gradients add up to the whole batch's, exactly.

    grad(whole)[rows of shard s] = grad(shard s)      loss(whole) = sum_s loss(shard s)

Each shard is evaluated with the counts of the whole batch (`tokens`, `sequences`) as explicit denominators, which is what a
trainer must all-reduce before the backward pass. Local denominators and a mean over shards give another objective: the mean
of means (verl `agg_loss` with and without `batch_num_tokens`; TRL and ms-swift "bnpo").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from .batch import Batch
from .contract import Aggregation, Objective
from .errors import ContractError, check_choice, check_keys
from .objective import Evaluation


def take_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """The batch restricted to `rows` [S]; zero rows give an empty shard with the same T, V and K."""
    index = np.asarray(rows, dtype=np.int64)
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return Batch(**{name: None if value is None else value[index] for name, value in values.items()})


def global_objective(objective: Objective, batch: Batch) -> Objective:
    """`objective` with the whole batch's counts as explicit denominators.

    Raises `ContractError` where a global count cannot carry over: batch-normalised weights and "shrunk" rejection need the
    whole batch's weights or masks, not a count.
    """
    if objective.weight is not None and objective.weight.normalise is not None:
        raise ContractError(
            "weight.normalise and shards: the normaliser is a mean over the whole batch, all-reduce it first"
        )
    if any(rule.denominator == "shrunk" for rule in objective.rejection):
        raise ContractError(
            "rejection.denominator and shards: 'shrunk' counts need the whole batch's mask after rejection"
        )
    rule = objective.aggregation
    if rule.kind == "token-mean" and rule.tokens is None:
        rule = replace(rule, tokens=float(batch.mask.sum()) or None)
    elif rule.kind.startswith("seq-mean") and rule.sequences is None:
        rule = replace(rule, sequences=float((batch.mask.sum(1) > 0).sum()) or None)
    return replace(objective, aggregation=rule)


def evaluate_shards(
    objective: Objective, batch: Batch, shards: Sequence[Sequence[int]], denominators: str = "global"
) -> list[Evaluation]:
    """Evaluate each shard (a list of row numbers) of `batch`.

    `denominators` "global" uses the whole batch's counts; "local" lets each shard count for itself, a shard without valid
    tokens then contributes nothing (its loss and gradient are 0). Raises `ContractError` unless the shards partition the rows.
    """
    check_choice("denominators", denominators, ("global", "local"))
    seen = sorted(int(row) for shard in shards for row in shard)
    if seen != list(range(batch.mask.shape[0])):
        raise ContractError(f"shards: expected every row 0..{batch.mask.shape[0] - 1} exactly once, got {seen}")
    if denominators == "global":
        objective = global_objective(objective, batch)
    out = []
    for rows in shards:
        part = take_rows(batch, rows)
        own = objective
        if denominators == "local" and not part.mask.any():
            own = replace(objective, aggregation=Aggregation(kind="token-sum"))
        out.append(own.evaluate(part))
    return out


def shard(inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Wire form. Parameters: definition, shards [[rows], ...], denominators ("global" or "local").

    Returns the loss of each shard, their combination (sum for global, mean over shards for local denominators) and the
    gradient on the logits [B, T, V] of that combination.
    """
    check_keys("parameters", parameters, ("definition", "shards", "denominators"), ("shards",))
    batch = Batch.from_dict(inputs)
    objective = Objective.from_dict(parameters.get("definition"))
    mode = parameters.get("denominators", "global")
    parts = evaluate_shards(objective, batch, parameters["shards"], mode)
    share = 1.0 if mode == "global" else 1.0 / len(parts)
    grad = np.zeros(batch.logits.shape)
    for rows, part in zip(parameters["shards"], parts, strict=True):
        grad[np.asarray(rows, dtype=np.int64)] = share * part.grad_logits
    losses = [part.loss for part in parts]
    return {"losses": losses, "loss": share * float(np.sum(losses)), "grad_logits": grad}
