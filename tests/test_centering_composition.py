"""A rule that exists as a surrogate and as a detached weight has one gradient, centered or not."""

from __future__ import annotations

import numpy as np
import pytest
from cases_helper import log_softmax, random_inputs

from rlcorr_ref import Batch, Objective
from rlcorr_ref.weights import PRESETS

SAME_GRADIENT = {
    "ppo_clip": ({"surrogate": {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.3}},
                 {"outside": "zero", "positive": {"high": 1.3}, "negative": {"low": 0.8}}),
    "ppo_dual_clip": ({"surrogate": {"kind": "ppo_clip", "dual": 1.5}},
                      {"outside": "zero", "positive": {"high": 1.2}, "negative": {"low": 0.8, "high": 1.5}}),
    "cispo": ({"surrogate": {"kind": "cispo", "eps_low": 0.3, "eps_high": 0.2}},
              {"outside": "clip", "low": 0.7, "high": 1.2}),
    "cispo_upper": ({"surrogate": {"kind": "cispo", "eps_high": 0.2}}, {"outside": "clip", "high": 1.2}),
}  # fmt: skip


@pytest.mark.parametrize("tail", [None, "exact", "rescaled", "uniform"])
@pytest.mark.parametrize("name", SAME_GRADIENT)
@pytest.mark.parametrize(("B", "T"), [(5, 4), (4, 4)])
def test_surrogate_and_detached_weight_have_the_same_gradient(name, tail, B, T):
    surrogate, weight = SAME_GRADIENT[name]
    centering = {"centering": None if tail is None else {"tail": tail}, "temperature": 0.8}
    clipped = []
    for seed in range(4):
        data = random_inputs(np.random.default_rng(seed), B, T, 6, 3)
        loss = Objective.from_dict({**surrogate, **centering}).evaluate(Batch(**data))
        weighted = {"weight": {**weight, "numerator": "trainer"}, **centering}
        detached = Objective.from_dict(weighted).evaluate(Batch(**data))
        np.testing.assert_allclose(loss.grad_logits, detached.grad_logits, atol=1e-15)
        clipped.append(loss.diagnostics["clip_fraction"])
    assert 0 < np.mean(clipped) < 1


@pytest.mark.parametrize(("B", "T"), [(5, 4), (4, 4)])
def test_gspo_is_a_geometric_band_weight(B, T):
    data = random_inputs(np.random.default_rng(B), B, T, 6, 3)
    data["advantages"] = np.repeat(np.random.default_rng(1).normal(size=(B, 1)), T, axis=1)
    loss = Objective.from_dict({"surrogate": {"kind": "gspo", "eps_low": 0.05, "eps_high": 0.05}}).evaluate(
        Batch(**data)
    )
    weight = {"level": "geometric", "outside": "zero", "positive": {"high": 1.05}, "negative": {"low": 0.95}}
    detached = Objective.from_dict({"weight": weight}).evaluate(Batch(**data))
    np.testing.assert_allclose(loss.grad_logits, detached.grad_logits, atol=1e-15)
    assert 0 < loss.diagnostics["clip_fraction"] < 1


def test_dppo_band_is_a_weight_a_rejection_and_a_formula():
    B, T = 5, 4
    data = random_inputs(np.random.default_rng(3), B, T, 6, 3)
    p = np.take_along_axis(np.exp(log_softmax(data["logits"])), data["tokens"][..., None], -1)[..., 0]
    q, up, valid = np.exp(data["logp_sampler"]), data["advantages"] >= 0, data["mask"] == 1
    ours = Objective.from_dict(
        {
            "weight": PRESETS["dppo_tv"]
            | {"positive": {"low": None, "high": 0.05}, "negative": {"low": -0.05, "high": None}}
        }
    ).evaluate(Batch(**data))
    expected = np.where(np.where(up, p - q <= 0.05, p - q >= -0.05) & valid, p / q, 0.0)
    np.testing.assert_allclose(ours.weights, expected, rtol=1e-13)
    assert 0 < (expected[valid] == 0).mean() < 1
    # two-sided: the same gradient as the unbounded ratio with the token rejected, as long as nothing is centered
    tv = {"level": "token", "statistic": "tv", "high": 0.05, "outside": "zero"}
    band = Objective.from_dict({"weight": tv}).evaluate(Batch(**data))
    reject = {"weight": {"level": "token"}, "rejection": [{"statistic": "tv", "reduce": "token", "high": 0.05}]}
    np.testing.assert_array_equal(band.grad_logits, Objective.from_dict(reject).evaluate(Batch(**data)).grad_logits)
    with_centering = [
        Objective.from_dict({**d, "centering": {"tail": "exact"}}).evaluate(Batch(**data)).grad_logits
        for d in ({"weight": tv}, reject)
    ]
    assert np.abs(with_centering[0] - with_centering[1]).max() > 1e-3  # a rejected token is not centered either
