"""Golden numbers computed at 50 digits by code that shares nothing with this package (arXiv 2609.20807, App. A formulas)."""

from __future__ import annotations

import numpy as np
import pytest
from cases_helper import MIS, TIS, one_token

from rlcorr_ref import evaluate_case

P = np.array([0.40, 0.25, 0.15, 0.10, 0.06, 0.04])
Q = np.array([0.30, 0.04, 0.36, 0.18, 0.05, 0.07])
CENTERED = {"tail": "rescaled"}

ROWS = [
    ([2, 0, 3], None, 1, 0.208439097937, [0.15, -0.442857142857, 0.18, 0.09, 0.013714285714, 0.009142857143]),
    ([2, 0, 3], TIS, 1, 1.348522526844, [0.406, -0.756964285714, 0.15225, 0.1015, 0.058328571429, 0.038885714286]),
    (
        [2, 0, 3],
        TIS,
        2,
        0.357461495908,
        [0.089333333333, 0.045119047619, -0.174833333333, 0.022333333333, 0.010828571429, 0.007219047619],
    ),
    ([2, 0, 3], MIS, 1, 0.142283998866, [0.03, 0.01875, -0.06375, 0.0075, 0.0045, 0.003]),
    ([2, 0, 3], MIS, 2, 0.142283998866, [0.03, 0.01875, -0.06375, 0.0075, 0.0045, 0.003]),
    ([2, 0, 1], None, 3, 1.392884862786, [0.15, 0.02, 0.18, -0.425, 0.045, 0.03]),
    (
        [2, 0, 1],
        TIS,
        3,
        0.757441990971,
        [0.145111111111, 0.005694444444, 0.054416666667, -0.2415, 0.021766666667, 0.014511111111],
    ),
    (
        [2, 0, 1],
        MIS,
        3,
        0.955177764283,
        [0.191111111111, -0.005555555556, -0.003333333333, -0.23, 0.028666666667, 0.019111111111],
    ),
]


@pytest.mark.parametrize("head, rule, y, loss, grad", ROWS)
def test_one_token_score_centering(head, rule, y, loss, grad):
    case = one_token(np.log(P), Q, y, 0.5, head, {"weight": rule, "centering": CENTERED})
    out = evaluate_case(case)
    assert out["loss"] == pytest.approx(loss, abs=6e-13)
    np.testing.assert_allclose(out["grad_logits"][0][0], grad, atol=6e-13, rtol=0)
    # dense value = head-only value + coef A alpha sum_V p log p
    alpha = {None: 16 / 35, "tis": 32 / 35, "mis": 1.0}[None if rule is None else "mis" if rule is MIS else "tis"]
    if head == [2, 0, 1]:
        alpha = {None: 1.5, "tis": 1.0, "mis": 1.0}[None if rule is None else "mis" if rule is MIS else "tis"]
    assert out["loss_dense"] == pytest.approx(loss + 0.5 * alpha * float((P * np.log(P)).sum()), abs=6e-13)


Z = [2.0, 0.0, -1.0, 0.5, -2.0]
ZQ = np.exp([0.0, 1.5, 0.5, -1.0, 0.3])
TEMPERATURE = [
    (None, 1, None, [-0.125661922932, 0.462645462827, -0.174689221773, -0.019270880025, -0.143023438097]),
    (TIS, 0, -0.215012503665, [0.437037247113, -0.158205561326, -0.045326652210, -0.220518730293, -0.012986303284]),
]


@pytest.mark.parametrize("rule, y, loss, grad", TEMPERATURE)
def test_temperature_divides_the_logits_and_the_gradient(rule, y, loss, grad):
    definition = {"weight": rule, "centering": CENTERED, "temperature": 0.8}
    out = evaluate_case(one_token(Z, ZQ / ZQ.sum(), y, -0.75, [1, 2, 4], definition))
    np.testing.assert_allclose(out["grad_logits"][0][0], grad, atol=6e-13, rtol=0)
    assert out["diagnostics"]["tail_ratio_mean"] == pytest.approx(0.169653066957, abs=6e-13)
    if loss is not None:
        assert out["loss"] == pytest.approx(loss, abs=6e-13)


