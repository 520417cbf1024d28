"""Mutants of bands and gates: bounds, what happens outside, signs, ties, statistics."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .edits import EditedSettings
from .plain import Plain
from .registry import OBJECTIVE, RAISES, WEIGHT, Smallest, mutant
from .smallest import logps

Array = np.ndarray
TIS = {"high": 2.0, "outside": "clip"}


@mutant(
    "truncation-as-gate", [23], "TRL #7120", "formula", WEIGHT,
    Smallest(
        logps("weight", [[math.log(0.4)]], [[math.log(0.8)]], low=0.8, outside="clip"), "weights", [[0.8]], [[1.6]]
    ),
)  # fmt: skip
class TruncationAsGate(Plain):
    """w = clip(rho)/rho in place of clip(rho): a lower bound raises weights above 1."""

    def weight(self, rule: Any, d: Array, advantages: Array, logn: Array, logq: Array) -> tuple[Array, Array]:
        w, same = super().weight(rule, d, advantages, logn, logq)
        if rule.outside != "clip":
            return w, same
        return w / self.ratio(d), np.zeros_like(same)


@mutant(
    "log-of-lower-bound", [23], "TRL #7120", "numerics", WEIGHT,
    Smallest(logps("weight", [[-1.0]], [[-2.0]], low=0.0, **TIS), "weights", [[2.0]], RAISES),
)  # fmt: skip
class LogOfLowerBound(Plain):
    """The band is taken in log space: log(0) of an absent lower bound is a domain error."""

    def bounds(self, rule: Any, advantages: Array) -> tuple[Array, Array]:
        math.log(rule.low or 0.0)
        return super().bounds(rule, advantages)


@mutant(
    "bounds-are-offsets", [26], "SkyRL #1928", "formula", WEIGHT,
    Smallest(
        logps("weight", [[math.log(0.06), math.log(0.2), math.log(0.7)]], [[math.log(0.2), math.log(0.2), math.log(0.1)]],
              low=0.0, high=5.0, outside="clip"),
        "weights", [[0.3, 1.0, 5.0]], [[1.0, 1.0, 6.0]],
    ),
)  # fmt: skip
class BoundsAreOffsets(Plain):
    """Bounds low and high are read as 1 - low and 1 + high."""

    def bounds(self, rule: Any, advantages: Array) -> tuple[Array, Array]:
        low, high = super().bounds(rule, advantages)
        return 1 - low, 1 + high


@mutant(
    "zero-read-as-clip", [], "", "semantics", WEIGHT,
    Smallest(logps("weight", [[-1.0]], [[-2.0]], high=2.0, outside="zero"), "weights", [[0.0]], [[2.0]]),
)  # fmt: skip
class ZeroReadAsClip(Plain):
    """Outside the band the nearest bound in place of 0: masking becomes truncation."""

    def outside(self, rule: Any, rho: Array, low: Array, high: Array) -> Array:
        return np.where(rho <= low, low, high) if rule.outside else rho


@mutant(
    "clip-read-as-zero", [], "", "semantics", WEIGHT,
    Smallest(logps("weight", [[-1.0]], [[-2.0]], **TIS), "weights", [[2.0]], [[0.0]]),
)  # fmt: skip
class ClipReadAsZero(Plain):
    """Outside the band 0 in place of the nearest bound: truncation becomes masking."""

    def outside(self, rule: Any, rho: Array, low: Array, high: Array) -> Array:
        return np.zeros_like(rho) if rule.outside else rho


@mutant(
    "one-sided-truncation", [], "", "semantics", WEIGHT,
    Smallest(
        logps("weight", [[-3.0]], [[-1.0]], low=0.5, high=2.0, outside="clip"), "weights", [[0.5]], [[0.1353]]
    ),
)  # fmt: skip
class OneSided(Plain):
    """The lower bound is never used: min(rho, high) in place of clip(rho, low, high)."""

    def bounds(self, rule: Any, advantages: Array) -> tuple[Array, Array]:
        low, high = super().bounds(rule, advantages)
        return np.full_like(low, -np.inf), high


@mutant(
    "weight-one-in-band-ignored", [], "", "semantics", WEIGHT,
    Smallest(
        logps("weight", [[-1.0]], [[-1.5]], high=2.0, outside="zero", inside="one"), "weights", [[1.0]], [[1.6487]]
    ),
)  # fmt: skip
class InsideOneIgnored(Plain):
    """The ratio in the band where weight 1 is asked for: one IcePop for another."""

    def weight(self, rule: Any, *rest: Any) -> tuple[Array, Array]:
        return super().weight(replace(rule, inside="ratio"), *rest)


@mutant(
    "ratio-in-band-ignored", [], "", "semantics", WEIGHT,
    Smallest(logps("weight", [[-1.0]], [[-1.5]], high=2.0, outside="zero"), "weights", [[1.6487]], [[1.0]]),
)  # fmt: skip
class InsideRatioIgnored(Plain):
    """Weight 1 in the band where the ratio is asked for."""

    def weight(self, rule: Any, *rest: Any) -> tuple[Array, Array]:
        return super().weight(replace(rule, inside="one"), *rest)


@mutant(
    "zero-advantage-is-negative", [], "", "semantics", ("weight", "head_coefficients", "diagnostics", *OBJECTIVE),
    Smallest(
        logps("weight", [[-1.0]], [[-1.5]], a=[[0.0]], outside="zero", positive={"high": 1.2}, negative={"low": 0.8}),
        "weights", [[0.0]], [[1.6487]],
    ),
)  # fmt: skip
class ZeroAdvantageIsNegative(Plain):
    """The rule for A < 0 holds at A = 0 as well."""

    def bounds(self, rule: Any, advantages: Array) -> tuple[Array, Array]:
        return super().bounds(rule, np.where(advantages == 0, -1, advantages))


@mutant(
    "sign-ignored", [], "", "semantics", ("weight", "head_coefficients", "reject", "diagnostics", *OBJECTIVE),
    Smallest(
        logps("weight", [[-1.0]], [[-2.0]], a=[[-1.0]], sign="positive", **TIS), "weights", [[1.0]], [[2.0]]
    ),
)  # fmt: skip
class SignIgnored(EditedSettings):
    """A rule for one sign of the advantage acts on both."""

    def edit(self, settings: dict[str, Any], function: str) -> None:
        rules = [settings, *settings.get("rejection", ()), settings.get("weight"), settings.get("gate")]
        for rule in rules:
            if rule:
                rule.pop("sign", None)


@mutant(
    "sign-bands-exchanged", [], "", "semantics", ("weight", "head_coefficients", "diagnostics", *OBJECTIVE),
    Smallest(
        logps("weight", [[-1.0]], [[-1.5]], outside="zero", positive={"high": 1.2}, negative={"low": 0.8}),
        "weights", [[0.0]], [[1.6487]],
    ),
)  # fmt: skip
class SignBandsExchanged(Plain):
    """The band for A >= 0 is applied to A < 0 and the other way round."""

    def bounds(self, rule: Any, advantages: Array) -> tuple[Array, Array]:
        return super().bounds(rule, np.where(advantages >= 0, -1, 1))


@mutant(
    "probability-band-is-ratio-band", [], "", "formula", ("weight", "diagnostics", *OBJECTIVE),
    Smallest(
        logps("weight", [[math.log(0.02)]], [[math.log(0.004)]], statistic="tv", high=0.2, outside="zero"),
        "weights", [[5.0]], [[0.0]],
    ),
)  # fmt: skip
class TvIsRatio(Plain):
    """A band on |p - q| is applied to p/q."""

    def band_statistic(self, rule: Any, rho: Array, logn: Array, logq: Array) -> Array:
        return rho


@mutant(
    "probability-difference-unsigned", [], "", "formula", ("weight", "diagnostics", *OBJECTIVE),
    Smallest(
        logps("weight", [[math.log(0.1)]], [[math.log(0.5)]], statistic="tv_signed", low=None, high=0.2, outside="zero"),
        "weights", [[0.2]], [[0.0]],
    ),
)  # fmt: skip
class TvUnsigned(Plain):
    """|p - q| in place of p - q: the band stops tokens that move back as well."""

    def band_statistic(self, rule: Any, rho: Array, logn: Array, logq: Array) -> Array:
        return np.abs(super().band_statistic(rule, rho, logn, logq))


@mutant(
    "gate-replaces-weight", [], "", "semantics", WEIGHT,
    Smallest(
        logps("weight", [[-1.0]], [[-1.5]], gate={"high": 2.0}), "weights", [[1.6487]], [[1.0]]
    ),
)  # fmt: skip
class GateReplacesWeight(Plain):
    """w = 1[gate] in place of f(rho) 1[gate]."""

    def weigh(self, s: Any, rule: Any, gate: Any) -> tuple[Array, Array, Any]:
        return super().weigh(s, None if gate is not None else rule, gate)


@mutant(
    "gate-at-the-weights-level", [], "", "semantics", WEIGHT,
    Smallest(
        logps("weight", [[-1.0, -2.0]], [[-2.0, -1.0]], gate={"level": "geometric", "high": 1.5}),
        "weights", [[2.7183, 0.3679]], [[0.0, 0.3679]],
    ),
)  # fmt: skip
class GateAtWeightsLevel(Plain):
    """The gate looks at the ratio of the weight's level in place of its own."""

    def weigh(self, s: Any, rule: Any, gate: Any) -> tuple[Array, Array, Any]:
        own = gate if gate is None or rule is None else replace(gate, level=rule.level)
        return super().weigh(s, rule, own)


