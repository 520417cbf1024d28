"""Score-centering dialects: floors, three policies and sign-aware probability bands, against independent forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases_helper import log_softmax, random_inputs

from rlcorr_ref import Batch, Objective, dialects
from rlcorr_ref.contract import WeightRule
from rlcorr_ref.dialects.areal import k3_band
from rlcorr_ref.weights import preset

REINFORCE = {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token"}
PER_TOKEN = {"calculate_per_token_loss": True}


def tail_case(p, q) -> dict:
    """One token, y = 0, head {0, 1}, A = 1."""
    logq = np.log(q)
    return {
        "logits": np.log(p)[None, None],
        "tokens": np.zeros((1, 1), dtype=int),
        "mask": np.ones((1, 1), dtype=int),
        "advantages": np.ones((1, 1)),
        "logp_sampler": logq[:1][None],
        "head_ids": np.array([[[0, 1]]]),
        "head_logp_sampler": logq[:2][None, None],
    }


def centered(framework: str, options: dict, data: dict) -> np.ndarray:
    definition, _ = dialects.definition(framework, options)
    return Objective.from_dict(definition).evaluate(Batch(**data)).grad_logits[0, 0]


def test_floors_of_the_centering_dialects():
    """A sampler tail of 1e-8 separates two floors from a trainer-only floor; published codes move by 5.9e-7, 1.2e-6 and 0."""
    data = tail_case(np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.6, 0.4 - 1e-8, 6e-9, 4e-9]))
    both = {rule: centered("authors-readme", {"rule": rule}, data) for rule in ("none", "tis", "mis")}
    is_ = {"none": {}, "tis": {"high": 2.0, "outside": "clamp"}, "mis": {"low": 0.5, "high": 5.0}}
    for rule, given in is_.items():
        options = {"sc": True, "is_correction": rule != "none", **given}
        moved = np.abs(centered("authors", options, data) - both[rule]).max()
        assert (moved == 0.0) if rule == "mis" else (1e-7 < moved < 5e-6), rule
    single = {"force_on_policy_ratio": True, "reference_policy_kl_penalty": 0.0, "score_centering": True}
    np.testing.assert_array_equal(centered("nemo-rl", single, data), centered("authors", {"sc": True}, data))
    for name, options in (
        ("verl", {**REINFORCE, "rollout_is": None, "score_centering": True, "topk_log_probs": 2}),
        ("slime", {"use_score_centering": True, "pg_loss_type": "reinforce", **PER_TOKEN}),
        ("miles", {"loss_type": "score_centering"}),
        ("skyrl", {"use_kl_loss": False, "policy_loss_type": "reinforce", "score_centering.enabled": True}),
    ):
        np.testing.assert_array_equal(centered(name, options, data), both["none"], err_msg=name)
    head_size = centered("miles", {"loss_type": "score_centering", "@head_size_branch": True}, data)
    np.testing.assert_array_equal(head_size, centered("authors", {"sc": True}, data))


def test_both_floors_on_a_tiny_trainer_tail():
    """Published floored codes, run: (-.40406, .40396, 7e-5, 3e-5); without a floor it would be (-.41, .40, .007, .003)."""
    data = tail_case(np.array([0.6, 0.4 - 1e-8, 7e-9, 3e-9]), np.array([0.59, 0.4, 0.007, 0.003]))
    np.testing.assert_allclose(centered("authors-readme", {}, data), [-0.40406, 0.40396, 7e-5, 3e-5], atol=6e-6)


def test_marin_centers_the_product_of_both_ratios():
    """Independent form: c_v = q min(o/q, cap) (p/o) active - alpha p, the tail one slot with masses (q_t, o_t, p_t)."""
    data = random_inputs(np.random.default_rng(8), 3, 4, 7, 3, anchor=True)
    definition, _ = dialects.definition("marin", {"eps_clip_high": 0.28, "tis_cap": 1.1})
    out = Objective.from_dict(definition).evaluate(Batch(**data))
    p = np.take_along_axis(np.exp(log_softmax(data["logits"])), data["head_ids"], -1)
    q, o = np.exp(data["head_logp_sampler"]), np.exp(data["head_logp_anchor"])
    a = data["advantages"][..., None]

    def coefficient(q, o, p):
        r = p / o
        active = np.where(a >= 0, r <= 1.28, r >= 0.8)
        return q * np.minimum(o / q, 1.1) * r * active

    tails = [1 - x.sum(-1, keepdims=True) for x in (q, o, p)]
    alpha = coefficient(*tails) / tails[2]
    expected = a * (coefficient(q, o, p) - alpha * p) / data["mask"].sum() * data["mask"][..., None]
    np.testing.assert_allclose(out.grad_head_logp, expected, atol=1e-14)


def test_signed_bands_of_prime_rl_and_dppo():
    """A > 0 drops p - q above the bound, A < 0 below minus the bound; elsewhere the weight is p/q."""
    for name, options in (
        ("prime-rl", {"kl_tau": 0.0}),
        ("skyrl", {"use_kl_loss": False, "policy_loss_type": "dppo"}),
        ("authors", {"is_correction": True, "stat": "tv", "high": 0.2, "sign": "ppo"}),
    ):
        definition, _ = dialects.definition(name, options)
        batch = Batch(**random_inputs(np.random.default_rng(5), 3, 5, 6, 3))
        out = Objective.from_dict(definition).evaluate(batch)
        logp = np.take_along_axis(log_softmax(batch.logits), np.asarray(batch.tokens)[..., None], -1)[..., 0]
        p, q = np.exp(logp), np.exp(batch.logp_sampler)
        keep = np.where(batch.advantages > 0, p - q <= 0.2, p - q >= -0.2) & (np.asarray(batch.mask) != 0)
        np.testing.assert_allclose(out.weights, np.where(keep, p / q, 0.0), rtol=1e-12, err_msg=name)


def test_lambert_band_of_the_reciprocal_k3():
    for upper in (0.01, 0.5, 3.0):
        for d in k3_band(upper):
            assert np.exp(-d) - 1 + d == pytest.approx(upper, rel=1e-9)
    least, most = k3_band(0.5)
    assert least < 0 < most


def test_the_open_band_of_skyrl():
    options = {"use_kl_loss": False, "policy_loss_type": "rollout_is", "eps_clip_low": 0.5, "eps_clip_high": 4.0}
    weight = dialects.definition("skyrl", options)[0]["weight"]
    assert (weight["low"], weight["high"], weight["closed"]) == (0.5, 5.0, False)


def test_prime_rl_penalises_the_squared_log_ratio_to_the_sampler():
    data = random_inputs(np.random.default_rng(5), 3, 5, 6, 3)
    data["advantages"] = np.zeros((3, 5))
    data["logp_reference"] = data["logp_sampler"]
    definition, notes = dialects.definition("prime-rl", {"kl_tau": 0.01})
    logp = np.take_along_axis(log_softmax(data["logits"]), data["tokens"][..., None], -1)[..., 0]
    square = ((logp - data["logp_sampler"]) ** 2)[data["mask"] != 0]
    out = Objective.from_dict(definition).evaluate(Batch(**data))
    assert out.loss == pytest.approx(0.01 * square.mean(), rel=1e-12)
    assert any("logp_reference" in note for note in notes)


def test_open_instruct_clamps_at_ten():
    data = {
        "logits": np.array([[[0.0, -1.0]]]),
        "tokens": np.zeros((1, 1), dtype=int),
        "mask": np.ones((1, 1), dtype=int),
        "advantages": np.ones((1, 1)),
        "logp_sampler": np.array([[-15.0]]),
        "logp_anchor": np.array([[-1.0]]),
    }
    definition, _ = dialects.definition("open-instruct", {"beta": 0.0, "rho_clamp_upper_bound": 0.0})
    out = Objective.from_dict(definition).evaluate(Batch(**data))
    assert out.weights[0, 0] == pytest.approx(np.exp(10.0), rel=1e-12)


@pytest.mark.parametrize(
    "label, name",
    [
        ("naive importance sampling", "vanilla_is"),
        ("TIS 2.0", "tis"),
        ("MIS 0.5 to 5", "mis"),
        ("IcePop as the authors spell it", "icepop_inside_one"),
        ("PPO band", "ppo_band"),
        ("DAPO band", "dapo_band"),
        ("TOPR", "topr"),
        ("DPPO", "dppo_tv"),
    ],
)
def test_the_authors_grid_gives_the_presets_of_the_paper(label, name):
    """Two independent spellings of the paper's Table 1; the training code adds the +-20 clamp and names the numerator."""
    entry = next(entry for entry in dialects.get("authors").entries if entry.label == label)
    rule = Objective.from_dict(dialects.definition("authors", entry.options)[0]).weight
    assert rule == replace(preset(name), numerator="trainer", log_clamp=20.0)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_the_swift_modes_give_the_swift_presets(mode):
    definition, _ = dialects.definition("ms-swift", {"rollout_importance_sampling_mode": mode})
    assert WeightRule(**definition["weight"]) == replace(preset(f"swift_{mode}"), numerator="anchor")


