"""Witnesses of the functions that need no token records: log-softmax, advantages, number grids.

Number grids are decoded from their bit patterns and compared as exact fractions.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mpmath import mp, mpf

from ..derive.mp_inputs import log_softmax, number


def log_softmax_rows(inputs: dict, settings: dict) -> dict:
    """log p_v = z_v/T - log sum_S exp(z/T); score (1[v = y] - p_v)/T, 0 off the support."""
    temperature = mpf(settings.get("temperature", 1.0))
    out: dict[str, list] = {"logp": []}
    if "tokens" in inputs:
        out.update(logp_token=[], score=[])
    for b, row in enumerate(inputs["logits"]):
        for values in out.values():
            values.append([])
        for t, logits in enumerate(row):
            support = inputs.get("support")
            inside = [True] * len(logits) if support is None else [bool(s) for s in support[b][t]]
            # a logit of -Infinity has probability 0 on both paths
            logp = log_softmax([number(z) for z in logits], inside, temperature)
            out["logp"][b].append(logp)
            if "tokens" in inputs:
                y = inputs["tokens"][b][t]
                out["logp_token"][b].append(logp[y])
                score = [((v == y) - mp.exp(x)) / temperature for v, x in enumerate(logp)]
                out["score"][b].append(score)
    return out


def advantages(inputs: dict, settings: dict) -> dict:
    """Group advantages [B]: reward minus mean, over std + eps, or minus the mean of the others."""
    kind, eps, ddof = settings.get("kind", "mean"), mpf(settings.get("eps", 1e-6)), settings.get("ddof", 1)
    rewards, out = [number(r) for r in inputs["rewards"]], []
    for reward, group in zip(rewards, inputs["groups"], strict=True):
        members = [r for r, g in zip(rewards, inputs["groups"], strict=True) if g == group]
        n = len(members)
        mean = mp.fsum(members) / n
        if kind == "mean":
            out.append(reward - mean)
        elif kind == "leave_one_out":
            out.append(reward - (mp.fsum(members) - reward) / (n - 1) if n > 1 else reward)
        else:
            variance = mp.fsum((r - mean) ** 2 for r in members) / max(n - ddof, 1)
            out.append(mpf(0) if reward == mean else (reward - mean) / (mp.sqrt(variance) + eps))
    return {"advantages": out}


# format -> (exponent bits, mantissa bits, bias, values of the top exponent that are numbers); None = integers up to n
GRIDS: dict[str, Any] = {
    "fp8_e4m3": (4, 3, 7, 7),
    "fp8_e5m2": (5, 2, 15, 0),
    "fp4_e2m1": (2, 1, 1, 2),
    "int8": 127,
    "int4": 7,
}


def grid_values(name: str) -> list[Fraction]:
    """All non-negative values of a format in order, decoded from their bit patterns; index parity is bit parity."""
    if isinstance(GRIDS[name], int):
        return [Fraction(i) for i in range(GRIDS[name] + 1)]
    exponent_bits, mantissa_bits, bias, top = GRIDS[name]
    values = []
    for code in range(2 ** (exponent_bits + mantissa_bits)):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        if exponent == 2**exponent_bits - 1 and mantissa >= top:
            continue  # NaN or infinity
        scale = Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)
        values.append(((2**mantissa_bits if exponent else 0) + mantissa) * scale)
    return values


def quantise(inputs: dict, settings: dict) -> dict:
    """Nearest grid value of x/s by comparing exact fractions with every value of the format, ties to the even code.

    The scale is the correctly rounded double max|x|/largest, as the wire format defines it; x/s is rounded to a double too.
    """
    grid, rows = grid_values(settings["format"]), inputs["values"]
    mode = settings.get("scale", "unit")
    largest = float(grid[-1])

    def scale_of(values: list[float]) -> float:
        top = max(map(abs, values))
        return top / largest if top > 0 else 1.0

    if mode == "tensor":
        common = scale_of([x for row in rows for x in row])
        scales, scale = [common] * len(rows), common
    elif mode == "row":
        scales = [scale_of(row) for row in rows]
        scale = [[s] for s in scales]
    else:
        scales, scale = [1.0] * len(rows), 1.0

    def nearest(x: float) -> float:
        size = abs(Fraction(x))
        index = min(range(len(grid)), key=lambda i: (abs(grid[i] - size), i % 2))
        return float(grid[index]) * (-1.0 if x < 0 else 1.0)

    return {"values": [[nearest(x / s) * s for x in row] for row, s in zip(rows, scales, strict=True)], "scale": scale}
