"""Importance weights: one grid that spans vanilla IS, TIS, MIS, IcePop, PPO/DAPO bands, GSPO, TOPR, DPPO and CISPO.

    w = f(rho),  rho = exp(level log-ratio)
    inside the band   rho  (inside="ratio")  or 1  (inside="one")
    outside           the nearest bound  (outside="clip")  or 0  (outside="zero")

The band may differ for A >= 0 and A < 0; `sign` exempts one side (weight exactly 1). The weight is detached. The presets
below are the paper's Table 1 (arXiv 2609.20807) and the frameworks' common settings as points of this one grid.

A cap C leaves a bias per prefix: E_q[min(r, C) R s] - E_p[R s] = -sum_v (p_v - C q_v)_+ R_v s_v (eq-tis-bias).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .contract import Band, Gate, WeightRule
from .errors import ContractError
from .numerics import times
from .ratios import Segments
from .tokens import TokenLogProbs

# Points of the grid under the names the field uses; each value is a `weight` record of the contract.
PRESETS: dict[str, dict[str, Any]] = {
    "vanilla_is": {"level": "token"},
    "tis": {"level": "token", "high": 2.0, "outside": "clip"},
    "truncated_two_sided": {"level": "token", "low": 0.5, "high": 5.0, "outside": "clip"},
    "mis": {"level": "token", "low": 0.5, "high": 5.0, "outside": "zero"},
    "icepop": {"level": "token", "low": 0.5, "high": 5.0, "outside": "zero"},
    "icepop_inside_one": {"level": "token", "low": 0.5, "high": 5.0, "outside": "zero", "inside": "one"},
    "ppo_band": {"level": "token", "outside": "zero", "positive": {"high": 1.2}, "negative": {"low": 0.8, "high": 3.0}},
    "dapo_band": {
        "level": "token",
        "outside": "zero",
        "positive": {"high": 1.28},
        "negative": {"low": 0.8, "high": 3.0},
    },
    "gspo_band": {
        "level": "geometric",
        "outside": "zero",
        "positive": {"high": 1.0004},
        "negative": {"low": 0.9997},
    },
    "topr": {"level": "sequence", "high": 1.0, "outside": "clip", "sign": "negative"},
    "dppo_tv": {
        "level": "token",
        "statistic": "tv_signed",
        "outside": "zero",
        "positive": {"low": None, "high": 0.2},
        "negative": {"low": -0.2, "high": None},
        "low": None,
    },
    "cispo": {"level": "token", "high": 1.2, "outside": "clip"},
    "sequence_tis": {"level": "sequence", "high": 2.0, "outside": "clip"},
    "sequence_mis": {"level": "sequence", "high": 2.0, "outside": "zero"},
    "swift_token_truncate": {"level": "token", "high": 2.0, "outside": "clip", "log_clamp": 20.0},
    "swift_token_mask": {"level": "token", "high": 2.0, "outside": "zero", "log_clamp": 20.0},
    "swift_sequence_truncate": {
        "level": "geometric",
        "high": 2.0,
        "outside": "clip",
        "log_clamp": 20.0,
        "clamp_order": "token",
    },
    "swift_sequence_mask": {"level": "token", "log_clamp": 20.0},  # with gate {"level": "geometric", "high": 2.0}
}


def preset(name: str) -> WeightRule:
    """The named point of the grid, see `PRESETS` (arXiv 2609.20807, Table 1); an unknown name lists the known ones."""
    if name not in PRESETS:
        raise ContractError(f"preset: unknown name {name!r}; known: {', '.join(PRESETS)}")
    return WeightRule(**PRESETS[name])


@dataclass(frozen=True)
class Factor:
    """f(rho) elementwise. `identity` marks where f is the unclamped ratio itself: there q * f(n/q) is n exactly."""

    value: np.ndarray
    identity: np.ndarray


def in_band(x: np.ndarray, low: np.ndarray, high: np.ndarray, closed: bool) -> np.ndarray:
    """Whether x lies in [low, high] (closed) or (low, high); an infinite bound never excludes."""
    if closed:
        return (x >= low) & (x <= high)
    return ((x > low) | np.isneginf(low)) & ((x < high) | np.isposinf(high))


def band_limits(positive: Band, negative: Band, advantages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound per token, any shape (that of `advantages`); -inf and inf where a side is null.

    A low of 0 is a bound like any other: an open band (0, high) leaves out exactly 0, which for statistic "tv" is the
    on-policy token. Write low null for no bound.
    """

    def side(band: Band) -> tuple[float, float]:
        return -np.inf if band.low is None else band.low, np.inf if band.high is None else band.high

    up = advantages >= 0
    (lp, hp), (ln, hn) = side(positive), side(negative)
    return np.where(up, lp, ln), np.where(up, hp, hn)


def applies(sign: str, advantages: np.ndarray) -> np.ndarray:
    """Where a rule with this `sign` acts, elementwise: everywhere, on A >= 0, or on A < 0."""
    if sign == "both":
        return np.ones(advantages.shape, dtype=bool)
    return advantages >= 0 if sign == "positive" else advantages < 0


