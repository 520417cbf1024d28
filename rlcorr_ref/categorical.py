"""Categorical distributions over a vocabulary: log-softmax, token log-prob and score.

    log p_v = (z_v - max z)/temperature - log sum_u exp((z_u - max z)/temperature)      over the support S, if one is given
    d log p_v / d z_u = (1[u = v] - p_u)/temperature        (eq-score: the score s_v, on logits before temperature)

The maximum is subtracted *before* the division by the temperature: near-equal large logits then lose nothing
(Blanchard, Higham & Higham, IMA J. Numer. Anal. 41(4), 2021, section 4, on the shifted formula).
"""

from __future__ import annotations

import numpy as np

from .errors import ContractError


def shifted(logits: np.ndarray, temperature: float, support: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return ((z - max z)/temperature with -inf off the support [..., V], log-sum-exp of that [..., 1])."""
    z = logits if support is None else np.where(support != 0, logits, -np.inf)
    top = z.max(axis=-1, keepdims=True)
    if not np.isfinite(top).all():
        raise ContractError("logits: expected finite numbers or -Infinity, at least one finite in each row")
    s = z - top
    if temperature != 1.0:
        s /= temperature
    return s, np.log(np.exp(s).sum(axis=-1, keepdims=True))


def log_softmax(logits: np.ndarray, temperature: float = 1.0, support: np.ndarray | None = None) -> np.ndarray:
    """Log-probs log p [..., V] in nats of float64 `logits` [..., V], after temperature and on the support.

    log p = (z - max z)/temperature - logsumexp. `support` [..., V] 0/1 restricts p: log p = -inf outside it.
    Raises `ContractError` for NaN or +inf logits and for a row without any finite logit.
    Source: the sampler's own definition of "as actually sampled" (arXiv 2609.20807, section on sampling transforms).
    """
    logits = _float64(logits)
    s, lse = shifted(logits, temperature, support)
    return s - lse


def token_logp(
    logits: np.ndarray, tokens: np.ndarray, temperature: float = 1.0, support: np.ndarray | None = None
) -> np.ndarray:
    """Log-prob of one token per row: log p(y) [...] in nats, from logits [..., V] float64 and tokens [...] int."""
    logits = _float64(logits)
    tokens = np.asarray(tokens)
    if tokens.shape != logits.shape[:-1]:
        raise ContractError(f"tokens: expected shape {list(logits.shape[:-1])}, got {list(tokens.shape)}")
    if tokens.size and (tokens.min() < 0 or tokens.max() >= logits.shape[-1]):
        raise ContractError(f"tokens: expected ids in [0, {logits.shape[-1]}), got {tokens.min()}..{tokens.max()}")
    s, lse = shifted(logits, temperature, support)
    return (np.take_along_axis(s, tokens[..., None], axis=-1) - lse)[..., 0]


def score(
    logits: np.ndarray, tokens: np.ndarray, temperature: float = 1.0, support: np.ndarray | None = None
) -> np.ndarray:
    """Score of the sampled token with respect to the logits before temperature: (e_y - p)/temperature [..., V] (eq-score).

    Each row sums to 0; off the support it is 0. Same arguments and errors as `token_logp`.
    """
    token_logp(logits, tokens, temperature, support)  # the same checks of ids and shapes
    out = -np.exp(log_softmax(logits, temperature, support))
    at = np.asarray(tokens)[..., None]
    np.put_along_axis(out, at, np.take_along_axis(out, at, axis=-1) + 1.0, axis=-1)
    out /= temperature
    return out


def coefficients_to_logits(
    coefficients: np.ndarray, logits: np.ndarray, temperature: float = 1.0, support: np.ndarray | None = None
) -> np.ndarray:
    """Gradient on the logits of sum_v c_v log p_v with c detached: (c - (sum_v c_v) p)/temperature [..., V]."""
    p = np.exp(log_softmax(logits, temperature, support))
    return (coefficients - coefficients.sum(axis=-1, keepdims=True) * p) / temperature


def _float64(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits)
    if logits.dtype != np.float64:
        raise ContractError(f"logits: expected float64, got {logits.dtype}")
    if logits.ndim < 1 or logits.shape[-1] < 1:
        raise ContractError(f"logits: expected shape [..., V] with V >= 1, got {list(logits.shape)}")
    return logits
