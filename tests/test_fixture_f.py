"""Fixture F: numbers that released frameworks returned for one batch. Nobody here computed the expected values.

Marked RUN in the comparison they come from: verl 0.9.1, ms-swift 4.6.0, TRL 1.16.0, OpenRLHF 0.11.2, AReaL 1.0.4 wheels,
NeMo RL 7ea279ab, slime 624b824a, SkyRL 0.3.0, executed on CPU in float32 (hence 1e-6).
"""

from __future__ import annotations

import numpy as np
import pytest
from cases_helper import F_LOGQ, F_MASK, F_RHO, fixture_f

from rlcorr_ref import Batch, Objective, evaluate_case
from rlcorr_ref.rejection import m2po_mask

LOGP = F_LOGQ + np.log(F_RHO)
VALID = F_MASK.astype(bool)
NEAR = {"rel": 2e-6, "abs": 2e-7}


def token(**keys):
    return {"level": "token", **keys}


def policies():
    return {"logp_trainer": LOGP.tolist(), "logp_sampler": F_LOGQ.tolist(), "mask": F_MASK.tolist()}


def valid(values) -> np.ndarray:
    return np.asarray(values, dtype=float)[VALID]


@pytest.mark.parametrize(
    "rule, gate, aggregation, loss",
    [
        (None, None, "token-mean", -1.0),  # verl
        (token(), None, "token-mean", -1.35),  # NeMo RL
        (token(high=2.0, outside="clip"), None, "token-mean", -1.15),  # NeMo RL, verl, ms-swift
        (token(low=0.5, high=5.0, outside="clip"), None, "token-mean", -1.40),  # OpenRLHF tis: clamps below too
        (token(low=0.5, high=5.0, outside="zero"), None, "token-mean", -1.30),  # OpenRLHF icepop
        (token(low=0.5, high=2.0, outside="zero"), None, "token-mean", -0.70),  # NeMo RL; verl mean 0.7
        (token(high=2.0, outside="zero"), None, "token-mean", -0.75),  # ms-swift token_mask
        (token(), {"level": "geometric", "low": 0.99, "high": 1.05}, "token-mean", -1.35),  # NeMo RL, OpenRLHF
        ({"level": "sequence", "high": 2.0, "outside": "clip"}, None, "token-mean", -1.071),  # verl
        ({"level": "sequence", "high": 2.0, "outside": "clip"}, None, "seq-mean-token-mean", -1.0575),  # NeMo RL
        ({"level": "geometric", "high": 2.0, "outside": "clip"}, None, "token-mean", -1.0220201),  # ms-swift
        # AReaL sequence mask at 1.01: row 0's geometric mean 1.0400 is dropped, row 1 keeps weight 0.99499
        ({"level": "geometric", "high": 1.01, "outside": "zero"}, None, "token-mean", -0.397995),
    ],
)
def test_decoupled_loss(rule, gate, aggregation, loss):
    """A = 1 and r = p/o = 1, so the ratio-form loss is minus the aggregated weight."""
    definition = {
        "surrogate": {"kind": "ppo_clip"},
        "weight": rule,
        "gate": gate,
        "aggregation": {"kind": aggregation},
    }
    out = Objective.from_dict(definition).evaluate(Batch(**fixture_f()))
    assert out.loss == pytest.approx(loss, **NEAR)


@pytest.mark.parametrize(
    "rule, gradient",
    [
        (token(high=2.0, outside="clip"), [-0.4, -0.05, -0.3, -0.22, -0.18]),  # verl decoupled and bypass token TIS
        (token(low=0.5, high=2.0, outside="zero"), [0, 0, -0.3, -0.22, -0.18]),  # verl bypass reinforce icepop
    ],
)
@pytest.mark.parametrize("surrogate", ["reinforce", "ppo_clip"])
def test_gradient_in_log_p_is_the_same_in_ratio_and_log_prob_form(surrogate, rule, gradient):
    out = Objective.from_dict({"surrogate": {"kind": surrogate}, "weight": rule}).evaluate(Batch(**fixture_f()))
    np.testing.assert_allclose(out.grad_logp[VALID], gradient, atol=1e-7)


def test_rejection_with_a_shrunk_denominator():
    """verl bypass reinforce + token_k1 in [.5, 2] with local denominators: 3 of 5 tokens stay, each divided by 3."""
    rule = {"statistic": "k1", "reduce": "token", "low": float(np.log(0.5)), "high": float(np.log(2.0))}
    for denominator, expected in [("shrunk", [0, 0, -0.5, -0.366667, -0.3]), ("kept", [0, 0, -0.3, -0.22, -0.18])]:
        definition = {"weight": token(), "rejection": [{**rule, "denominator": denominator}]}
        out = Objective.from_dict(definition).evaluate(Batch(**fixture_f()))
        np.testing.assert_allclose(out.grad_logp[VALID], expected, atol=4e-7)


