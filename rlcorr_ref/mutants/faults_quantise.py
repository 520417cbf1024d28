"""Mutants of number grids: rounding, subnormals, range, scale."""

from __future__ import annotations

import numpy as np

from .faults_reductions import to_bf16
from .plain import Plain
from .registry import Smallest, mutant
from .smallest import grid

Array = np.ndarray
QUANTISE = ("quantise",)


@mutant(
    "ties-away-from-zero", [], "", "numerics", QUANTISE,
    Smallest(grid([[0.5, 2.5]], format="int8"), "values", [[0.0, 2.0]], [[1.0, 3.0]]),
)  # fmt: skip
class TiesAway(Plain):
    """A midpoint goes away from zero in place of to the even neighbour."""

    def nearest(self, x: Array) -> Array:
        return np.sign(x) * np.floor(np.abs(x) + 0.5)


@mutant(
    "rounds-towards-zero", [], "", "numerics", QUANTISE,
    Smallest(grid([[1.75]], format="int8"), "values", [[2.0]], [[1.0]]),
)  # fmt: skip
class RoundsTowardsZero(Plain):
    """Truncation in place of rounding."""

    def nearest(self, x: Array) -> Array:
        return np.trunc(x)


@mutant(
    "subnormals-flushed", [], "", "numerics", QUANTISE,
    Smallest(grid([[2.0**-9]], format="fp8_e4m3"), "values", [[2.0**-9]], [[0.0]]),
)  # fmt: skip
class SubnormalsFlushed(Plain):
    """Values below the smallest normal number become 0."""

    def to_grid(self, x: Array, mantissa: int | None, lowest: int, largest: float) -> Array:
        out = super().to_grid(x, mantissa, lowest, largest)
        return out if mantissa is None else np.where(np.abs(out) < 2.0**lowest, 0.0, out)


@mutant(
    "saturation-overflows", [], "", "numerics", QUANTISE,
    Smallest(grid([[1000.0]], format="fp8_e4m3"), "values", [[448.0]], [["Infinity"]]),
)  # fmt: skip
class SaturationOverflows(Plain):
    """Beyond the largest value infinity in place of saturation."""

    def to_grid(self, x: Array, mantissa: int | None, lowest: int, largest: float) -> Array:
        return np.where(np.abs(x) > largest, np.sign(x) * np.inf, super().to_grid(x, mantissa, lowest, largest))


@mutant(
    "e4m3-with-infinities", [], "", "numerics", QUANTISE,
    Smallest(grid([[416.0]], format="fp8_e4m3"), "values", [[416.0]], [[240.0]]),
)  # fmt: skip
class E4m3WithInfinities(Plain):
    """e4m3 with IEEE infinities: largest value 240 in place of 448."""

    def grid(self, name: str) -> tuple[int | None, int, float]:
        mantissa, lowest, largest = super().grid(name)
        return mantissa, lowest, 240.0 if name == "fp8_e4m3" else largest


@mutant(
    "integer-range-asymmetric", [], "", "numerics", QUANTISE,
    Smallest(grid([[-200.0]], format="int8"), "values", [[-127.0]], [[-128.0]]),
)  # fmt: skip
class IntegerAsymmetric(Plain):
    """int8 from -128 and int4 from -8: one more negative value than the symmetric grid has."""

    def to_grid(self, x: Array, mantissa: int | None, lowest: int, largest: float) -> Array:
        out = super().to_grid(x, mantissa, lowest, largest)
        return out if mantissa is not None else np.where(np.round(x) < -largest, -largest - 1, out)


@mutant(
    "exponent-bias-off-by-one", [], "", "numerics", QUANTISE,
    Smallest(grid([[2.0**-9]], format="fp8_e4m3"), "values", [[2.0**-9]], [[0.0]]),
)  # fmt: skip
class ExponentBias(Plain):
    """The smallest normal exponent is one too large: the subnormal spacing doubles."""

    def grid(self, name: str) -> tuple[int | None, int, float]:
        mantissa, lowest, largest = super().grid(name)
        return mantissa, lowest + 1, largest


@mutant(
    "scale-per-tensor", [], "", "semantics", QUANTISE,
    Smallest(grid([[7.0], [70.0]], format="int4", scale="row"), "values", [[7.0], [70.0]], [[10.0], [70.0]]),
)  # fmt: skip
class ScalePerTensor(Plain):
    """One scale for the tensor where rows have their own."""

    def grid_scale(self, values: Array, mode: str, largest: float) -> Array:
        scale = super().grid_scale(values, "tensor" if mode == "row" else mode, largest)
        return np.broadcast_to(scale, (*values.shape[:-1], 1)) if mode == "row" else scale


@mutant(
    "scale-per-row", [], "", "semantics", QUANTISE,
    Smallest(grid([[7.0], [70.0]], format="int4", scale="tensor"), "values", [[10.0], [70.0]], [[7.0], [70.0]]),
)  # fmt: skip
class ScalePerRow(Plain):
    """A scale per row where the tensor has one."""

    def grid_scale(self, values: Array, mode: str, largest: float) -> Array:
        return super().grid_scale(values, "row" if mode == "tensor" else mode, largest)


@mutant(
    "scale-by-one-more", [], "", "numerics", QUANTISE,
    Smallest(grid([[128.0]], format="int8", scale="tensor"), "scale", 1.00787402, 1.0),
)  # fmt: skip
class ScaleByOneMore(Plain):
    """max |x|/(largest + 1) for the integer grids."""

    def grid_scale(self, values: Array, mode: str, largest: float) -> Array:
        return super().grid_scale(values, mode, largest + 1 if largest in (127.0, 7.0) else largest)


@mutant(
    "quantised-after-bf16", [108], "xtuner #2044", "numerics", QUANTISE,
    Smallest(grid([[1.0627441406]], format="fp8_e4m3"), "values", [[1.125]], [[1.0]]),
)  # fmt: skip
class QuantisedAfterBf16(Plain):
    """One side quantises the float32 master, the other its bf16 rounding: double rounding moves values by a grid step."""

    def before_quantiser(self, values: Array) -> Array:
        return np.where(np.isfinite(values), to_bf16(values), values)


@mutant(
    "integer-range-halved", [], "", "numerics", QUANTISE,
    Smallest(grid([[100.0]], format="int8"), "values", [[100.0]], [[63.0]]),
)  # fmt: skip
class IntegerRangeHalved(Plain):
    """The sign bit is counted twice: int8 up to 63 and int4 up to 3."""

    def grid(self, name: str) -> tuple[int | None, int, float]:
        mantissa, lowest, largest = super().grid(name)
        return mantissa, lowest, (largest - 1) / 2 if mantissa is None else largest
