"""Finite and right at the extremes: logits of +-1e4, log-ratios of +-800, vanishing tails, large V and T."""

from __future__ import annotations

import numpy as np
import pytest
from cases_helper import MIS, TIS, log_softmax, one_token, random_inputs

from rlcorr_ref import Batch, Objective, evaluate_case
from rlcorr_ref.quantise import FORMATS, to_grid


@pytest.mark.parametrize(
    "definition", [{}, {"weight": TIS, "centering": {}}, {"centering": {"tail": "exact"}}, {"entropy": {"coef": 0.1}}]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_large_logits_lose_nothing(definition, temperature):
    """A common offset of 1e4 on the logits (exact in binary: 2^13) changes the gradient by less than 1e-12."""
    data = random_inputs(np.random.default_rng(1), 2, 3, 6, 3)
    data["logits"] = np.round(data["logits"] * 2**20) / 2**20  # so that adding 2^13 is exact
    objective = Objective.from_dict({**definition, "temperature": temperature})
    base = objective.evaluate(Batch(**data)).grad_logits
    for offset in (2.0**13, -(2.0**13)):
        moved = objective.evaluate(Batch(**{**data, "logits": data["logits"] + offset})).grad_logits
        np.testing.assert_allclose(moved, base, atol=1e-15, rtol=0)


@pytest.mark.parametrize("tail", ["rescaled", "exact", "dropped", "renormalised", "uniform"])
@pytest.mark.parametrize("rule", [None, TIS, MIS, {"level": "token"}])
def test_one_hot_trainer(tail, rule):
    """Logits +-1e4: p is one-hot to the last bit; the gradient stays finite whatever the sampler says."""
    z = np.full(6, -1e4)
    z[2] = 1e4
    q = np.array([0.30, 0.04, 0.36, 0.18, 0.05, 0.07])
    logq = np.log(q)
    case = one_token(
        z, q, 1, 0.5, [2, 0, 3], {"weight": rule, "centering": {"tail": tail}}, logp_sampler_full=[[logq.tolist()]]
    )
    grad = np.array(evaluate_case(case)["grad_logits"][0][0])
    assert np.isfinite(grad).all()
    assert abs(grad.sum()) < 1e-12


@pytest.mark.parametrize("d", [800.0, -800.0])
def test_log_ratios_of_800(d):
    """exp(800) overflows; bounded rules give their bound (or 0), and the gradient is finite."""
    z = np.array([0.0, -900.0, -1.0])
    logq = np.log([0.5, 0.3, 0.2])
    y = 1
    logq_y = float(log_softmax(z)[y] - d) if d > 0 else float(logq[y])
    if d < 0:
        z[1] = d + logq[1]
    weights = {}
    for name, rule in (("tis", TIS), ("mis", MIS), ("one", {**MIS, "inside": "one"}), ("low", {**TIS, "low": 0.5})):
        case = one_token(z, np.exp(logq), y, -0.5, None, {"weight": rule, "centering": {}})
        case["inputs"]["logp_sampler"] = [[logq_y]]
        case["inputs"]["head_ids"] = [[[1]]]
        case["inputs"]["head_logp_sampler"] = [[[logq_y]]]
        out = evaluate_case(case)
        weights[name] = out["weights"][0][0]
        assert np.isfinite(np.array(out["grad_logits"], dtype=float)).all(), name
    assert weights["mis"] == weights["one"] == 0.0
    assert weights["tis"] == (2.0 if d > 0 else pytest.approx(np.exp(-800.0), abs=1e-300))
    assert weights["low"] == (2.0 if d > 0 else 0.5)


@pytest.mark.parametrize(
    "p_tail, q_tail", [(1e-4, 0.3), (1e-5, 0.3), (2e-6, 0.3), (1e-8, 0.3), (1e-200, 0.3), (1e-320, 0.3)]
)
@pytest.mark.parametrize("floor", [None, 1e-6])
def test_vanishing_trainer_tail(p_tail, q_tail, floor):
    """rho up to 1e319 under rule "none": the head-only form in float64 loses 1e-16 rho, this one does not.

    Two head tokens and two tail tokens with closed form: grad = -A (e_y - q_hat), q_hat the mixture with tail mass q_tail split
    as the trainer splits it (.7, .3), scaled by p_tail/floor where the floor binds.
    """
    z = np.log([0.6, 0.4]).tolist() + [float(np.log(p_tail) + np.log(0.7)), float(np.log(p_tail) + np.log(0.3))]
    q_head = np.array([0.4, 0.6]) * (1 - q_tail)
    case = one_token(z, [*q_head, 0.2, 0.1], 0, 1.0, [0, 1], {"centering": {"floor_trainer": floor}})
    grad = np.array(evaluate_case(case)["grad_logits"][0][0], dtype=float)
    p = np.array([0.6, 0.4, 0.7 * p_tail, 0.3 * p_tail]) / (1 + p_tail)
    tail = p[2:].sum()
    mass = q_tail if floor is None or tail >= floor else q_tail * tail / floor
    c = np.array([*q_head, 0.7 * mass, 0.3 * mass])
    c[0] -= 1.0
    # the logits near -460 are themselves rounded to 3e-14; a head-only form is off by 5e-12 already at p_tail = 2e-6
    np.testing.assert_allclose(grad, c - c.sum() * p, atol=3e-14, rtol=0)


def test_whole_vocabulary_in_the_head():
    """k = V and k = V - 1 are exact: the tail is empty, or one token whose share the model gets right."""
    data = random_inputs(np.random.default_rng(2), 3, 4, 5, 5)
    for rule in (None, TIS, MIS, {"level": "token"}):
        exact = Objective.from_dict({"weight": rule, "centering": {"tail": "exact"}}).evaluate(Batch(**data))
        for k in (5, 4):
            head = {
                **data,
                "head_ids": data["head_ids"][..., :k],
                "head_logp_sampler": data["head_logp_sampler"][..., :k],
            }
            for floors in ({}, {"floor_sampler": None}, {"floor_sampler": None, "floor_trainer": None}):
                out = Objective.from_dict({"weight": rule, "centering": floors}).evaluate(Batch(**head))
                np.testing.assert_allclose(out.grad_logits, exact.grad_logits, atol=1e-14, rtol=0)


@pytest.mark.parametrize("v", [2, 3, 1000, 200_000])
def test_vocabulary_sizes(v):
    rng = np.random.default_rng(v)
    data = random_inputs(rng, 1, 2, v, min(v, 16))
    out = Objective.from_dict({"weight": TIS, "centering": {}}).evaluate(Batch(**data))
    assert np.isfinite(out.grad_logits).all()
    np.testing.assert_allclose(out.grad_logits.sum(-1), 0.0, atol=1e-13)


def test_long_rows():
    """T = 32,768 with |d| = 0.03: the sequence log-ratio to 1e-12 relative, against math.fsum."""
    import math

    rng = np.random.default_rng(3)
    t = 32_768
    q = np.minimum(rng.normal(-3, 1, size=(1, t)), -0.5)
    p = q + rng.normal(0, 0.03, size=(1, t))
    case = {
        "function": "ratio",
        "inputs": {"logp_trainer": p, "logp_sampler": q, "mask": np.ones((1, t), dtype=int)},
        "parameters": {"level": "sequence"},
    }
    case["inputs"] = {k: v.tolist() for k, v in case["inputs"].items()}
    expected = math.fsum(a - b for a, b in zip(p[0], q[0], strict=True))
    assert evaluate_case(case)["log_ratio"][0][-1] == pytest.approx(expected, rel=1e-12)


def test_quantised_grids():
    """Every positive value of the 8- and 4-bit formats is a fixed point; ties go to even; values saturate."""
    e4m3 = [m * 2.0**-9 for m in range(8)] + [(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)][:-1]
    e5m2 = [m * 2.0**-16 for m in range(4)] + [(1 + m / 4) * 2.0**e for e in range(-14, 16) for m in range(4)]
    grids = {
        "fp8_e4m3": e4m3,
        "fp8_e5m2": e5m2,
        "fp4_e2m1": [0, 0.5, 1, 1.5, 2, 3, 4, 6],
        "int8": range(128),
        "int4": range(8),
    }
    for name, grid in grids.items():
        values = np.array(list(grid), dtype=np.float64)
        assert values[-1] == FORMATS[name][2]
        np.testing.assert_array_equal(to_grid(values, name), values)
        np.testing.assert_array_equal(to_grid(-values, name), -values)
        middle = (values[1:] + values[:-1]) / 2
        even = np.where(np.arange(values.size - 1) % 2 == 0, values[:-1], values[1:])
        np.testing.assert_array_equal(to_grid(middle, name), even)
        np.testing.assert_array_equal(to_grid(np.nextafter(middle, np.inf), name), values[1:])
        np.testing.assert_array_equal(to_grid(np.array([1e300, np.inf]), name), values[-1])


def test_vanishing_tails_of_several_tokens_do_not_mix():
    """Two tokens with different normalisers and tails below 1e-200: together they give what each gives alone."""
    rng = np.random.default_rng(4)
    data = random_inputs(rng, 2, 2, 6, 3)
    data["mask"][:] = 1
    for b in range(2):
        for t in range(2):
            data["logits"][b, t, np.setdiff1d(np.arange(6), data["head_ids"][b, t])] -= 500.0 + 100.0 * (b + t)
            data["logits"][b, t] += 3.0 * b - t
    objective = Objective.from_dict({"centering": {"floor_trainer": None}, "aggregation": {"kind": "token-sum"}})
    together = objective.evaluate(Batch(**data))
    assert together.diagnostics["tail_ratio_max"] > 1e200
    for b in range(2):
        for t in range(2):
            alone = objective.evaluate(Batch(**{name: value[b : b + 1, t : t + 1] for name, value in data.items()}))
            np.testing.assert_array_equal(alone.grad_logits[0, 0], together.grad_logits[b, t])
            assert np.isfinite(alone.loss_dense)
    assert np.abs(together.grad_logits.sum(-1)).max() < 1e-13