@pytest.mark.parametrize(
    "advantage, dual, loss, gradient, clip_fraction",
    [
        (1.0, None, -0.93, [0, -0.05, 0, -0.22, -0.18], 0.4),
        (-1.0, 3.0, 1.46, [0.6, 0, 0.3, 0.22, 0.18], 0.2),  # r = 3 is not above the dual bound 3: strict
    ],
)
def test_bypass_ppo_clip(advantage, dual, loss, gradient, clip_fraction):
    """verl bypass ppo_clip: the ratio is p/q and weights are ignored. r = exp(log 3) is exact here only at the anchor."""
    data = fixture_f(advantage)
    del data["logp_anchor"]
    surrogate = {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.2, "dual": dual and dual * (1 + 1e-9)}
    out = Objective.from_dict({"surrogate": surrogate}).evaluate(Batch(**data))
    assert out.loss == pytest.approx(loss, **NEAR)
    np.testing.assert_allclose(out.grad_logp[VALID], gradient, atol=1e-6)
    assert out.diagnostics["clip_fraction"] == pytest.approx(clip_fraction)


def test_applied_weights():
    cases = [
        (token(high=2.0, outside="clip"), [2, 0.25, 1.5, 1.1, 0.9]),  # verl
        (token(low=0.5, high=2.0, outside="zero"), [0, 0, 1.5, 1.1, 0.9]),  # verl icepop
        (
            token(high=2.0, outside="clip", normalise="tokens"),
            [1.7391304, 0.2173913, 1.3043478, 0.9565217, 0.7826087],
        ),  # slime
        (
            {"level": "sequence", "high": 2.0, "outside": "clip", "normalise": "rows"},
            [1.0638298] * 3 + [0.9361702] * 2,
        ),  # verl
        (token(low=0.5, high=5.0, outside="clip"), [3, 0.5, 1.5, 1.1, 0.9]),  # OpenRLHF default
    ]
    for rule, expected in cases:
        out = evaluate_case({"function": "weight", "inputs": policies(), "parameters": rule})
        np.testing.assert_allclose(valid(out["weights"]), expected, rtol=1e-6)
        assert not np.any(np.asarray(out["weights"])[~VALID])


def test_levels():
    for level, rows in [("sequence", [1.125, 0.99]), ("geometric", [1.0400419, 0.9949874])]:
        out = evaluate_case({"function": "ratio", "inputs": policies(), "parameters": {"level": level}})
        np.testing.assert_allclose(valid(out["ratio"]), np.repeat(rows, [3, 2]), rtol=1e-6)


def test_diagnostics():
    definition = {"weight": token(high=2.0, outside="clip")}
    out = evaluate_case({"function": "diagnostics", "inputs": policies(), "parameters": definition})
    expected = {
        "kl_k1": -0.0215465,  # verl, ms-swift, slime, OpenRLHF vllm_kl
        "kl_k2": 0.3313348,
        "kl_k3": 0.3284535,
        "kl_k3_reverse": 0.4255869,  # AReaL kl_k3, NeMo RL policy_kl_error
        "kl@areal": 0.0215465,
        "kl@prime-rl": 0.6626696,
        "reverse_kl@open-instruct": -0.1002686,
        "logp_difference_mean@trl": 0.6182085,
        "token_mult_prob_error@nemo-rl": 2.1422222,
        "chi2_token": 1.6665,  # verl, ms-swift: token-pooled
        "chi2_token@slime": 1.3904167,  # per sequence, then averaged
        "chi2_sequence": 0.1228626,  # product, non-empty rows
        "chi2_seq@verl": 0.0819083,  # the empty row enters as 0
        "chi2_seq@ms-swift": 0.0238957,  # geometric
        "ess": 0.7935792,  # verl 0.9.1
        "ess@verl": 0.7935792,
        "ess@ms-swift": 0.8450705,  # clamped to [1/C, C]
        "ess_raw": 0.6834803,
        "ppl_trainer": 2.6076503,
        "training_ppl@verl": 2.0717669,
        "log_ppl_diff_mean": -0.0171179,
        "log_ppl_diff@verl": -0.0114119,
        "ppl_ratio": 0.9832689,
        "ppl_ratio@verl": 0.9888459,
        "weight_mean": 1.15,
        "weight_std": 0.5865152,  # verl: population
        "weight_max": 2.0,
        "weight_min": 0.25,
        "ratio_max": 3.0,
        "fraction_high": 0.2,
        "fraction_low@verl": 0.2,  # below 1/C
    }
    for name, value in expected.items():
        assert out[name] == pytest.approx(value, **NEAR), name


