"""The two witnesses, 50-digit dense sums and torch autograd of the head-only loss, agree over the whole grid."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import witness_torch
from mpmath import mp, mpf
from random_cases import OPTIONS, random_case
from witness_compare import ARRAYS, diagnostic_disagreements, disagreements, to_array

from rlcorr_ref.derive import evaluate, to_float
from rlcorr_ref.derive.mp_defaults import complete
from rlcorr_ref.derive.mp_witness import GUARD_DIGITS, frozen_loss, prepare

SEEDS_PER_BLOCK = 25


def cases(block, count=SEEDS_PER_BLOCK, **options):
    """(seed, case) pairs; blocks never share a seed."""
    for seed in range(1000 * block, 1000 * block + count):
        yield seed, random_case(np.random.default_rng(seed), **options)


@pytest.mark.parametrize("block", range(12))
def test_witnesses_agree_on_everything(block):
    for seed, case in cases(block):
        torch_out, exact = witness_torch.evaluate(**case), evaluate(**case)
        dense = {**torch_out, "grad_logits": torch_out["grad_logits_dense"]}
        assert disagreements(case, dense, exact, torch_out) == [], f"seed {seed}: {case['definition']}"
        found = diagnostic_disagreements(torch_out["diagnostics"], exact["diagnostics"], torch_out["tail_mass"])
        assert found == [], f"seed {seed}: {case['definition']}"
        assert set(torch_out["diagnostics"]) == set(exact["diagnostics"])


FAMILIES = {
    "dead entries": dict(zero_sampler=True, zero_trainer=True, surrogate=["reinforce", "cispo", "ppo_clip"]),
    "peaked": dict(scale=[8.0, 15.0], centering=["rescaled", "exact", "dropped", None]),
    "two policies, strong mismatch": dict(anchor=False, noise=[1.0, 2.0], zero_sampler=False),
    "three policies, strong mismatch": dict(anchor=True, noise=[1.0, 2.0]),
    "signs everywhere": dict(sign=["positive", "negative"], gate=["token", "sequence"], rejections=[1, 2]),
    "full heads": dict(head_width=12, floor_sampler=[1e-6, 1e-3], floor_trainer=[1e-6, 1e-3], top_k=True),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_witnesses_agree_in_the_corners(name):
    for seed, case in cases(50 + list(FAMILIES).index(name), 15, **FAMILIES[name]):
        torch_out = witness_torch.evaluate(**case)
        dense = {**torch_out, "grad_logits": torch_out["grad_logits_dense"]}
        assert disagreements(case, dense, evaluate(**case), torch_out) == [], f"seed {seed}: {case['definition']}"


def test_head_only_gradient_is_the_dense_gradient():
    """The head coefficients q g - alpha p give the gradient of the dense sum: sum_v p_v d log p_v = 0 at work."""
    seen = 0
    for seed, case in cases(70, 60, centering="rescaled", kl=None, entropy=False):
        out = witness_torch.evaluate(**case)
        scale = 1 + np.abs(out["grad_head_logp"]).sum(-1, keepdims=True)
        gap = np.abs(out["grad_logits"] - out["grad_logits_dense"]) / scale
        assert gap.max() < 1e-12, f"seed {seed}"
        seen += np.abs(out["grad_head_logp"]).max() > 1e-3
    assert seen > 30


@pytest.mark.parametrize("block", [80, 81])
def test_fifty_digits_agree_with_eighty(block):
    for seed, case in cases(block, 15):
        short, long = evaluate(**case, dps=50), evaluate(**case, dps=80)
        for key in ARRAYS:
            for a, b in zip(flat(short[key]), flat(long[key]), strict=True):
                # an infinite loss value is equal to itself; inf - inf is nan on both sides
                same = a == b or (mp.isnan(a) and mp.isnan(b))
                with mp.workdps(90):
                    assert same or abs(a - b) <= mpf(10) ** -45 * max(1, abs(b)), f"seed {seed} {key}"


def flat(value):
    if value is None:
        return []
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, list) else [value]


def test_gradient_is_the_numerical_derivative_of_the_frozen_loss():
    """Central differences with step 1e-20 at 65 digits: the softmax derivative and every slope, to 30 digits."""
    for seed, case in cases(90, 25, vocabulary=[3, 4], length=[1, 2], batch=[1, 2], square=False):
        definition = complete(case["definition"], case["inputs"])
        exact = evaluate(**case)
        with mp.workdps(50 + GUARD_DIGITS):
            frozen = prepare(case["inputs"], definition)
            step = mpf(10) ** -20
            for token in frozen.tokens:
                for v in range(frozen.vocabulary):
                    sides = []
                    for sign in (1, -1):
                        logits = list(token.logits)
                        logits[v] += sign * step
                        sides.append(frozen_loss(frozen, definition, token, logits))
                    slope = (sides[0] - sides[1]) / (2 * step) if token.inside[v] else mpf(0)
                    gap = abs(slope - exact["grad_logits"][token.b][token.t][v])
                    assert gap < mpf(10) ** -28, f"seed {seed} token {token.b, token.t} entry {v}"


def test_gradient_is_the_chain_of_its_parts():
    """grad_logits = softmax chain of grad_logp at y plus the head's or the full row's log-prob gradient."""
    for seed, case in cases(95, 60, zero_trainer=False):
        out, inputs = witness_torch.evaluate(**case), case["inputs"]
        slopes = np.zeros_like(out["grad_logits"])
        mask = to_array(inputs["mask"]) > 0
        for b, t in np.argwhere(mask):
            slopes[b, t, inputs["tokens"][b][t]] += out["grad_logp"][b, t]
            if out["grad_logp_full"] is not None:
                slopes[b, t] += out["grad_logp_full"][b, t]
            if out["grad_head_logp"] is not None:
                for slot, v in enumerate(inputs["head_ids"][b][t]):
                    if v >= 0:
                        slopes[b, t, v] += out["grad_head_logp"][b, t, slot]
        temperature = case["definition"]["temperature"]
        z = to_array(inputs["logits"]) / temperature
        if inputs.get("support") is not None:
            z = np.where(to_array(inputs["support"]) > 0, z, -np.inf)
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        chained = (slopes - slopes.sum(-1, keepdims=True) * p) / temperature
        gap = np.abs(np.where(mask[..., None], chained, 0.0) - out["grad_logits"])
        assert gap.max() < 1e-12 * (1 + np.abs(slopes).sum(-1).max()), f"seed {seed}: {case['definition']}"


def test_what_lies_under_the_mask_changes_no_bit():
    for seed, case in cases(97, 25, junk=True):
        clean = copy.deepcopy(case)
        hidden = [(b, t) for b, row in enumerate(case["inputs"]["mask"]) for t, m in enumerate(row) if not m]
        for name, value in clean["inputs"].items():
            for b, t in hidden if name not in ("mask", "support") else []:
                cell = value[b][t]
                value[b][t] = [0] * len(cell) if isinstance(cell, list) else 0
        spoiled, plain = evaluate(**case), evaluate(**clean)
        for key in ARRAYS:
            assert to_float(spoiled[key]) == to_float(plain[key]) or key in ("loss", "loss_dense"), f"seed {seed} {key}"
        first, second = witness_torch.evaluate(**case), witness_torch.evaluate(**clean)
        for key in ARRAYS:
            if first[key] is not None:
                np.testing.assert_array_equal(first[key], second[key], err_msg=f"seed {seed} {key}")


def test_the_generator_reaches_every_choice():
    seen = {name: set() for name in ("surrogate", "tail", "level", "gate", "statistic", "reduce", "kl", "aggregation")}
    square = set()
    for _, case in cases(99, 400):
        definition, inputs = case["definition"], case["inputs"]
        weight = definition.get("weight") or {}
        seen["surrogate"].add(definition["surrogate"]["kind"])
        seen["tail"].add((definition.get("centering") or {}).get("tail"))
        seen["level"].add(weight.get("level"))
        seen["gate"].add((definition.get("gate") or {}).get("level"))
        seen["statistic"].add(weight.get("statistic", "ratio"))
        seen["reduce"] |= {(rule["statistic"], rule["reduce"]) for rule in definition.get("rejection", [])}
        seen["kl"].add((definition.get("kl") or {}).get("kind"))
        seen["aggregation"].add(definition["aggregation"]["kind"])
        square.add((len(inputs["mask"]) == len(inputs["mask"][0]), "support" in inputs, "logp_anchor" in inputs))
    assert seen["surrogate"] == set(OPTIONS["surrogate"])
    assert seen["tail"] == set(OPTIONS["centering"])
    assert seen["level"] == set(OPTIONS["weight"]) and seen["gate"] == set(OPTIONS["gate"])
    assert seen["statistic"] == set(OPTIONS["statistic"])
    assert len(seen["reduce"]) == 24
    assert seen["kl"] == set(OPTIONS["kl"]) and seen["aggregation"] == set(OPTIONS["aggregation"])
    assert len(square) == 8


def test_the_generator_refuses_what_it_does_not_know():
    rng = np.random.default_rng(0)
    with pytest.raises(TypeError, match="no option 'surogate'"):
        random_case(rng, surogate="reinforce")
    with pytest.raises(RuntimeError, match="loosen the options"):
        random_case(rng, surrogate="gspo", centering="exact")
