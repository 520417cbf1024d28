"""The parts of a decode step between its matrix products, each one pass over the data.

One decode step of a layer is

    norm_round -> GEMM qkv -> attend -> GEMM out -> add_norm_round -> GEMM gate/up -> gate_round -> GEMM down

on the rows still being generated. Keys lie in the cache in blocks of 16 positions, each transposed, [slot, head, block,
dim, 16]: a block's scores are sums of contiguous vectors, and a head's keys are read front to back. ``rows`` maps a row of
the step to its slot of the cache: finished rows leave the step without copying anything. All arrays are float32 and
contiguous, widths multiples of 8, the head dimension and the cache's positions multiples of 16; ``*_fmt`` are
`rounding.Rounding`s, and ``powers`` is int32 scratch for them, as wide as the widest row that is rounded.

NaN and infinities pass through: a diverged policy must reach the sampler's own check.
"""

from __future__ import annotations

import math

import numpy as np

from repro.kernels import inlined, kernel
from repro.kernels.causal_attention import rotated
from repro.kernels.lanes import WIDTH, exp, hmax, hsum, larger, load, prefetch, splat, spread, store
from repro.kernels.rounding import round_row
from repro.kernels.training import gated_row, norm_row, softmax_row

POSITIONS = 2 * WIDTH  # the cache holds a multiple of this many positions


@kernel
def norm_round(x, weight, eps, fmt, powers, out):
    """out[r] = round(RMSNorm(x[r])) for x [R, H]."""
    flat_x, flat_out = x.reshape(-1), out.reshape(-1)
    for r in range(x.shape[0]):
        norm_row(flat_x, r * weight.size, weight, eps, flat_out, r * weight.size)
        round_row(out[r], powers, fmt)


@kernel
def add_norm_round(x, update, weight, eps, fmt, powers, out):
    """x += update, then as `norm_round`."""
    flat_x, flat_update = x.reshape(-1), update.reshape(-1)
    for j in range(0, flat_x.size, WIDTH):
        store(flat_x, j, load(flat_x, j) + load(flat_update, j))
    norm_round(x, weight, eps, fmt, powers, out)


@kernel
def gate_round(gate_up, fmt, powers, out):
    """out[r] = round(silu(gate) * up) for gate_up [R, 2I] and out [R, I]."""
    width = out.shape[1]
    flat_in, flat_out = gate_up.reshape(-1), out.reshape(-1)
    for r in range(out.shape[0]):
        gated_row(flat_in, 2 * width * r, width, flat_out, width * r)
        round_row(out[r], powers, fmt)


@inlined
def _copy(x, at, out, out_at, width):
    for j in range(0, width, WIDTH):
        store(out, out_at + j, load(x, at + j))


@inlined
def _scores(queries, first, other, dim, keys, at, ahead, length, scores, second):
    """scores[g, p] = queries[g] . key[p] for two queries of one cached head; a pair shares every key it loads.

    Two blocks at a time: eight independent sums hide the latency of a multiply-add. The second query's scores start at
    ``second``; entries behind the last position, up to a whole block, mean nothing. ``ahead`` is where the keys of the
    next head start: they are asked for while these are in use.
    """
    zero = splat(np.float32(0))
    block = POSITIONS * dim
    for p in range(0, length - POSITIONS, 2 * POSITIONS):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
        for d in range(dim):
            prefetch(keys, ahead)
            prefetch(keys, ahead + block)
            k0, k1 = load(keys, at), load(keys, at + WIDTH)
            k2, k3 = load(keys, at + block), load(keys, at + block + WIDTH)
            qa, qb = spread(queries, first + d), spread(queries, other + d)
            a0, a1, a2, a3 = a0 + qa * k0, a1 + qa * k1, a2 + qa * k2, a3 + qa * k3
            b0, b1, b2, b3 = b0 + qb * k0, b1 + qb * k1, b2 + qb * k2, b3 + qb * k3
            at += POSITIONS
            ahead += POSITIONS
        at += block
        ahead += block
        store(scores, p, a0)
        store(scores, p + WIDTH, a1)
        store(scores, p + POSITIONS, a2)
        store(scores, p + POSITIONS + WIDTH, a3)
        store(scores, second + p, b0)
        store(scores, second + p + WIDTH, b1)
        store(scores, second + p + POSITIONS, b2)
        store(scores, second + p + POSITIONS + WIDTH, b3)
    if (length - 1) // POSITIONS % 2 == 0:
        p = (length - 1) // POSITIONS * POSITIONS
        a0 = a1 = b0 = b1 = zero
        for d in range(dim):
            prefetch(keys, ahead)
            k0, k1 = load(keys, at), load(keys, at + WIDTH)
            qa, qb = spread(queries, first + d), spread(queries, other + d)
            a0, a1, b0, b1 = a0 + qa * k0, a1 + qa * k1, b0 + qb * k0, b1 + qb * k1
            at += POSITIONS
            ahead += POSITIONS
        store(scores, p, a0)
        store(scores, p + WIDTH, a1)
        store(scores, second + p, b0)
        store(scores, second + p + WIDTH, b1)


