"""The wire functions besides "objective": each stage alone gives what the objective uses, with values checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from cases_helper import MIS, TIS, random_inputs

from rlcorr_ref import Batch, ContractError, Objective, evaluate_case
from rlcorr_ref.advantages import group_advantages
from rlcorr_ref.categorical import coefficients_to_logits, log_softmax, score, token_logp
from rlcorr_ref.ratios import Segments
from rlcorr_ref.surrogates import gspo_true_gradient
from rlcorr_ref.weights import PRESETS, preset


def ask(function: str, inputs: dict, **parameters):
    plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
    return evaluate_case({"function": function, "inputs": plain, "parameters": parameters})


def test_log_softmax_and_score():
    out = ask("log_softmax", {"logits": np.log([[[0.5, 0.25, 0.25]]]), "tokens": np.array([[0]])}, temperature=1.0)
    np.testing.assert_allclose(np.exp(out["logp"]), [[[0.5, 0.25, 0.25]]], atol=1e-16)
    np.testing.assert_allclose(out["score"], [[[0.5, -0.25, -0.25]]], atol=1e-16)
    hot = ask("log_softmax", {"logits": np.log([[[0.5, 0.25, 0.25]]]), "tokens": np.array([[1]])}, temperature=0.5)
    np.testing.assert_allclose(np.exp(hot["logp"]), [[[4 / 6, 1 / 6, 1 / 6]]], atol=1e-15)  # p^2 renormalised
    np.testing.assert_allclose(hot["score"], [[[-8 / 6, 10 / 6, -2 / 6]]], atol=1e-15)  # (e_y - p)/0.5


def test_support_restricts_and_renormalises():
    z, support = np.log([[0.5, 0.3, 0.2]]), np.array([[1, 0, 1]])
    np.testing.assert_allclose(np.exp(log_softmax(z, 1.0, support)), [[5 / 7, 0, 2 / 7]], atol=1e-16)
    np.testing.assert_allclose(score(z, np.array([2]), 1.0, support), [[-5 / 7, 0, 5 / 7]], atol=1e-16)
    assert token_logp(z, np.array([1]), 1.0, support)[0] == -np.inf


def test_score_is_the_derivative_of_the_token_log_prob():
    """Complex-step derivative: exact to rounding, and independent of any autograd."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=7)
    for y in range(7):
        for temperature in (1.0, 0.7):
            step = z.astype(complex)[None] + 1e-30j * np.eye(7)
            logp = step[:, y] / temperature - np.log(np.exp(step / temperature).sum(-1))
            np.testing.assert_allclose(score(z, np.array(y), temperature), logp.imag / 1e-30, atol=1e-15)
    c = rng.normal(size=7)
    expected = sum(c[v] * score(z, np.array(v), 0.7) for v in range(7))
    np.testing.assert_allclose(coefficients_to_logits(c, z, 0.7), expected, atol=1e-14)


def test_levels_by_hand():
    """Rows (log 2, log 8) with a gap in the mask: two runs of one token each."""
    d = np.log([[2.0, 99.0, 8.0, 4.0], [3.0, 1.0, 1.0, 1.0]])
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0]])
    inputs = {"logp_trainer": d - 9.0, "logp_sampler": np.full((2, 4), -9.0), "mask": mask}
    expected = {
        "token": [2, 0, 8, 4],
        "sequence": [64, 0, 64, 64],
        "geometric": [4, 0, 4, 4],
        "segment": [2, 0, np.sqrt(32), np.sqrt(32)],
    }
    for level, row in expected.items():
        out = ask("ratio", inputs, level=level)
        np.testing.assert_allclose(out["ratio"], [row, [0, 0, 0, 0]], rtol=1e-14)