@mutant(
    "closed-band-is-open", [], "", "semantics", ("weight", "reject", "diagnostics", *OBJECTIVE),
    Smallest(logps("weight", [[-1.0]], [[-1.0]], high=1.0, outside="zero"), "weights", [[1.0]], [[0.0]]),
)  # fmt: skip
class ClosedIsOpen(EditedSettings):
    """A ratio exactly at a closed bound is dropped."""

    def edit(self, settings: dict[str, Any], function: str) -> None:
        rules = [settings.get("weight"), settings.get("gate"), *settings.get("rejection", ())]
        rules += [settings] if function in ("weight", "reject") and "rejection" not in settings else []
        for rule in rules:
            if rule is not None:
                rule["closed"] = False


@mutant(
    "open-band-is-closed", [], "", "semantics", ("weight", "reject", "diagnostics", *OBJECTIVE),
    Smallest(
        logps("weight", [[-1.0]], [[-1.0]], high=1.0, outside="zero", closed=False), "weights", [[0.0]], [[1.0]]
    ),
)  # fmt: skip
class OpenIsClosed(EditedSettings):
    """A ratio exactly at an open bound is kept."""

    def edit(self, settings: dict[str, Any], function: str) -> None:
        for rule in (settings, settings.get("weight"), settings.get("gate"), *settings.get("rejection", ())):
            if rule:
                rule.pop("closed", None)