@inlined
def _weighted(scores, capacity, values, at, ahead, dim, length, out):
    """out[g] = sum over p of scores[g, p] value[p] for two queries of one cached head; ``ahead`` as in `_scores`.

    Two times sixteen dimensions at a time, an odd sixteen by itself: the same eight sums.
    """
    zero = splat(np.float32(0))
    for d in range(0, dim - 2 * WIDTH, 4 * WIDTH):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
        for p in range(length):
            place = at + p * dim + d
            prefetch(values, ahead + p * dim + d)
            prefetch(values, ahead + p * dim + d + 2 * WIDTH)
            v0, v1 = load(values, place), load(values, place + WIDTH)
            v2, v3 = load(values, place + 2 * WIDTH), load(values, place + 3 * WIDTH)
            wa, wb = spread(scores, p), spread(scores, capacity + p)
            a0, a1, a2, a3 = a0 + wa * v0, a1 + wa * v1, a2 + wa * v2, a3 + wa * v3
            b0, b1, b2, b3 = b0 + wb * v0, b1 + wb * v1, b2 + wb * v2, b3 + wb * v3
        store(out, d, a0)
        store(out, d + WIDTH, a1)
        store(out, d + 2 * WIDTH, a2)
        store(out, d + 3 * WIDTH, a3)
        store(out, dim + d, b0)
        store(out, dim + d + WIDTH, b1)
        store(out, dim + d + 2 * WIDTH, b2)
        store(out, dim + d + 3 * WIDTH, b3)
    if dim % (4 * WIDTH):
        d = dim - 2 * WIDTH
        a0 = a1 = b0 = b1 = zero
        for p in range(length):
            prefetch(values, ahead + p * dim + d)
            v0, v1 = load(values, at + p * dim + d), load(values, at + p * dim + d + WIDTH)
            wa, wb = spread(scores, p), spread(scores, capacity + p)
            a0, a1, b0, b1 = a0 + wa * v0, a1 + wa * v1, b0 + wb * v0, b1 + wb * v1
        store(out, d, a0)
        store(out, d + WIDTH, a1)
        store(out, dim + d, b0)
        store(out, dim + d + WIDTH, b1)


