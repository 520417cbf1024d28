"""`evaluate_case` against both witnesses over random cases, family by family, and at 50 digits where float64 is thin.

torch autograd judges many cases, the multi-precision evaluator fewer but at the promised accuracy of the gradient:
1e-12 * coef * |A| * (1 + max(1, w)) / temperature per entry.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import witness_torch
from random_cases import random_case, wire
from witness_compare import diagnostic_disagreements, disagreements, error, to_array

from rlcorr_ref import evaluate_case
from rlcorr_ref.derive import evaluate

FAMILIES = {
    "anything": {},
    "plain reinforce": dict(surrogate="reinforce", centering=None, weight=None, gate=None, kl=None, entropy=False),
    "token weights": dict(surrogate="reinforce", weight="token", gate=None),
    "row weights": dict(surrogate="reinforce", weight=["sequence", "geometric", "segment"]),
    "gates": dict(gate=["token", "sequence", "geometric", "segment"]),
    "tv bands": dict(weight="token", statistic=["tv", "tv_signed"], centering=["exact", "support", None]),
    "normalised": dict(weight=["token", "sequence", "segment"], normalise=["tokens", "rows"]),
    "signs": dict(weight=["token", "sequence"], gate=["token", "segment", None], sign=["positive", "negative"]),
    "rejection": dict(rejections=[1, 2]),
    "ppo, three policies": dict(surrogate="ppo_clip", anchor=True, noise=[0.1, 0.4, 1.0]),
    "ppo, two policies": dict(surrogate="ppo_clip", anchor=False, noise=[0.1, 0.4, 1.0]),
    "cispo": dict(surrogate="cispo", noise=[0.1, 0.4, 1.0]),
    "gspo": dict(surrogate="gspo", centering=None),
    "rescaled tail": dict(centering="rescaled"),
    "rescaled tail, three policies": dict(centering="rescaled", anchor=True, noise=[0.4, 1.0]),
    "exact and support": dict(centering=["exact", "support"]),
    "other tails": dict(centering=["dropped", "renormalised", "uniform"]),
    "restricted support": dict(support=True),
    "kl and entropy": dict(kl=["k1", "k2", "k3", "k3+"], entropy=True),
    "dead entries": dict(zero_sampler=True, zero_trainer=True, surrogate=["reinforce", "cispo", "ppo_clip"]),
    "peaked rows": dict(scale=[8.0, 15.0]),
    "junk under the mask": dict(junk=True),
    "explicit denominators": dict(explicit=True),
}
AGAINST_TORCH = 80
AGAINST_DIGITS = 20


def cases(family, count, offset):
    for index in range(count):
        seed = 100_000 * (1 + list(FAMILIES).index(family)) + offset + index
        yield seed, random_case(np.random.default_rng(seed), **FAMILIES[family])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_output_agrees_with_autograd(family):
    for seed, case in cases(family, AGAINST_TORCH, 0):
        torch_out, got = witness_torch.evaluate(**case), evaluate_case(case)
        want = {**torch_out, "grad_logits": torch_out["grad_logits_dense"]}
        assert disagreements(case, got, want, torch_out) == [], f"seed {seed}: {case['definition']}"
        found = diagnostic_disagreements(got["diagnostics"], torch_out["diagnostics"], torch_out["tail_mass"])
        assert found == [], f"seed {seed}: {case['definition']}"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_output_agrees_with_fifty_digits(family):
    for seed, case in cases(family, AGAINST_DIGITS, 50_000):
        torch_out, got, want = witness_torch.evaluate(**case), evaluate_case(case), evaluate(**case)
        assert disagreements(case, got, want, torch_out) == [], f"seed {seed}: {case['definition']}"
        found = diagnostic_disagreements(got["diagnostics"], want["diagnostics"], torch_out["tail_mass"])
        assert found == [], f"seed {seed}: {case['definition']}"


def test_the_comparison_notices_one_part_in_a_billion():
    """The judge itself: a relative error of 1e-9 in any one output of a well-conditioned case is reported."""
    options = dict(surrogate="reinforce", centering="rescaled", kl=None, entropy=False, rejections=0, scale=1.0)
    options |= dict(vocabulary=12, head_width=3, advantages="token", support=False, noise=0.4, gate=None)
    case = random_case(np.random.default_rng(3), **options)
    torch_out, good = witness_torch.evaluate(**case), evaluate_case(case)
    assert disagreements(case, good, evaluate(**case), torch_out) == []
    for key in ("loss", "loss_dense", "grad_logits", "grad_logp", "grad_head_logp", "weights", "token_loss"):
        bad = good | {key: to_array(good[key]) * (1 + 1e-9)}
        assert len(disagreements(case, bad, evaluate(**case), torch_out)) == 1, key
    value = good["diagnostics"]["kl_k2"] + 1e-9
    assert len(diagnostic_disagreements(good["diagnostics"] | {"kl_k2": value}, torch_out["diagnostics"], 1.0)) == 1


def thin(log_p, log_q, head, y, advantage=1.0, temperature=1.0, **definition):
    """One REINFORCE token with a rescaled tail from the trainer's and the sampler's log-probs."""
    inputs = {"logits": [[[x * temperature for x in log_p]]], "tokens": [[y]], "mask": [[1]]}
    inputs |= {"advantages": [[advantage]], "logp_sampler": [[log_q[y]]]}
    inputs |= {"head_ids": [[head]], "head_logp_sampler": [[[log_q[v] for v in head]]]}
    definition = {"centering": {"tail": "rescaled"}, "aggregation": {"kind": "token-sum"}} | definition
    return {"inputs": wire_lists(inputs), "definition": definition | {"temperature": temperature}}


def wire_lists(inputs):
    return {name: wire(np.array(value)) for name, value in inputs.items()}


def two_tails(p_tail, q_tail):
    """(log p, log q) on six words: a head {0, 1} and four tail words of the given total masses."""
    shape_p, shape_q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    p = np.concatenate([(1 - p_tail) * np.array([0.6, 0.4]), p_tail * shape_p])
    q = np.concatenate([(1 - q_tail) * np.array([0.59, 0.41]), q_tail * shape_q])
    return [math.log(x) for x in p], [math.log(x) for x in q]


NULL = {"tail": "rescaled", "floor_sampler": None, "floor_trainer": None}
RULES = {
    "none": {},
    "ratio": {"weight": {"level": "token"}},
    "TIS": {"weight": {"high": 2.0, "outside": "clip"}},
    "MIS": {"weight": {"low": 0.5, "high": 5.0, "outside": "zero"}},
    "no floors": {"centering": NULL},
    "no floors, TIS": {"centering": NULL, "weight": {"high": 2.0, "outside": "clip"}},
}


def gradient_excess(case):
    """Largest |error| over the promised tolerance of the gradient, against 50 digits."""
    got, want = evaluate_case(case), evaluate(**case)
    inputs, length = case["inputs"], len(case["inputs"]["mask"][0])
    coef = 1.0  # token-sum
    weights = to_array(want["weights"])
    allowed = 1e-12 * coef * np.abs(to_array(inputs["advantages"])) * (1 + np.maximum(1, weights))
    allowed = (allowed / case["definition"]["temperature"])[..., None]
    want_gradient = to_array(want["grad_logits"])
    allowed = allowed + length * 2.0**-52 * np.abs(want_gradient)
    return (error(to_array(got["grad_logits"]), want_gradient) / allowed).max()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tails", [(1e-3, 0.3), (1e-6, 0.3), (1e-8, 0.01), (0.2, 1e-8), (3e-10, 2e-9), (1e-12, 1e-12)])
@pytest.mark.parametrize("y", [0, 3])
def test_gradient_keeps_its_digits_when_a_tail_mass_vanishes(rule, tails, y):
    case = thin(*two_tails(*tails), [1, 0], y, advantage=-0.75, temperature=0.8, **RULES[rule])
    assert gradient_excess(case) < 1


@pytest.mark.parametrize("shift", [-720.0, -60.0, 60.0, 720.0])
@pytest.mark.parametrize("rule", ["ratio", "TIS", "MIS"])
@pytest.mark.parametrize("y", [0, 1])
def test_gradient_at_huge_log_ratios(shift, rule, y):
    """Word 1 is exp(-|shift|) rare for the sampler (shift > 0) or for the trainer (shift < 0); whole rows, T = 2."""
    rare, common = [math.log(0.7), -abs(shift), math.log(0.3)], [math.log(0.5), math.log(0.3), math.log(0.2)]
    log_p, log_q = (common, rare) if shift > 0 else (rare, common)
    if y == 1 and shift > 700 and rule == "ratio":
        log_q = [log_q[0], -600.0, log_q[2]]  # exp(720) itself is no float64 number; exp(600) is
    case = thin(log_p, log_q, [0], y, temperature=2.0, **RULES[rule] | {"centering": {"tail": "exact"}})
    case["inputs"]["logp_sampler_full"] = [[log_q]]
    assert gradient_excess(case) < 1


@pytest.mark.parametrize("level", ["sequence", "geometric", "segment"])
def test_gradient_of_row_weights_on_a_long_row(level):
    rng = np.random.default_rng(7)
    length, vocabulary = 160, 6
    logits = rng.normal(size=(2, length, vocabulary)) * 2
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    tokens = rng.integers(vocabulary, size=(2, length))
    sampled = np.take_along_axis(log_p, tokens[..., None], axis=2)[..., 0]
    mask = (rng.random((2, length)) < 0.9).astype(int)
    inputs = {"logits": logits, "tokens": tokens, "mask": mask, "advantages": rng.normal(size=(2, length))}
    inputs["logp_sampler"] = np.minimum(sampled + rng.normal(size=(2, length)) * 0.3, 0.0)
    case = {"inputs": wire_lists(inputs), "definition": {"aggregation": {"kind": "token-sum"}}}
    case["definition"] |= {"weight": {"level": level}, "temperature": 1.0}
    assert gradient_excess(case) < 1


def test_gradient_of_a_wide_vocabulary():
    """V = 400 with a head of 16, peaked: the tail is many small numbers."""
    rng = np.random.default_rng(11)
    for scale in (1.0, 4.0):
        z = rng.normal(size=400) * scale
        noisy = z + rng.normal(size=400) * 0.5
        log_p, log_q = (list(x - np.log(np.exp(x).sum())) for x in (z, noisy))
        head = [int(v) for v in np.argsort(log_q)[::-1][:16]]
        for rule in ("none", "TIS", "MIS"):
            assert gradient_excess(thin(log_p, log_q, head, head[3], temperature=0.6, **RULES[rule])) < 1


DEAD, LOGS = "-Infinity", [math.log(0.4), -1.0, math.log(0.6 - math.exp(-1))]
HEAD = {"head_ids": [[[1, -1]]], "head_logp_sampler": [[[-1.0, DEAD]]]}
EDGES = {
    "p(y) = 0": ({"logits": [[[0.0, DEAD, 0.5]]]}, {}),
    "p(y) = 0, ratio": ({"logits": [[[0.0, DEAD, 0.5]]]}, {"weight": {"level": "token"}}),
    "p(y) = 0, ppo": ({"logits": [[[0.0, DEAD, 0.5]]]}, {"surrogate": {"kind": "ppo_clip"}}),
    "p(y) = 0, A = 0": ({"logits": [[[0.0, DEAD, 0.5]]], "advantages": [[0.0]]}, {}),
    "q(y) = 0": ({"logp_sampler": [[DEAD]]}, {}),
    "q(y) = 0, TIS": ({"logp_sampler": [[DEAD]]}, RULES["TIS"]),
    "q(y) = 0, MIS": ({"logp_sampler": [[DEAD]]}, RULES["MIS"]),
    "uniform with an absent slot": (HEAD, {"centering": {"tail": "uniform"}}),
    "uniform inside a support": (HEAD | {"support": [[[1, 1, 0]]]}, {"centering": {"tail": "uniform"}}),
    "support: whole rows before the head": (HEAD | {"logp_sampler_full": [[LOGS]]}, {"centering": {"tail": "support"}}),
    "both sides dead at a head slot": (
        {"logits": [[[0.0, 0.3, DEAD]]], "head_ids": [[[1, 2]]], "head_logp_sampler": [[[-1.0, DEAD]]]},
        {"centering": {"tail": "rescaled"}} | RULES["TIS"],
    ),
    "everything rejected": ({}, {"rejection": [{"statistic": "k2", "reduce": "token", "high": 1e-9}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("advantage", [0.5, -0.5])
def test_edges(name, advantage):
    changes, definition = EDGES[name]
    inputs = {"logits": [[[0.0, -1.0, 0.5]]], "tokens": [[1]], "mask": [[1]], "logp_sampler": [[-1.0]]}
    inputs |= {"advantages": [[advantage]]} | changes
    plain = {"aggregation": {"kind": "token-mean"}, "temperature": 1.0, "surrogate": {"kind": "reinforce"}}
    case = {"inputs": inputs, "definition": plain | definition}
    torch_out, got = witness_torch.evaluate(**case), evaluate_case(case)
    assert disagreements(case, got, evaluate(**case), torch_out) == []
    assert disagreements(case, got, {**torch_out, "grad_logits": torch_out["grad_logits_dense"]}, torch_out) == []
