"""Causal softmax attention of a training pass with its query and key norms and rotary positions, as one function.

    q = rotate(norm(Q)) / sqrt(D)    k = rotate(norm(K))    P = softmax(q k^T, causal)    out = P V

``attention`` works head by head out of the joint projection [tokens, (Hq + 2 Hkv) D], so that one head's matrices stay
in the nearest caches and nothing is transposed in memory. Products skip the tiles above the diagonal. Backward keeps the
projection and P. Made for short sequences: P is stored, 4 B Hq L^2 bytes.

Positions rotate in the two-half layout of Qwen3: entry j of a head turns with entry j + D/2 by the angle of j.
Sources: Su et al. (2021) for rotary positions, Ainslie et al. (2023) for grouped queries.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from repro.kernels import inlined, kernel
from repro.kernels.lanes import WIDTH, hsum, load, splat, spread, store
from repro.kernels.training import flat, norm_row_backward, operand, reciprocal_rms, softmax_row

TILE_ROWS, TILE_COLUMNS = 4, 2 * WIDTH


@kernel
def _tile(a, a_at, a_row, a_step, b, b_at, b_step, terms, c, c_at, c_row, add):
    """c[r, 0:16] (+)= sum over k < terms of a[r, k] b[k, 0:16] for four rows r, in eight registers."""
    c00 = c01 = c10 = c11 = c20 = c21 = c30 = c31 = splat(np.float32(0))
    if add:
        c00, c01 = load(c, c_at), load(c, c_at + WIDTH)
        c10, c11 = load(c, c_at + c_row), load(c, c_at + c_row + WIDTH)
        c20, c21 = load(c, c_at + 2 * c_row), load(c, c_at + 2 * c_row + WIDTH)
        c30, c31 = load(c, c_at + 3 * c_row), load(c, c_at + 3 * c_row + WIDTH)
    for _ in range(terms):
        b0, b1 = load(b, b_at), load(b, b_at + WIDTH)
        a0 = spread(a, a_at)
        a1 = spread(a, a_at + a_row)
        a2 = spread(a, a_at + 2 * a_row)
        a3 = spread(a, a_at + 3 * a_row)
        c00, c01 = c00 + a0 * b0, c01 + a0 * b1
        c10, c11 = c10 + a1 * b0, c11 + a1 * b1
        c20, c21 = c20 + a2 * b0, c21 + a2 * b1
        c30, c31 = c30 + a3 * b0, c31 + a3 * b1
        a_at += a_step
        b_at += b_step
    store(c, c_at, c00)
    store(c, c_at + WIDTH, c01)
    store(c, c_at + c_row, c10)
    store(c, c_at + c_row + WIDTH, c11)
    store(c, c_at + 2 * c_row, c20)
    store(c, c_at + 2 * c_row + WIDTH, c21)
    store(c, c_at + 3 * c_row, c30)
    store(c, c_at + 3 * c_row + WIDTH, c31)


@inlined
def rotated(x, at, stride, weight, eps, cosine, sine, scale, length, out, out_at):
    """out[t] = scale * rotate_t(norm(x[t])), rows of head_dim from ``out_at``; x starts at ``at``, ``stride`` a token."""
    dim = weight.size
    half = dim // 2
    for t in range(length):
        factor = splat(reciprocal_rms(x, at + t * stride, dim, eps) * scale)
        for j in range(0, half, WIDTH):
            first = load(x, at + t * stride + j) * load(weight, j) * factor
            second = load(x, at + t * stride + half + j) * load(weight, half + j) * factor
            c, s = load(cosine, t * dim + j), load(sine, t * dim + j)
            store(out, out_at + t * dim + j, first * c - second * s)
            store(out, out_at + t * dim + half + j, second * c + first * s)


@kernel
def _rotated_backward(x, at, stride, weight, eps, cosine, sine, scale, length, dout, dx, dweight):
    """dx from dout through `rotated`; destroys dout; dx is zero on entry."""
    dim = weight.size
    half = dim // 2
    factor = splat(scale)
    for t in range(length):
        for j in range(0, half, WIDTH):
            first, second = load(dout, t * dim + j) * factor, load(dout, t * dim + half + j) * factor
            c, s = load(cosine, t * dim + j), load(sine, t * dim + j)
            store(dout, t * dim + j, first * c + second * s)
            store(dout, t * dim + half + j, second * c - first * s)
        norm_row_backward(x, at + t * stride, weight, eps, dout, t * dim, dx, dweight)


@kernel
def _gather(x, at, stride, length, dim, out):
    for t in range(length):
        for j in range(0, dim, WIDTH):
            store(out, t * dim + j, load(x, at + t * stride + j))


@kernel
def _scatter(x, length, dim, out, at, stride):
    for t in range(length):
        for j in range(0, dim, WIDTH):
            store(out, at + t * stride + j, load(x, t * dim + j))


@kernel
def _transpose(x, length, dim, padded, out):
    for t in range(length):
        for j in range(dim):
            out[j * padded + t] = x[t * dim + j]


@kernel
def _columns(row):
    """Keys that the tile of query rows ``row .. row + 3`` can see, rounded up to whole tiles."""
    return (row + TILE_ROWS + TILE_COLUMNS - 1) // TILE_COLUMNS * TILE_COLUMNS


@njit(cache=True)
def _attention_forward(qkv, shape, q_weight, k_weight, eps, cosine, sine, padded, saved, out):
    """saved [B, Hq, padded, padded] takes the probabilities; of size one head only if they are not wanted."""
    rows, length, heads, kv = shape
    dim, groups = q_weight.size, heads // kv
    stride, matrix = (heads + 2 * kv) * dim, padded * padded
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    scratch = np.zeros((5, padded * dim), np.float32)  # zero past the last token, so that whole tiles can be read
    q, k, v, kt, result = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    block = np.empty(length * stride, np.float32)
    for b in range(rows):
        # Heads are read with a stride that no prefetcher follows: one sequential copy brings the sequence closer first.
        block[:] = qkv[b * length * stride : (b + 1) * length * stride]
        for g in range(kv):
            rotated(block, (heads + g) * dim, stride, k_weight, eps, cosine, sine, np.float32(1), length, k, 0)
            _transpose(k, length, dim, padded, kt)
            _gather(block, (heads + kv + g) * dim, stride, length, dim, v)
            for h in range(g * groups, (g + 1) * groups):
                rotated(block, h * dim, stride, q_weight, eps, cosine, sine, scale, length, q, 0)
                p = (b * heads + h) * matrix if saved.size > matrix else 0
                for i in range(0, length, TILE_ROWS):
                    columns = _columns(i)
                    for j in range(0, columns, TILE_COLUMNS):
                        _tile(q, i * dim, dim, 1, kt, j, padded, dim, saved, p + i * padded + j, padded, False)
                    for r in range(i, i + TILE_ROWS):
                        softmax_row(saved, p + r * padded, r + 1, columns)
                    for d in range(0, dim, TILE_COLUMNS):
                        _tile(saved, p + i * padded, padded, 1, v, d, dim, min(i + TILE_ROWS, length),
                              result, i * dim + d, dim, False)  # fmt: skip
                _scatter(result, length, dim, out, (b * length * heads + h) * dim, heads * dim)


@njit(cache=True)
def _attention_backward(
    qkv, shape, q_weight, k_weight, eps, cosine, sine, padded, saved, dout, dqkv, dq_weight, dk_weight
):
    """dS = P (dP - rowsum(P dP)) with dP = dO V^T; dQ = dS K, dK = dS^T Q, dV = P^T dO; then back through `rotated`."""
    rows, length, heads, kv = shape
    dim, groups = q_weight.size, heads // kv
    stride, matrix = (heads + 2 * kv) * dim, padded * padded
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    one, zero = np.float32(1), splat(np.float32(0))
    scratch = np.zeros((8, padded * dim), np.float32)  # zero past the last token, so that whole tiles can be read
    q, k, v, vt, up = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    dq, dk, dv = scratch[5], scratch[6], scratch[7]
    ds = np.empty(matrix, np.float32)
    block, dblock = np.empty(length * stride, np.float32), np.empty(length * stride, np.float32)
    upstream = np.empty(length * heads * dim, np.float32)
    for b in range(rows):
        block[:] = qkv[b * length * stride : (b + 1) * length * stride]  # as in forward
        upstream[:] = dout[b * length * heads * dim : (b + 1) * length * heads * dim]
        dblock[:] = 0
        for g in range(kv):
            rotated(block, (heads + g) * dim, stride, k_weight, eps, cosine, sine, one, length, k, 0)
            _gather(block, (heads + kv + g) * dim, stride, length, dim, v)
            _transpose(v, length, dim, padded, vt)
            for h in range(g * groups, (g + 1) * groups):
                rotated(block, h * dim, stride, q_weight, eps, cosine, sine, scale, length, q, 0)
                _gather(upstream, h * dim, heads * dim, length, dim, up)
                p = (b * heads + h) * matrix
                for i in range(0, length, TILE_ROWS):
                    columns = _columns(i)
                    for j in range(0, columns, TILE_COLUMNS):
                        _tile(up, i * dim, dim, 1, vt, j, padded, dim, ds, i * padded + j, padded, False)
                    for r in range(i * padded, (i + TILE_ROWS) * padded, padded):
                        dot = zero
                        for j in range(r, r + columns, WIDTH):
                            dot = dot + load(saved, p + j) * load(ds, j)
                        dot = splat(hsum(dot))
                        for j in range(r, r + columns, WIDTH):
                            store(ds, j, load(saved, p + j) * (load(ds, j) - dot))
                    for d in range(0, dim, TILE_COLUMNS):
                        _tile(ds, i * padded, padded, 1, k, d, dim, min(i + TILE_ROWS, length),
                              dq, i * dim + d, dim, False)  # fmt: skip
                later = h > g * groups
                for j in range(0, length, TILE_ROWS):
                    below = j * padded + j
                    for d in range(0, dim, TILE_COLUMNS):
                        at = j * dim + d
                        _tile(ds, below, 1, padded, q, at, dim, length - j, dk, at, dim, later)
                        _tile(saved, p + below, 1, padded, up, at, dim, length - j, dv, at, dim, later)
                _rotated_backward(block, h * dim, stride, q_weight, eps, cosine, sine, scale, length, dq,
                                  dblock, dq_weight)  # fmt: skip
            _rotated_backward(block, (heads + g) * dim, stride, k_weight, eps, cosine, sine, one, length, dk,
                              dblock, dk_weight)  # fmt: skip
            _scatter(dv, length, dim, dblock, (heads + kv + g) * dim, stride)
        dqkv[b * length * stride : (b + 1) * length * stride] = dblock


class _Attention(Function):
    @staticmethod
    def forward(ctx, qkv, q_weight, k_weight, eps, cosine, sine, shape) -> Tensor:
        rows, length, heads, _ = shape
        padded = -(-length // TILE_COLUMNS) * TILE_COLUMNS
        kept = rows * heads if any(ctx.needs_input_grad) else 1
        saved = qkv.new_empty(kept * padded * padded)
        out = qkv.new_empty(rows * length, heads * q_weight.numel())
        ctx.settings = (np.float32(eps), flat(cosine), flat(sine), padded)
        ctx.shape = shape
        _attention_forward(flat(qkv), shape, flat(q_weight), flat(k_weight), *ctx.settings, flat(saved), flat(out))
        ctx.save_for_backward(qkv, q_weight, k_weight, saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout: Tensor):
        qkv, q_weight, k_weight, saved = ctx.saved_tensors
        dqkv = torch.empty_like(qkv)
        dq_weight, dk_weight = torch.zeros_like(q_weight), torch.zeros_like(k_weight)
        _attention_backward(
            flat(qkv), ctx.shape, flat(q_weight), flat(k_weight), *ctx.settings, flat(saved), flat(dout),
            flat(dqkv), flat(dq_weight), flat(dk_weight),
        )  # fmt: skip
        return dqkv, dq_weight, dk_weight, None, None, None, None


def attention(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    tables: tuple[Tensor, Tensor],
    shape: tuple[int, int, int, int],
) -> Tensor:
    """Attended values [B L, Hq D] of qkv [B L, (Hq + 2 Hkv) D] for ``shape`` = (B, L, Hq, Hkv), positions from 0.

    A row of qkv holds the queries of all heads, then the keys, then the values. Queries and keys are normalised per
    head with weights [D] and rotated by ``tables``, cosine and sine [L, D]. D is a multiple of 16, Hq one of Hkv.
    """
    rows, length, heads, kv = shape
    dim = len(q_weight)
    if kv < 1 or heads % kv:
        raise ValueError(f"shape: expected query heads to be a multiple of key/value heads, got {heads} and {kv}")
    qkv = operand("qkv", qkv, (rows * length, (heads + 2 * kv) * dim))
    q_weight, k_weight = (
        operand(name, weight, (dim,), TILE_COLUMNS) for name, weight in (("q_weight", q_weight), ("k_weight", k_weight))
    )
    cosine, sine = (operand("tables", table, (length, dim)) for table in tables)
    return _Attention.apply(qkv, q_weight, k_weight, eps, cosine, sine, shape)