def test_weight_grid_by_hand():
    d = np.log([[0.25, 0.75, 1.5, 6.0]])
    inputs = {"logp_trainer": d - 5.0, "logp_sampler": np.full((1, 4), -5.0), "mask": np.ones((1, 4), dtype=int)}
    cases = [
        ({}, [0.25, 0.75, 1.5, 6.0]),
        (TIS, [0.25, 0.75, 1.5, 2.0]),
        ({**TIS, "low": 0.5}, [0.5, 0.75, 1.5, 2.0]),
        (MIS, [0, 0.75, 1.5, 0]),
        ({**MIS, "inside": "one"}, [0, 1, 1, 0]),
        ({**TIS, "inside": "one", "low": 0.5}, [0.5, 1, 1, 2.0]),
        ({"log_clamp": 0.5}, [np.exp(-0.5), 0.75, 1.5, np.exp(0.5)]),
        ({**MIS, "sign": "negative"}, [1, 1, 1, 1]),  # A defaults to 1
        ({**MIS, "gate": {"level": "sequence", "high": 1.0}}, [0, 0, 0, 0]),  # product 1.6875
        ({**MIS, "gate": {"level": "sequence", "high": 1.7}}, [0, 0.75, 1.5, 0]),
        ({**MIS, "normalise": "tokens"}, [0, 0.75 / 0.5625, 1.5 / 0.5625, 0]),
    ]
    for parameters, expected in cases:
        np.testing.assert_allclose(
            ask("weight", inputs, **parameters)["weights"], [expected], rtol=1e-13, err_msg=str(parameters)
        )


def test_sign_dependent_band():
    """Table 1's PPO band: A >= 0 drops above 1.2, A < 0 drops below 0.8 and above 3."""
    rho = np.array([[0.5, 1.1, 1.3, 4.0]])
    for a, expected in [(1.0, [0.5, 1.1, 0, 0]), (0.0, [0.5, 1.1, 0, 0]), (-1.0, [0, 1.1, 1.3, 0])]:
        inputs = {
            "logp_trainer": np.log(rho) - 5,
            "logp_sampler": np.full((1, 4), -5.0),
            "mask": np.ones((1, 4), dtype=int),
            "advantages": np.full((1, 4), a),
        }
        np.testing.assert_allclose(ask("weight", inputs, **PRESETS["ppo_band"])["weights"], [expected], rtol=1e-13)


def test_total_variation_bands():
    """DPPO: |p - q| and the signed difference of the sampled token's probabilities."""
    q, p = np.array([[0.5, 0.5, 0.1]]), np.array([[0.8, 0.2, 0.15]])
    inputs = {"logp_trainer": np.log(p), "logp_sampler": np.log(q), "mask": np.ones((1, 3), dtype=int)}
    two_sided = ask("weight", inputs, statistic="tv", high=0.2, outside="zero")["weights"]
    np.testing.assert_allclose(two_sided, [[0, 0, 1.5]], rtol=1e-13)
    signed = ask("weight", inputs, statistic="tv_signed", low=None, high=0.2, outside="zero")["weights"]
    np.testing.assert_allclose(signed, [[0, 0.4, 1.5]], rtol=1e-13)


def test_every_preset_is_a_valid_rule():
    data = random_inputs(np.random.default_rng(1), 3, 4, 6, 3)
    for name in PRESETS:
        out = Objective(weight=preset(name)).evaluate(Batch(**data))
        assert np.isfinite(out.grad_logits).all(), name
    with pytest.raises(ContractError, match="unknown name 'tiss'.*tis"):
        preset("tiss")


