"""Eight float32 lanes as one value inside numba kernels: explicit vector code where the compiler's own does not do.

    acc = splat(np.float32(0))
    for j in range(0, n, 8):
        acc = acc + load(x, j) * load(y, j)
    dot = hsum(acc)

Loops over a few dozen entries of scratch arrays are not vectorised by LLVM at a gain: it cannot rule out that the
arrays overlap, and the checks and the scalar rest cost as much as the loop. Values of this type live in registers, on
every processor (a machine without 256-bit registers uses two of them). ``load``, ``spread`` and ``store`` take a flat
contiguous float32 array and an offset in elements, unaligned; nothing checks bounds.

A product and the sum that follows it may be contracted to one rounding; nothing else is reassociated, and NaN and
infinities are ordinary values. ``exp`` is within 1 ulp on [-87, 88] and clamps its argument to that interval.
"""

from __future__ import annotations

import operator

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload, register_model

WIDTH = 8
_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTEGERS = ir.VectorType(_FLOAT, WIDTH), ir.VectorType(_INT, WIDTH)
_ARRAY = types.Array(types.float32, 1, "C")
_CONTRACT = ("contract",)


class Lanes(types.Type):
    def __init__(self):
        super().__init__(name="float32x8")


lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, _VECTOR)


def _flat(array: types.Type) -> types.Type:
    """``array`` if it is a flat contiguous float32 array, otherwise an error while compiling."""
    if not (
        isinstance(array, types.Array) and array.dtype == types.float32 and array.ndim == 1 and array.layout == "C"
    ):
        raise TypingError(f"array: expected a contiguous float32 array of one dimension, got {array}")
    return array


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [float(np.float32(value))] * WIDTH)


def _splat(builder, value, vector):
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INT, WIDTH), [0] * WIDTH))


def _address(context, builder, array, offset):
    data = cgutils.create_struct_proxy(_ARRAY)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), _VECTOR.as_pointer())


@intrinsic
def load(typingctx, array, offset):
    """array[offset : offset + 8]."""

    def generate(context, builder, signature, args):
        return builder.load(_address(context, builder, *args), align=4, typ=_VECTOR)

    return lanes(_flat(array), types.intp), generate


@intrinsic
def store(typingctx, array, offset, value):
    """array[offset : offset + 8] = value."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _address(context, builder, *args[:2]), align=4)
        return context.get_dummy_value()

    return types.none(_flat(array), types.intp, lanes), generate


@intrinsic
def prefetch(typingctx, array, offset):
    """Ask for the cache line of array[offset]; changes nothing, whatever the offset."""

    def generate(context, builder, signature, args):
        data = cgutils.create_struct_proxy(_ARRAY)(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _INT, _INT, _INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # To read (0), into the nearest cache (3), data (1).
        builder.call(function, [address, *(ir.Constant(_INT, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.none(_flat(array), types.intp), generate


@intrinsic
def splat(typingctx, value):
    """One float32 in all lanes."""

    def generate(context, builder, signature, args):
        return _splat(builder, args[0], _VECTOR)

    return lanes(types.float32), generate


@intrinsic
def spread(typingctx, array, offset):
    """array[offset] in all lanes."""

    def generate(context, builder, signature, args):
        data = cgutils.create_struct_proxy(_ARRAY)(context, builder, args[0]).data
        return _splat(builder, builder.load(builder.gep(data, [args[1]])), _VECTOR)

    return lanes(_flat(array), types.intp), generate


@intrinsic
def keep(typingctx, value, count, other):
    """The first ``count`` lanes of ``value``, the others from ``other``; count may be below 0 or above 8."""

    def generate(context, builder, signature, args):
        numbers = ir.Constant(_INTEGERS, list(range(WIDTH)))
        count = _splat(builder, builder.trunc(args[1], _INT), _INTEGERS)
        return builder.select(builder.icmp_signed("<", numbers, count), args[0], args[2])

    return lanes(lanes, types.intp, lanes), generate


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def larger(typingctx, a, b):
    """Per lane ``a if a > b else b``; a NaN in ``a`` is dropped."""

    def generate(context, builder, signature, args):
        return _larger(builder, *args)

    return lanes(lanes, lanes), generate


@intrinsic
def above(typingctx, a, b):
    """Per lane 1 if a > b else 0."""

    def generate(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args), _constant(1.0), _constant(0.0))

    return lanes(lanes, lanes), generate


def _fold(builder, value, combine):
    for step in (4, 2, 1):
        order = [(i + step) % WIDTH for i in range(WIDTH)]
        value = combine(value, builder.shuffle_vector(value, value, ir.Constant(_INTEGERS, order)))
    return builder.extract_element(value, ir.Constant(_INT, 0))


@intrinsic
def hsum(typingctx, value):
    """Sum of the lanes, float32."""

    def generate(context, builder, signature, args):
        return _fold(builder, args[0], builder.fadd)

    return types.float32(lanes), generate


@intrinsic
def hmax(typingctx, value):
    """Largest lane, float32."""

    def generate(context, builder, signature, args):
        return _fold(builder, args[0], lambda a, b: _larger(builder, a, b))

    return types.float32(lanes), generate


@intrinsic
def exp(typingctx, value):
    """e ** value per lane: 2^n from the exponent bits times a degree 7 polynomial in the rest of the argument."""

    def generate(context, builder, signature, args):
        def multiply_add(a, b, c):
            return builder.fadd(builder.fmul(a, b, flags=_CONTRACT), c, flags=_CONTRACT)

        # Both comparisons are false for NaN, which so passes through to the result.
        x = builder.select(builder.fcmp_ordered("<", args[0], _constant(-87.0)), _constant(-87.0), args[0])
        x = builder.select(builder.fcmp_ordered(">", x, _constant(88.0)), _constant(88.0), x)
        # Adding 1.5 * 2^23 rounds to an integer n and leaves n in the low mantissa bits.
        shift = _constant(12582912.0)
        shifted = multiply_add(x, _constant(1.4426950408889634), shift)
        n = builder.fsub(shifted, shift)
        # log(2) in two parts, the first short enough for n * part to be exact.
        rest = multiply_add(n, _constant(-0.693359375), x)
        rest = multiply_add(n, _constant(2.12194440e-4), rest)
        series = _constant(1 / 5040)
        for factor in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
            series = multiply_add(series, rest, _constant(factor))
        exponent = builder.shl(builder.bitcast(shifted, _INTEGERS), ir.Constant(_INTEGERS, [23] * WIDTH))
        exponent = builder.add(exponent, ir.Constant(_INTEGERS, [127 << 23] * WIDTH))
        return builder.fmul(series, builder.bitcast(exponent, _VECTOR))

    return lanes(lanes), generate


def _arithmetic(symbol, instruction):
    @intrinsic
    def apply(typingctx, a, b):
        def generate(context, builder, signature, args):
            return getattr(builder, instruction)(*args, flags=_CONTRACT)

        return lanes(lanes, lanes), generate

    @overload(symbol, inline="always")
    def implementation(a, b):
        if isinstance(a, Lanes) and isinstance(b, Lanes):
            return lambda a, b: apply(a, b)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")
