"""Score centering: subtract the modelled sampler's expectation of the effective score.

With g(v) the total detached factor that multiplies A * score for token v, and q_hat the modelled sampler,

    loss term per token   + A sum_v sg(c_v) log p_v,      c_v = q_hat_v g(v)            (arXiv 2609.20807, Eqs. 8, 12, 14)
    rescaled tail         q_hat = rho p off the head;  sum_v q_hat_v s_v = sum_H (q_v - rho p_v) s_v     (eq-head-only)
    with a factor         c_v = q_v g(v) - alpha p_v on the head,  alpha = rho g(tail); f(1/rho) for a weight f(p/q) (eq-alpha)

The tail of the rescaled model is one more slot with masses (q_t, o_t, p_t): its ratio is constant. Two exact rewritings keep
the float64 gradient at full accuracy where the textbook form loses it:

* The sampler's tail mass is formed as p_t + (P - Q) from the directly summed trainer tail p_t. It equals 1 - Q, costs no
  accuracy that 1 - Q had, and makes an on-policy head give rho = 1 exactly (P and Q are the same expression).
* Adding a multiple of p to the coefficients leaves the gradient unchanged (sum_v p_v score_v = 0). For alpha <= 4 the
  head-only form is used; above, head coefficients near -alpha p would cancel and lose about 1e-16 alpha, so the gradient
  is written through q_hat on the whole vocabulary: (q_v g(v) - S p_v) on the head, (alpha - S) p_v off it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .contract import Objective
from .ratios import clamp, log_ratio
from .surrogates import clip_bounds, ppo_active
from .weights import gate_factor, weight_factor

HEAD_ONLY_LIMIT = 4.0
BASE_SAMPLER, BASE_ANCHOR, BASE_TRAINER = 0, 1, 2


@dataclass
class Slots:
    """Log-probs of sampler, trainer and anchor (or None) on the same tokens, any shape; `advantages` broadcasts."""

    logq: np.ndarray
    logp: np.ndarray
    logo: np.ndarray | None
    advantages: np.ndarray


def slot_factor(objective: Objective, slots: Slots, divisor: float) -> tuple[np.ndarray, np.ndarray]:
    """g(v) as (base, multiplier): q g(v) = mass(base) * multiplier, where the base is q, o or p itself.

    Keeping the base apart makes cancellations exact: an in-band ratio turns q f(p/q) into p, and on-policy coefficients
    q g - alpha p vanish to the last bit. `divisor` is the batch normaliser (1 without). Row-level weights and gates are
    not in here: they are no functions of v.
    """
    logq, logp, logo = slots.logq, slots.logp, slots.logo
    shape = logq.shape
    advantages = np.broadcast_to(slots.advantages, shape)
    rule, gate = objective.weight, objective.gate
    base = np.full(shape, BASE_SAMPLER)
    factor = np.ones(shape)
    numerator_base = BASE_TRAINER
    if rule is not None and rule.level == "token":
        numerator_base = BASE_TRAINER if logo is None or rule.numerator == "trainer" else BASE_ANCHOR
        logn = logo if numerator_base == BASE_ANCHOR else logp
        f = weight_factor(rule, clamp(log_ratio(logn, logq), rule.log_clamp), advantages, logn, logq)
        base = np.where(f.identity, numerator_base, BASE_SAMPLER)
        factor = np.where(f.identity, 1.0, f.value)
        if rule.normalise is not None:
            factor = factor * (1.0 / divisor)
    if gate is not None and gate.level == "token":
        logn = logp if logo is None or gate.numerator == "trainer" else logo
        factor = factor * gate_factor(gate, log_ratio(logn, logq), advantages)
    if objective.surrogate.kind == "reinforce":
        return base, factor
    return _times_ratio(objective, slots, advantages, base, factor)


def _times_ratio(
    objective: Objective, slots: Slots, advantages: np.ndarray, base: np.ndarray, factor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Multiply by r_v 1[not clipped] (ppo_clip) or clip(r_v) (cispo), r = p/o or p/q; see `slot_factor`."""
    old = slots.logq if slots.logo is None else slots.logo
    log_r = log_ratio(slots.logp, old)
    with np.errstate(over="ignore"):
        r = np.exp(log_r)
    if objective.surrogate.kind == "ppo_clip":
        factor = np.where(ppo_active(objective.surrogate, r, advantages), factor, 0.0)
        unclipped, bound = np.ones(r.shape, dtype=bool), r
    else:
        low, high = clip_bounds(objective.surrogate)
        unclipped, bound = (r >= low) & (r <= high), np.clip(r, low, high)
    # q r = p where the ratio's denominator is the base itself, so the ratio is never formed there
    denominator = BASE_SAMPLER if slots.logo is None else BASE_ANCHOR
    cancels = unclipped & (base == denominator)
    with np.errstate(invalid="ignore"):
        product = factor * bound
    factor = np.where(cancels | (factor == 0.0), factor, product)
    return np.where(cancels, BASE_TRAINER, base), factor


