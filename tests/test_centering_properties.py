"""Properties of score centering over random cases: zero drift under the modelled sampler, its bounds, composition."""

from __future__ import annotations

import numpy as np
import pytest
from cases_helper import MIS, TIS, log_softmax, random_inputs

from rlcorr_ref import Batch, Objective
from rlcorr_ref.population.tail_bias import bound
from rlcorr_ref.population.tree import estimate
from rlcorr_ref.population.tree_policy import Tree, TreePolicy, noisy_sampler
from rlcorr_ref.weights import PRESETS

TOKEN = {"aggregation": {"kind": "token-sum"}}
ANCHORED = {"numerator": "anchor"}
# name: (definition without centering, needs an anchor)
COMPOSITIONS = {
    "none": ({}, False),
    "naive_is": ({"weight": {"level": "token"}}, False),
    "tis": ({"weight": TIS}, False),
    "mis": ({"weight": MIS}, False),
    "icepop_inside_one": ({"weight": PRESETS["icepop_inside_one"]}, False),
    "open_band": ({"weight": {**MIS, "closed": False}}, False),
    "two_sided_clip": ({"weight": {"level": "token", "low": 0.7, "high": 1.3, "outside": "clip"}}, False),
    "log_clamp": ({"weight": {"level": "token", "log_clamp": 0.3}}, False),
    "ppo_band": ({"weight": PRESETS["ppo_band"]}, False),
    "negative_only": ({"weight": {**TIS, "high": 1.0, "sign": "negative"}}, False),
    "gate": ({"gate": {"level": "token", "low": 0.6, "high": 1.5}}, False),
    "tis_and_gate": ({"weight": TIS, "gate": {"level": "token", "high": 3.0, "sign": "positive"}}, False),
    "ppo_clip": ({"surrogate": {"kind": "ppo_clip", "dual": 2.0}}, False),
    "cispo": ({"surrogate": {"kind": "cispo", "eps_low": 0.3, "eps_high": 0.2}}, False),
    "normalised": ({"weight": {**TIS, "normalise": "tokens"}}, False),
    "squared_ratio": ({"surrogate": {"kind": "cispo"}, "weight": TIS, "allow_double_ratio": True}, False),
    "anchor_tis": ({"weight": TIS}, True),
    "anchor_tis_ppo_clip": ({"weight": TIS, "surrogate": {"kind": "ppo_clip"}}, True),
    "anchor_mis_cispo": ({"weight": MIS, "surrogate": {"kind": "cispo"}}, True),
    "anchor_trainer_numerator": ({"weight": {**TIS, "numerator": "trainer"}, "gate": {"high": 1.5, **ANCHORED}}, True),
}