def weight_factor(
    rule: WeightRule,
    d: np.ndarray,
    advantages: np.ndarray,
    logp_numerator: np.ndarray | None = None,
    logp_sampler: np.ndarray | None = None,
) -> Factor:
    """f at the (already levelled and clamped) log-ratio d, for any shape; `advantages` broadcasts against d.

    With statistic "tv" (|n - q|) or "tv_signed" (n - q) the band holds the difference of the probabilities of the token,
    so both log-probs are needed. Source: arXiv 2609.20807, Table 1 (level, statistic, band, outside, inside, sign).
    """
    advantages = np.broadcast_to(advantages, d.shape)
    with np.errstate(over="ignore"):
        rho = np.exp(d)
    signed = rule.statistic == "tv_signed"
    low, high = band_limits(rule.band(True), rule.band(False), advantages)
    x = rho
    if rule.statistic != "ratio":
        if logp_numerator is None or logp_sampler is None:
            raise ContractError(f"weight.statistic: {rule.statistic!r} needs the log-probs of numerator and sampler")
        x = probability_difference(logp_numerator, logp_sampler)
        x = x if signed else np.abs(x)
    keep = in_band(x, low, high, rule.closed)
    value = rho if rule.inside == "ratio" else np.ones_like(rho)
    identity = keep & (rule.inside == "ratio")
    if rule.log_clamp is not None:  # a ratio at the clamp is no longer the ratio
        identity &= np.abs(d) < rule.log_clamp
    if rule.outside == "clip":
        value = np.where(keep, value, np.where(rho <= low, low, high))
    elif rule.outside == "zero":
        value = np.where(keep, value, 0.0)
    on = applies(rule.sign, advantages)
    return Factor(np.where(on, value, 1.0), identity & on)


def gate_factor(rule: Gate, d: np.ndarray, advantages: np.ndarray) -> np.ndarray:
    """1 elementwise where the band holds exp(d) at the gate's level (or `sign` exempts the token), else 0."""
    advantages = np.broadcast_to(advantages, d.shape)
    band = Band(rule.low, rule.high)
    low, high = band_limits(band, band, advantages)
    with np.errstate(over="ignore"):
        keep = in_band(np.exp(d), low, high, rule.closed)
    return np.where(keep | ~applies(rule.sign, advantages), 1.0, 0.0)


def probability_difference(logp_numerator: np.ndarray, logp_sampler: np.ndarray) -> np.ndarray:
    """n - q elementwise from log-probs, without cancellation where they are close: q * expm1(log n - log q)."""
    with np.errstate(over="ignore", invalid="ignore"):
        close = np.exp(logp_sampler) * np.expm1(logp_numerator - logp_sampler)
    return np.where(np.isfinite(close), close, np.exp(logp_numerator) - np.exp(logp_sampler))


@dataclass(frozen=True)
class Weights:
    """Applied weights [N], the row-level part of them [N] (1 where weight and gate are token-level), and the divisor."""

    applied: np.ndarray
    row_factor: np.ndarray
    divisor: float


def weigh(tokens: TokenLogProbs, rule: WeightRule | None, gate: Gate | None) -> Weights:
    """Importance weight times gate, then the batch normaliser: w = f(rho) 1[gate]/divisor, per valid token [N].

    The row-level factor is kept apart because score centering treats it apart: it is no function of the token.
    """
    ones = np.ones(tokens.count)
    f, g = ones, ones
    if rule is not None:
        d = tokens.level(rule.numerator, rule.level, rule.log_clamp, rule.clamp_order)
        f = weight_factor(rule, d, tokens.advantages, tokens.numerator(rule.numerator), tokens.logp_sampler).value
    if gate is not None:
        g = gate_factor(gate, tokens.level(gate.numerator, gate.level), tokens.advantages)
    w = times(g, f)
    divisor = 1.0 if rule is None else normaliser(w, rule.normalise, tokens.rows)
    row_factor = ones
    if rule is not None and rule.level != "token":
        row_factor = f * (1.0 / divisor)
    if gate is not None and gate.level != "token":
        row_factor = times(g, row_factor)
    return Weights(w if divisor == 1.0 else w * (1.0 / divisor), row_factor, divisor)


def normaliser(w: np.ndarray, mode: str | None, rows: Segments) -> float:
    """Divisor of batch normalisation: mean of w over valid tokens, or over non-empty rows of the row's mean w.

    Applied after truncation, so the cap is no longer the maximum (verl 0.9.1 and slime `mis.py`). A batch whose weights
    are all 0 has no scale to normalise: the divisor is 1 and the weights stay 0.
    """
    if mode is None or w.size == 0:
        return 1.0
    mean = float(w.mean()) if mode == "tokens" else float(rows.mean(w).mean())
    return mean if mean != 0.0 else 1.0
