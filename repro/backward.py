"""One gradient of a loss over a rollout, accumulated chunk by chunk, held against the reference where asked.

Rows are cut into chunks of similar length, each to its own longest response. Rows of zero advantage contribute exactly
nothing: they get a forward pass only, for the diagnostics, unless the reference is to confirm that nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config

from repro import controls
from repro.losses import LossBatch
from repro.oracle import compare
from repro.policies import State, forward
from repro.samplers import Rollout

CHUNK_ROWS = 32  # rows of one backward pass: activations of 32 x 72 tokens stay in the processor's cache
Loss = Callable[[Tensor, LossBatch, Mapping[str, Any]], Tensor]


class TrainingDiverged(RuntimeError):
    """A number that is not finite reached the update; the message says where and what to do."""


@dataclass(frozen=True)
class Gradient:
    """Gradients by weight, their norm, the detached logits [B, T, V] (zero off the rows that were passed), and the largest
    scaled error against the reference, or None where nothing was compared."""

    values: State
    norm: float
    logits: Tensor
    oracle_error: float | None


def response_logits(policy: State, config: Qwen3Config, rollout: Rollout, rows: Tensor, longest: int) -> Tensor:
    """Trainer logits [rows, longest, V], row t predicting response token t."""
    sequence = torch.cat([rollout.prompts[rows], rollout.tokens[rows, : longest - 1]], dim=1)
    return forward(policy, config, sequence)[:, rollout.prompts.shape[1] - 1 :]


def chunks(rows: Tensor, lengths: Tensor) -> list[Tensor]:
    """``rows`` in pieces of similar response length."""
    return [piece for piece in rows[lengths[rows].argsort(stable=True)].split(CHUNK_ROWS) if len(piece)]


def evaluate(policy: State, config: Qwen3Config, rollout: Rollout, rows: Tensor, where: Mapping[str, Any]) -> Tensor:
    """Logits [B, T, V] of ``rows`` without gradients, zero elsewhere."""
    lengths = rollout.mask.sum(-1)
    logits = torch.zeros(*rollout.tokens.shape, config.vocab_size)
    with torch.no_grad():
        for piece in chunks(rows, lengths):
            longest = int(lengths[piece].max())
            logits[piece, :longest] = response_logits(policy, config, rollout, piece, longest)
            refuse_nonfinite(logits[piece, :longest], rollout.mask[piece, :longest], piece, where)
    return logits


def gradient(
    policy: State,
    config: Qwen3Config,
    rollout: Rollout,
    batch: LossBatch,
    definition: Mapping[str, Any],
    loss: Loss,
    rows: Tensor,
    checked: Sequence[int],
    where: Mapping[str, Any],
) -> Gradient:
    """The gradient of ``loss`` summed over ``rows``; ``checked`` rows are compared with ``rlcorr_ref`` in float64.

    ``definition`` has an explicit denominator, so that the sum over chunks is the loss of the whole batch. Raises
    `TrainingDiverged` for logits or a norm that are not finite and ``OracleMismatch`` for a wrong gradient.
    """
    weights = {name: value.detach().requires_grad_() for name, value in policy.items()}
    lengths = rollout.mask.sum(-1)
    advantages = batch.advantages[:, 0]
    trained = torch.tensor([r for r in rows.tolist() if advantages[r] != 0 or r in checked], dtype=torch.int64)
    passive = torch.tensor([r for r in rows.tolist() if advantages[r] == 0 and r not in checked], dtype=torch.int64)
    logits = evaluate(policy, config, rollout, passive, where)
    error = None
    for piece in chunks(trained, lengths):
        longest = int(lengths[piece].max())
        chunk = response_logits(weights, config, rollout, piece, longest)
        chunk.retain_grad()
        part = batch.rows(piece, longest)
        refuse_nonfinite(chunk.detach(), part.mask, piece, where)
        loss(chunk, part, definition).backward()
        logits[piece, :longest] = chunk.detach()
        for row in checked:
            if (place := (piece == row).nonzero()).numel():
                at = slice(int(place), int(place) + 1)
                found = compare(chunk.detach()[at], chunk.grad[at], part.rows(at), definition, {**where, "row": row})
                error = max(found, error or 0.0)
    values, norm = collected(weights, where)
    return Gradient(values, norm, logits, error)


def collected(weights: State, where: Mapping[str, Any]) -> tuple[State, float]:
    """What backward passes left on ``weights``, zero where none came by, and its norm; refused unless finite."""
    values = {n: torch.zeros_like(w) if w.grad is None else w.grad for n, w in weights.items()}
    norm = controls.norm(values)
    if not norm < float("inf"):
        raise TrainingDiverged(
            f"gradient: its norm is {norm} at step {where['step']} of arm {where['arm']!r}; no update was made and the "
            "saved state is intact: lower lr, or bound the weights"
        )
    return values, norm


def refuse_nonfinite(logits: Tensor, mask: Tensor, rows: Tensor, where: Mapping[str, Any]) -> None:
    """`TrainingDiverged`, naming the first of ``rows`` and token whose logits [rows, T, V] are not finite under ``mask``."""
    bad = ~torch.isfinite(logits).all(-1) & mask
    if bad.any():
        row, token = (int(i) for i in bad.nonzero()[0])
        raise TrainingDiverged(
            f"logits: not finite at step {where['step']}, row {int(rows[row])}, token {token} of arm {where['arm']!r}; "
            "the policy has diverged: lower lr, or resume from the last saved state with other settings"
        )