class Prefix:
    """One prefix: logits z, trainer p, anchor o, sampler q [V]; the head is the sampler's top K."""

    def __init__(self, seed: int, v: int = 7, k: int = 3, temperature: float = 1.0, noise: float = 1.2) -> None:
        rng = np.random.default_rng(seed)
        self.v, self.k, self.temperature = v, k, temperature
        self.z = rng.normal(size=v)
        self.p = np.exp(log_softmax(self.z / temperature))
        self.o = np.exp(log_softmax(self.z / temperature + 0.3 * rng.normal(size=v)))
        self.q = np.exp(log_softmax(self.z / temperature + noise * rng.normal(size=v)))
        self.head = np.argsort(-self.q)[:k]
        self.off = np.setdiff1d(np.arange(v), self.head)

    def modelled(self, tail: str) -> tuple[np.ndarray, np.ndarray]:
        """(q_hat, o_hat) [V]: what the tail model says; the rescaled model also spreads the anchor's tail over p."""
        q_hat, o_hat = self.q.copy(), self.o.copy()
        if tail == "rescaled":
            share = self.p[self.off] / self.p[self.off].sum()
            q_hat[self.off] = self.q[self.off].sum() * share
            o_hat[self.off] = self.o[self.off].sum() * share
        elif tail == "uniform":
            q_hat[self.off] = self.q[self.off].sum() / self.off.size
        elif tail == "renormalised":
            q_hat[self.off] = 0.0
            q_hat /= q_hat.sum()
        return q_hat, o_hat

    def gradients(self, definition, advantage: float, q=None, o=None) -> np.ndarray:
        """d loss/d logits [V, V], one row per sampled token y, whose recorded log-probs are log q(y) and log o(y)."""
        v, q = self.v, self.q if q is None else q

        def every(row):
            return np.broadcast_to(row, (v, 1, row.size)).copy()

        with np.errstate(divide="ignore"):
            logq, logo = np.log(q), None if o is None else np.log(o)
        data = {
            "logits": every(self.z),
            "tokens": np.arange(v)[:, None],
            "mask": np.ones((v, 1), int),
            "advantages": np.full((v, 1), advantage),
            "logp_sampler": np.where(np.isneginf(logq), -50.0, logq)[:, None],
        }
        tail = (definition.get("centering") or {}).get("tail")
        if tail in ("exact", "support"):
            data["logp_sampler_full"] = every(logq)
        elif tail is not None:
            data |= {"head_ids": every(self.head), "head_logp_sampler": every(np.log(self.q[self.head]))}
        if o is not None:
            data["logp_anchor"] = logo[:, None]
            if tail in ("exact", "uniform"):
                data["logp_anchor_full"] = every(logo)
            elif tail is not None:
                data["head_logp_anchor"] = every(np.log(self.o[self.head]))
        definition = {**TOKEN, "temperature": self.temperature, **definition}
        return Objective.from_dict(definition).evaluate(Batch(**data)).grad_logits[:, 0]


@pytest.mark.parametrize("tail", ["rescaled", "exact", "uniform"])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_constant_advantage_has_zero_gradient_under_the_modelled_sampler(name, tail):
    definition, anchored = COMPOSITIONS[name]
    left = 0.0
    for seed, temperature in ((0, 1.0), (1, 0.7), (2, 1.6), (3, 1.0)):
        at = Prefix(seed, temperature=temperature)
        q_hat, o_hat = at.modelled(tail)
        o = o_hat if anchored else None
        for advantage in (1.3, -0.6):
            each = at.gradients({**definition, "centering": {"tail": tail}}, advantage, q_hat, o)
            assert np.abs(q_hat @ each).max() < 5e-15, (seed, advantage)
            left = max(left, np.abs(q_hat @ at.gradients(definition, advantage, q_hat, o)).max())
    assert (left < 1e-14) == (name == "naive_is")  # only the unbounded ratio has no drift to remove


@pytest.mark.parametrize("name", ["dppo_tv", "tv"])
def test_bands_on_probability_differences_with_whole_rows(name):
    rule = PRESETS["dppo_tv"] if name == "dppo_tv" else {"statistic": "tv", "high": 0.1, "outside": "zero"}
    at = Prefix(3, temperature=0.8)
    for advantage in (0.7, -1.2):
        each = at.gradients({"weight": rule, "centering": {"tail": "exact"}}, advantage)
        assert np.abs(at.q @ each).max() < 5e-15
        assert np.abs(at.q @ at.gradients({"weight": rule}, advantage)).max() > 1e-3


@pytest.mark.parametrize("rule", [None, TIS, MIS])
def test_recorded_support_is_exact(rule):
    """The sampler draws from a support S only; p is restricted to it. The head as S and whole rows say the same."""
    rng = np.random.default_rng(5)
    v, members = 6, np.array([4, 0, 3])
    z, inside = rng.normal(size=v) * 2, np.isin(np.arange(v), members)
    q = np.where(inside, rng.random(v), 0.0)
    q /= q.sum()
    with np.errstate(divide="ignore"):
        logq = np.log(q)
    n = members.size
    shared = {
        "logits": np.tile(z, (n, 1, 1)),
        "tokens": members[:, None],
        "mask": np.ones((n, 1), int),
        "advantages": np.full((n, 1), -0.9),
        "logp_sampler": logq[members][:, None],
    }
    head = {"head_ids": np.tile(members, (n, 1, 1)), "head_logp_sampler": np.tile(logq[members], (n, 1, 1))}
    rows = {"logp_sampler_full": np.tile(logq, (n, 1, 1)), "support": np.tile(inside.astype(int), (n, 1, 1))}
    objective = Objective.from_dict({**TOKEN, "weight": rule, "centering": {"tail": "support"}})
    by_head, by_rows = (objective.evaluate(Batch(**shared, **more)).grad_logits[:, 0] for more in (head, rows))
    np.testing.assert_allclose(by_head, by_rows, atol=1e-15)
    assert np.abs(q[members] @ by_head).max() < 1e-15 and (by_head[:, ~inside] == 0).all()
    assert np.abs(by_head).max() > 0.01


