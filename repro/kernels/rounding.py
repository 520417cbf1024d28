"""Rounding one row to a simulated number format inside a fused kernel.

Exactly the numbers of ``repro.quantise.quantise``, but for the sign of an integer format's zeros.

A format travels into compiled code as a `Rounding`; `rounding` of None leaves rows alone. These kernels are compiled
with strict floating point: reassociation would simplify the additions that do the rounding away.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from repro.kernels import kernel
from repro.quantise import IntegerGrid, grid

_EXPONENT_BITS = np.int32(0x7F800000)
_MAGNITUDE_BITS = np.int32(0x7FFFFFFF)
_TINY = np.finfo(np.float32).tiny


class Rounding(NamedTuple):
    """``active``; ``integer`` grid or floating point; largest value; smallest power of two with full mantissa; the factor
    whose product with an entry's power of two leaves float32 exactly the format's mantissa."""

    active: bool
    integer: bool
    largest: np.float32
    smallest: np.float32
    factor: np.float32


def rounding(name: str | None) -> Rounding:
    """The format called ``name`` (see ``repro.quantise``); None is the identity."""
    if name is None:
        return Rounding(False, False, np.float32(1), np.float32(1), np.float32(1))
    fmt = grid(name)
    if isinstance(fmt, IntegerGrid):
        return Rounding(True, True, np.float32(fmt.largest), np.float32(1), np.float32(1.5 * 2.0**23))
    factor = np.float32(1.5 * 2.0 ** (23 - fmt.mantissa_bits))
    return Rounding(True, False, np.float32(fmt.largest), np.float32(2.0**fmt.smallest_exponent), factor)


@kernel
def round_row(row, powers, fmt):
    """Quantise and dequantise ``row`` [N] float32 in place with one absmax scale. ``powers`` [>= N] int32 is scratch.

    The largest magnitude is found on the bit patterns, whose order is that of the magnitudes and which puts NaN on top:
    a NaN makes the scale, and so the whole row, NaN.
    """
    active, integer, largest, smallest, factor = fmt
    if not active:
        return
    n = row.shape[0]
    bits = row.view(np.int32)
    top = np.int32(0)
    for j in range(n):
        magnitude = bits[j] & _MAGNITUDE_BITS
        if magnitude > top:
            top = magnitude
    powers[0] = top
    scale = powers[:1].view(np.float32)[0] / largest
    if scale < _TINY:
        scale = _TINY
    for j in range(n):
        value = row[j] / scale
        value = largest if value > largest else value
        row[j] = -largest if value < -largest else value
    if integer:
        for j in range(n):
            row[j] = ((row[j] + factor) - factor) * scale
        return
    for j in range(n):
        powers[j] = bits[j] & _EXPONENT_BITS
    power = powers.view(np.float32)
    for j in range(n):
        p = power[j]
        shift = (smallest if p < smallest else p) * factor
        row[j] = ((row[j] + shift) - shift) * scale