@pytest.mark.parametrize("y", [0, 1, 4])
def test_everything_outside_the_band_gives_exactly_nothing(y):
    out = evaluate_case(
        one_token(Z, ZQ / ZQ.sum(), y, -0.75, [1, 2, 4], {"weight": MIS, "centering": CENTERED, "temperature": 0.8})
    )
    assert out["loss"] == 0.0
    assert not np.any(out["grad_logits"])
    assert out["diagnostics"]["ess"] == 0.0


# Published score-centering code run against 50 digits: what it returned, and what is right (typed: the right values).
def test_absent_slot_equals_no_slot():
    grad = evaluate_case(
        one_token(
            np.log(P),
            Q,
            1,
            0.5,
            None,
            {"centering": CENTERED},
            head_ids=[[[2, 0, -1]]],
            head_logp_sampler=[[[float(np.log(0.36)), float(np.log(0.30)), "-Infinity"]]],
        )
    )["grad_logits"][0][0]
    np.testing.assert_allclose(grad, [0.15, -0.4056, 0.18, 0.0378, 0.0227, 0.0151], atol=5e-5, rtol=0)
    bare = evaluate_case(one_token(np.log(P), Q, 1, 0.5, [2, 0], {"centering": CENTERED}))["grad_logits"][0][0]
    assert grad == bare


def test_zero_probability_on_both_sides_of_a_head_slot():
    p = np.array([0.4, 0.25, 0.15, 0.1, 0.1, 0.0])
    with np.errstate(divide="ignore"):
        case = one_token(
            np.log(p),
            Q,
            1,
            0.5,
            None,
            {"weight": TIS, "centering": CENTERED},
            head_ids=[[[2, 0, 5]]],
            head_logp_sampler=[[[float(np.log(0.36)), float(np.log(0.30)), "-Infinity"]]],
        )
        case["inputs"]["logits"] = [[[*map(float, np.log(p[:5])), "-Infinity"]]]
    np.testing.assert_allclose(evaluate_case(case)["grad_logits"][0][0], [0.4, -0.75, 0.15, 0.1, 0.1, 0.0], atol=1e-12)


def test_trainer_zero_with_sampler_mass_keeps_its_coefficient_and_the_loss_is_infinite():
    p = [0.4, 0.25, 0.15, 0.1, 0.1]
    case = one_token(
        [*np.log(p), 0.0], [0.30, 0.04, 0.36, 0.18, 0.07, 0.05], 1, 0.5, [2, 0, 5], {"centering": CENTERED}
    )
    case["inputs"]["logits"] = [[[*map(float, np.log(p)), "-Infinity"]]]
    out = evaluate_case(case)
    np.testing.assert_allclose(
        out["grad_logits"][0][0], [0.15, -0.4194, 0.18, 0.0322, 0.0322, 0.025], atol=5e-5, rtol=0
    )
    assert out["loss"] == "-Infinity"


@pytest.mark.parametrize(
    "floor, expected",
    [(1e-6, [-0.40406, 0.40396, 7e-5, 3e-5]), (None, [-0.41, 0.40, 0.007, 0.003])],
)
def test_trainer_floor_moves_mass_off_a_vanishing_tail(floor, expected):
    p = np.array([0.6, 0.4 - 1e-8, 7e-9, 3e-9])
    definition = {"centering": {"tail": "rescaled", "floor_trainer": floor}}
    out = evaluate_case(one_token(np.log(p), [0.59, 0.4, 0.007, 0.003], 0, 1.0, [0, 1], definition))
    np.testing.assert_allclose(out["grad_logits"][0][0], expected, atol=6e-6, rtol=0)


def test_naive_importance_sampling_with_a_vanishing_sampler_probability():
    """q f(p/q) = p even where exp(log p - log q) overflows in float32 (log q = -111) or float64 (log q = -800)."""
    for logq in (-111.0, -800.0):
        case = one_token(
            np.log(P),
            Q,
            1,
            0.5,
            None,
            {"weight": {"level": "token"}, "centering": CENTERED},
            head_ids=[[[2, 0]]],
            head_logp_sampler=[[[float(np.log(0.36)), logq]]],
        )
        grad = np.array(evaluate_case(case)["grad_logits"][0][0])
        plain = np.array(
            evaluate_case(one_token(np.log(P), Q, 1, 0.5, None, {"weight": {"level": "token"}}))["grad_logits"][0][0]
        )
        np.testing.assert_allclose(grad, plain, atol=1e-13)
