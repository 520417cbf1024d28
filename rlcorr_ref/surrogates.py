"""Policy-gradient surrogates: value s and slope s' = ds/d log p(y) per token, and the KL terms.

    reinforce   s = -A log p                                          s' = -A
    ppo_clip    s = -min(r A, clip(r) A), for A < 0 then max(., dual A)   s' = -r A where the unclipped branch is active, else 0
    cispo       s = -sg(clip(r)) A log p                              s' = -clip(r) A
    gspo        s = -min(S A, clip(S) A), S = exp(row mean log r)     s' = -S A on each token (straight-through) or 0

r = p/o, or p/q without an anchor. Ties take the unclipped branch. Sources: PPO arXiv 1707.06347 eq. 7; dual clip
arXiv 1912.09729; CISPO arXiv 2506.13585 eq. 4-5; GSPO arXiv 2507.18071 eq. 5-7.
"""

from __future__ import annotations

import numpy as np

from .contract import KL, Surrogate
from .numerics import times
from .ratios import Segments


def clip_bounds(rule: Surrogate) -> tuple[float, float]:
    """The band as two scalars, 1 - eps_low and 1 + eps_high; an absent side (cispo) is unbounded."""
    low = -np.inf if rule.eps_low is None else 1.0 - rule.eps_low
    high = np.inf if rule.eps_high is None else 1.0 + rule.eps_high
    return low, high


def ppo_active(rule: Surrogate, r: np.ndarray, advantages: np.ndarray) -> np.ndarray:
    """Where the slope of the clipped objective is not 0, elementwise.

    Clipping binds only in the direction that would raise the objective: r above the band for A > 0, below it for A < 0;
    the dual bound binds for A < 0 when r > dual. A = 0 is never clipped.
    """
    low, high = clip_bounds(rule)
    clipped = ((advantages > 0) & (r > high)) | ((advantages < 0) & (r < low))
    if rule.dual is not None:
        clipped |= (advantages < 0) & (r > rule.dual)
    return ~clipped


def surrogate(
    rule: Surrogate, logp: np.ndarray, log_r: np.ndarray, advantages: np.ndarray, rows: Segments
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value s [N], slope ds/d log p [N] and whether a bound is active [N] (bool).

    `logp` [N] trainer log-probs, `log_r` [N] log r in nats, `advantages` [N]; `rows` the non-empty rows (gspo).
    """
    if rule.kind == "reinforce":
        return -times(advantages, logp), -advantages, np.zeros(logp.shape, dtype=bool)
    low, high = clip_bounds(rule)
    if rule.kind == "gspo":
        log_r = rows.spread(rows.mean(log_r))
    with np.errstate(over="ignore"):
        r = np.exp(log_r)
    bounded = np.clip(r, low, high)
    if rule.kind == "cispo":
        return -times(bounded * advantages, logp), -bounded * advantages, bounded != r
    active = ppo_active(rule, r, advantages)
    objective = np.minimum(times(advantages, r), bounded * advantages)
    if rule.kind == "ppo_clip" and rule.dual is not None:
        objective = np.where(advantages < 0, np.maximum(objective, rule.dual * advantages), objective)
    return -objective, np.where(active, -times(advantages, r), 0.0), ~active


def gspo_true_gradient(
    rule: Surrogate, log_r: np.ndarray, advantages: np.ndarray, factors: np.ndarray, rows: Segments
) -> np.ndarray:
    """True derivative of sum_t factors_t s_t by each token's log p [N]; the contract's form is factors_t * slope_t.

    Every token of a row carries the same value -min(S A, clip(S) A), and d S / d log p_t = S / T_row, so the true derivative
    spreads the row's *mean* factor over its tokens: -S A mean_t(factors) where unclipped. `factors` [N] is what multiplies
    s_t in the loss (aggregation coefficient times weight). The straight-through form equals it exactly when the factors are
    constant along the row, for every reduction; with token weights or dropped tokens the two differ.
    """
    log_s = rows.spread(rows.mean(log_r))
    with np.errstate(over="ignore"):
        s = np.exp(log_s)
    return np.where(ppo_active(rule, s, advantages), -times(advantages, s), 0.0) * rows.spread(rows.mean(factors))


def kl_term(rule: KL, logp: np.ndarray, logp_reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """KL estimate [N] and its slope by log p [N], without beta; x = log ref - log p.

    k1 = -x (slope 1: its expected gradient E_p[s] = 0 is no KL gradient when put in the loss, eq-k1); k2 = x^2/2 (slope -x);
    k3 = exp(x) - 1 - x (slope 1 - exp(x)); "k3+" has k3's value and k2's gradient. Source: J. Schulman, "Approximating
    KL divergence" (2020); k3+ is TRL's and verl's straight-through variant.
    """
    x = logp_reference - logp
    with np.errstate(over="ignore"):
        if rule.kind == "k1":
            return -x, np.ones_like(x)
        if rule.kind == "k2":
            return 0.5 * x * x, -x
        k3 = np.expm1(x) - x
        return (k3, -np.expm1(x)) if rule.kind == "k3" else (k3, -x)
