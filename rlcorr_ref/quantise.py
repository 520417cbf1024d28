"""Number grids of quantised samplers, bit-exact: fp8 e4m3 and e5m2, fp4 e2m1, int8, int4.

    quantise-dequantise:  x -> grid(x / scale) * scale,    round to nearest, ties to even, saturating at the largest value
    scale "unit"    1
    scale "tensor"  max |x| / largest grid value
    scale "row"     the same along the last axis (per output channel, per token, per token and head)

e4m3 is the OCP "fn" format (no infinities, largest 448), e5m2 keeps IEEE exponents (largest finite 57344), e2m1 is
0, .5, 1, 1.5, 2, 3, 4, 6 (OCP Microscaling v1.0, section 5.3.3); int8 and int4 are symmetric (127 and 7).
"""

from __future__ import annotations

import numpy as np

from .errors import ContractError, check_choice

# format: (mantissa bits, smallest normal exponent, largest value); None mantissa = integers
FORMATS: dict[str, tuple[int | None, int, float]] = {
    "fp8_e4m3": (3, -6, 448.0),
    "fp8_e5m2": (2, -14, 57344.0),
    "fp4_e2m1": (1, 0, 6.0),
    "int8": (None, 0, 127.0),
    "int4": (None, 0, 7.0),
}


def to_grid(x: np.ndarray, fmt: str) -> np.ndarray:
    """Nearest value of the grid, elementwise, ties to even, saturating; float64 in and out, NaN is refused."""
    check_choice("format", fmt, FORMATS)
    mantissa, lowest, largest = FORMATS[fmt]
    if np.isnan(x).any():
        raise ContractError("values: expected numbers, got NaN")
    if mantissa is None:
        step = np.ones_like(x)
    else:
        # Spacing of the grid around x: 2^(exponent - mantissa bits), constant below the smallest normal exponent.
        exponent = np.maximum(np.frexp(np.where(np.isfinite(x), x, 1.0))[1] - 1, lowest)
        step = np.ldexp(1.0, exponent - mantissa)
    with np.errstate(invalid="ignore"):
        rounded = np.where(np.isfinite(x), np.rint(x / step) * step, x)
    return np.clip(rounded, -largest, largest)


def quantise(x: np.ndarray, format: str, scale: str = "unit") -> tuple[np.ndarray, np.ndarray]:
    """Quantise-dequantise `x` [...] float64; returns (values [...], scale [..., 1] or a scalar array).

    A row of zeros has scale 1. Raises `ContractError` for an unknown format or scale, NaN, or a dtype other than float64.
    """
    x = np.asarray(x)
    check_choice("format", format, FORMATS)
    check_choice("scale", scale, ("unit", "row", "tensor"))
    if x.dtype != np.float64:
        raise ContractError(f"values: expected float64, got {x.dtype}")
    if scale == "unit":
        s = np.ones(())
    else:
        top = np.abs(x).max(axis=-1, keepdims=True) if scale == "row" else np.abs(x).max(initial=0.0)
        s = np.where(top > 0, top / FORMATS[format][2], 1.0)
    return to_grid(x / s, format) * s, s
