"""The two passes over [N, V]: everything else in the package works on [N] and [N, K].

forward   log p(y), log p(head), the trainer's log tail mass, entropy; leaves p in the gradient array
backward  turns p into (c - (sum_v c_v) p)/temperature row by row

Rows are processed in chunks that fit a core's cache, on threads (NumPy releases the lock in its loops), so that the only
array of the size of the logits is the gradient that is returned. Shifted log-sum-exp: Blanchard, Higham & Higham, IMA J. Numer.
Anal. 41(4), 2021. Chunks do not change a bit: every reduction is per row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from .batch import Packed
from .categorical import shifted
from .errors import ContractError

CHUNK_ELEMENTS = 1 << 17  # 1 MiB of float64: two such buffers stay in a core's L2
EXP_UNDERFLOW = -800.0  # exp is 0 below about -745.2; keeps 0 * -inf out of the entropy sums
TINY_TAIL = 1e-200


@dataclass
class Forward:
    """What the forward pass returns, per valid token: arrays [N] and [N, K]; `grad` [B, T, V] holds p on valid tokens."""

    grad: np.ndarray
    logp: np.ndarray
    lse: np.ndarray
    entropy: np.ndarray
    head_logp: np.ndarray | None
    log_tail: np.ndarray
    tail_plogp: np.ndarray  # sum over the tail of p log p


def threads() -> int:
    """Worker threads for the passes: the cores this process may run on, at most 8."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        cores = os.cpu_count() or 1
    return max(1, min(8, cores))


