"""exp of a float32 vector in place, written so that the compiler vectorises it (numba calls libm entry by entry).

x = k ln 2 + r with |r| <= ln(2)/2, exp(x) = 2^k P(r), P the degree-6 polynomial of Cephes ``expf``; largest error below
2 units in the last place. Arguments below -87 give exp(-87) (1.6e-38) and arguments above 88 exp(88): softmax and SiLU
need no more. NaN stays NaN.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_LOW, _HIGH = np.float32(-87.0), np.float32(88.0)
_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_MAGIC = np.float32(1.5 * 2.0**23)  # adding and subtracting it rounds to a whole number; needs strict additions
_P = tuple(
    np.float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
)
_ONE, _BIAS = np.float32(1), np.int32(127)


@njit(cache=True, fastmath={"contract"})
def exp_in_place(x, powers):
    """x[j] = exp(x[j]) for x [N] float32; ``powers`` [>= N] int32 is scratch."""
    n = x.shape[0]
    for j in range(n):
        value = x[j]
        value = _LOW if value < _LOW else value
        value = _HIGH if value > _HIGH else value
        k = (value * _LOG2E + _MAGIC) - _MAGIC
        r = (value - k * _LN2_HIGH) - k * _LN2_LOW
        p = _P[0]
        p = p * r + _P[1]
        p = p * r + _P[2]
        p = p * r + _P[3]
        p = p * r + _P[4]
        p = p * r + _P[5]
        x[j] = (p * r) * r + r + _ONE
        powers[j] = (np.int32(k) + _BIAS) << np.int32(23)
    power = powers.view(np.float32)
    for j in range(n):
        x[j] *= power[j]
