"""Dialects: every setting evaluates or says why it cannot, and reproduces the numbers that released frameworks returned.

Expected values marked RUN come from verl 0.9.1, ms-swift 4.6.0, OpenRLHF 0.11.2 and 0.11.0, AReaL 1.0.4, NeMo RL 7ea279ab and
slime 624b824a, executed on CPU in float32 on fixture F. Nobody computed them with this package.
"""

from __future__ import annotations

import numpy as np
import pytest
from cases_helper import F_MASK, F_RHO, fixture_f, random_inputs

from rlcorr_ref import Batch, Objective, dialects

VALID = F_MASK.astype(bool)
NEAR = {"rel": 2e-6, "abs": 2e-7}
ENTRIES = [(name, entry) for name in dialects.names() for entry in dialects.get(name).entries]
SHIFT = 2.0  # fixture F lies 2 nats lower here than where the frameworks ran it: losses -A w log p rise by 2 mean(w)


def rich_batch(policies: str, b: int = 4, t: int = 4) -> Batch:
    """A random batch that carries everything a definition may ask for; B == T, or not."""
    data = random_inputs(np.random.default_rng(5), b, t, 6, 3, anchor=True)
    data["logp_reference"] = data["logp_anchor"] - 0.1
    if policies == "two":
        for key in ("logp_anchor", "head_logp_anchor", "logp_anchor_full"):
            del data[key]
    return Batch(**data)


def on_f(framework: str, options: dict, advantage: float = 1.0):
    meaning = dialects.translate(framework, options)
    data = fixture_f(advantage)
    data["logp_reference"] = data["logp_anchor"] - 0.3
    if meaning.policies == "two":
        del data["logp_anchor"]
    return Objective.from_dict(meaning.definition).evaluate(Batch(**data))


@pytest.mark.parametrize("name, entry", ENTRIES, ids=lambda v: v if isinstance(v, str) else v.label)
@pytest.mark.parametrize("shape", [(4, 4), (3, 5)])
def test_every_setting_evaluates_or_says_why_not(name, entry, shape):
    try:
        meaning = dialects.translate(name, entry.options)
    except dialects.NotExpressible as reason:
        assert len(str(reason)) > 40 and "not expressible: " in str(reason)
        return
    out = Objective.from_dict(meaning.definition).evaluate(rich_batch(meaning.policies, *shape))
    assert np.isfinite(out.loss) and np.isfinite(out.grad_logits).all()
    objective = Objective.from_dict(meaning.definition)
    assert Objective.from_dict(objective.to_dict()) == objective
    assert meaning.formula.startswith("loss = ") and "\n" not in meaning.formula


def test_a_two_policy_definition_never_asks_for_an_anchor_and_a_three_policy_one_names_it():
    for name, entry in ENTRIES:
        try:
            meaning = dialects.translate(name, entry.options)
        except dialects.NotExpressible:
            continue
        rules = [meaning.definition.get("weight"), meaning.definition.get("gate")]
        rules += meaning.definition.get("rejection", [])
        found = {rule.get("numerator") for rule in rules if rule}
        assert found <= ({"trainer"} if meaning.policies == "two" else {"anchor", "trainer"}), (name, entry.label)
        assert ("p/o" in meaning.formula) <= (meaning.policies == "three")


TOKEN = {"rollout_is": "token"}
SWIFT = {"loss_type": "bnpo", "beta": 0.0}
PER_TOKEN = {"calculate_per_token_loss": True}
NEMO = {"use_importance_sampling_correction": True, "reference_policy_kl_penalty": 0.0}
NEMO_ROWS = {"sequence_level_importance_ratios": True, "token_level_loss": False}
OPENRLHF = {"is_correction_level": "token"}


def swift(mode):
    return {"rollout_importance_sampling_mode": mode, **SWIFT}


def nemo(kind, low, high, **more):
    names = {"type": kind, "ratio_min": low, "ratio": high}
    return {**NEMO, **{f"truncated_importance_sampling_{key}": value for key, value in names.items()}, **more}


def areal(**rule):
    return {"use_decoupled_loss": True, "rejection_sampling": rule}


