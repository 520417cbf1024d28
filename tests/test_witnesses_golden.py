"""Both witnesses against numbers that nobody here produced, against exact ties, and against what must be refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import witness_torch
from witness_compare import to_array

from rlcorr_ref.derive import evaluate, to_float

WITNESSES = {"mpmath": lambda case: evaluate(**case), "torch": lambda case: witness_torch.evaluate(**case)}
MEAN = {"kind": "token-mean"}
TIS = {"high": 2.0, "outside": "clip"}
MIS = {"low": 0.5, "high": 5.0, "outside": "zero"}
P = [0.40, 0.25, 0.15, 0.10, 0.06, 0.04]
Q = [0.30, 0.04, 0.36, 0.18, 0.05, 0.07]
Z = [2.0, 0.0, -1.0, 0.5, -2.0]
ZQ = [0.0, 1.5, 0.5, -1.0, 0.3]


@pytest.fixture(params=WITNESSES)
def witness(request):
    return WITNESSES[request.param]


def log_softmax(z):
    top = max(z)
    total = top + math.log(math.fsum(math.exp(x - top) for x in z))
    return [x - total for x in z]


def one_token(logits, log_q, y, advantage, head, **definition):
    inputs = {"logits": [[logits]], "tokens": [[y]], "mask": [[1]], "advantages": [[advantage]]}
    inputs["logp_sampler"] = [[log_q[y]]]
    inputs["head_ids"], inputs["head_logp_sampler"] = [[head]], [[[log_q[v] for v in head]]]
    return {"inputs": inputs, "definition": {"aggregation": MEAN, "centering": {"tail": "rescaled"}} | definition}


# computed at 50 digits by code independent of this package; arXiv 2609.20807 App. A formulas, both floors 1e-6
CASE_C = [
    ([2, 0, 3], None, 1, 0.208439097937, "0.15 -.442857142857 .18 .09 .013714285714 .009142857143"),
    ([2, 0, 3], TIS, 1, 1.348522526844, ".406 -.756964285714 .15225 .1015 .058328571429 .038885714286"),
    ([2, 0, 3], TIS, 2, 0.357461495908,
     ".089333333333 .045119047619 -.174833333333 .022333333333 .010828571429 .007219047619"),
    ([2, 0, 3], MIS, 1, 0.142283998866, ".03 .01875 -.06375 .0075 .0045 .003"),
    ([2, 0, 3], MIS, 2, 0.142283998866, ".03 .01875 -.06375 .0075 .0045 .003"),
    ([2, 0, 1], None, 3, 1.392884862786, ".15 .02 .18 -.425 .045 .03"),
    ([2, 0, 1], TIS, 3, 0.757441990971, ".145111111111 .005694444444 .054416666667 -.2415 .021766666667 .014511111111"),
    ([2, 0, 1], MIS, 3, 0.955177764283, ".191111111111 -.005555555556 -.003333333333 -.23 .028666666667 .019111111111"),
]  # fmt: skip
# the same provenance; head coefficients c_v = q_v f(r_v) - alpha p_v in head order, times A = 1/2 in the gradient
HEADS_C = [
    ([2, 0, 3], None, 1, ".291428571429 .117142857143 .134285714286"),
    ([2, 0, 3], TIS, 1, ".012857142857 .034285714286 .008571428571"),
    ([2, 0, 3], MIS, 1, "-.15 0 0"),
    ([2, 0, 1], None, 3, ".135 -.30 -.335"),
    ([2, 0, 1], TIS, 3, "0 0 -.17"),
    ([2, 0, 1], MIS, 3, "-.15 0 -.25"),
]
# the same provenance; T = 0.8, q = softmax(ZQ), head {1, 2, 4}, A = -0.75
CASE_B = [
    (None, 1, None, "-.125661922932 .462645462827 -.174689221773 -.019270880025 -.143023438097"),
    (TIS, 0, -0.215012503665, ".437037247113 -.158205561326 -.045326652210 -.220518730293 -.012986303284"),
]


def numbers(text):
    return np.array([float(x) for x in text.split()])


def logs(values):
    return [math.log(x) for x in values]


@pytest.mark.parametrize(("head", "weight", "y", "loss", "gradient"), CASE_C)
def test_case_c(witness, head, weight, y, loss, gradient):
    out = witness(one_token(logs(P), logs(Q), y, 0.5, head, weight=weight))
    np.testing.assert_allclose(float(out["loss"]), loss, atol=1e-12)
    np.testing.assert_allclose(to_array(out["grad_logits"])[0, 0], numbers(gradient), atol=1e-12)


@pytest.mark.parametrize(("head", "weight", "y", "coefficients"), HEADS_C)
def test_case_c_head_coefficients(witness, head, weight, y, coefficients):
    out = witness(one_token(logs(P), logs(Q), y, 0.5, head, weight=weight))
    np.testing.assert_allclose(to_array(out["grad_head_logp"])[0, 0], 0.5 * numbers(coefficients), atol=1e-12)


@pytest.mark.parametrize(("weight", "y", "loss", "gradient"), CASE_B)
def test_case_b_with_temperature(witness, weight, y, loss, gradient):
    out = witness(one_token(Z, log_softmax(ZQ), y, -0.75, [1, 2, 4], weight=weight, temperature=0.8))
    np.testing.assert_allclose(to_array(out["grad_logits"])[0, 0], numbers(gradient), atol=1e-12)
    np.testing.assert_allclose(float(out["diagnostics"]["tail_ratio_mean"]), 0.169653066957, atol=1e-12)
    if loss is not None:
        np.testing.assert_allclose(float(out["loss"]), loss, atol=1e-12)


@pytest.mark.parametrize("y", [0, 1, 4])
def test_case_b_with_everything_out_of_band_is_zero(witness, y):
    out = witness(one_token(Z, log_softmax(ZQ), y, -0.75, [1, 2, 4], weight=MIS, temperature=0.8))
    assert float(out["loss"]) == 0 and not to_array(out["grad_logits"]).any()


def fixture(weight=None, gate=None, rejection=(), advantage=1.0, aggregation=MEAN):
    """Ratios [3, 1/4, 3/2], [1.1, 0.9] and a masked row with junk; anchor = trainer, so the PPO ratio is 1 and the
    loss is -A times the mean weight. Log-probs are shifted by -2 so that a ratio of 3 fits below probability 1."""
    ratios = [[3.0, 0.25, 1.5, 7.0], [1.1, 0.9, 7.0, 7.0], [9.0, 1.3, 0.5, 1.2]]
    mask = [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    log_q = [[x - 2 for x in row] for row in ([-1, -2, -0.5, -9], [-0.3, -1.2, -9, -9], [-3, -9, -9, -9])]
    log_p = [[q + math.log(r) for q, r in zip(*rows, strict=True)] for rows in zip(log_q, ratios, strict=True)]
    logits = [[[x, math.log1p(-math.exp(x))] if x < 0 else [0.0, 0.0] for x in row] for row in log_p]
    zeros = [[0] * 4 for _ in range(3)]
    inputs = {"logits": logits, "tokens": zeros, "mask": mask, "advantages": [[advantage] * 4 for _ in range(3)]}
    inputs |= {"logp_sampler": log_q, "logp_anchor": log_p}
    definition = {"surrogate": {"kind": "ppo_clip"}, "weight": weight, "gate": gate, "rejection": list(rejection)}
    return {"inputs": inputs, "definition": definition | {"aggregation": aggregation}}


GEOMETRIC_BAND = {"level": "geometric", "low": 0.99, "high": 1.05}
# outputs of the released functions of verl 0.9.1, ms-swift 4.6.0, NeMo-RL 7ea279ab, OpenRLHF 0.11.2 and AReaL 1.0.4 on
# this fixture in float32 (token-mean over 5 tokens unless the row says otherwise)
PUBLISHED = [
    (fixture(), -1.0),
    (fixture({"level": "token"}), -1.35),
    (fixture(TIS), -1.15),
    (fixture({"low": 0.5, "high": 5.0, "outside": "clip"}), -1.40),
    (fixture(MIS), -1.30),
    (fixture({"low": 0.5, "high": 2.0, "outside": "zero"}), -0.70),
    (fixture({"high": 2.0, "outside": "zero"}), -0.75),
    (fixture({"level": "token"}, GEOMETRIC_BAND), -1.35),
    (fixture({"level": "sequence"} | TIS), -1.071),
    (fixture({"level": "sequence"}, aggregation={"kind": "seq-mean-token-mean"}), -1.0575),
    (fixture({"level": "geometric"} | TIS), -1.0220201),
    (fixture(rejection=[{"statistic": "ratio", "reduce": "token", "high": 2.0}], weight={"level": "token"}), -0.75),
    (fixture({"level": "geometric"}, {"level": "geometric", "high": 1.01}), -0.397995),
]


@pytest.mark.parametrize(("case", "loss"), PUBLISHED)
def test_loss_that_frameworks_returned(witness, case, loss):
    np.testing.assert_allclose(float(witness(case)["loss"]), loss, rtol=2e-7)


# read from the same runs: names as the metrics are called there, in brackets
METRICS = {
    "kl_k1": -0.0215465,  # verl kl
    "kl_k2": 0.3313348,  # AReaL k2
    "kl_k3": 0.3284535,  # verl k3_kl
    "kl_k3_reverse": 0.4255869,  # AReaL kl_k3
    "chi2_token": 1.6665,  # verl chi2_token
    "chi2_sequence": 0.1228626,  # verl chi2_seq without the empty row
    "log_ppl_diff_mean": -0.0171179,  # verl log_ppl_diff without the empty row
    "ppl_ratio": 0.9832689,  # verl ppl_ratio without the empty row
    "ess_raw": 0.6834803,
    "ess": 0.7935792,  # verl rollout_is_eff_sample_size, token TIS 2
    "weight_std": 0.5865152,  # verl rollout_is_std
    "fraction_high": 0.2,
}


@pytest.mark.parametrize("name", METRICS)
def test_metric_that_frameworks_returned(witness, name):
    np.testing.assert_allclose(float(witness(fixture(TIS))["diagnostics"][name]), METRICS[name], atol=3e-7)


@pytest.mark.parametrize(("mode", "weights"), [
    ("tokens", [[1.7391304, 0.2173913, 1.3043478, 0], [0.9565217, 0.7826087, 0, 0], [0] * 4]),
    ("rows", [[1.0638298] * 3 + [0], [0.9361702] * 2 + [0, 0], [0] * 4]),
])  # fmt: skip
def test_batch_normalisation_that_frameworks_returned(witness, mode, weights):
    """slime divides token TIS 2 by 1.15; verl divides the sequence product by the mean over non-empty rows, 1.0575."""
    rule = TIS if mode == "tokens" else {"level": "sequence"}
    out = witness(fixture(rule | {"normalise": mode}))
    np.testing.assert_allclose(to_array(out["weights"]), weights, atol=3e-7)


def anchored(d, advantage=1.0, **definition):
    """One token of a two-word vocabulary whose anchor/sampler log-ratio is the exact binary number d."""
    inputs = {"logits": [[[0.0, 0.0]]], "tokens": [[0]], "mask": [[1]], "advantages": [[advantage]]}
    inputs |= {"logp_sampler": [[-1.25]], "logp_anchor": [[-1.25 + d]]}
    return {"inputs": inputs, "definition": {"aggregation": {"kind": "token-sum"}} | definition}


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 2.0)])
def test_closed_bands_keep_their_ends(witness, closed, low, high):
    band = {"low": low, "high": high, "closed": closed}
    out = witness(anchored(0.0, weight=band | {"outside": "zero"}))
    assert float(out["weights"][0][0]) == float(closed)
    assert float(witness(anchored(0.0, gate={"level": "token"} | band))["weights"][0][0]) == float(closed)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("statistic", "low", "high"), [("k1", -0.25, 1.0), ("k1", -1.0, -0.25), ("k2", None, 0.03125)])
def test_rejection_at_its_bound(witness, closed, statistic, low, high):
    rule = {"statistic": statistic, "reduce": "token", "low": low, "high": high, "closed": closed}
    out = witness(anchored(0.25, rejection=[rule]))
    assert float(out["mask"][0][0]) == float(closed)
    assert (float(out["loss"]) != 0) == closed


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_ppo_tie_takes_the_unclipped_branch(witness, advantage):
    case = anchored(0.0, advantage, surrogate={"kind": "ppo_clip", "eps_low": 0.0, "eps_high": 0.0})
    case["inputs"] |= {"support": [[[1, 0]]], "logp_anchor": [[0.0]], "logp_sampler": [[0.0]]}
    out = witness(case)
    assert float(out["grad_logp"][0][0]) == -advantage
    assert not to_array(out["grad_logits"]).any()


@pytest.mark.parametrize("weight", [None, {"level": "token"}, TIS, MIS])
@pytest.mark.parametrize("floors", [1e-6, None])
def test_full_head_is_exact_centering(witness, weight, floors):
    """With K = V the tail is empty and every alpha gives the same gradient, that of the exact sum."""
    case = one_token(logs(P), logs(Q), 1, 0.5, [3, 1, 0, 5, 2, 4], weight=weight)
    case["definition"]["centering"] |= {"floor_sampler": floors, "floor_trainer": floors}
    exact = one_token(logs(P), logs(Q), 1, 0.5, [0], weight=weight, centering={"tail": "exact"})
    exact["inputs"]["logp_sampler_full"] = [[logs(Q)]]
    want, got = to_array(witness(exact)["grad_logits"]), to_array(witness(case)["grad_logits"])
    np.testing.assert_allclose(got, want, atol=1e-15)


def test_no_valid_token_with_an_explicit_denominator(witness):
    case = one_token(logs(P), logs(Q), 1, 0.5, [2, 0], aggregation={"kind": "token-mean", "tokens": 4})
    case["inputs"]["mask"] = [[0]]
    out = witness(case)
    assert float(out["loss"]) == 0 and not to_array(out["grad_logits"]).any() and not to_array(out["weights"]).any()


REFUSED = [
    ({"weigth": None}, "unknown key 'weigth'"),
    ({"weight": {"highh": 2.0}}, "weight has unknown key 'highh'"),
    ({"weight": {"high": 2.0}}, "outside is required"),
    ({"weight": {"statistic": "tv", "high": 0.2, "outside": "zero"}}, "'rescaled' has no constant tail ratio"),
    ({"weight": TIS, "surrogate": {"kind": "ppo_clip"}}, "squares p/q"),
    ({"surrogate": {"kind": "gspo"}}, "centering with surrogate 'gspo'"),
    ({"kl": {"kind": "k2", "beta": 0.1}}, "needs the input logp_reference"),
    ({"aggregation": {"kind": "seq-mean-token-sum-norm"}}, "needs the key 'length'"),
    ({"aggregation": {"kind": "seq-mean-token-sum", "tokens": 4}}, "does not divide by 'tokens'"),
    ({"centering": {"tail": "exact"}}, "needs logp_sampler_full"),
    ({"weight": {"numerator": "anchor"}}, "needs logp_anchor"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_the_multi_precision_witness_refuses(change, message):
    case = one_token(logs(P), logs(Q), 1, 0.5, [2, 0], **change)
    with pytest.raises(ValueError, match=message):
        evaluate(**case)


def test_the_multi_precision_witness_refuses_an_empty_mask():
    case = one_token(logs(P), logs(Q), 1, 0.5, [2, 0])
    case["inputs"]["mask"] = [[0]]
    with pytest.raises(ValueError, match="no valid token"):
        evaluate(**case)


def test_to_float_keeps_structure():
    out = to_float(evaluate(**one_token(logs(P), logs(Q), 1, 0.5, [2, 0])))
    assert out["grad_logp_full"] is None and isinstance(out["loss"], float) and len(out["grad_logits"][0][0]) == 6