def test_effective_sample_size_under_icepop():
    rule = token(low=0.5, high=2.0, outside="zero")
    out = evaluate_case({"function": "diagnostics", "inputs": policies(), "parameters": {"weight": rule}})
    assert out["ess"] == pytest.approx(0.5737705, **NEAR)  # verl icepop
    assert out["ess@ms-swift"] == pytest.approx(0.8490564, **NEAR)  # dropped tokens counted as 1/C
    assert out["oob_ratio@verl"] == pytest.approx(0.4)
    assert out["fraction_zero"] == pytest.approx(0.4)


def test_effective_sample_size_of_sequence_weights():
    rule = {"level": "sequence", "high": 2.0, "outside": "clip"}
    out = evaluate_case({"function": "diagnostics", "inputs": policies(), "parameters": {"weight": rule}})
    assert out["ess"] == pytest.approx(0.996201, rel=2e-6)  # token-weighted


def test_effective_sample_size_does_not_leave_its_range():
    """All log-ratios -20: the 1e-8 in verl's mean makes its ESS 34.24; all dropped: verl raises, here 0."""
    inputs = {"logp_trainer": [[-21.0, -22.0]], "logp_sampler": [[-1.0, -2.0]], "mask": [[1, 1]]}
    out = evaluate_case(
        {"function": "diagnostics", "inputs": inputs, "parameters": {"weight": token(high=2.0, outside="clip")}}
    )
    assert out["ess"] == pytest.approx(1.0)
    assert out["ess@verl"] == pytest.approx(34.24, rel=1e-3)
    dropped = token(low=0.5, high=5.0, outside="zero")
    out = evaluate_case({"function": "diagnostics", "inputs": inputs, "parameters": {"weight": dropped}})
    assert out["ess"] == 0.0


@pytest.mark.parametrize("threshold, kept", [(0.04, "00011"), (0.2, "00111"), (0.5, "10111"), (1.0, "11111")])
def test_m2po_mask(threshold, kept):
    assert "".join(str(int(k)) for k in m2po_mask(np.log(F_RHO)[VALID], threshold)) == kept  # AReaL


def test_clamp_order_of_a_row():
    """d = (25, -22): clamping the sum gives exp(3), clamping tokens first gives a sum of 0 (verl weights, verl rejection)."""
    inputs = {"logp_trainer": [[0.0, -23.0]], "logp_sampler": [[-25.0, -1.0]], "mask": [[1, 1]]}
    for order, value in [("aggregate", 3.0), ("token", 0.0)]:
        parameters = {"level": "sequence", "log_clamp": 20.0, "clamp_order": order}
        out = evaluate_case({"function": "ratio", "inputs": inputs, "parameters": parameters})
        assert out["log_ratio"][0] == [value, value]
    rule = {"statistic": "k1", "reduce": "sum", "low": float(np.log(0.5)), "high": float(np.log(2)), "log_clamp": 20.0}
    assert evaluate_case({"function": "reject", "inputs": inputs, "parameters": rule})["mask"] == [[1.0, 1.0]]


def test_k1_band_constrains_the_reciprocal_ratio():
    """d = log 1.5 under k1 in [log .5, log 1.4] is kept: 1/1.5 = .667 lies in the band although rho = 1.5 does not (verl)."""
    inputs = {"logp_trainer": [[float(np.log(0.6))]], "logp_sampler": [[float(np.log(0.4))]], "mask": [[1]]}
    k1 = {"statistic": "k1", "reduce": "token", "low": float(np.log(0.5)), "high": float(np.log(1.4))}
    rho = {"statistic": "ratio", "reduce": "token", "low": 0.5, "high": 1.4}
    for rule, kept in [(k1, 1.0), (rho, 0.0)]:
        assert evaluate_case({"function": "reject", "inputs": inputs, "parameters": rule})["mask"] == [[kept]]


def test_k3_on_the_reciprocal_ratio():
    """rho = 3: k3 on p/q is 0.901 (verl rejects at 0.5), on q/p 0.432 (AReaL keeps)."""
    inputs = {"logp_trainer": [[float(np.log(0.9))]], "logp_sampler": [[float(np.log(0.3))]], "mask": [[1]]}
    out = evaluate_case({"function": "diagnostics", "inputs": inputs})
    assert out["kl_k3"] == pytest.approx(0.9014, abs=1e-4)
    assert out["kl_k3@areal"] == pytest.approx(0.4319, abs=1e-4)