@pytest.mark.parametrize(
    "framework, options, loss",
    [
        ("verl", {}, -1.0),  # RUN
        ("verl", {**TOKEN, "rollout_is_threshold": 2.0}, -1.15),  # RUN
        ("verl", {**TOKEN, "rollout_is_threshold": "0.5_2.0"}, -0.70),  # RUN
        ("verl", {"rollout_is": "sequence", "rollout_is_threshold": 2.0}, -1.071),  # RUN: product 1.125, 0.99
        ("verl", {"bypass_mode": True}, -0.93),  # RUN: weights ignored
        ("verl", {"bypass_mode": True, **TOKEN}, -0.93),
        ("ms-swift", SWIFT, -1.0),
        ("ms-swift", swift("token_truncate"), -1.15),  # RUN
        ("ms-swift", swift("token_mask"), -0.75),  # RUN: one-sided, 0.25 stays
        ("ms-swift", swift("sequence_truncate"), -1.0220201),  # RUN: geometric 1.0400, 0.99499
        ("ms-swift", swift("sequence_mask"), -1.35),  # both rows pass the gate, token weights raw (NeMo RL RUN)
        ("openrlhf", {**OPENRLHF, "is_correction_mode": "clip"}, -1.40),  # RUN: 0.25 is raised to 0.5
        ("openrlhf", OPENRLHF, -1.30),  # RUN
        ("openrlhf", {"is_correction_level": "seq", "is_correction_threshold": [0.99, 1.05]}, -1.35),  # RUN
        ("openrlhf-0.11.0", {"is_correction_enable": True}, -1.40),  # RUN
        ("openrlhf-0.11.0", {"is_correction_enable": True, "is_correction_type": "icepop"}, -1.30),  # RUN
        ("nemo-rl", NEMO, -1.35),  # RUN
        ("nemo-rl", nemo("tis", None, 2.0), -1.15),  # RUN
        ("nemo-rl", nemo("icepop", 0.5, 2.0), -0.70),  # RUN
        ("nemo-rl", nemo("seq-mask-tis", 0.99, 1.05), -1.35),  # RUN
        ("nemo-rl", nemo("tis", None, 2.0, **NEMO_ROWS), -1.0575),  # RUN: product, row mean
        ("areal", {"use_decoupled_loss": True}, -1.0),  # RUN: no rejection sampling, no weight
        ("areal", areal(upper=2.0), -0.75),  # RUN
        ("areal", areal(upper=2.0, lower=0.5), -0.70),  # RUN
        ("areal", areal(upper=2.0, action="clamp"), -1.15),  # RUN
        ("areal", areal(upper=1.01, level="sequence"), -0.397995),  # RUN: row 0 dropped, row 1 weighs 0.99499
        ("areal", areal(upper=2.0, level="sequence", action="clamp"), -1.0220201),  # RUN
        ("slime", {"use_tis": True, **PER_TOKEN}, -1.15),  # [0, 2] is the one-sided cap (NeMo RL RUN)
        (
            "slime",
            {
                "use_tis": True,
                "tis_clip_low": 0.5,
                "custom_tis_function_path": "icepop_function",
                **PER_TOKEN,
            },
            -0.70,  # the two-sided band of NeMo RL's RUN
        ),
        ("skyrl", {"use_kl_loss": False, "tis_ratio_type": "token"}, -1.15),
        ("skyrl", {"use_kl_loss": False, "tis_ratio_type": "sequence"}, -1.071),
        ("open-instruct", {"beta": 0.0}, -1.15),
        ("unirl", {"old_logp_source": "replay", "rollout_is_threshold": 2.0}, -1.15),
        ("trl", {"vllm_importance_sampling_mode": "sequence_truncate"}, -1.071),
        (
            "trl",
            {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0},
            -1.15,
        ),
    ],
)
def test_losses_on_fixture_f(framework, options, loss):
    """A = 1 and p = o, so the clipped loss is minus the reduced weight."""
    assert on_f(framework, options).loss == pytest.approx(loss, **NEAR)


