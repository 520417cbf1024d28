"""Exact expectations by enumeration: what any objective's gradient estimator really is, under the sampler that feeds it.

    on-policy gradient   grad E_p[R]:   reach_p(h) p_v (Q_p(h, v) - V_p(h))/temperature on the logits of prefix h
    estimator's mean     E_q[g(y)] with g(y) = -d loss/d parameters of one sequence, from `Objective.evaluate` itself
    bias                 E_q[g] - grad E_p[R]
    covariance trace     E_q|g - E_q g|^2 of a single sequence (a batch of N divides it by N)
    split per prefix     E_q[R s | h] = V_q(h) s_bar(h) + Cov_q(R, s | h),   s_bar = (q - p)/temperature    (eq-drift)

Source of the split: arXiv 2609.20807, section on drift. Everything is given as an ascent direction. Sequences go through the
objective in chunks, weighted by q(y); 1e5 leaves (V = 10, H = 5) take about 1 s on one core, 1.5 s with a head and 4 s
with whole sampler rows (those are checked one by one); the limit is 2^18 leaves.

What couples the sequences of a batch has no expectation per sequence and is refused: `weight.normalise`, token-mean without
`tokens`, and a "shrunk" denominator that counts tokens or rows of the batch. A mean over rows is one sequence's loss here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..batch import Batch
from ..contract import Objective
from ..errors import ContractError
from .tree_policy import TreePolicy

CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Estimate:
    """Exact moments of one sequence's gradient estimate, as ascent directions of the shape of `policy.weights`."""

    mean: np.ndarray
    bias: np.ndarray
    covariance_trace: float


@dataclass(frozen=True)
class Split:
    """E_q[R s] per prefix, weighted by the sampler's probability of the prefix: `drift` + `signal` [M, V] on the logits.

    reach [M] q(h); value [M] V_q(h) = E_q[R | h].
    """

    reach: np.ndarray
    value: np.ndarray
    drift: np.ndarray
    signal: np.ndarray


def on_policy_gradient(policy: TreePolicy, reward: np.ndarray) -> np.ndarray:
    """Gradient of E_p[R] by `policy.weights`, exact; `reward` [L] one number per complete sequence."""
    tree, p = policy.tree, np.exp(policy.log_probs)
    value, action = tree.values(p, tree.check_reward(reward))
    reach, _ = tree.reach(p)
    return policy.pull_back(reach[:, None] * p * (action - value[:, None]) / policy.temperature)


def expected_reward(policy: TreePolicy, reward: np.ndarray) -> float:
    """E_p[R], the exact mean of `reward` [L] over the complete sequences of `policy`."""
    tree = policy.tree
    return float(tree.values(np.exp(policy.log_probs), tree.check_reward(reward))[0][0])


def split(policy: TreePolicy, sampler: TreePolicy, reward: np.ndarray) -> Split:
    """Drift and signal of the plain policy gradient at every prefix (see the module); A = R, no weight."""
    _same_tree(policy, sampler, "sampler")
    tree = policy.tree
    p, q = np.exp(policy.log_probs), np.exp(sampler.log_probs)
    value, action = tree.values(q, tree.check_reward(reward))
    reach, _ = tree.reach(q)
    at = reach[:, None] / policy.temperature
    return Split(reach, value, at * value[:, None] * (q - p), at * q * (action - value[:, None]))