def test_rejection_statistics_by_hand():
    d = np.log([[2.0, 0.5], [1.25, 1.0]])
    logq = np.log([[0.4, 0.5], [0.4, 0.3]])
    inputs = {"logp_trainer": logq + d, "logp_sampler": logq, "mask": np.ones((2, 2), dtype=int)}

    def mask(**rule):
        return ask("reject", inputs, **rule)["mask"]

    assert mask(statistic="ratio", reduce="token", low=0.6, high=3.0) == [[1, 0], [1, 1]]
    assert mask(statistic="ratio", reduce="sum", high=1.1) == [[1, 1], [0, 0]]  # products 1 and 1.25
    assert mask(statistic="ratio", reduce="max", high=1.9) == [[0, 0], [1, 1]]
    assert mask(statistic="k1", reduce="max", high=0.6) == [[0, 0], [1, 1]]  # the veto: -d = log 2 > .6
    assert mask(statistic="k2", reduce="sum", high=0.1) == [[0, 0], [1, 1]]
    assert mask(statistic="k3", reduce="token", high=0.2) == [
        [0, 1],
        [1, 1],
    ]  # 2 - 1 - log 2 = .307; .5 - 1 + log 2 = .193
    assert mask(statistic="tv", reduce="token", high=0.3) == [[0, 1], [1, 1]]  # |.8 - .4|, |.25 - .5|, |.5 - .4|
    # KL(Bern(.4) || Bern(.8)) = .4 log .5 + .6 log 3 = .38190; KL(Bern(.5) || Bern(.25)) = .14384
    assert mask(statistic="binary_kl", reduce="token", high=0.3819) == [[0, 1], [1, 1]]
    assert mask(statistic="binary_kl", reduce="token", high=0.3820) == [[1, 1], [1, 1]]
    both = [{"statistic": "k3", "reduce": "token", "high": 0.2}, {"statistic": "ratio", "reduce": "sum", "high": 1.1}]
    assert ask("reject", inputs, rejection=both)["mask"] == [[0, 1], [0, 0]]


def test_deepseek_sequence_mask_drops_negative_rows_only():
    inputs = {
        "logp_trainer": np.full((2, 2), -2.0),
        "logp_sampler": np.full((2, 2), -1.0),
        "mask": np.ones((2, 2), dtype=int),
        "advantages": np.array([[1.0, 1.0], [-1.0, -1.0]]),
    }
    rule = {"statistic": "k1", "reduce": "mean", "high": 0.5, "sign": "negative"}
    assert ask("reject", inputs, **rule)["mask"] == [[1, 1], [0, 0]]


def test_surrogates_by_hand():
    """r = 1.5 and 0.5 for A = +-1, band [.8, 1.2], dual bound 1.4."""
    r = np.array([[1.5, 0.5, 1.5, 0.5]])
    a = np.array([[1.0, 1.0, -1.0, -1.0]])
    logo = np.full((1, 4), -3.0)
    inputs = {"logp_trainer": np.log(r) - 3, "logp_sampler": logo, "mask": np.ones((1, 4), dtype=int), "advantages": a}
    ppo = ask("surrogate", inputs, kind="ppo_clip", eps_low=0.2, eps_high=0.2)
    np.testing.assert_allclose(ppo["value"], [[-1.2, -0.5, 1.5, 0.8]], rtol=1e-13)
    np.testing.assert_allclose(ppo["slope"], [[0, -0.5, 1.5, 0]], rtol=1e-13)
    dual = ask("surrogate", inputs, kind="ppo_clip", eps_low=0.2, eps_high=0.2, dual=1.4)
    np.testing.assert_allclose(dual["value"], [[-1.2, -0.5, 1.4, 0.8]], rtol=1e-13)
    np.testing.assert_allclose(dual["slope"], [[0, -0.5, 0, 0]], rtol=1e-13)
    cispo = ask("surrogate", inputs, kind="cispo", eps_low=0.2, eps_high=0.2)
    np.testing.assert_allclose(cispo["slope"], [[-1.2, -0.8, 1.2, 0.8]], rtol=1e-13)
    gspo = ask("surrogate", {**inputs, "advantages": np.ones((1, 4))}, kind="gspo", eps_low=0.2, eps_high=0.2)
    np.testing.assert_allclose(gspo["slope"], [[-np.sqrt(0.75)] * 4], rtol=1e-13)  # (1.5 .5 1.5 .5)^(1/4)


