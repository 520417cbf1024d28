"""Reductions of per-token losses to a scalar, as a coefficient per token.

    token-mean               1/N                 N valid tokens, or `tokens`
    token-sum                1
    seq-mean-token-sum       1/R                 R rows with at least one valid token, or `sequences`
    seq-mean-token-mean      1/(R n_b)           n_b valid tokens of the row
    seq-mean-token-sum-norm  1/(R length)

With explicit (global) denominators micro-batches and ranks add up to the whole batch exactly; without them each shard
divides by its own counts and a mean of means is another objective: (S_1/n_1 + S_2/n_2)/2 is not (S_1 + S_2)/(n_1 + n_2)
where token sums S_i come from n_i tokens (eq-aggregation). Source: the names are verl's (`core_algos.agg_loss`); Dr. GRPO
arXiv 2503.20783 is seq-mean-token-sum-norm.
"""

from __future__ import annotations

import numpy as np

from .contract import Aggregation
from .errors import ContractError
from .ratios import Segments


def token_coefficients(rule: Aggregation, b: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Coefficient of each packed token [N].

    `b` [N] is the row of each token, `counted` [N] whether it counts in the denominators N, R and n_b (all valid tokens,
    or the kept ones where a rejection rule says "shrunk"). Raises `ContractError` where a denominator would be 0.
    """
    rows = Segments.rows(b[counted])
    tokens, sequences = float(counted.sum()), float(rows.count)
    if rule.kind == "token-mean":
        total = rule.tokens if rule.tokens is not None else tokens
        explicit = rule.tokens is not None
    elif rule.kind == "token-sum":
        total, explicit = 1.0, True
    else:
        total = rule.sequences if rule.sequences is not None else sequences
        explicit = rule.sequences is not None
    if tokens == 0 and not explicit:
        key = "tokens" if rule.kind == "token-mean" else "sequences"
        raise ContractError(
            f"mask: no valid token left, so aggregation {rule.kind!r} divides by zero; give aggregation.{key} explicitly "
            "(a micro-batch or rank that is fully masked then contributes 0)"
        )
    coef = np.full(b.size, 1.0 / total)
    if rule.kind == "seq-mean-token-mean" and b.size:
        lengths = np.bincount(b[counted], minlength=int(b.max()) + 1)[b]
        coef /= np.maximum(lengths, 1)  # a row without counted tokens contributes nothing: its terms are dropped
    elif rule.kind == "seq-mean-token-sum-norm":
        coef /= rule.length
    return coef


def aggregate(rule: Aggregation, values: np.ndarray, mask: np.ndarray) -> float:
    """Reduce per-token `values` [B, T] under `mask` [B, T] 0/1 to one number; values off the mask are never read."""
    values, mask = np.asarray(values), np.asarray(mask)
    if values.shape != mask.shape or values.ndim != 2:
        raise ContractError(f"values: expected shape [B, T] like mask {list(mask.shape)}, got {list(values.shape)}")
    b, t = np.nonzero(mask)
    coef = token_coefficients(rule, b, np.ones(b.size, dtype=bool))
    return float((coef * values[b, t]).sum())
