"""What a training pass does to each token between its matrix products, fused, with gradients by hand: float32, CPU.

    norm         y = w x / sqrt(mean(x^2) + eps)
    add_norm     x + update, and its norm
    gated        silu(gate) * up

Each is an autograd function of flat tensors, one row a token, whose forward and backward read every operand once or
twice while it is in the nearest cache. Backward keeps the inputs and nothing else; the rest is cheaper to compute again.
Weight gradients are plain sums over tokens in row order. Sources: Zhang and Sennrich (2019) for RMSNorm, Shazeer (2020)
for SwiGLU.

Tensors are float32 on the CPU, their widths multiples of 8. The kernels check no bounds: the functions at the end do,
and everything else is a ValueError there. NaN and infinities pass through.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from repro.kernels import inlined, kernel
from repro.kernels.lanes import WIDTH, exp, hmax, hsum, keep, larger, load, splat, store


def flat(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor in one dimension; they are the tensor's own memory if it is contiguous."""
    return tensor.detach().contiguous().numpy().reshape(-1)


def operand(name: str, tensor: Tensor, shape: tuple[int, ...], multiple: int = WIDTH) -> Tensor:
    """``tensor``, contiguous; ValueError unless it is float32 on the CPU, of ``shape``, its last a ``multiple``."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise ValueError(f"{name}: expected a torch.float32 tensor on the CPU, got {tensor.dtype} on {tensor.device}")
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")
    if shape[-1] % multiple:
        raise ValueError(f"{name}: expected a last dimension that is a multiple of {multiple}, got {shape[-1]}")
    return tensor.contiguous()


@inlined
def reciprocal_rms(x, at, width, eps):
    """1 / sqrt(mean(x^2) + eps) over x[at : at + width]."""
    squares = splat(np.float32(0))
    for j in range(at, at + width, WIDTH):
        value = load(x, j)
        squares = squares + value * value
    return np.float32(1) / np.sqrt(hsum(squares) / np.float32(width) + eps)


@inlined
def norm_row(x, at, weight, eps, out, out_at):
    """out[out_at:] = RMSNorm of x[at : at + H], H the length of ``weight``."""
    width = weight.size
    scale = splat(reciprocal_rms(x, at, width, eps))
    for j in range(0, width, WIDTH):
        store(out, out_at + j, load(x, at + j) * scale * load(weight, j))


@inlined
def norm_row_backward(x, at, weight, eps, dy, dy_at, dx, dweight):
    """dx[at:] += r (w dy - x r^2 mean(w dy x)) with r = 1 / rms(x); dweight += dy x r."""
    width = weight.size
    r = reciprocal_rms(x, at, width, eps)
    dot = splat(np.float32(0))
    scale = splat(r)
    for j in range(0, width, WIDTH):
        product = load(dy, dy_at + j) * load(x, at + j)
        dot = dot + product * load(weight, j)
        store(dweight, j, load(dweight, j) + product * scale)
    shrink = splat(r * r * hsum(dot) / np.float32(width))
    for j in range(0, width, WIDTH):
        inner = load(weight, j) * load(dy, dy_at + j) - load(x, at + j) * shrink
        store(dx, at + j, load(dx, at + j) + inner * scale)


@kernel
def _norm_forward(x, weight, eps, out):
    for at in range(0, x.size, weight.size):
        norm_row(x, at, weight, eps, out, at)


@kernel
def _add_norm_forward(x, update, weight, eps, total, out):
    for at in range(0, x.size, weight.size):
        for j in range(at, at + weight.size, WIDTH):
            store(total, j, load(x, j) + load(update, j))
        norm_row(total, at, weight, eps, out, at)


@kernel
def _norm_backward(x, weight, eps, dy, dtotal, dx, dweight):
    """dx = dtotal + what reaches x through its norm; dtotal may be empty, meaning 0."""
    for at in range(0, x.size, weight.size):
        for j in range(at, at + weight.size, WIDTH):
            store(dx, j, load(dtotal, j) if dtotal.size else splat(np.float32(0)))
        norm_row_backward(x, at, weight, eps, dy, at, dx, dweight)


@inlined
def gated_row(gate_up, at, width, out, out_at):
    """out[out_at:] = silu(gate) * up for the gates at gate_up[at : at + width] and the factors behind them."""
    one, zero = splat(np.float32(1)), splat(np.float32(0))
    for j in range(0, width, WIDTH):
        gate = load(gate_up, at + j)
        store(out, out_at + j, gate / (one + exp(zero - gate)) * load(gate_up, at + width + j))


@inlined
def softmax_row(scores, at, count, covered):
    """In place over scores[at : at + count]; the others up to ``covered``, a multiple of the lanes, become 0."""
    lowest, zero = splat(np.float32(-np.inf)), splat(np.float32(0))
    top = lowest
    for j in range(0, covered, WIDTH):
        top = larger(keep(load(scores, at + j), count - j, lowest), top)
    top = splat(hmax(top))
    total = zero
    for j in range(0, covered, WIDTH):
        weight = keep(exp(load(scores, at + j) - top), count - j, zero)
        store(scores, at + j, weight)
        total = total + weight
    share = splat(np.float32(1) / hsum(total))
    for j in range(0, covered, WIDTH):
        store(scores, at + j, load(scores, at + j) * share)


@kernel
def _gated_forward(gate_up, width, out):
    for row in range(out.size // width):
        gated_row(gate_up, 2 * width * row, width, out, width * row)


@kernel
def _gated_backward(gate_up, width, dout, dgate_up):
    one, zero = splat(np.float32(1)), splat(np.float32(0))
    for row in range(dout.size // width):
        at, out_at = 2 * width * row, width * row
        for j in range(0, width, WIDTH):
            gate, up, upstream = load(gate_up, at + j), load(gate_up, at + width + j), load(dout, out_at + j)
            sigmoid = one / (one + exp(zero - gate))
            store(dgate_up, at + j, upstream * up * sigmoid * (one + gate * (one - sigmoid)))
            store(dgate_up, at + width + j, upstream * gate * sigmoid)


class _Norm(Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        _norm_forward(flat(x), flat(weight), np.float32(eps), flat(out))
        ctx.save_for_backward(x, weight)
        ctx.eps = np.float32(eps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        x, weight = ctx.saved_tensors
        dx, dweight = torch.empty_like(x), torch.zeros_like(weight)
        nothing = np.empty(0, np.float32)
        _norm_backward(flat(x), flat(weight), ctx.eps, flat(dy), nothing, flat(dx), flat(dweight))
        return dx, dweight, None


class _AddNorm(Function):
    @staticmethod
    def forward(ctx, x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total, out = torch.empty_like(x), torch.empty_like(x)
        _add_norm_forward(flat(x), flat(update), flat(weight), np.float32(eps), flat(total), flat(out))
        ctx.save_for_backward(total, weight)
        ctx.eps = np.float32(eps)
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    @once_differentiable
    def backward(ctx, dtotal: Tensor | None, dy: Tensor | None):
        total, weight = ctx.saved_tensors
        if dy is None:
            return dtotal, dtotal, None, None
        dx, dweight = torch.empty_like(total), torch.zeros_like(weight)
        direct = np.empty(0, np.float32) if dtotal is None else flat(dtotal)
        _norm_backward(flat(total), flat(weight), ctx.eps, flat(dy), direct, flat(dx), flat(dweight))
        return dx, dx, dweight, None


class _Gated(Function):
    @staticmethod
    def forward(ctx, gate_up: Tensor) -> Tensor:
        width = gate_up.shape[1] // 2
        out = gate_up.new_empty(len(gate_up), width)
        _gated_forward(flat(gate_up), width, flat(out))
        ctx.save_for_backward(gate_up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout: Tensor):
        (gate_up,) = ctx.saved_tensors
        dgate_up = torch.empty_like(gate_up)
        _gated_backward(flat(gate_up), dout.shape[1], flat(dout), flat(dgate_up))
        return dgate_up


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps) for x [N, H] and weight [H]."""
    return _Norm.apply(operand("x", x, (len(x), len(weight))), operand("weight", weight, (len(weight),)), eps)


def add_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + update and `norm` of it, all [N, H]."""
    shape = (len(x), len(weight))
    x, update = operand("x", x, shape), operand("update", update, shape)
    return _AddNorm.apply(x, update, operand("weight", weight, shape[1:]), eps)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [N, I] for gate and up side by side in gate_up [N, 2 I]."""
    return _Gated.apply(operand("gate_up", gate_up, tuple(gate_up.shape), 2 * WIDTH))