def test_gspo_straight_through_and_true_gradient_differ_only_with_uneven_factors():
    rng = np.random.default_rng(2)
    log_r, a = rng.normal(size=4) * 1e-5, np.ones(4)
    rows = Segments.rows(np.zeros(4, dtype=int))
    rule = Objective.from_dict({"surrogate": {"kind": "gspo"}}).surrogate
    s = np.exp(log_r.mean())
    even, uneven = np.full(4, 0.25), np.array([0.25, 0.0, 0.5, 0.25])
    np.testing.assert_allclose(gspo_true_gradient(rule, log_r, a, even, rows), -s * even, rtol=1e-14)
    true = gspo_true_gradient(rule, log_r, a, uneven, rows)
    # finite differences of sum_t factors_t * -(S A)
    for t in range(4):
        up, down = log_r.copy(), log_r.copy()
        up[t] += 1e-6
        down[t] -= 1e-6
        numeric = -uneven.sum() * (np.exp(up.mean()) - np.exp(down.mean())) / 2e-6
        assert true[t] == pytest.approx(numeric, rel=1e-8)
    assert not np.allclose(true, -s * uneven)


def test_kl_terms_by_hand():
    """x = log ref - log p = log 2: k1 = -log 2, k2 = (log 2)^2/2, k3 = 1 - log 2; slopes 1, -log 2, -1, and k3+ as k2."""
    from rlcorr_ref.contract import KL
    from rlcorr_ref.surrogates import kl_term

    x = np.log(2.0)
    expected = {"k1": (-x, 1.0), "k2": (x * x / 2, -x), "k3": (1 - x, -1.0), "k3+": (1 - x, -x)}
    for kind, (value, slope) in expected.items():
        v, s = kl_term(KL(kind, 1.0), np.array([-3.0]), np.array([-3.0 + x]))
        assert (v[0], s[0]) == (pytest.approx(value, rel=1e-14), pytest.approx(slope, rel=1e-14)), kind


def test_head_coefficients_match_the_golden_case():
    p, q = np.array([0.15, 0.40, 0.10]), np.array([0.36, 0.30, 0.18])
    inputs = {
        "head_logp_trainer": np.log(p)[None, None],
        "head_logp_sampler": np.log(q)[None, None],
        "mask": np.array([[1]]),
    }
    plain = ask("head_coefficients", inputs)
    np.testing.assert_allclose(plain["coefficients"], [[[0.291428571429, 0.117142857143, 0.134285714286]]], atol=6e-13)
    assert plain["alpha"][0][0] == pytest.approx(16 / 35, abs=1e-14)
    tis = ask("head_coefficients", inputs, weight=TIS)
    np.testing.assert_allclose(tis["coefficients"], [[[0.012857142857, 0.034285714286, 0.008571428571]]], atol=6e-13)
    with pytest.raises(ContractError, match="weight.level"):
        ask("head_coefficients", inputs, weight={"level": "sequence"})


