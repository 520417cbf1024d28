"""The SymPy derivations hold, and their formulas give the numbers of the reference package."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import sympy
from cases_helper import MIS, TIS, log_softmax

from rlcorr_ref import Batch, Objective
from rlcorr_ref.derive import symbolic
from rlcorr_ref.weights import PRESETS

TOKEN = {"aggregation": {"kind": "token-sum"}}


@cache
def done(anchor: str) -> symbolic.Derivation:
    return symbolic.derivations()[anchor]()


def numbers(expressions, derivation, **values) -> np.ndarray:
    """Put numbers into formulas: `values` by the names in `derivation.symbols`; a distribution's last entry is implied."""
    where = {}
    for name, value in values.items():
        symbols = derivation.symbols[name]
        if isinstance(symbols, tuple):
            where |= dict(zip(symbols, np.asarray(value, dtype=float), strict=False))
        else:
            where[symbols] = float(value)
    put = np.vectorize(lambda e: float(sympy.sympify(e).subs(where).evalf(30)), otypes=[float])
    return put(np.array(expressions, dtype=object))


def gradients(z, q, advantages, definition, **more) -> np.ndarray:
    """d loss/d logits [V, V] of the package, one row per sampled token y, at a single prefix with logits z [V]."""
    v = z.size
    rows = {name: np.broadcast_to(value, (v, 1, np.size(value))).copy() for name, value in more.items()}
    batch = Batch(
        logits=np.tile(z, (v, 1, 1)),
        tokens=np.arange(v)[:, None],
        mask=np.ones((v, 1), int),
        advantages=np.broadcast_to(np.asarray(advantages, float).reshape(-1, 1), (v, 1)),
        logp_sampler=np.log(q)[:, None],
        **{name: row[..., 0] if name == "logp_reference" else row for name, row in rows.items()},
    )
    return Objective.from_dict({**TOKEN, **definition}).evaluate(batch).grad_logits[:, 0]


def prefix(seed: int, v: int, temperature: float = 1.0):
    """(logits, p, q, rng) at one prefix."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=v)
    p = np.exp(log_softmax(z / temperature))
    return z, p, np.exp(log_softmax(z / temperature + rng.normal(size=v))), rng


@pytest.mark.parametrize("anchor", symbolic.derivations())
def test_every_derivation_ends_in_zero_and_renders(anchor):
    derivation = done(anchor)
    assert derivation.anchor == anchor and derivation.statement
    assert derivation.steps and any(step == 0 for _, step in derivation.steps)
    assert all(isinstance(text, str) and text for _, text in derivation.latex())


def test_a_wrong_claim_is_refused():
    proof = symbolic.Proof("eq-test", "x = x")
    x = sympy.Symbol("x")
    proof.vanishes("true", (x + 1) ** 2 - x**2 - 2 * x - 1)
    with pytest.raises(symbolic.DerivationError, match="eq-test, false"):
        proof.vanishes("false", sympy.Integer(0), x - 2 * x)


def test_score_and_centered_gradient_in_numbers():
    for temperature in (1.0, 0.7):
        z, _, q, rng = prefix(1, 3, temperature)
        score, centered = done("eq-score"), done("eq-centered")
        plain = -gradients(z, q, 1.0, {"temperature": temperature})
        np.testing.assert_allclose(numbers(score.result["score"], score, z=z, T=temperature), plain, atol=1e-15)
        a = rng.normal()
        definition = {"temperature": temperature, "centering": {"tail": "exact"}}
        ours = -gradients(z, q, a, definition, logp_sampler_full=np.log(q))
        np.testing.assert_allclose(
            numbers(centered.result["ascent"], centered, q=q, T=temperature, A=a), ours, atol=1e-15
        )


def test_head_only_form_in_numbers():
    derivation, t, k = done("eq-head-only"), 1.4, 2
    z, p, q, _ = prefix(2, 5, t)
    order = np.argsort(-q)
    z, p, q = z[order], p[order], q[order]
    definition = {"temperature": t, "centering": {"tail": "rescaled"}}
    with_head = {"head_ids": np.arange(k), "head_logp_sampler": np.log(q[:k])}
    ours = gradients(z, q, 1.0, definition, **with_head) - gradients(z, q, 1.0, {"temperature": t})
    for y in range(5):  # the centering term does not depend on the sampled token
        np.testing.assert_allclose(
            numbers(derivation.result["centering"], derivation, p=p, q=q, T=t), ours[y], atol=1e-15
        )
    rho = numbers(derivation.result["rho"], derivation, p=p, q=q)
    assert abs(rho - q[k:].sum() / p[k:].sum()) < 1e-14


def test_tail_coefficient_in_numbers():
    """alpha read off the package: the tail's share of the centering gradient, one tail token, for every rule and side."""
    derivation = done("eq-alpha")
    rules = {
        "none": None,
        "is": {"level": "token"},
        "tis": TIS,
        "mis": MIS,
        "icepop_inside_one": PRESETS["icepop_inside_one"],
    }
    p = np.array([0.5, 0.3, 0.2])
    for tail in (0.3, 0.06, 0.7, 0.03):  # rho = tail/0.2 on both sides of 1/C and of the band
        q = np.array([0.6 * (1 - tail), 0.4 * (1 - tail), tail])
        rho = tail / 0.2
        for name, rule in rules.items():
            alpha = float(numbers(derivation.result[name], derivation, rho=rho, C=2.0, low=0.5, high=5.0))
            definition = {"weight": rule, "centering": {"tail": "rescaled"}}
            head = {"head_ids": np.arange(2), "head_logp_sampler": np.log(q[:2])}
            centering = gradients(np.log(p), q, 1.0, definition, **head) - gradients(
                np.log(p), q, 1.0, {"weight": rule}
            )
            r, inside = p / q, (p / q >= 0.5) & (p / q <= 5)
            f = {"none": r**0, "is": r, "tis": np.minimum(r, 2), "mis": r * inside, "icepop_inside_one": 1.0 * inside}[
                name
            ]
            mass = np.array([q[0] * f[0], q[1] * f[1], alpha * p[2]])
            np.testing.assert_allclose(centering[0], mass - mass.sum() * p, atol=1e-14, err_msg=f"{name} {rho}")


