"""Exact expectations by enumeration: unbiasedness, drift and signal, Monte Carlo, and what does not collapse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cases_helper import MIS, TIS, log_softmax

from rlcorr_ref import Batch, ContractError, Objective
from rlcorr_ref.population.tree import ascend, estimate, expected_reward, on_policy_gradient, split
from rlcorr_ref.population.tree_policy import Tree, TreePolicy, noisy_sampler, quantised_sampler, rounded_sampler

SUM = {"aggregation": {"kind": "token-sum"}}
SEQUENCE_IS = {**SUM, "weight": {"level": "sequence"}}
TREES = [Tree(3, 3), Tree(4, 3, eos=1), Tree(2, 5, eos=0)]


def problem(tree: Tree, seed: int = 0, features: int | None = None, temperature: float = 1.0, noise: float = 1.0):
    """(policy, sampler, reward): random logits or random features, a noisy sampler and a Gaussian reward table."""
    rng = np.random.default_rng(seed)
    phi = None if features is None else rng.normal(size=(tree.prefixes, features))
    rows = tree.prefixes if features is None else features
    policy = TreePolicy(tree, rng.normal(size=(rows, tree.vocabulary)), phi, temperature)
    return policy, noisy_sampler(policy, noise, rng), rng.normal(size=tree.leaves)


def objective(definition=SUM, temperature: float = 1.0, **more) -> Objective:
    return Objective.from_dict({**definition, "temperature": temperature, **more})


def test_tree_lists_every_sequence_once():
    assert Tree(3, 3).leaves == 27 and Tree(3, 3).prefixes == 13
    for tree in TREES:
        alive = [v for v in range(tree.vocabulary) if v != tree.eos]
        ends = [] if tree.eos is None else [tree.eos]
        expected = set(itertools.product(*[alive] * (tree.horizon - 1), range(tree.vocabulary)))
        for length in range(tree.horizon - 1):
            expected |= {(*start, end) for start in itertools.product(*[alive] * length) for end in ends}
        found = [tuple(t[m == 1].tolist()) for t, m in zip(tree.tokens, tree.mask, strict=True)]
        assert len(found) == len(set(found)) == tree.leaves and set(found) == expected
        policy, _, _ = problem(tree)
        reach, leaf = tree.reach(np.exp(policy.log_probs))
        by_hand = [
            np.exp(log_softmax(policy.logits))[n[m == 1], t[m == 1]].prod()
            for n, t, m in zip(tree.node, tree.tokens, tree.mask, strict=True)
        ]
        np.testing.assert_allclose(leaf, by_hand, rtol=1e-13)
        assert abs(leaf.sum() - 1) < 1e-14 and reach[0] == 1.0


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("features", [None, 4])
def test_on_policy_gradient_is_the_derivative_of_the_expected_reward(tree, features):
    policy, _, reward = problem(tree, 1, features, temperature=0.7)
    exact, step = on_policy_gradient(policy, reward), 1e-6
    rng = np.random.default_rng(2)
    for _ in range(6):
        direction = rng.normal(size=policy.weights.shape)
        up, down = (expected_reward(policy.moved(s * step * direction), reward) for s in (1, -1))
        assert abs((up - down) / (2 * step) - (exact * direction).sum()) < 1e-8


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("features", [None, 5])
def test_naive_importance_sampling_is_unbiased_and_plain_gradient_is_not(tree, features):
    policy, sampler, reward = problem(tree, 3, features, temperature=1.3)
    for baseline in (0.0, 0.8):
        unbiased = estimate(policy, sampler, reward, objective(SEQUENCE_IS, 1.3), baseline=baseline)
        assert np.abs(unbiased.bias).max() < 1e-10
    plain = estimate(policy, sampler, reward, objective(SUM, 1.3))
    token = estimate(policy, sampler, reward, objective({**SUM, "weight": {"level": "token"}}, 1.3))
    assert np.abs(plain.bias).max() > 1e-3 and np.abs(token.bias).max() > 1e-3
    on = estimate(policy, policy, reward, objective(SUM, 1.3))
    assert np.abs(on.bias).max() < 1e-12


def test_constant_reward_leaves_drift_and_centering_removes_it():
    for tree in TREES:
        policy, sampler, _ = problem(tree, 4, temperature=0.8)
        constant = np.full(tree.leaves, 0.7)
        for definition in (SUM, {**SUM, "weight": TIS}, {**SUM, "weight": MIS}):
            plain = estimate(policy, sampler, constant, objective(definition, 0.8))
            centered = estimate(policy, sampler, constant, objective(definition, 0.8, centering={"tail": "exact"}))
            assert np.abs(plain.mean).max() > 1e-3, definition
            assert np.abs(centered.mean).max() < 1e-14, definition
        full_head = estimate(
            policy, sampler, constant, objective(SUM, 0.8, centering={"tail": "rescaled"}), head=tree.vocabulary
        )
        assert np.abs(full_head.mean).max() < 1e-14


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_drift_and_signal_add_up(tree):
    policy, sampler, reward = problem(tree, 5, temperature=1.5)
    parts = split(policy, sampler, reward)
    plain = estimate(policy, sampler, reward, objective(SUM, 1.5))
    np.testing.assert_allclose(parts.drift + parts.signal, plain.mean, atol=1e-14)
    centered = estimate(policy, sampler, reward, objective(SUM, 1.5, centering={"tail": "exact"}))
    np.testing.assert_allclose(parts.signal, centered.mean, atol=1e-14)
    assert np.abs(parts.drift).max() > 1e-3
    # the value of a prefix is the mean reward of the sequences through it
    _, weight = tree.reach(np.exp(sampler.log_probs))
    at = 1
    through = ((tree.node == at) & (tree.mask == 1)).any(-1)
    assert abs(parts.value[at] - (weight * reward)[through].sum() / weight[through].sum()) < 1e-13


@pytest.mark.parametrize("rule", [None, TIS, MIS])
def test_weighted_centering_is_the_prefix_value_baseline_in_expectation(rule):
    changed = []
    for tree in TREES:
        policy, sampler, reward = problem(tree, 6)
        definition = {**SUM, "weight": rule}
        value, _ = tree.values(np.exp(sampler.log_probs), reward)
        centered = estimate(policy, sampler, reward, objective(definition, centering={"tail": "exact"}))
        baseline = estimate(policy, sampler, reward, objective(definition), baseline=value)
        np.testing.assert_allclose(centered.mean, baseline.mean, atol=1e-14)
        # after centering, a baseline that depends on the prefix alone changes nothing in expectation
        both = estimate(policy, sampler, reward, objective(definition, centering={"tail": "exact"}), baseline=value)
        np.testing.assert_allclose(both.mean, centered.mean, atol=1e-14)
        changed.append(np.abs(estimate(policy, sampler, reward, objective(definition)).mean - baseline.mean).max())
    assert max(changed) > 1e-3  # without either, the estimator is another one


@pytest.mark.parametrize("features", [None, 4])
def test_monte_carlo_agrees(features):
    tree = Tree(3, 4, eos=2)
    policy, sampler, reward = problem(tree, 7, features)
    definition = {**SUM, "weight": TIS, "centering": {"tail": "exact"}}
    exact = estimate(policy, sampler, reward, objective(definition))
    n, rng = 20_000, np.random.default_rng(8)
    tokens, mask, node = np.zeros((n, 4), int), np.zeros((n, 4), int), np.zeros((n, 4), int)
    logq, at = sampler.log_probs, np.zeros(n, int)
    for t in range(4):  # token by token, as a sampler would
        live = np.flatnonzero(at < tree.prefixes)
        drawn = (logq[at[live]] + rng.gumbel(size=(live.size, 3))).argmax(-1)
        tokens[live, t], mask[live, t], node[live, t] = drawn, 1, at[live]
        at[live] = tree.child[at[live], drawn]
    leaf = at - tree.prefixes
    batch = Batch(
        logits=policy.logits[node],
        tokens=tokens,
        mask=mask,
        advantages=np.repeat(reward[leaf, None], 4, 1),
        logp_sampler=logq[node, tokens],
        logp_sampler_full=logq[node],
    )
    grad = -objective(definition).evaluate(batch).grad_logits
    if features is None:
        per_sample = np.zeros((n, tree.prefixes, 3))
        for t in range(4):
            per_sample[np.arange(n), node[:, t]] += grad[:, t]
    else:
        per_sample = np.einsum("ntf,ntv->nfv", policy.features[node], grad)
    flat, mean = per_sample.reshape(n, -1), exact.mean.ravel()
    along = (flat - mean) @ rng.normal(size=(mean.size, 20))  # random directions: no coordinate is a rare event
    assert (np.abs(along.mean(0)) < 5 * along.std(0) / np.sqrt(n)).all()
    spread = ((flat - mean) ** 2).sum(-1)
    assert abs(spread.mean() - exact.covariance_trace) < 5 * spread.std() / np.sqrt(n)


def test_any_objective_and_ragged_sequences_go_through():
    tree = Tree(3, 3, eos=0)
    policy, sampler, reward = problem(tree, 9)
    anchor = noisy_sampler(policy, 0.1, np.random.default_rng(1))
    three = {
        **SUM,
        "surrogate": {"kind": "ppo_clip"},
        "weight": TIS,
        "centering": {"tail": "rescaled"},
        "kl": {"kind": "k3", "beta": 0.1},
        "entropy": {"coef": 0.01},
    }
    found = estimate(policy, sampler, reward, objective(three), anchor=anchor, reference=anchor, head=2)
    assert np.isfinite(found.mean).all() and found.covariance_trace > 0
    # a mean over rows has the expectation of one row, whatever the number of rows
    row_sum = estimate(policy, sampler, reward, objective({"aggregation": {"kind": "seq-mean-token-sum"}}))
    np.testing.assert_allclose(row_sum.mean, estimate(policy, sampler, reward, objective()).mean, atol=1e-15)
    row_mean = estimate(policy, sampler, reward, objective({"aggregation": {"kind": "seq-mean-token-mean"}}))
    assert np.abs(row_mean.mean - row_sum.mean).max() > 1e-3


def test_samplers():
    tree = Tree(3, 3)
    policy, _, reward = problem(tree, 10, features=3)
    assert set(np.unique(np.abs(rounded_sampler(policy, 0.5).weights / 0.5) % 1)) == {0.0}
    column = quantised_sampler(policy, "int8").weights[:, 0]
    levels = column / np.abs(column).max() * 127
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-9)
    assert expected_reward(quantised_sampler(policy, "fp4_e2m1"), reward) != expected_reward(policy, reward)
    earlier, later = policy, policy.moved(0.1 * on_policy_gradient(policy, reward))
    assert expected_reward(later, reward) > expected_reward(earlier, reward)
    stale = estimate(later, earlier, reward, objective())
    assert np.abs(stale.bias).max() > 0
    with pytest.raises(ContractError, match="rng"):
        noisy_sampler(policy, 0.5)


def test_what_has_no_expectation_per_sequence_is_refused():
    policy, sampler, reward = problem(Tree(2, 2))
    shrunk = [{"statistic": "ratio", "reduce": "token", "high": 2.0, "denominator": "shrunk"}]
    for definition, words in (
        ({}, "token-mean"),
        ({**SUM, "weight": {"level": "token", "normalise": "tokens"}}, "weight.normalise"),
        ({"aggregation": {"kind": "seq-mean-token-sum"}, "rejection": shrunk}, "shrunk"),
    ):
        with pytest.raises(ContractError, match=words):
            estimate(policy, sampler, reward, Objective.from_dict(definition))
    with pytest.raises(ContractError, match="temperature"):
        estimate(policy, sampler, reward, objective(SUM, 2.0))
    with pytest.raises(ContractError, match="reward"):
        estimate(policy, sampler, reward[:-1], objective())
    with pytest.raises(ContractError, match="sampler"):
        estimate(policy, problem(Tree(2, 3))[1], reward, objective())
    with pytest.raises(ContractError, match="more than"):
        Tree(10, 7)


ARMS = {"pg": SUM, "tis": {**SUM, "weight": TIS}, "sc": {**SUM, "centering": {"tail": "exact"}}}


@pytest.mark.parametrize("arm", ARMS)
def test_a_free_tabular_policy_is_not_hurt(arm):
    """Without shared parameters a decided branch cannot hurt another: coarse rounding of the logits, yet accuracy 1."""
    tree = Tree(3, 3)
    rng = np.random.default_rng(11)
    reward = np.where(rng.random(tree.leaves) < 0.2, 1.0, -1.0)
    start = TreePolicy(tree, 0.5 * rng.normal(size=(tree.prefixes, 3)))
    _, curve = ascend(start, lambda policy: rounded_sampler(policy, 1.0), reward, objective(ARMS[arm]), 250, 1.0)
    accuracy = (curve + 1) / 2
    assert accuracy[0] < 0.4 and accuracy[-1] > 0.99


def shared(seed: int, luck: bool, features: int = 24, horizon: int = 4):
    """A log-linear policy on a tree whose first token decides: token 0 is right. Contexts below lack a third of the features.

    With `luck` the root has no features: its distribution is uniform and cannot be learnt.
    """
    tree = Tree(4, horizon)
    rng = np.random.default_rng(seed)
    phi = 0.5 * rng.normal(size=(tree.prefixes, features))
    first = np.zeros(tree.prefixes, int)
    for position in range(1, horizon):
        first[tree.node[:, position]] = tree.tokens[:, 0]
    below = np.arange(tree.prefixes) > 0
    third = features // 3
    phi[np.ix_(below & (first == 0), np.arange(features - third, features))] = 0.0
    phi[np.ix_(below & (first != 0), np.arange(third))] = 0.0
    if luck:
        phi[0] = 0.0
    policy = TreePolicy(tree, np.zeros((features, 4)), phi)
    return policy, 0.3 * rng.normal(size=policy.weights.shape), np.where(tree.tokens[:, 0] == 0, 1.0, -1.0)


def test_drift_vanishes_where_the_policy_controls_the_deciding_token():
    """As success tends to 1 the failure contexts are no longer visited and their drift goes with them."""
    for seed in range(3):
        policy, error, reward = shared(seed, luck=False)
        _, curve = ascend(policy, lambda p, e=error: noisy_sampler(p, e), reward, objective(), 300, 0.3)
        assert (curve[-1] + 1) / 2 > 0.95, seed


def test_under_luck_the_decided_tokens_turn_deterministic():
    """Where the outcome is luck the drift has nothing to spoil: it runs until the decided tokens have no entropy left."""
    policy, error, reward = shared(0, luck=True)

    def entropy(p: TreePolicy) -> float:
        rows = p.log_probs[1:]
        return float(-(np.exp(rows) * rows).sum(-1).mean())

    last, curve = ascend(policy, lambda p: noisy_sampler(p, error), reward, objective(), 300, 1.0)
    assert np.ptp(curve) < 1e-12 and abs(curve[0] + 0.5) < 1e-12
    centered, _ = ascend(
        policy, lambda p: noisy_sampler(p, error), reward, objective(SUM, centering={"tail": "exact"}), 10, 1.0
    )
    assert entropy(policy) > 1.38 and entropy(last) < 0.5 * entropy(policy)
    assert abs(entropy(centered) - entropy(policy)) < 1e-12
