"""One gradient over a rollout in micro-batches, measured on the way and held against the reference where asked.

The whole batch's denominator is given to every micro-batch, so that their gradients add up to the batch's. Responses of
similar length go together, each micro-batch cut to its own longest one. Rows of zero advantage get a forward pass only,
for the measurements, unless the reference is to confirm that they contribute nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repro.backward import Loss, collected, refuse_nonfinite
from repro.gpu.hf_policy import HFPolicy
from repro.gpu.measures import pooled, token_measures
from repro.losses import LossBatch
from repro.oracle import compare
from repro.policies import State
from repro.samplers import Rollout

ORACLE_TOKENS = 8  # of a checked row: the float64 reference holds several arrays over the vocabulary for each


@dataclass(frozen=True)
class Gradient:
    """Gradients by weight (float32, on the policy's device), their norm, the pooled measurements of the rollout, and the
    largest scaled error against the reference, or None where nothing was compared."""

    values: State
    norm: float
    measures: dict[str, float]
    oracle_error: float | None


def micro_batches(lengths: Tensor, size: int) -> list[Tensor]:
    """Row indices in pieces of ``size`` responses of similar length, the longest first: what does not fit fails at once."""
    return list(lengths.argsort(descending=True, stable=True).split(size))


def moved(batch: LossBatch, device: torch.device) -> LossBatch:
    """The same fields on ``device``."""
    return LossBatch(**{name: None if value is None else value.to(device) for name, value in vars(batch).items()})


def gradient(
    policy: HFPolicy,
    state: State,
    rollout: Rollout,
    batch: LossBatch,
    definition: Mapping[str, Any],
    loss: Loss,
    checked: Sequence[int],
    micro_batch: int,
    where: Mapping[str, Any],
) -> Gradient:
    """The gradient of ``loss`` on the whole rollout at the float32 weights ``state``.

    ``definition`` has an explicit denominator; the first tokens of ``checked`` rows are compared with ``rlcorr_ref`` in
    float64, on the logits that train. Raises TrainingDiverged for logits or a norm that are not finite and OracleMismatch
    for a wrong gradient.
    """
    weights = {name: value.detach().requires_grad_() for name, value in state.items()}
    lengths = rollout.mask.sum(-1)
    measures, error = [], None
    for rows in micro_batches(lengths, micro_batch):
        active = torch.tensor([bool(batch.advantages[r, 0] != 0) or r in checked for r in rows.tolist()])
        for piece, trained in ((rows[active], True), (rows[~active], False)):
            if not len(piece):
                continue
            longest = int(lengths[piece].max())
            part = moved(batch.rows(piece, longest), policy.device)
            with torch.set_grad_enabled(trained):
                logits = policy.response_logits(weights, rollout.prompts[piece], part.tokens)
            refuse_nonfinite(logits.detach(), part.mask, piece, where)
            measures.append(token_measures(logits.detach(), part, rollout.temperature))
            if not trained:
                continue
            compared = [row for row in checked if row in piece.tolist()]
            if compared:
                logits.retain_grad()
            loss(logits, part, definition).backward()
            for row in compared:
                found = _compare(logits, part, piece.tolist().index(row), definition, {**where, "row": row})
                error = max(found, error or 0.0)
    values, norm = collected(weights, where)
    return Gradient(values, norm, pooled(measures), error)


def _compare(logits: Tensor, part: LossBatch, place: int, definition: Mapping[str, Any], where: Mapping) -> float:
    """The scaled error on the first tokens of one row, in NumPy on the CPU."""
    at, first = slice(place, place + 1), slice(None, ORACLE_TOKENS)
    few = moved(part.rows(at, ORACLE_TOKENS), torch.device("cpu"))
    return compare(logits.detach()[at, first].cpu(), logits.grad[at, first].cpu(), few, definition, where)