def test_renormalised_head_without_and_with_a_weight():
    for seed in range(3):
        at = Prefix(seed, temperature=1.2)
        q_hat, _ = at.modelled("renormalised")
        centered = at.gradients({"centering": {"tail": "renormalised"}}, 0.9)
        assert np.abs(q_hat @ centered).max() < 5e-15
        # The sampled token keeps its recorded log q, the centering sees log q_hat = log q - log Q in its ratios as well: what is
        # left is A (f(p/q) - f(p/q_hat)) times the score, known in closed form.
        each = at.gradients({"weight": TIS, "centering": {"tail": "renormalised"}}, 0.9)
        with np.errstate(divide="ignore"):
            f, f_hat = (np.minimum(at.p / m, 2.0) for m in (at.q, q_hat))
        c = -0.9 * q_hat * (f - f_hat)
        np.testing.assert_allclose(q_hat @ each, (c - c.sum() * at.p) / at.temperature, atol=1e-15)


def test_true_sampler_leaves_exactly_the_tail_residual():
    for seed, temperature in ((0, 1.0), (1, 0.6)):
        at = Prefix(seed, temperature=temperature)
        for tail in ("rescaled", "uniform", "renormalised"):
            q_hat, _ = at.modelled(tail)
            found = at.q @ at.gradients({"centering": {"tail": tail}}, -0.8)
            np.testing.assert_allclose(found, 0.8 * (at.q - q_hat) / temperature, atol=1e-15)
            if tail != "renormalised":  # the head is exact: nothing is left there
                assert np.abs(found[at.head]).max() < 1e-15 and np.abs(found[at.off]).max() > 1e-3
        # dropped spreads 1 - Q over p on the whole vocabulary
        spread = np.where(np.isin(np.arange(at.v), at.head), at.q, 0.0) + at.q[at.off].sum() * at.p
        found = at.q @ at.gradients({"centering": {"tail": "dropped"}}, -0.8)
        np.testing.assert_allclose(found, 0.8 * (at.q - spread) / temperature, atol=1e-15)


@pytest.mark.parametrize("rule", [None, "tis", "mis"])
def test_drift_left_by_a_modelled_tail_is_bounded_by_the_tail_masses(rule):
    worst = 0.0
    for seed in range(60):
        temperature = (1.0, 0.5, 2.0)[seed % 3]
        at = Prefix(seed, v=8, k=1 + seed % 6, temperature=temperature, noise=2.0)
        definition = {"weight": None if rule is None else PRESETS[rule], "centering": {"tail": "rescaled"}}
        found = np.abs(at.q @ at.gradients(definition, -1.7)).sum() / 1.7
        limit = bound(at.q[at.head].sum(), at.p[at.head].sum(), rule, temperature)
        assert found <= limit + 1e-14, seed
        worst = max(worst, found / limit)
        # so is the error of every single sample's gradient against the exact centering: only the centering term differs
        exact = at.gradients({**definition, "centering": {"tail": "exact"}}, -1.7)
        assert np.abs(at.gradients(definition, -1.7) - exact).sum(-1).max() / 1.7 <= limit + 1e-14, seed
    assert worst > 0.4  # the constant is not idle


