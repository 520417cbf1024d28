"""Rejection: rules that edit the mask instead of the weight.

With d = log n - log q per valid token (each d clamped first where `log_clamp` is given):

    k1 = -d      k2 = d^2/2      k3 = exp(d) - 1 - d      ratio = exp(d)      tv = |n - q|
    binary_kl = q log(q/n) + (1 - q) log((1 - q)/(1 - n))        the sampled token's Bernoulli pair, KL(sampler || numerator)

"token" keeps or drops tokens; "sum", "mean", "max" over the row's valid tokens keep or drop rows. For "ratio" the sum is
taken in log space (the product), the mean likewise (the geometric mean). Rules are ANDed.
Sources: verl 0.9.1 `rollout_corr_helper.py` (k1/k2/k3), OpenRLHF 0.11.2 `models/loss.py` (tv, binary_kl),
AReaL 1.0.4 (M2PO), DeepSeek-V3.2 arXiv 2512.02556 (off-policy sequence masking: k1 mean, sign "negative").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .contract import RejectionRule
from .errors import ContractError
from .ratios import Segments, clamp
from .tokens import TokenLogProbs
from .weights import applies, in_band, probability_difference

# Rejection settings under the names the field uses; each value is a `rejection` list of the contract.
PRESETS: dict[str, list[dict[str, Any]]] = {
    "verl_token_k1": [
        {"statistic": "k1", "reduce": "token", "low": float(np.log(0.5)), "high": float(np.log(2.0)), "log_clamp": 20.0}
    ],
    "verl_seq_mean_k3": [{"statistic": "k3", "reduce": "mean", "high": 0.01, "log_clamp": 20.0}],
    "product_band": [{"statistic": "ratio", "reduce": "sum", "low": 0.5, "high": 2.0}],
    "geometric_band": [{"statistic": "ratio", "reduce": "mean", "low": 0.999, "high": 1.001}],
    # A row is dropped when any token is far less likely under the trainer: max of k1 = -min d.
    "token_veto": [{"statistic": "k1", "reduce": "max", "high": float(-np.log(1e-4))}],
    "token_tv": [{"statistic": "tv", "reduce": "token", "high": 0.2}],
    "deepseek_sequence_mask": [
        {"statistic": "k1", "reduce": "mean", "high": 0.1, "sign": "negative", "denominator": "shrunk"}
    ],
}


def token_statistic(name: str, d: np.ndarray, logp_sampler: np.ndarray) -> np.ndarray:
    """The statistic per token [N] from log-ratios d [N] (already clamped) and log q [N]; "ratio" returns d itself."""
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "ratio":
            return d  # bands on the ratio are taken after exp, reductions in log space
        if name == "k1":
            return -d
        if name == "k2":
            return 0.5 * d * d
        if name == "k3":
            return np.expm1(d) - d
        if name == "tv":
            return np.abs(probability_difference(logp_sampler + d, logp_sampler))
        if name == "binary_kl":
            return binary_kl(logp_sampler, logp_sampler + d)
    raise ContractError(f"statistic: unknown name {name!r}")


def binary_kl(logp_sampler: np.ndarray, logp_numerator: np.ndarray) -> np.ndarray:
    """KL(Bernoulli(q) || Bernoulli(n)) elementwise in nats, from log-probs; inf where n is 0 or 1 and q is not."""
    q = np.exp(logp_sampler)
    rest_q = -np.expm1(np.minimum(logp_sampler, 0.0))
    rest_n = -np.expm1(np.minimum(logp_numerator, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(q > 0, q * (logp_sampler - logp_numerator), 0.0)
        second = np.where(rest_q > 0, rest_q * (np.log(rest_q) - np.log(rest_n)), 0.0)
    return first + second


def keep_mask(
    rule: RejectionRule, d: np.ndarray, logp_sampler: np.ndarray, advantages: np.ndarray, rows: Segments
) -> np.ndarray:
    """Which tokens [N] `rule` keeps. `sign` exempts tokens of the other sign, row rules included."""
    value = token_statistic(rule.statistic, clamp(d, rule.log_clamp), logp_sampler)
    if rule.reduce == "sum":
        value = rows.spread(rows.sum(value))
    elif rule.reduce == "mean":
        value = rows.spread(rows.mean(value))
    elif rule.reduce == "max":
        value = rows.spread(rows.max(value))
    if rule.statistic == "ratio":
        with np.errstate(over="ignore"):
            value = np.exp(value)
    low = -np.inf if rule.low is None else rule.low
    high = np.inf if rule.high is None else rule.high
    return in_band(value, low, high, rule.closed) | ~applies(rule.sign, advantages)


def reject(tokens: TokenLogProbs, rules: Sequence[RejectionRule]) -> np.ndarray:
    """Which valid tokens [N] survive all `rules`; every statistic is taken over the original mask."""
    keep = np.ones(tokens.count, dtype=bool)
    for rule in rules:
        d = tokens.log_ratio(rule.numerator)
        keep &= keep_mask(rule, d, tokens.logp_sampler, tokens.advantages, tokens.rows)
    return keep


def m2po_mask(d: np.ndarray, threshold: float) -> np.ndarray:
    """M2PO: drop the tokens with the largest d^2 until the mean of the rest is below `threshold`.

    d [N] are the valid tokens' log-ratios (nats; the sign does not matter). Keeps the longest suffix of the descending
    order whose mean of d^2 is strictly below the threshold; if none is, exactly one token (the smallest) is kept.
    Returns a boolean mask [N]. Among equal d^2 the earlier token is dropped first.
    Source: arXiv 2510.01161; AReaL 1.0.4 `trainer/ppo/actor.py` (`_get_m2po_loss_mask`).
    """
    d = np.asarray(d, dtype=np.float64)
    if d.ndim != 1:
        raise ContractError(f"d: expected shape [N] of valid tokens, got {list(d.shape)}")
    if not np.isfinite(d).all():
        raise ContractError("d: expected finite log-ratios")
    if not (isinstance(threshold, (int, float)) and threshold > 0):
        raise ContractError(f"threshold: expected a number > 0, got {threshold!r}")
    if d.size == 0:
        return np.zeros(0, dtype=bool)
    square = d * d
    order = np.argsort(-square, kind="stable")
    suffix_mean = np.cumsum(square[order][::-1])[::-1] / np.arange(d.size, 0, -1)
    below = np.flatnonzero(suffix_mean < threshold)
    first = below[0] if below.size else d.size - 1
    keep = np.zeros(d.size, dtype=bool)
    keep[order[first:]] = True
    return keep