@pytest.mark.parametrize(
    "name, options, path, value",
    [
        ("ms-swift", {"loss_type": "bnpo", "off_policy_sequence_mask_delta": 0.1}, "denominator", "shrunk"),
        ("ms-swift", {"loss_type": "grpo", "off_policy_sequence_mask_delta": 0.1}, "denominator", "kept"),
        ("skyrl", {"use_kl_loss": False, "sequence_mask_metric": "geometric"}, "reduce", "mean"),
        ("skyrl", {"use_kl_loss": False, "sequence_mask_metric": "product"}, "reduce", "sum"),
        (
            "openrlhf",
            {"is_correction_level": "seq", "is_correction_gating": "tv", "is_correction_threshold": [0.1]},
            "reduce",
            "mean",
        ),
    ],
)
def test_rejection_rules(name, options, path, value):
    assert [rule[path] for rule in dialects.definition(name, options)[0]["rejection"]] == [value]


def test_log_clamps_of_the_token_weight():
    """20 nats, 10 nats or none, as the comparison table says."""
    for name, options, clamp in (
        ("verl", {"rollout_is": "token"}, 20.0),
        ("skyrl", {"use_kl_loss": False, "tis_ratio_type": "token"}, 20.0),
        ("unirl", {"old_logp_source": "replay", "rollout_is_threshold": 2.0}, 20.0),
        ("slime-mis", {}, 20.0),
        ("open-instruct", {"beta": 0.0}, 10.0),
        ("trl", {}, None),
        ("openrlhf", {"is_correction_level": "token"}, None),
        ("slime", {"use_tis": True}, None),
        ("roll", {"is_weight.enabled": True}, None),
    ):
        assert dialects.definition(name, options)[0]["weight"].get("log_clamp") == clamp, name
        assert (f"{clamp:g}" if clamp else "none") in dialects.get(name).columns["log_clamp"]