def test_aggregation_by_hand():
    values = np.array([[1.0, 2.0, 99.0], [4.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
    mask = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    inputs = {"values": values, "mask": mask}
    for parameters, expected in [
        ({"kind": "token-mean"}, 7 / 3),
        ({"kind": "token-mean", "tokens": 10}, 0.7),
        ({"kind": "token-sum"}, 7.0),
        ({"kind": "seq-mean-token-sum"}, 3.5),
        ({"kind": "seq-mean-token-sum", "sequences": 3}, 7 / 3),
        ({"kind": "seq-mean-token-mean"}, 2.75),
        ({"kind": "seq-mean-token-sum-norm", "length": 4}, 0.875),
        ({"kind": "seq-mean-token-sum-norm", "length": 4, "sequences": 3}, 7 / 12),
    ]:
        assert ask("aggregate", inputs, **parameters)["value"] == pytest.approx(expected, rel=1e-15), parameters


def test_advantages_by_hand():
    rewards, groups = np.array([1.0, -1.0, 1.0, 1.0, 5.0]), np.array([0, 0, 0, 7, 7])
    np.testing.assert_allclose(group_advantages(rewards, groups), [2 / 3, -4 / 3, 2 / 3, -2, 2], rtol=1e-15)
    np.testing.assert_allclose(group_advantages(rewards, groups, "leave_one_out"), [1, -2, 1, -4, 4], rtol=1e-15)
    std = group_advantages(rewards, groups, "mean_std", eps=0.0)
    np.testing.assert_allclose(std, [0.57735027, -1.15470054, 0.57735027, -0.70710678, 0.70710678], rtol=1e-8)
    population = group_advantages(rewards, groups, "mean_std", eps=0.0, ddof=0)
    np.testing.assert_allclose(population, [0.70710678, -1.41421356, 0.70710678, -1, 1], rtol=1e-8)
    for kind in ("mean", "mean_std"):
        assert group_advantages(np.array([0.1]), np.array([3]), kind)[0] == 0.0
        assert (
            not group_advantages(np.full(3, 0.1), np.zeros(3, dtype=int), kind, eps=0.0).any()
            if kind == "mean_std"
            else True
        )
    assert group_advantages(np.array([0.1]), np.array([3]), "leave_one_out")[0] == 0.1
    out = ask("advantages", {"rewards": rewards, "groups": groups}, kind="mean")
    np.testing.assert_allclose(out["advantages"], [2 / 3, -4 / 3, 2 / 3, -2, 2], rtol=1e-15)
    with pytest.raises(ContractError, match="rewards: expected finite"):
        group_advantages(np.array([np.nan]), np.array([0]))


def test_stages_agree_with_the_objective():
    """The weight, reject and aggregate functions give what the objective's outputs show."""
    data = random_inputs(np.random.default_rng(4), 4, 5, 6, 3, anchor=True)
    policies = {
        "logp_trainer": token_logp(data["logits"], data["tokens"]),
        "logp_sampler": data["logp_sampler"],
        "logp_anchor": data["logp_anchor"],
        "mask": data["mask"],
        "advantages": data["advantages"],
    }
    rule = {"level": "segment", "high": 1.1, "outside": "clip", "normalise": "rows"}
    reject = [{"statistic": "k3", "reduce": "mean", "high": 0.02}]
    out = Objective.from_dict({"weight": rule, "rejection": reject}).evaluate(Batch(**data))
    np.testing.assert_array_equal(ask("weight", policies, **rule)["weights"], out.weights)
    np.testing.assert_array_equal(ask("reject", policies, rejection=reject)["mask"], out.mask)
    assert ask("aggregate", {"values": out.token_loss, "mask": data["mask"]}, kind="token-mean")[
        "value"
    ] == pytest.approx(out.loss)
    shared = ask("diagnostics", policies, weight=rule, rejection=reject)
    for name, value in out.diagnostics.items():
        if "head" not in name and "tail" not in name and "centering" not in name:
            assert shared[name] == pytest.approx(value, rel=1e-12), name


def test_quantise_scales():
    x = np.array([[1.0, -3.0, 6.1], [0.0, 0.0, 0.0]])
    out = ask("quantise", {"values": x}, format="fp4_e2m1", scale="row")
    s = 6.1 / 6
    np.testing.assert_allclose(out["values"], [[s * 1.0, s * -3.0, 6.1], [0, 0, 0]], rtol=1e-15)
    assert out["scale"] == [[s], [1.0]]
    unit = ask("quantise", {"values": np.array([0.3, 500.0, -0.25, 448.0])}, format="fp8_e4m3")
    assert unit["values"] == [0.3125, 448.0, -0.25, 448.0]
    with pytest.raises(ContractError, match="format.*'fp6'"):
        ask("quantise", {"values": x}, format="fp6")