def slot_mass(base: np.ndarray, factor: np.ndarray, q: np.ndarray, p: np.ndarray, o: np.ndarray | None) -> np.ndarray:
    """q g(v), any shape, from `slot_factor` and the masses q, p, o of the same tokens; 0 where the factor is 0."""
    mass = np.where(base == BASE_TRAINER, p, q if o is None else np.where(base == BASE_ANCHOR, o, q))
    with np.errstate(invalid="ignore"):
        return np.where((factor == 0.0) | (mass == 0.0), 0.0, factor * mass)


@dataclass
class HeadTerm:
    """Centering on the head [N, K], and what the tail adds.

    `coefficient` c_v as the contract reports it; `mass` q_hat g; `alpha` [N] the tail's multiple of p (0 where no tail
    is modelled); `tail_mass` [N] = alpha times the trainer's tail mass; `ratio` [N] rho.
    """

    coefficient: np.ndarray
    mass: np.ndarray
    alpha: np.ndarray
    tail_mass: np.ndarray
    ratio: np.ndarray


def head_term(
    objective: Objective,
    logq: np.ndarray,
    logp: np.ndarray,
    logo: np.ndarray | None,
    advantages: np.ndarray,
    log_tail_trainer: np.ndarray,
    divisor: float = 1.0,
) -> HeadTerm:
    """Coefficients for the tails "rescaled", "dropped", "renormalised" and "support" on recorded heads.

    logq, logp, logo [N, K] log-probs in nats (absent slots -inf in all), advantages [N], log_tail_trainer [N] the log of the
    trainer's mass off the head, summed directly. Source: arXiv 2609.20807 App. A.2-A.3; Marin's three-policy form.
    """
    tail = objective.centering.tail
    q, p = np.exp(logq), np.exp(logp)
    o = None if logo is None else np.exp(logo)
    head_q, head_p = q.sum(-1), p.sum(-1)
    if tail == "renormalised":
        with np.errstate(divide="ignore", invalid="ignore"):
            logq = np.where(np.isneginf(logq), -np.inf, logq - np.log(head_q)[:, None])
        q = np.exp(logq)
    base, factor = slot_factor(objective, Slots(logq, logp, logo, advantages[:, None]), divisor)
    mass = slot_mass(base, factor, q, p, o)
    zero = np.zeros(q.shape[0])
    if tail != "rescaled":
        return HeadTerm(mass, mass, zero, zero, zero)
    # The tail slot. "1 - X" is written p_t + (P - X): the same number, exact on-policy, and not worse than 1 - X.
    p_tail = np.exp(log_tail_trainer)
    floor_q, floor_p = objective.centering.floor_sampler or 0.0, objective.centering.floor_trainer or 0.0
    raw_q = np.maximum(p_tail + (head_p - head_q), 0.0)
    q_t, p_t = np.maximum(raw_q, floor_q), np.maximum(p_tail, floor_p)
    with np.errstate(divide="ignore"):
        log_q_t = np.log(q_t)
        log_p_t = np.where(p_tail >= floor_p, log_tail_trainer, np.log(p_t))
    log_q_t = np.where(q_t == p_t, log_p_t, log_q_t)
    o_t = log_o_t = None
    if o is not None:
        o_t = np.maximum(np.maximum(p_tail + (head_p - o.sum(-1)), 0.0), floor_p)
        with np.errstate(divide="ignore"):
            log_o_t = np.where(o_t == p_t, log_p_t, np.log(o_t))
    base_t, factor_t = slot_factor(objective, Slots(log_q_t, log_p_t, log_o_t, advantages), divisor)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rho = np.where(q_t == p_t, 1.0, q_t / p_t)
        over_p = rho if o is None else np.where(base_t == BASE_ANCHOR, np.where(o_t == p_t, 1.0, o_t / p_t), rho)
        alpha = np.where(base_t == BASE_TRAINER, factor_t, np.where(factor_t == 0.0, 0.0, over_p * factor_t))
        # alpha p over the tail; q g(tail) where no floor separates p_t from the true tail (also when both vanish)
        direct = slot_mass(base_t, factor_t, q_t, p_t, o_t)
        tail_mass = np.where(p_tail >= floor_p, direct, alpha * p_tail)
        head_only = np.where((alpha == 0.0)[:, None] | (p == 0.0), 0.0, alpha[:, None] * p)
        coefficient = mass - head_only
    return HeadTerm(coefficient, mass, alpha, tail_mass, rho)
