"""A policy over every sequence of a small vocabulary: the tree, its prefixes and leaves, and samplers made from it.

    logits      z[h, v]                    one row per prefix h: free (tabular), or z = features @ weights (log-linear)
    trainer     p(. | h) = softmax(z[h]/temperature)
    sequence    p(y) = prod_t p(y_t | y_<t)

Prefixes ("nodes") and complete sequences ("leaves") are enumerated level by level. With an `eos` token a sequence ends
where it appears, so lengths are ragged: `tokens` is padded with 0 and `mask` says which positions exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..categorical import log_softmax
from ..errors import ContractError, check_number
from ..quantise import quantise

MAX_LEAVES = 1 << 18


@dataclass(frozen=True)
class Tree:
    """All sequences of at most `horizon` tokens from `vocabulary` ids; `eos` (or None) is the id that ends a sequence.

    M prefixes in level order, level l in rows levels[l] : levels[l + 1]; L leaves. child [M, V] is the row of the next
    prefix, or M + leaf where the sequence ends. tokens, mask, node [L, H]: padded ids, 0/1, prefix row (0 off the mask).
    Raises `ContractError` for a vocabulary below 2, a horizon below 1, an eos out of range, or more than 2^18 leaves.
    """

    vocabulary: int
    horizon: int
    eos: int | None = None
    levels: np.ndarray = field(init=False, repr=False, compare=False)
    child: np.ndarray = field(init=False, repr=False, compare=False)
    tokens: np.ndarray = field(init=False, repr=False, compare=False)
    mask: np.ndarray = field(init=False, repr=False, compare=False)
    node: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        v, h = self.vocabulary, self.horizon
        if v < 2 or h < 1:
            raise ContractError(f"vocabulary and horizon: expected at least 2 and 1, got {v} and {h}")
        if self.eos is not None and not 0 <= self.eos < v:
            raise ContractError(f"eos: expected an id in [0, {v}) or null, got {self.eos}")
        alive = np.array([t for t in range(v) if t != self.eos])
        widths = [alive.size**level for level in range(h)]
        leaves = widths[-1] * v + (sum(widths[:-1]) if self.eos is not None else 0)
        if leaves > MAX_LEAVES:
            raise ContractError(
                f"vocabulary and horizon: {v} and {h} give {leaves} sequences, more than {MAX_LEAVES}; enumeration is for small "
                "trees, take a smaller horizon"
            )
        levels = np.concatenate([[0], np.cumsum(widths)])
        child = np.empty((levels[-1], v), dtype=np.int64)
        tokens, node = np.zeros((leaves, h), dtype=np.int64), np.zeros((leaves, h), dtype=np.int64)
        lengths = np.empty(leaves, dtype=np.int64)
        prefix, path = np.zeros((1, 0), dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
        done = 0
        for level in range(h):
            rows = np.arange(levels[level], levels[level + 1])
            path = np.hstack([path, rows[:, None]])
            last = level == h - 1
            ends = np.arange(v) if last else (np.array([self.eos]) if self.eos is not None else np.arange(0))
            r, e = np.repeat(np.arange(rows.size), ends.size), np.tile(ends, rows.size)
            at = slice(done, done + r.size)
            tokens[at, :level], tokens[at, level], node[at, : level + 1] = prefix[r], e, path[r]
            lengths[at] = level + 1
            child[rows[r], e] = levels[-1] + np.arange(done, done + r.size)
            done += r.size
            if not last:
                r, a = np.repeat(np.arange(rows.size), alive.size), np.tile(alive, rows.size)
                child[rows[r], a] = levels[level + 1] + np.arange(r.size)
                prefix, path = np.hstack([prefix[r], a[:, None]]), path[r]
        mask = (np.arange(h) < lengths[:, None]).astype(np.int64)
        for name, value in zip(
            ("levels", "child", "tokens", "mask", "node"), (levels, child, tokens, mask, node), strict=True
        ):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @property
    def prefixes(self) -> int:
        return self.child.shape[0]

    @property
    def leaves(self) -> int:
        return self.tokens.shape[0]

    def reach(self, probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probability of each prefix [M] and of each complete sequence [L] under `probs` [M, V]."""
        out = np.zeros(self.prefixes + self.leaves)
        out[0] = 1.0
        for start, stop in zip(self.levels[:-1], self.levels[1:], strict=True):
            out[self.child[start:stop]] = out[start:stop, None] * probs[start:stop]
        return out[: self.prefixes], out[self.prefixes :]

    def values(self, probs: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prefix values V(h) = E[R | h] [M] and action values Q(h, v) [M, V] under `probs` [M, V], `reward` [L]."""
        value = np.concatenate([np.zeros(self.prefixes), reward])
        for start, stop in zip(self.levels[-2::-1], self.levels[:0:-1], strict=True):
            value[start:stop] = (probs[start:stop] * value[self.child[start:stop]]).sum(-1)
        return value[: self.prefixes], value[self.child]

    def check_reward(self, reward: np.ndarray) -> np.ndarray:
        """`reward` as float64 [L]; refuses another shape and non-finite values."""
        reward = np.asarray(reward, dtype=np.float64)
        if reward.shape != (self.leaves,) or not np.isfinite(reward).all():
            raise ContractError(
                f"reward: expected {self.leaves} finite numbers, one per sequence, got shape {list(reward.shape)}"
            )
        return reward


@dataclass(frozen=True)
class TreePolicy:
    """A policy on `tree`: `weights` are the logits [M, V] themselves, or [F, V] behind `features` [M, F].

    `temperature` > 0 divides the logits. All float64.
    """

    tree: Tree
    weights: np.ndarray
    features: np.ndarray | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        rows = self.tree.prefixes
        if self.features is not None:
            if self.features.ndim != 2 or self.features.shape[0] != rows:
                raise ContractError(f"features: expected shape [{rows}, F], got {list(self.features.shape)}")
            rows = self.features.shape[1]
        if self.weights.shape != (rows, self.tree.vocabulary):
            raise ContractError(
                f"weights: expected shape {[rows, self.tree.vocabulary]}, got {list(self.weights.shape)}"
            )
        if self.weights.dtype != np.float64:
            raise ContractError(f"weights: expected float64, got {self.weights.dtype}")
        check_number("temperature", self.temperature, above=0.0)

    @property
    def logits(self) -> np.ndarray:
        """z [M, V], before temperature."""
        return self.weights if self.features is None else self.features @ self.weights

    @property
    def log_probs(self) -> np.ndarray:
        """log p(v | h) [M, V] in nats, after temperature."""
        return log_softmax(self.logits, self.temperature)

    def pull_back(self, grad_logits: np.ndarray) -> np.ndarray:
        """A gradient on the logits [M, V] as a gradient on `weights`."""
        return grad_logits if self.features is None else self.features.T @ grad_logits

    def moved(self, step: np.ndarray) -> TreePolicy:
        """The next version: weights + step. The old object stays valid; used as a sampler it is an earlier version."""
        return replace(self, weights=self.weights + step)


def noisy_sampler(policy: TreePolicy, error: np.ndarray | float, rng: np.random.Generator | None = None) -> TreePolicy:
    """Sampler with weights + error: an array that stays the same at every synchronisation (a frozen error), or a standard
    deviation, for which `rng` draws a fresh Gaussian error."""
    if np.ndim(error) == 0:
        if rng is None:
            raise ContractError(
                "rng: required when error is a standard deviation; give a numpy Generator or an error array"
            )
        error = float(error) * rng.normal(size=policy.weights.shape)
    return policy.moved(error)


def rounded_sampler(policy: TreePolicy, step: float) -> TreePolicy:
    """Sampler whose weights (the logits, where tabular) lie on the grid step * integers, ties to even."""
    check_number("step", step, above=0.0)
    return replace(policy, weights=np.rint(policy.weights / step) * step)


def quantised_sampler(policy: TreePolicy, fmt: str, scale: str = "row") -> TreePolicy:
    """Sampler whose weights went through a number grid of `rlcorr_ref.quantise`; "row" scales each output token's column."""
    return replace(policy, weights=np.ascontiguousarray(quantise(policy.weights.T, fmt, scale)[0].T))
