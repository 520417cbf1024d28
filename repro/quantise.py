"""Simulated low-precision number formats: quantise to the format's grid and back, in float32.

The values are exactly those a hardware format can hold (times a float32 scale); the arithmetic stays float32. That
isolates the part of the trainer/sampler mismatch that comes from rounding, reproducibly and on any machine; it does
not imitate the accumulation order of a real low-precision kernel.

Scales: one per slice along the last dimension (weights [out, in]: per output row; activations [..., hidden]: per
token; keys and values [..., head, D]: per token and head), absmax / largest value of the format. Rounding is to
nearest, ties to even; values beyond the largest saturate.

Formats: OCP 8-bit floating point (e4m3 without infinities, e5m2), OCP microscaling e2m1 ("fp4"), symmetric integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class FloatGrid(NamedTuple):
    """A small floating-point format: mantissa bits, exponent of the smallest normal number, largest finite value."""

    mantissa_bits: int
    smallest_exponent: int
    largest: float


class IntegerGrid(NamedTuple):
    """A symmetric signed integer grid -largest..largest (the asymmetric most negative value is not used)."""

    largest: float


FORMATS: dict[str, FloatGrid | IntegerGrid] = {
    "fp8_e4m3": FloatGrid(3, -6, 448.0),
    "fp8_e5m2": FloatGrid(2, -14, 57344.0),
    "fp4_e2m1": FloatGrid(1, 0, 6.0),
    "int8": IntegerGrid(127.0),
    "int4": IntegerGrid(7.0),
}
_EXPONENT_BITS = 0x7F800000


def grid(name: str) -> FloatGrid | IntegerGrid:
    """The format called ``name``; an unknown name is a ValueError that lists the known ones."""
    if name not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]


def round_to_grid(x: Tensor, name: str) -> Tensor:
    """The nearest value of the format for each float32 entry: ties to even, saturating, NaN stays NaN. No scaling."""
    if x.dtype != torch.float32:
        raise ValueError(f"x: expected torch.float32, got {x.dtype}; quantisation is simulated in float32")
    fmt = grid(name)
    x = x.clamp(-fmt.largest, fmt.largest)
    if isinstance(fmt, IntegerGrid):
        return x.round()
    # 2^e of each entry from its exponent bits, not below the smallest normal (subnormals share its spacing 2^(e - m)).
    # Adding 1.5 * 2^(23 - m + e) leaves float32 no bits finer than 2^(e - m), so the hardware rounds to the grid.
    power = (x.view(torch.int32) & _EXPONENT_BITS).view(torch.float32).clamp_min(2.0**fmt.smallest_exponent)
    shift = power * (1.5 * 2.0 ** (23 - fmt.mantissa_bits))
    return (x + shift) - shift


def quantise(x: Tensor, name: str) -> Tensor:
    """Quantise and dequantise with one absmax scale per slice along the last dimension; an all-zero slice stays zero."""
    largest = grid(name).largest
    absmax = x.abs().amax(dim=-1, keepdim=True)
    # The floor keeps 0/0 out of all-zero slices and is far below any weight or activation in use.
    scale = (absmax / largest).clamp_min(torch.finfo(torch.float32).tiny)
    return round_to_grid(x / scale, name) * scale


def quantise_weights(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """A copy of the weights in which every linear layer inside the blocks (``*_proj``) is on the format's grid.

    Embeddings, norms and the output head stay in float32, as production quantisers leave them.
    """
    return {
        key: quantise(value.detach(), name) if key.endswith("_proj.weight") else value.detach().clone()
        for key, value in state.items()
    }