@kernel
def attend(
    qkv, rows, q_norm, k_norm, eps, cosine, sine, keys, values, position, kv_fmt, fmt, scratch, powers, out
):  # fmt: skip
    """Write the new key and value of each row at ``position``, attend, and round the result: out [R, Hq D].

    qkv [R, (Hq + 2 Hkv) D]; rows [R] int64 slots of the caches keys [S, Hkv, L / 16, D, 16] and values [S, Hkv,
    L, D]; cosine and sine [D] of this position. Keys (after rotation) and values are rounded by ``kv_fmt`` as
    they are written. Queries of a group go in pairs; the last of an odd group is computed twice. scratch [(4 + Hq) D
    + 2 L].
    """
    kv_heads, capacity, dim = values.shape[1], values.shape[2], values.shape[3]
    heads, width = out.shape[1] // dim, qkv.shape[1]
    groups, length = heads // kv_heads, position + 1
    covered = (length + WIDTH - 1) // WIDTH * WIDTH
    one, scale = np.float32(1), np.float32(1.0 / math.sqrt(dim))
    # Flat arrays and offsets throughout: a view or an assignment of a slice costs numba more than the row it moves.
    flat_qkv, flat_keys, flat_values, flat_out = qkv.reshape(-1), keys.reshape(-1), values.reshape(-1), out.reshape(-1)
    key, value = scratch[:dim], scratch[dim : 2 * dim]
    attended, queries = scratch[2 * dim : 4 * dim], scratch[4 * dim : (4 + heads) * dim]
    scores = scratch[(4 + heads) * dim :]
    for r in range(qkv.shape[0]):
        # First everything is written that this row reads below.
        for h in range(kv_heads):
            at, source = (rows[r] * kv_heads + h) * dim * capacity, r * width + (heads + h) * dim
            rotated(flat_qkv, source, dim, k_norm, eps, cosine, sine, one, 1, key, 0)
            round_row(key, powers, kv_fmt)
            place = at + position // POSITIONS * POSITIONS * dim + position % POSITIONS
            for j in range(dim):
                flat_keys[place + j * POSITIONS] = key[j]
            _copy(flat_qkv, source + kv_heads * dim, value, 0, dim)
            round_row(value, powers, kv_fmt)
            _copy(value, 0, flat_values, at + position * dim, dim)
        for h in range(heads):
            rotated(flat_qkv, r * width + h * dim, dim, q_norm, eps, cosine, sine, scale, 1, queries, h * dim)
        for h in range(kv_heads):
            at, last = (rows[r] * kv_heads + h) * dim * capacity, (h + 1) * groups - 1
            following = rows[min(r + (h + 1) // kv_heads, qkv.shape[0] - 1)] * kv_heads + (h + 1) % kv_heads
            ahead = following * dim * capacity
            for first in range(h * groups, last + 1, 2):
                second = min(first + 1, last)
                _scores(queries, first * dim, second * dim, dim, flat_keys, at, ahead, length, scores, capacity)
                softmax_row(scores, 0, length, covered)
                softmax_row(scores, capacity, length, covered)
                _weighted(scores, capacity, flat_values, at, ahead, dim, length, attended)
                _copy(attended, 0, flat_out, (r * heads + first) * dim, dim)
                _copy(attended, dim, flat_out, (r * heads + second) * dim, dim)
        round_row(out[r], powers, fmt)


@kernel
def draw(logits, temperature, uniforms, rows, step, mass, logq, tokens):
    """Sample one token per row by inverting the cumulative distribution; False if a logit is not finite.

    logits [R, V]; uniforms [rows] of this step, indexed by ``rows`` [R]; writes the full log-probs into
    logq [all rows, T, V] and the tokens into tokens [all rows, T] at ``step``. mass is scratch, [V] in whole lanes.
    Exponentials are float32, their sums float64: a sampled probability and exp of the recorded log-prob agree to
    float32's last digits.
    """
    vocabulary, inverse = logits.shape[1], np.float32(1.0 / temperature)
    for r in range(logits.shape[0]):
        row = rows[r]
        for v in range(vocabulary):
            mass[v] = logits[r, v] * inverse
        mass[vocabulary:] = mass[0]  # whole lanes: changes neither the largest nor whether all are finite
        tops, infected = splat(np.float32(-np.inf)), splat(np.float32(0))
        for v in range(0, mass.size, WIDTH):
            tops = larger(load(mass, v), tops)
            infected = infected + load(mass, v) * splat(np.float32(0))  # NaN once a logit is NaN or infinite
        if hsum(infected) != 0:
            return False
        top = hmax(tops)
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