REINFORCE = {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token"}


@pytest.mark.parametrize(
    "options, loss, gradient, mean_weight",
    [
        ({"rollout_is_threshold": 2.0}, 0.438227, [-0.4, -0.05, -0.3, -0.22, -0.18], 1.15),  # RUN
        ({"rollout_is_threshold": "0.5_2.0"}, 0.308357, [0, 0, -0.3, -0.22, -0.18], 0.7),  # RUN
        (
            {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0", "@local_denominators": True},
            0.513929,
            [0, 0, -0.5, -0.366667, -0.3],
            3.5 / 3,
        ),  # RUN: denominator 3
    ],
)
def test_verl_bypass_reinforce(options, loss, gradient, mean_weight):
    out = on_f("verl", {**REINFORCE, **options})
    np.testing.assert_allclose(out.grad_logp[VALID], gradient, atol=4e-7)
    assert out.loss - SHIFT * mean_weight == pytest.approx(loss, abs=2e-6)


def test_verl_decoupled_gradient_equals_the_bypass_one():
    out = on_f("verl", TOKEN)
    np.testing.assert_allclose(out.grad_logp[VALID], [-0.4, -0.05, -0.3, -0.22, -0.18], atol=1e-7)  # RUN


def test_verl_bypass_ppo_clip_with_a_negative_advantage():
    assert on_f("verl", {"bypass_mode": True}, -1.0).loss == pytest.approx(1.46, **NEAR)  # RUN, dual clip 3


@pytest.mark.parametrize(
    "framework, options, weights",
    [
        ("verl", TOKEN, [2, 0.25, 1.5, 1.1, 0.9]),  # RUN
        ("verl", {**TOKEN, "rollout_is_threshold": "0.5_2.0"}, [0, 0, 1.5, 1.1, 0.9]),  # RUN
        (
            "verl",
            {"rollout_is": "sequence", "rollout_is_batch_normalize": True},
            [1.0638298] * 3 + [0.9361702] * 2,
        ),  # RUN
        (
            "slime-mis",
            {"use_rs": False},
            [1.7391304, 0.2173913, 1.3043478, 0.9565217, 0.7826087],
        ),  # RUN: divides by 1.15
        ("roll", {"is_weight.enabled": True}, [1.2, 0.25, 1.2, 1.1, 0.9]),  # cap 1.2 by default
    ],
)
def test_weights_on_fixture_f(framework, options, weights):
    np.testing.assert_allclose(on_f(framework, options).weights[VALID], weights, rtol=1e-6)


def test_slime_batch_norm_says_that_empty_rows_count_there():
    """RUN: slime divides by (1.125 + 0.99 + 0)/3 = 0.705 where verl divides by 1.0575."""
    options = {"use_rs": False, "tis_level": "sequence"}
    np.testing.assert_allclose(on_f("slime-mis", options).weights[VALID][0], 1.0638298, rtol=1e-6)
    assert any("empty rows" in note for note in dialects.definition("slime-mis", options)[1])


@pytest.mark.parametrize(
    "framework, options, kept",
    [
        # the k1 band constrains 1/rho: rho = 1.5 stays under "0.5_1.4" (RUN)
        ("verl", {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_1.4"}, "00111"),
        # k3 at rho = 3: 0.901 on p/q is rejected at 0.5 (verl RUN), 0.432 on q/p is kept (AReaL RUN)
        ("verl", {"rollout_rs": "token_k3", "rollout_rs_threshold": 0.5}, "00111"),
        ("areal", areal(metric="kl_k3", upper=0.5), "10111"),
        ("areal", areal(metric="kl_k3", upper=0.5, level="sequence", agg="max"), "00011"),
        # AReaL's k1 is log o - log q: rho = 3 has 1.0986, above 0.5
        ("areal", areal(metric="kl_k1", upper=0.5), "01111"),
        ("areal", areal(metric="kl_k1", upper=0.5, level="sequence", agg="max"), "00011"),
        ("slime-mis", {"tis_batch_normalize": False}, "00111"),
        ("roll", {"filters": [{"enabled": True}], "@global_rows": 2.0}, "00011"),
        ("skyrl", {"use_kl_loss": False, "outlier_token_is_threshold_high": 2.0}, "00011"),
        ("skyrl", {"use_kl_loss": False, "outlier_token_is_threshold_low": 0.3}, "00011"),
    ],
)
def test_masks_on_fixture_f(framework, options, kept):
    assert "".join(str(int(k)) for k in on_f(framework, options).mask[VALID]) == kept


@pytest.mark.parametrize("threshold, kept", [(0.004, "11100"), (0.007, "11111")])
def test_off_policy_sequence_masks_take_the_row_mean_of_negatives(threshold, kept):
    """Row means of log q - log p are -0.0393 and 0.0050; the row sum of the second is 0.0101."""
    for name, options in (
        ("trl", {"off_policy_mask_threshold": threshold}),
        ("ms-swift", {"off_policy_sequence_mask_delta": threshold, **SWIFT}),
        ("slime", {"use_opsm": True, "opsm_delta": threshold, "use_rollout_logprobs": True}),
    ):
        assert "".join(str(int(k)) for k in on_f(name, options, -1.0).mask[VALID]) == kept, name
        assert on_f(name, options, 1.0).mask[VALID].all()


def test_rejection_denominators_of_verl():
    """Legacy decoupled: the survivors; v1 trainer: all tokens. RUN of the shrinking form: -3.5/3."""
    options = {**TOKEN, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
    assert on_f("verl", options).loss == pytest.approx(-0.7, **NEAR)
    assert on_f("verl", {**options, "trainer.use_v1": False}).loss == pytest.approx(-3.5 / 3, **NEAR)
    bypass = {**REINFORCE, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0", "trainer.use_v1": False}
    assert dialects.definition("verl", bypass)[0]["rejection"][0]["denominator"] == "kept"


def test_roll_token_filter_divides_by_the_surviving_tokens_of_the_row_and_by_all_rows():
    """Row 0 loses all tokens, row 1 none: the mean over two rows is -(0 + 1)/2; with one token left of three, -(1 + 1)/2."""
    f = {"enabled": True}
    assert on_f("roll", {"filters": [f], "@global_rows": 2.0}).loss == pytest.approx(-0.5)
    wide = {"enabled": True, "ratio_low": 0.8, "ratio_high": 1.6}
    assert on_f("roll", {"filters": [wide], "@global_rows": 2.0}).loss == pytest.approx(-1.0)


def test_the_clamp_order_of_verl():
    """RUN: d = (25, -22) weighs exp(3), and rejection clamps each token first, so the row stays."""
    options = {"rollout_is": "sequence", "rollout_is_threshold": "inf", "rollout_rs": "seq_sum_k1"}
    definition, _ = dialects.definition("verl", {**options, "rollout_rs_threshold": "0.5_2.0"})
    logp = np.array([[-0.5, -22.5]])
    rest = np.log(-np.expm1(logp))
    batch = Batch(
        logits=np.stack([logp, rest], -1),
        tokens=np.zeros((1, 2), dtype=int),
        mask=np.ones((1, 2), dtype=int),
        advantages=np.ones((1, 2)),
        logp_sampler=np.array([[-25.5, -0.5]]),
        logp_anchor=logp,
    )
    out = Objective.from_dict(definition).evaluate(batch)
    np.testing.assert_allclose(out.weights, [[np.exp(3.0)] * 2], rtol=1e-12)
    assert out.mask.tolist() == [[1.0, 1.0]]


def test_ms_swift_weighs_the_reference_kl():
    out = on_f("ms-swift", {**swift("token_truncate"), "beta": 0.5})
    rho = F_RHO[VALID]
    k3 = np.expm1(-0.3) + 0.3  # log ref - log p = -0.3 on every token
    assert out.loss == pytest.approx(float(np.mean(np.minimum(rho, 2.0) * (-1.0 + 0.5 * k3))), rel=1e-12)
    other = on_f("open-instruct", {"beta": 0.5})
    assert other.loss == pytest.approx(float(np.mean(-np.minimum(rho, 2.0) + 0.5 * k3)), rel=1e-12)


def test_nemo_kl_has_the_gradient_of_k2():
    """k3 times p/sg(p) at p = sg(p): the derivative is k3' + k3 = -x, x = log ref - log p."""
    definition, _ = dialects.definition("nemo-rl", {"reference_policy_kl_penalty": 1.0, "disable_ppo_ratio": True})
    data = fixture_f(0.0)
    data["logp_reference"] = data["logp_anchor"] - 0.3
    out = Objective.from_dict(definition).evaluate(Batch(**data))
    np.testing.assert_allclose(out.grad_logp[VALID], 0.3 / 5, rtol=1e-12)
    assert out.loss == pytest.approx(np.expm1(-0.3) + 0.3, rel=1e-12)


def test_cispo_bounds_are_offsets_in_one_family_and_caps_in_the_other():
    offset, _ = dialects.definition("verl", {"loss_mode": "cispo", "clip_ratio_high": 4.0})
    cap, _ = dialects.definition("trl", {"loss_type": "cispo", "epsilon_high": 5.0})
    assert offset["surrogate"]["eps_high"] == cap["surrogate"]["eps_high"] == 4.0
    for name in ("trl", "ms-swift"):
        with pytest.raises(dialects.NotExpressible, match="is the cap itself"):
            dialects.definition(name, {"loss_type": "cispo"})
