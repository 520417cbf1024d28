"""Hold a training loss's float32 gradient against the float64 reference, on the very numbers that train.

The contract's accuracy scale makes the error dimensionless: per token, the largest gradient difference over the
vocabulary divided by coef * |A| * (1 + max(1, w)) / temperature, or by the token's own largest gradient where that is
larger: a surrogate's unclipped ratio is no weight w and multiplies the rounding of a log-prob as much. A float32 loss that is
right stays near 1e-7; a loss that is wrong in definition is off by 1e-2 or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from torch import Tensor

from repro.controls import PlaceboBatch, placebo_gradient
from repro.losses import LossBatch
from rlcorr_ref import Batch, Objective

LIMIT = 2e-5


class OracleMismatch(RuntimeError):
    """The training gradient differs from the reference by more than rounding; the run stops here."""


def reference(logits: Tensor, batch: LossBatch, definition: Mapping[str, Any]):
    """``rlcorr_ref``'s evaluation of the same batch, every recorded float32 number taken as it is, in float64."""
    arrays = {
        field.name: (value.double() if value.is_floating_point() else value).numpy()
        for field in fields(LossBatch)
        if (value := getattr(batch, field.name)) is not None
    }
    return Objective.from_dict(dict(definition)).evaluate(Batch(logits=logits.detach().double().numpy(), **arrays))


def compare(
    logits: Tensor, gradient: Tensor, batch: LossBatch, definition: Mapping[str, Any], where: Mapping[str, Any]
) -> float:
    """Largest scaled error over the tokens of one row (shapes [1, T, V]); above 2e-5 raises :class:`OracleMismatch`.

    ``definition`` must have an explicit denominator (``sequences`` or ``tokens``), so that one row has the coefficient it
    has in the whole batch. On rows of zero advantage both gradients must be exactly 0. A placebo batch adds its own term,
    in float64, to the reference's. ``where`` (arm, step, row) goes into the message.
    """
    expected = reference(logits, batch, definition)
    wanted = expected.grad_logits
    if isinstance(batch, PlaceboBatch):
        wanted = wanted + placebo_gradient(logits, batch, definition)
    found = gradient.double().numpy()
    mask = batch.mask.numpy()
    advantages = np.abs(np.where(mask, batch.advantages.numpy(), 0.0)).astype(float)
    scale = advantages * (1 + np.maximum(1.0, expected.weights)) / definition.get("temperature", 1.0)
    aggregation = definition["aggregation"]
    scale /= aggregation["tokens"] if aggregation["kind"] == "token-mean" else aggregation["sequences"]
    scale = np.where(scale > 0, np.maximum(scale, np.abs(wanted).max(-1)), 0.0)
    difference = np.abs(found - wanted).max(-1)
    # Zero advantage leaves no scale to measure against: anything but exact zeros counts as an infinite error.
    error = np.divide(difference, scale, out=np.where(difference > 0, np.inf, 0.0), where=scale > 0)
    row, token = np.unravel_index(int(np.nan_to_num(error, nan=np.inf).argmax()), error.shape)
    worst = float(error[row, token])
    if not worst <= LIMIT:
        v = int(np.abs(found - wanted)[row, token].argmax())
        raise OracleMismatch(
            f"arm {where['arm']!r}, step {where['step']}, row {where['row']}, token {int(token)}: the training gradient on "
            f"logit {v} is {found[row, token, v]:.9g}, the float64 reference says "
            f"{wanted[row, token, v]:.9g} (scaled error {worst:.3g}, limit {LIMIT:g}; advantage "
            f"{float(batch.advantages[row, token]):.6g}, weight {expected.weights[row, token]:.6g}). Look at what is "
            "detached, at the direction of the tail ratio, at temperature and at the aggregation's denominator."
        )
    return worst