def test_truncation_bias_in_numbers():
    derivation, cap = done("eq-tis-bias"), 1.3
    z, p, q, rng = prefix(4, 3)
    reward = rng.normal(size=3)
    weight = {"level": "token", "high": cap, "outside": "clip"}
    truncated = -q @ gradients(z, q, reward, {"weight": weight})
    full = -p @ gradients(z, p, reward, {})
    bias = numbers(derivation.result["bias"], derivation, p=p, q=q, R=reward, C=cap, T=1.0)
    assert (p > cap * q).any()  # the cap binds somewhere
    np.testing.assert_allclose(truncated - full, bias, atol=1e-15)
    unbounded = -q @ gradients(z, q, reward, {"weight": {"level": "token"}})
    np.testing.assert_allclose(unbounded, full, atol=1e-15)


def test_mean_of_means_in_numbers():
    derivation = done("eq-aggregation")
    rng = np.random.default_rng(5)
    B, T, V = 4, 3, 5
    lengths = np.array([3, 1, 2, 3])
    data = {
        "logits": rng.normal(size=(B, T, V)),
        "tokens": rng.integers(V, size=(B, T)),
        "mask": (np.arange(T) < lengths[:, None]).astype(int),
        "advantages": rng.normal(size=(B, T)),
        "logp_sampler": -rng.random((B, T)),
    }

    def loss(rows, definition=None):
        part = {name: value[rows] for name, value in data.items()}
        return Objective.from_dict(definition).evaluate(Batch(**part)).loss

    first, second, whole = slice(0, 2), slice(2, 4), slice(0, 4)
    sums = {"S1": loss(first, TOKEN), "S2": loss(second, TOKEN), "n1": 4, "n2": 5}
    means = (loss(first) + loss(second)) / 2
    assert abs(numbers(derivation.result["mean_of_means"], derivation, **sums) - means) < 1e-14
    assert abs(numbers(derivation.result["token_mean"], derivation, **sums) - loss(whole)) < 1e-14
    difference = float(numbers(derivation.result["difference"], derivation, **sums))
    assert abs(means - loss(whole) - difference) < 1e-14 and abs(difference) > 1e-3
    explicit = {"aggregation": {"kind": "token-mean", "tokens": 9}}
    assert abs(loss(first, explicit) + loss(second, explicit) - loss(whole)) < 1e-14
    assert math.isclose(numbers(derivation.result["relative_weight"], derivation, n1=4, n2=5), 9 / 8)


def test_kl_terms_in_numbers():
    derivation, t = done("eq-k1"), 0.8
    z, p, q, rng = prefix(6, 3, t)
    r = np.exp(log_softmax(rng.normal(size=3)))
    for kind in ("k1", "k2", "k3"):
        definition = {"temperature": t, "kl": {"kind": kind, "beta": 1.0}}
        each = gradients(z, q, 0.0, definition, logp_reference=np.log(r)[:, None, None])
        expected = numbers(derivation.result[kind], derivation, z=z, T=t, r=r)
        np.testing.assert_allclose(p @ each, expected, atol=1e-15, err_msg=kind)
        if kind == "k1":
            assert np.abs(each).max() > 0.1  # it is the expectation that vanishes
            pull = numbers(derivation.result["k1_under_sampler"], derivation, z=z, T=t, q=q)
            np.testing.assert_allclose(q @ each, pull, atol=1e-15)
            assert np.abs(pull).max() > 1e-2


def test_drift_and_signal_in_numbers():
    derivation, t = done("eq-drift"), 1.2
    z, p, q, rng = prefix(7, 4, t)
    reward = rng.normal(size=4)
    drift, signal = (numbers(derivation.result[k], derivation, p=p, q=q, R=reward, T=t) for k in ("drift", "signal"))
    plain = -q @ gradients(z, q, reward, {"temperature": t})
    definition = {"temperature": t, "centering": {"tail": "exact"}}
    centered = -q @ gradients(z, q, reward, definition, logp_sampler_full=np.log(q))
    np.testing.assert_allclose(drift + signal, plain, atol=1e-15)
    np.testing.assert_allclose(signal, centered, atol=1e-15)
    assert np.abs(drift).max() > 1e-2