@pytest.mark.parametrize("level", ["sequence", "geometric", "segment"])
@pytest.mark.parametrize(("B", "T"), [(4, 3), (3, 3)])
def test_row_level_weights_multiply_the_whole_centered_term(level, B, T):
    data = random_inputs(np.random.default_rng(2), B, T, 6, 3)
    centering = {"tail": "rescaled"}
    base = {**TOKEN, "temperature": 1.3}
    ratios = (
        Objective.from_dict({**base, "weight": {"level": level}}).evaluate(Batch(**data)).weights[data["mask"] == 1]
    )
    middle = (ratios.min() + ratios.max()) / 2
    weight = {"level": level, "high": middle, "outside": "clip"}
    plain = Objective.from_dict({**base, "centering": centering}).evaluate(Batch(**data))
    full = Objective.from_dict({**base, "centering": centering, "weight": weight}).evaluate(Batch(**data))
    np.testing.assert_allclose(full.grad_logits, plain.grad_logits * full.weights[..., None], atol=1e-15)
    assert ratios.min() < ratios.max()  # not one and the same factor
    gated = {**base, "centering": centering, "weight": TIS, "gate": {"level": level, "low": middle}}
    gate = Objective.from_dict(gated).evaluate(Batch(**data))
    open_ = Objective.from_dict({**gated, "gate": None}).evaluate(Batch(**data))
    shut = gate.weights == 0
    assert shut[data["mask"] == 1].any() and not shut[data["mask"] == 1].all()
    assert (gate.grad_logits[shut] == 0).all()
    np.testing.assert_array_equal(gate.grad_logits[~shut], open_.grad_logits[~shut])


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_a_head_of_the_whole_vocabulary_is_exact(name):
    definition, anchored = COMPOSITIONS[name]
    for k in (7, 6):  # a single tail token is exact as well: its mass is known
        at = Prefix(5, k=k, temperature=0.9)
        o = at.o if anchored else None
        exact = at.gradients({**definition, "centering": {"tail": "exact"}}, -1.1, o=o)
        for tail in ("rescaled", "uniform"):
            ours = at.gradients({**definition, "centering": {"tail": tail}}, -1.1, o=o)
            np.testing.assert_allclose(ours, exact, atol=3e-15, err_msg=f"{tail} {k}")
    plain = at.gradients(definition, -1.1, o=o)
    assert (np.abs(exact - plain).max() > 1e-3) == (name != "naive_is")


@pytest.mark.parametrize("rule", [None, TIS, MIS])
def test_centering_is_a_prefix_value_baseline_at_one_token(rule):
    at = Prefix(6, temperature=1.4)
    reward = np.random.default_rng(1).normal(size=at.v)
    unit = {"weight": rule}
    centered = at.q * reward @ at.gradients({**unit, "centering": {"tail": "exact"}}, 1.0)
    baseline = at.q * (reward - at.q @ reward) @ at.gradients(unit, 1.0)
    np.testing.assert_allclose(centered, baseline, atol=1e-15)
    assert np.abs(centered - at.q * reward @ at.gradients(unit, 1.0)).max() > 1e-3


def test_centering_with_a_head_over_whole_sequences():
    """Over every sequence of a tree: the exact tail has no drift, a modelled one what the per-prefix residual says."""
    tree = Tree(4, 3, eos=0)
    rng = np.random.default_rng(9)
    policy = TreePolicy(tree, rng.normal(size=(tree.prefixes, 4)), temperature=0.9)
    sampler = noisy_sampler(policy, 0.7, rng)
    constant = np.full(tree.leaves, -0.5)
    definition = {**TOKEN, "temperature": 0.9, "centering": {"tail": "rescaled"}}
    found = estimate(policy, sampler, constant, Objective.from_dict(definition), head=2).mean
    p, q = np.exp(policy.log_probs), np.exp(sampler.log_probs)
    reach, _ = tree.reach(q)
    order = np.argsort(-q, axis=-1)
    q_hat = q.copy()
    off = order[:, 2:]
    p_off = np.take_along_axis(p, off, -1)
    tail = np.take_along_axis(q, off, -1).sum(-1, keepdims=True) * p_off / p_off.sum(-1, keepdims=True)
    np.put_along_axis(q_hat, off, tail, -1)
    np.testing.assert_allclose(found, -0.5 * reach[:, None] * (q - q_hat) / 0.9, atol=1e-15)
    assert np.abs(found).max() > 1e-3
