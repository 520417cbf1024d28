"""The parts of a decode step between its matrix products, each one pass over the data.

One decode step of a layer is

    norm_round -> GEMM qkv -> attend -> GEMM out -> add_norm_round -> GEMM gate/up -> gate_round -> GEMM down

on the rows still being generated. Keys lie in the cache in blocks of 16 positions, each transposed, [slot, head, block,
dim, 16]: a block's scores are sums of contiguous vectors, and a head's keys are read front to back. ``rows`` maps a row of
the step to its slot of the cache: finished rows leave the step without copying anything. All arrays are float32 and
contiguous, widths multiples of 8, the head dimension and the cache's positions multiples of 16; ``*_fmt`` are
`rounding.Rounding`s.

NaN and infinities pass through: a diverged policy must reach the sampler's own check.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from repro.kernels.causal_attention import rotated
from repro.kernels.lanes import WIDTH, exp, load, splat, spread, store
from repro.kernels.rounding import round_row
from repro.kernels.training import gated_row, norm_row, softmax_row

POSITIONS = 2 * WIDTH  # the cache holds a multiple of this many positions


@njit(cache=True)
def norm_round(x, weight, eps, fmt, out):
    """out[r] = round(RMSNorm(x[r])) for x [R, H]."""
    powers = np.empty(x.shape[1], np.int32)
    flat_x, flat_out = x.reshape(-1), out.reshape(-1)
    for r in range(x.shape[0]):
        norm_row(flat_x, r * weight.size, weight, eps, flat_out, r * weight.size)
        round_row(out[r], powers, fmt)


@njit(cache=True)
def add_norm_round(x, update, weight, eps, fmt, out):
    """x += update, then as `norm_round`."""
    flat_x, flat_update = x.reshape(-1), update.reshape(-1)
    for j in range(0, flat_x.size, WIDTH):
        store(flat_x, j, load(flat_x, j) + load(flat_update, j))
    norm_round(x, weight, eps, fmt, out)


@njit(cache=True)
def gate_round(gate_up, fmt, out):
    """out[r] = round(silu(gate) * up) for gate_up [R, 2I] and out [R, I]."""
    width = out.shape[1]
    powers = np.empty(width, np.int32)
    flat_in, flat_out = gate_up.reshape(-1), out.reshape(-1)
    for r in range(out.shape[0]):
        gated_row(flat_in, 2 * width * r, width, flat_out, width * r)
        round_row(out[r], powers, fmt)


@njit(cache=True, forceinline=True)
def _copy(x, at, out, out_at, width):
    for j in range(0, width, WIDTH):
        store(out, out_at + j, load(x, at + j))


@njit(cache=True)
def _scores(queries, dim, keys, at, length, scores, second):
    """scores[g, p] = queries[g] . key[p] for two queries of one cached head; a pair shares every key it loads.

    Sixteen positions at a time: four independent sums hide the latency of a multiply-add. The second query's scores start
    at ``second``; entries behind the last position, up to a whole block, mean nothing.
    """
    for p in range(0, length, POSITIONS):
        a0 = a1 = b0 = b1 = splat(np.float32(0))
        for d in range(dim):
            k0, k1 = load(keys, at), load(keys, at + WIDTH)
            qa, qb = spread(queries, d), spread(queries, dim + d)
            a0, a1, b0, b1 = a0 + qa * k0, a1 + qa * k1, b0 + qb * k0, b1 + qb * k1
            at += POSITIONS
        store(scores, p, a0)
        store(scores, p + WIDTH, a1)
        store(scores, second + p, b0)
        store(scores, second + p + WIDTH, b1)


@njit(cache=True)
def _weighted(scores, capacity, values, at, dim, length, out):
    """out[g] = sum over p of scores[g, p] value[p] for two queries of one cached head, sixteen dimensions at a time."""
    for d in range(0, dim, 2 * WIDTH):
        a0 = a1 = b0 = b1 = splat(np.float32(0))
        for p in range(length):
            v0, v1 = load(values, at + p * dim + d), load(values, at + p * dim + d + WIDTH)
            wa, wb = spread(scores, p), spread(scores, capacity + p)
            a0, a1, b0, b1 = a0 + wa * v0, a1 + wa * v1, b0 + wb * v0, b1 + wb * v1
        store(out, d, a0)
        store(out, d + WIDTH, a1)
        store(out, dim + d, b0)
        store(out, dim + d + WIDTH, b1)


@njit(cache=True)
def attend(qkv, rows, q_norm, k_norm, eps, cosine, sine, keys, values, position, kv_fmt, fmt, out):
    """Write the new key and value of each row at ``position``, attend, and round the result: out [R, Hq D].

    qkv [R, (Hq + 2 Hkv) D]; rows [R] int64 slots of the caches keys [S, Hkv, L / 16, D, 16] and values [S, Hkv,
    L, D]; cosine and sine [D] of this position. Keys (after rotation) and values are rounded by ``kv_fmt`` as
    they are written. Queries of a group go in pairs; the last of an odd group is computed twice.
    """
    kv_heads, capacity, dim = values.shape[1], values.shape[2], values.shape[3]
    heads, width = out.shape[1] // dim, qkv.shape[1]
    groups, length = heads // kv_heads, position + 1
    covered = (length + WIDTH - 1) // WIDTH * WIDTH
    one, scale = np.float32(1), np.float32(1.0 / math.sqrt(dim))
    # Flat arrays and offsets throughout: a view or an assignment of a slice costs numba more than the row it moves.
    flat_qkv, flat_keys, flat_values, flat_out = qkv.reshape(-1), keys.reshape(-1), values.reshape(-1), out.reshape(-1)
    key, value, queries, attended = (
        np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(2 * dim, np.float32), np.empty(2 * dim, np.float32)
    )  # fmt: skip
    scores, powers = np.empty(2 * capacity, np.float32), np.empty(max(capacity, out.shape[1]), np.int32)
    for r in range(qkv.shape[0]):
        for h in range(kv_heads):
            at, last = (rows[r] * kv_heads + h) * dim * capacity, (h + 1) * groups - 1
            source = r * width + (heads + h) * dim
            rotated(flat_qkv, source, dim, k_norm, eps, cosine, sine, one, 1, key, 0)
            round_row(key, powers, kv_fmt)
            place = at + position // POSITIONS * POSITIONS * dim + position % POSITIONS
            for j in range(dim):
                flat_keys[place + j * POSITIONS] = key[j]
            _copy(flat_qkv, source + kv_heads * dim, value, 0, dim)
            round_row(value, powers, kv_fmt)
            _copy(value, 0, flat_values, at + position * dim, dim)
            for first in range(h * groups, last + 1, 2):
                second = min(first + 1, last)
                rotated(flat_qkv, r * width + first * dim, dim, q_norm, eps, cosine, sine, scale, 1, queries, 0)
                rotated(flat_qkv, r * width + second * dim, dim, q_norm, eps, cosine, sine, scale, 1, queries, dim)
                _scores(queries, dim, flat_keys, at, length, scores, capacity)
                softmax_row(scores, 0, length, covered)
                softmax_row(scores, capacity, length, covered)
                _weighted(scores, capacity, flat_values, at, dim, length, attended)
                _copy(attended, 0, flat_out, (r * heads + first) * dim, dim)
                _copy(attended, dim, flat_out, (r * heads + second) * dim, dim)
        round_row(out[r], powers, fmt)


@njit(cache=True)
def draw(logits, temperature, uniforms, rows, step, logq, tokens):
    """Sample one token per row by inverting the cumulative distribution; False if a logit is not finite.

    logits [R, V]; uniforms [rows] of this step, indexed by ``rows`` [R]; writes the full log-probs into
    logq [all rows, T, V] and the tokens into tokens [all rows, T] at ``step``. Exponentials are float32, their sums
    float64: a sampled probability and exp of the recorded log-prob agree to float32's last digits.
    """
    vocabulary, inverse = logits.shape[1], np.float32(1.0 / temperature)
    mass = np.empty((vocabulary + WIDTH - 1) // WIDTH * WIDTH, np.float32)
    mass[vocabulary:] = 0  # filled up to whole lanes; what becomes of these entries is never read
    for r in range(logits.shape[0]):
        row = rows[r]
        top, infected = np.float32(-np.inf), np.float32(0)
        for v in range(vocabulary):
            mass[v] = logits[r, v] * inverse
            infected += mass[v] * np.float32(0)  # NaN once a logit is NaN or infinite
            top = mass[v] if mass[v] > top else top
        if infected != 0:
            return False
        for v in range(vocabulary):
            mass[v] -= top
            logq[row, step, v] = mass[v]
        for v in range(0, mass.size, WIDTH):
            store(mass, v, exp(load(mass, v)))
        total = 0.0
        for v in range(vocabulary):
            total += mass[v]
        log_total = np.float32(math.log(total))
        for v in range(vocabulary):
            logq[row, step, v] -= log_total
        threshold, reached, token = uniforms[row] * total, np.float64(mass[0]), 0
        while token < vocabulary - 1 and reached <= threshold:
            token += 1
            reached += mass[token]
        tokens[row, step] = token
    return True
