"""The parts of a decode step between its matrix products, each one pass over the data.

One decode step of a layer is

    norm_round -> GEMM qkv -> attend -> GEMM out -> add_norm_round -> GEMM gate/up -> gate_round -> GEMM down

on the rows still being generated. Keys lie transposed in the cache, [slot, head, dim, position], so that scores and
values are both contiguous sums over positions or dimensions. ``rows`` maps a row of the step to its slot of the cache:
finished rows leave the step without copying anything. All arrays are float32; ``*_fmt`` are `rounding.Rounding`s.

Sums may be reordered by the compiler (``FAST``), but NaN and infinities are not assumed away: a diverged policy must
reach the sampler's own check.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from repro.kernels.exponential import exp_in_place
from repro.kernels.rounding import round_row

FAST = {"reassoc", "contract", "arcp", "nsz"}


@njit(cache=True, fastmath=FAST)
def _norm(x, weight, eps, out):
    """out = weight * x / sqrt(mean(x^2) + eps) for one vector."""
    n = x.shape[0]
    total = np.float32(0)
    for j in range(n):
        total += x[j] * x[j]
    scale = np.float32(1) / np.sqrt(total / np.float32(n) + eps)
    for j in range(n):
        out[j] = x[j] * scale * weight[j]


@njit(cache=True)
def norm_round(x, weight, eps, fmt, out):
    """out[r] = round(RMSNorm(x[r])) for x [R, H]."""
    powers = np.empty(x.shape[1], np.int32)
    for r in range(x.shape[0]):
        _norm(x[r], weight, eps, out[r])
        round_row(out[r], powers, fmt)


@njit(cache=True)
def add_norm_round(x, update, weight, eps, fmt, out):
    """x += update, then as `norm_round`."""
    powers = np.empty(x.shape[1], np.int32)
    for r in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[r, j] += update[r, j]
        _norm(x[r], weight, eps, out[r])
        round_row(out[r], powers, fmt)


@njit(cache=True, fastmath=FAST)
def _silu_times(gate_up, powers, out):
    n = out.shape[0]
    for j in range(n):
        out[j] = -gate_up[j]
    exp_in_place(out, powers)
    for j in range(n):
        out[j] = gate_up[j] / (np.float32(1) + out[j]) * gate_up[n + j]


@njit(cache=True)
def gate_round(gate_up, fmt, out):
    """out[r] = round(silu(gate) * up) for gate_up [R, 2I] and out [R, I]."""
    powers = np.empty(out.shape[1], np.int32)
    for r in range(out.shape[0]):
        _silu_times(gate_up[r], powers, out[r])
        round_row(out[r], powers, fmt)


@njit(cache=True, fastmath=FAST)
def _rotated_norm(x, weight, eps, cosine, sine, scratch, out):
    """Per-head RMSNorm, then the rotary embedding in the two-half layout."""
    _norm(x, weight, eps, scratch)
    half = x.shape[0] // 2
    for j in range(half):
        a, b = scratch[j], scratch[half + j]
        out[j] = a * cosine[j] - b * sine[j]
        out[half + j] = b * cosine[half + j] + a * sine[half + j]


@njit(cache=True, fastmath=FAST)
def _attention(query, keys, values, slot, head, length, scale, scores, powers, out):
    """out [D] = softmax(query keys) values of one cached head over its first ``length`` positions.

    The caches are indexed whole: a view per position would cost more than the arithmetic.
    """
    dim = query.shape[0]
    for p in range(length):
        scores[p] = np.float32(0)
    for d in range(dim):
        factor = query[d] * scale
        for p in range(length):
            scores[p] += factor * keys[slot, head, d, p]
    top = scores[0]
    for p in range(1, length):
        top = scores[p] if scores[p] > top else top
    for p in range(length):
        scores[p] -= top
    exp_in_place(scores[:length], powers)
    total = np.float32(0)
    for p in range(length):
        total += scores[p]
    for d in range(dim):
        out[d] = np.float32(0)
    for p in range(length):
        weight = scores[p] / total
        for d in range(dim):
            out[d] += weight * values[slot, head, p, d]


@njit(cache=True)
def attend(qkv, rows, q_norm, k_norm, eps, cosine, sine, keys, values, position, kv_fmt, fmt, out):
    """Write the new key and value of each row at ``position``, attend, and round the result: out [R, Hq D].

    qkv [R, (Hq + 2 Hkv) D]; rows [R] int64 slots of the caches keys [S, Hkv, D, L] and values [S, Hkv, L, D]; cosine and
    sine [D] of this position. Keys (after rotation) and values are rounded by ``kv_fmt`` as they are written.
    """
    kv_heads, dim, capacity = keys.shape[1], keys.shape[2], keys.shape[3]
    heads = out.shape[1] // dim
    groups = heads // kv_heads
    scale = np.float32(1.0 / math.sqrt(dim))
    normed, query, attended = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
    key, value = np.empty(dim, np.float32), np.empty(dim, np.float32)
    scores, powers = np.empty(capacity, np.float32), np.empty(max(capacity, out.shape[1]), np.int32)
    for r in range(qkv.shape[0]):
        slot = rows[r]
        for h in range(kv_heads):
            start = (heads + h) * dim
            _rotated_norm(qkv[r, start : start + dim], k_norm, eps, cosine, sine, normed, key)
            round_row(key, powers, kv_fmt)
            start += kv_heads * dim
            value[:] = qkv[r, start : start + dim]
            round_row(value, powers, kv_fmt)
            keys[slot, h, :, position] = key
            values[slot, h, position] = value
            for g in range(h * groups, (h + 1) * groups):
                _rotated_norm(qkv[r, g * dim : (g + 1) * dim], q_norm, eps, cosine, sine, normed, query)
                _attention(query, keys, values, slot, h, position + 1, scale, scores, powers, attended)
                out[r, g * dim : (g + 1) * dim] = attended
        round_row(out[r], powers, fmt)


@njit(cache=True)
def draw(logits, temperature, uniforms, rows, step, logq, tokens):
    """Sample one token per row by inverting the cumulative distribution in float64; False if a logit is not finite.

    logits [R, V]; uniforms [rows] of this step, indexed by ``rows`` [R]; writes the full log-probs into
    logq [all rows, T, V] and the tokens into tokens [all rows, T] at ``step``.
    """
    vocabulary = logits.shape[1]
    mass = np.empty(vocabulary, np.float64)
    for r in range(logits.shape[0]):
        row = rows[r]
        top = -np.inf
        for v in range(vocabulary):
            value = np.float64(logits[r, v]) / temperature
            if not np.isfinite(value):
                return False
            mass[v] = value
            top = value if value > top else top
        total = 0.0
        for v in range(vocabulary):
            total += math.exp(mass[v] - top)
        log_total = top + math.log(total)
        # The mass that is sampled from is that of the recorded float32 log-probs, not of the logits behind them.
        total = 0.0
        for v in range(vocabulary):
            logq[row, step, v] = mass[v] - log_total
            total += math.exp(np.float64(logq[row, step, v]))
            mass[v] = total
        threshold = uniforms[row] * total
        token = 0
        while token < vocabulary - 1 and mass[token] <= threshold:
            token += 1
        tokens[row, step] = token
    return True
