"""Control arms: does the correction act through its direction, or would any term of its size do?

The placebos keep everything of score centering but its content. Centering changes the gradient on a token's logits from
A (e_y - p) to A (e_y - q), that is by A (p - q). A placebo adds a term of the same length in another direction:

"row"         A kappa (p - q_pi), kappa = |q - p| / |q_pi - p|: the expected score of a permuted q. It is not quite
              meaningless: on a peaked row most of p - q_pi is p itself, which the true term shares when q is flatter.
"difference"  A (p - q)_pi: the true term itself, permuted. This one means nothing.

pi is a rotation of the token ids, drawn anew for every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.losses import LossBatch, correction_loss

PLACEBOS = ("row", "difference")


@dataclass(frozen=True)
class PlaceboBatch(LossBatch):
    """A batch with whole sampler rows, per token the rotation [B, T] int64 of its vocabulary (1..V-1), and the kind."""

    rotation: Tensor | None = None
    kind: str = "row"

    def rows(self, index: Tensor | slice, length: int | None = None) -> PlaceboBatch:
        """See `LossBatch.rows`."""
        fields = {k: v[index][:, :length] if isinstance(v, Tensor) else v for k, v in vars(self).items()}
        return PlaceboBatch(**fields)


def with_rotation(batch: LossBatch, vocabulary: int, seed: tuple[int, ...], kind: str) -> PlaceboBatch:
    """``batch`` with rotations drawn from ``seed`` (the run's seed and the step)."""
    if kind not in PLACEBOS:
        raise ValueError(f"kind: expected one of {', '.join(PLACEBOS)}, got {kind!r}")
    if batch.logp_sampler_full is None:
        raise ValueError("logp_sampler_full: the placebo permutes whole sampler rows; this engine records none")
    drawn = np.random.default_rng(seed).integers(1, vocabulary, size=tuple(batch.tokens.shape))
    return PlaceboBatch(**vars(batch), rotation=torch.from_numpy(drawn), kind=kind)


def placebo_loss(logits: Tensor, batch: PlaceboBatch, definition: Mapping[str, Any]) -> Tensor:
    """The plain loss of ``definition`` plus, per valid token, coef A sum_v sg(c_v) log p_v, c = kappa q_pi or (q - p)_pi.

    logits [B, T, V]; only the REINFORCE surrogate without weights, at ``seq-mean-token-sum``.
    """
    mask = batch.mask
    logp = torch.log_softmax(logits.where(mask[..., None], 0.0) / definition["temperature"], dim=-1)
    q, p = batch.logp_sampler_full.exp(), logp.detach().exp()
    ids = (torch.arange(q.shape[-1]) + batch.rotation[..., None]) % q.shape[-1]
    if batch.kind == "row":
        permuted = q.gather(-1, ids)
        kappa = (q - p).norm(dim=-1, keepdim=True) / (permuted - p).norm(dim=-1, keepdim=True).clamp_min(1e-12)
        coefficients = kappa * permuted
    else:
        coefficients = (q - p).gather(-1, ids)
    term = batch.advantages * (coefficients * logp).sum(-1)
    return (
        correction_loss(logits, batch, definition)
        + term.where(mask, 0.0).sum() / definition["aggregation"]["sequences"]
    )


def placebo_gradient(logits: Tensor, batch: PlaceboBatch, definition: Mapping[str, Any]) -> np.ndarray:
    """What the placebo adds to the gradient on the logits [B, T, V], in NumPy float64: coef A (c - (sum c) p) / T."""
    temperature = definition["temperature"]
    z = logits.detach().double().numpy() / temperature
    z = z - z.max(-1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    q = np.exp(batch.logp_sampler_full.double().numpy())
    ids = (np.arange(q.shape[-1]) + batch.rotation.numpy()[..., None]) % q.shape[-1]
    if batch.kind == "row":
        c = np.take_along_axis(q, ids, -1)
        c *= np.linalg.norm(q - p, axis=-1, keepdims=True)
        c /= np.maximum(np.linalg.norm(np.take_along_axis(q, ids, -1) - p, axis=-1, keepdims=True), 1e-12)
    else:
        c = np.take_along_axis(q - p, ids, -1)
    scale = batch.advantages.double().numpy() / (definition["aggregation"]["sequences"] * temperature)
    gradient = scale[..., None] * (c - c.sum(-1, keepdims=True) * p)
    return np.where(batch.mask.numpy()[..., None], gradient, 0.0)


def scaled(gradients: Mapping[str, Tensor], norm: float, target: float) -> dict[str, Tensor]:
    """Gradients of norm ``norm`` brought to norm ``target``; a zero gradient stays zero."""
    factor = target / norm if norm > 0 else 0.0
    return {name: value * factor for name, value in gradients.items()}


def norm(gradients: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all weights, summed in float64."""
    return float(np.sqrt(sum(float(value.double().square().sum()) for value in gradients.values())))