def over_rows(count: int, width: int, work: Callable[[slice], None]) -> None:
    """Run `work` on slices of range(count), a cache-sized chunk of rows at a time, on threads when there is enough to do."""
    step = max(1, CHUNK_ELEMENTS // max(1, width))
    slices = [slice(i, min(i + step, count)) for i in range(0, count, step)]
    workers = min(threads(), len(slices))
    if workers < 2 or count * width < 4 * CHUNK_ELEMENTS:
        for piece in slices:
            work(piece)
        return
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(work, slices):
            pass


def support_rows(packed: Packed, piece: slice, support: np.ndarray | None) -> np.ndarray | None:
    """Rows of the support [n, V] for a slice of tokens, or None."""
    return None if support is None else support[packed.b[piece], packed.t[piece]] != 0


def logp_rows(
    packed: Packed, piece: slice, temperature: float, support: np.ndarray | None, lse: np.ndarray
) -> np.ndarray:
    """log p [n, V] for a slice of tokens whose log-sum-exp is `lse` [n], the same bits as the forward pass."""
    z = packed.batch.logits[packed.b[piece], packed.t[piece]]
    s, _ = _shift(z, temperature, support_rows(packed, piece, support))
    s -= lse[:, None]
    return s


def _shift(z: np.ndarray, temperature: float, support: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """((z - max)/temperature in place, max [n, 1]); z is a private copy."""
    if support is not None:
        z[~support] = -np.inf
    top = z.max(axis=-1, keepdims=True)
    if np.isfinite(top).all():
        z -= top
        if temperature != 1.0:
            z /= temperature
    return z, top


def forward(
    packed: Packed,
    temperature: float,
    support: np.ndarray | None,
    head_ids: np.ndarray | None,
    want_tail: bool,
    want_entropy: bool,
) -> Forward:
    """One pass over the logits of the valid tokens, head_ids [N, K] or None. `ContractError` names (b, t) of bad logits."""
    n, (rows, width, v) = packed.count, packed.batch.logits.shape
    k = 0 if head_ids is None else head_ids.shape[1]
    out = Forward(
        np.zeros((rows, width, v)),
        np.empty(n),
        np.empty(n),
        np.zeros(n),
        None if head_ids is None else np.empty((n, k)),
        np.full(n, -np.inf),
        np.zeros(n),
    )

    def work(piece: slice) -> None:
        z = packed.batch.logits[packed.b[piece], packed.t[piece]]
        s, top = _shift(z, temperature, support_rows(packed, piece, support))
        bad = ~np.isfinite(top[:, 0])
        if bad.any():
            i = piece.start + int(np.argmax(bad))
            raise ContractError(
                f"logits: expected finite numbers or -Infinity with at least one finite, at (b={packed.b[i]}, t={packed.t[i]}), "
                f"got a row whose maximum is {top[int(np.argmax(bad)), 0]!r}"
            )
        row = np.arange(s.shape[0])
        logp = s[row, packed.tokens[piece]]
        if head_ids is not None:
            ids = head_ids[piece]
            head = s[row[:, None], ids]
        e = np.exp(s)
        total = e.sum(axis=-1)
        lse = np.log(total)
        out.lse[piece] = lse
        out.logp[piece] = logp - lse
        if want_entropy or want_tail:
            np.maximum(s, EXP_UNDERFLOW, out=s)
        if want_entropy:  # H = lse - sum p s
            out.entropy[piece] = lse - np.einsum("nv,nv->n", e, s) / total
        if head_ids is not None:
            out.head_logp[piece] = np.where(ids >= 0, head - lse[:, None], -np.inf)
            if want_tail:
                _tail(out, piece, e, s, ids, total, lse)
        e /= total[:, None]
        out.grad[packed.b[piece], packed.t[piece]] = e

    def _tail(
        out: Forward, piece: slice, e: np.ndarray, s: np.ndarray, ids: np.ndarray, total: np.ndarray, lse: np.ndarray
    ) -> None:
        r, c = np.nonzero(ids >= 0)  # an absent slot (-1) would point at the last column
        where = (r, ids[r, c])
        saved = e[where]
        e[where] = 0.0
        tail = e.sum(axis=-1)
        with np.errstate(divide="ignore"):
            out.log_tail[piece] = np.log(tail) - lse
        out.tail_plogp[piece] = (np.einsum("nv,nv->n", e, s) - lse * tail) / total
        e[where] = saved
        for i in np.flatnonzero(tail < TINY_TAIL):  # underflow: redo this row's tail in log space
            out.log_tail[piece.start + i] = _log_tail(packed, piece.start + i, temperature, support, ids[i], lse[i])

    over_rows(n, v, work)
    return out


def _tail_logp(
    packed: Packed, i: int, temperature: float, support: np.ndarray | None, ids: np.ndarray, lse: float
) -> np.ndarray:
    """log p [V] of one token with -inf on the head."""
    logp = logp_rows(packed, slice(i, i + 1), temperature, support, np.array([lse]))[0]
    logp[ids[ids >= 0]] = -np.inf
    return logp


def _log_tail(
    packed: Packed, i: int, temperature: float, support: np.ndarray | None, ids: np.ndarray, lse: float
) -> float:
    """Log of the trainer's mass off the head for one token, in log space: finite even where the mass underflows."""
    logp = _tail_logp(packed, i, temperature, support, ids, lse)
    top = logp.max()
    return float(top + np.log(np.exp(logp - top).sum())) if np.isfinite(top) else -np.inf


def tail_softmax(
    packed: Packed, i: int, temperature: float, support: np.ndarray | None, ids: np.ndarray, lse: float
) -> np.ndarray:
    """p restricted to the tail and renormalised [V], in log space, for a token whose tail mass underflows."""
    logp = _tail_logp(packed, i, temperature, support, ids, lse)
    if not np.isfinite(logp.max()):
        return np.zeros(logp.size)
    s, log_total = shifted(logp, 1.0)
    return np.exp(s - log_total)


def backward(
    packed: Packed,
    grad: np.ndarray,
    temperature: float,
    token_coef: np.ndarray,
    p_factor: np.ndarray,
    head_ids: np.ndarray | None = None,
    head_add: np.ndarray | None = None,
    head_set: np.ndarray | None = None,
    dense: np.ndarray | None = None,
) -> None:
    """Turn p into the gradient in place: (p * p_factor + head term + token_coef at y)/temperature.

    token_coef, p_factor [N]. On the head [N, K] the entries of `head_add` are added, except in rows marked `dense` [N],
    where the entry is *set* to `head_set` (the form through q_hat, see `rlcorr_ref.centering`).
    """
    v = grad.shape[2]

    def work(piece: slice) -> None:
        where = (packed.b[piece], packed.t[piece])
        g = grad[where]
        g *= p_factor[piece][:, None]
        row = np.arange(g.shape[0])
        if head_ids is not None and head_add is not None:
            ids = head_ids[piece]
            r, c = np.nonzero(ids >= 0)
            at = (r, ids[r, c])
            added = g[at] + head_add[piece][r, c]
            if dense is not None:
                added = np.where(dense[piece][r], head_set[piece][r, c], added)
            g[at] = added
        g[row, packed.tokens[piece]] += token_coef[piece]
        if temperature != 1.0:
            g /= temperature
        grad[where] = g

    over_rows(packed.count, v, work)


def add_coefficients(
    packed: Packed,
    grad: np.ndarray,
    temperature: float,
    support: np.ndarray | None,
    lse: np.ndarray,
    rows: Callable[[slice, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]],
    full: np.ndarray | None,
) -> None:
    """Add the gradient of vocabulary-wide coefficients, (c - (sum c) p)/temperature, to `grad`, chunk by chunk.

    `rows(piece, logp, p)` returns (c used for the gradient [n, V], c as reported [n, V] or None); c may differ from the
    reported one by a multiple of p, which changes no gradient. Reported coefficients are added to `full` [B, T, V].
    """

    def work(piece: slice) -> None:
        where = (packed.b[piece], packed.t[piece])
        logp = logp_rows(packed, piece, temperature, support, lse[piece])
        p = np.exp(logp)
        c, reported = rows(piece, logp, p)
        if full is not None and reported is not None:
            full[where] += reported
        c = c - c.sum(axis=-1, keepdims=True) * p
        if temperature != 1.0:
            c /= temperature
        grad[where] += c

    over_rows(packed.count, grad.shape[2], work)
