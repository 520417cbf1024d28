"""Mutants without a stop-gradient against numerical derivatives of the very loss they would differentiate."""

from __future__ import annotations

import numpy as np
import pytest

from rlcorr_ref import Batch, Objective, evaluate_case, vectors
from rlcorr_ref.mutants import get

STEP = 1e-6


def attached_gradient(inputs: dict, definition: dict) -> np.ndarray:
    """d loss/d logits with everything recomputed at every point: weights, coefficients and alpha move with the trainer."""
    z = np.array(inputs["logits"], dtype=float)
    out = np.zeros_like(z)

    def loss(at: np.ndarray) -> float:
        return Objective.from_dict(definition).evaluate(Batch.from_dict({**inputs, "logits": at.tolist()})).loss

    for place in np.ndindex(z.shape):
        up, down = z.copy(), z.copy()
        up[place] += STEP
        down[place] -= STEP
        out[place] = (loss(up) - loss(down)) / (2 * STEP)
    return out


def gradient(name: str, case: dict) -> np.ndarray:
    return np.array(get(name).answer(case)["grad_logits"])


WEIGHTED = ["grad.0001", "grad.0002", "grad.0011", "grad.0012", "grad.0014", "grad.0017", "grad.0019", "grad.0021"]


@pytest.mark.parametrize("name", WEIGHTED)
def test_attached_weight_is_the_derivative_of_the_attached_loss(name: str) -> None:
    case = vectors.envelope(vectors.get(name))
    expected = attached_gradient(case["inputs"], case["definition"])
    np.testing.assert_allclose(gradient("weight-attached", case), expected, atol=1e-7)
    assert not np.allclose(np.array(evaluate_case(case)["grad_logits"]), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["centre.0001", "centre.0046", "centre.0050", "centre.0013"])
def test_attached_coefficients_alone(name: str) -> None:
    """Without a weight (or with the tail dropped) the coefficients are the only thing that moves."""
    case = vectors.envelope(vectors.get(name))
    expected = attached_gradient(case["inputs"], case["definition"])
    np.testing.assert_allclose(gradient("centering-coefficients-attached", case), expected, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["centre.0002", "centre.0003", "centre.0004", "centre.0005", "centre.0047", "centre.0052"]
)
def test_attached_coefficients_and_weight_together(name: str) -> None:
    """With a weight both move: the sum of the two mutants' additions is the derivative of the whole attached loss."""
    case = vectors.envelope(vectors.get(name))
    plain = np.array(evaluate_case(case)["grad_logits"])
    both = gradient("centering-coefficients-attached", case) + gradient("weight-attached", case) - plain
    np.testing.assert_allclose(both, attached_gradient(case["inputs"], case["definition"]), atol=1e-6)


def test_loss_value_cannot_see_it() -> None:
    case = vectors.envelope(vectors.get("grad.0001"))
    assert get("weight-attached").answer(case)["loss"] == evaluate_case(case)["loss"]