def estimate(
    policy: TreePolicy,
    sampler: TreePolicy,
    reward: np.ndarray,
    objective: Objective,
    *,
    baseline: float | np.ndarray = 0.0,
    anchor: TreePolicy | None = None,
    reference: TreePolicy | None = None,
    head: int | None = None,
) -> Estimate:
    """Mean, bias and covariance trace of `objective`'s gradient estimator when sequences come from `sampler`.

    `baseline`: a number (the advantage is R - baseline), or one per prefix [M] (a value baseline). `anchor`, `reference`: the
    frozen trainer and the KL reference, on the same tree. `head`: width K of the sampler's recorded top-K head; without it
    whole sampler rows are given where the objective centers. Raises `ContractError` for objectives whose loss couples the
    sequences of a batch, a temperature other than the policy's, policies on different trees, a wrong reward shape.
    """
    tree = policy.tree
    for name, other in (("sampler", sampler), ("anchor", anchor), ("reference", reference)):
        if other is not None:
            _same_tree(policy, other, name)
    if objective.temperature != policy.temperature:
        raise ContractError(
            f"temperature: the objective divides the logits by {objective.temperature:g}, the policy by {policy.temperature:g}"
        )
    objective = per_sequence(objective)
    reward, baseline = tree.check_reward(reward), np.asarray(baseline, dtype=np.float64)
    if baseline.shape not in ((), (tree.prefixes,)):
        raise ContractError(f"baseline: expected a number or shape [{tree.prefixes}], got {list(baseline.shape)}")
    rows = _rows(policy, sampler, anchor, reference, head, objective.centering is not None)
    _, weight = tree.reach(np.exp(sampler.log_probs))
    sampled = np.flatnonzero(weight > 0)  # a sequence the sampler never produces is in no batch
    mean, second = np.zeros((tree.prefixes, tree.vocabulary)), 0.0
    step = max(1, CHUNK_ELEMENTS // (tree.horizon * tree.vocabulary))
    for start in range(0, sampled.size, step):
        leaf = sampled[start : start + step]
        node, mask = tree.node[leaf], tree.mask[leaf]
        advantages = reward[leaf, None] - (baseline if baseline.ndim == 0 else baseline[node])
        grad = -objective.evaluate(_batch(tree.tokens[leaf], mask, node, advantages, rows)).grad_logits
        at = mask.astype(bool)
        np.add.at(mean, node[at], (weight[leaf, None, None] * grad)[at])
        second += float(weight[leaf] @ _squared_norms(policy, node, grad))
    mean = policy.pull_back(mean)
    return Estimate(mean, mean - on_policy_gradient(policy, reward), second - float((mean * mean).sum()))


def per_sequence(objective: Objective) -> Objective:
    """The objective on a single sequence, or a `ContractError` naming what couples the sequences of a batch.

    A mean over rows without an explicit count becomes sequences = 1: every row holds at least one token, so the mean of N
    rows has the expectation of one. Explicit denominators are kept as they are.
    """
    kind, where = objective.aggregation.kind, "has no expectation per sequence"
    if objective.weight is not None and objective.weight.normalise is not None:
        raise ContractError(
            f"weight.normalise: {objective.weight.normalise!r} divides by a mean over the batch, so it {where}; use null"
        )
    if kind == "token-mean" and objective.aggregation.tokens is None:
        raise ContractError(
            f"aggregation: 'token-mean' divides by the batch's token count, so it {where}; give aggregation.tokens or use "
            "'token-sum'"
        )
    if not kind.startswith("seq-mean") or objective.aggregation.sequences is not None:
        return objective
    if any(rule.denominator == "shrunk" for rule in objective.rejection):
        raise ContractError(
            f"rejection and aggregation: 'shrunk' counts the kept rows of the batch in {kind!r}, so it {where}; give "
            "aggregation.sequences or use denominator 'kept'"
        )
    return replace(objective, aggregation=replace(objective.aggregation, sequences=1.0))


def ascend(
    policy: TreePolicy,
    sampler_of: Callable[[TreePolicy], TreePolicy],
    reward: np.ndarray,
    objective: Objective,
    steps: int,
    rate: float,
) -> tuple[TreePolicy, np.ndarray]:
    """Learning iteration without sampling noise: weights += rate * E_q[g], the sampler re-made from the policy each step.

    The advantage is R - E_q[R] (a group mean in the limit of a large group). Returns the last policy and E_p[R] before each
    step and after the last [steps + 1].
    """
    curve = [expected_reward(policy, reward)]
    for _ in range(steps):
        sampler = sampler_of(policy)
        found = estimate(policy, sampler, reward, objective, baseline=expected_reward(sampler, reward))
        policy = policy.moved(rate * found.mean)
        curve.append(expected_reward(policy, reward))
    return policy, np.array(curve)


def _same_tree(policy: TreePolicy, other: TreePolicy, name: str) -> None:
    if other.tree != policy.tree:
        raise ContractError(f"{name}: expected a policy on the same tree {policy.tree}, got {other.tree}")


def _rows(policy, sampler, anchor, reference, head, centered) -> dict[str, np.ndarray]:
    """Per-prefix arrays of the batch, keyed by the batch's names; sampled-token log-probs are picked from `*_full`."""
    rows = {"logits": policy.logits, "sampler": sampler.log_probs}
    if anchor is not None:
        rows["anchor"] = anchor.log_probs
    if reference is not None:
        rows["reference"] = reference.log_probs
    if head is not None:
        if not 1 <= head <= policy.tree.vocabulary:
            raise ContractError(f"head: expected a width in [1, {policy.tree.vocabulary}], got {head}")
        rows["head_ids"] = np.argsort(-rows["sampler"], axis=-1, kind="stable")[:, :head]
        for name in ("sampler", "anchor"):
            if name in rows:
                rows[f"head_logp_{name}"] = np.take_along_axis(rows[name], rows["head_ids"], -1)
    elif centered:
        for name in ("sampler", "anchor"):
            if name in rows:
                rows[f"logp_{name}_full"] = rows[name]
    return rows


def _batch(tokens, mask, node, advantages, rows) -> Batch:
    """The batch of the given sequences [n, H]; positions off the mask hold prefix 0 and are never read."""
    arrays = {}
    for name, value in rows.items():
        if name in ("sampler", "anchor", "reference"):
            arrays[f"logp_{name}"] = value[node, tokens]
        else:
            arrays[name] = value[node]
    return Batch(tokens=tokens, mask=mask, advantages=np.broadcast_to(advantages, tokens.shape), **arrays)


def _squared_norms(policy: TreePolicy, node: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """|gradient on `policy.weights`|^2 of each sequence [n]: positions are distinct prefixes, features may overlap."""
    if policy.features is None:
        return (grad * grad).sum((1, 2))
    phi = policy.features[node]
    return ((phi @ phi.transpose(0, 2, 1)) * (grad @ grad.transpose(0, 2, 1))).sum((1, 2))
