"""Mutants of levels: sums, means, runs, clamps, and values that land on the wrong axis."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import State
from .edits import EditedState, Uncleaned
from .plain import Plain
from .registry import LOG_PROBS, OBJECTIVE, RATIO, SURROGATE, WEIGHT, Smallest, mutant
from .smallest import chosen, logps

Array = np.ndarray
LEVEL = ("ratio", "weight", "surrogate", "reject", "diagnostics", *OBJECTIVE)
SEQUENCE = {"level": "sequence"}
GEOMETRIC = {"level": "geometric"}
LOG4 = math.log(4.0)


@mutant(
    "row-gate-on-token-ratio", [13], "TRL #7120", "numerics", WEIGHT,
    Smallest(
        logps("weight", [[-1.0] * 300], [[-0.643325] * 300], level="sequence", low=0.8, outside="clip"),
        "weights", [[0.8] * 300], [["Infinity"] * 300],
    ),
    dtype=np.float32,
)  # fmt: skip
class RowGateOnTokenRatio(Plain):
    """w_t = r_t clip(rho)/rho with rho the row's product, in place of clip(rho): unbounded on long rows."""

    def weigh(self, s: Any, rule: Any, gate: Any) -> tuple[Array, Array, Any]:
        w, row, divisor = super().weigh(s, rule, gate)
        if rule is None or rule.level == "token" or rule.outside != "clip":
            return w, row, divisor
        factor = self.ratio(self.log_ratio(s, rule.numerator)) / self.ratio(self.leveled(s, rule))
        return self.select(w * factor, s.mask), row * factor, divisor


@mutant(
    "sequence-is-geometric", [15], "TRL #5814, #5815, NeMo-RL #2269", "formula", LEVEL,
    Smallest(
        logps("ratio", [[-1.2] * 4], [[-1.0] * 4], **SEQUENCE), "ratio", [[0.4493] * 4], [[0.8187] * 4]
    ),
)  # fmt: skip
class SequenceIsGeometric(Plain):
    """exp(mean d) where the product exp(sum d) is meant."""

    def level(self, d: Array, level: str, mask: Array) -> Array:
        return super().level(d, "geometric" if level == "sequence" else level, mask)


@mutant(
    "geometric-is-sequence", [15], "TRL #5814, #5815, NeMo-RL #2269", "formula", LEVEL,
    Smallest(
        logps("ratio", [[-1.2] * 4], [[-1.0] * 4], **GEOMETRIC), "ratio", [[0.8187] * 4], [[0.4493] * 4]
    ),
)  # fmt: skip
class GeometricIsSequence(Plain):
    """exp(sum d) where the geometric mean exp(mean d) is meant."""

    def level(self, d: Array, level: str, mask: Array) -> Array:
        return super().level(d, "sequence" if level == "geometric" else level, mask)


@mutant(
    "arithmetic-mean-of-ratios", [16], "AReaL #1088", "formula", LEVEL,
    Smallest(
        logps("ratio", [[-1.0, -1.0 - LOG4]], [[-1.0 - LOG4, -1.0]], **GEOMETRIC), "ratio", [[1.0, 1.0]], [[2.125, 2.125]]
    ),
)  # fmt: skip
class ArithmeticMean(Plain):
    """mean of the ratios in place of exp of the mean log-ratio."""

    def level(self, d: Array, level: str, mask: Array) -> Array:
        if level != "geometric":
            return super().level(d, level, mask)
        return self.spread(np.log(self.row_mean(np.exp(d), mask)), mask)


@mutant(
    "row-decides-tokens-weigh", [16], "AReaL #1088", "semantics", WEIGHT,
    Smallest(
        logps("weight", [[-1.0, -1.0 - LOG4]], [[-1.0 - LOG4, -1.0]], **GEOMETRIC), "weights", [[1.0, 1.0]], [[4.0, 0.25]]
    ),
)  # fmt: skip
class RowDecidesTokensWeigh(Plain):
    """A row-level rule decides by the row's ratio and then applies each token's own ratio."""

    def weigh(self, s: Any, rule: Any, gate: Any) -> tuple[Array, Array, Any]:
        w, row, divisor = super().weigh(s, rule, gate)
        if rule is None or rule.level == "token":
            return w, row, divisor
        _, same = self.weight(rule, self.leveled(s, rule), s.advantages, s.numerator(rule.numerator), s.logq)
        factor = np.where(same, self.ratio(self.log_ratio(s, rule.numerator) - self.leveled(s, rule)), 1)
        return self.select(w * factor, s.mask), row * factor, divisor


@mutant(
    "one-clip-per-row", [17], "hands-on-modern-rl #75, reasoning-from-scratch #243", "formula", SURROGATE,
    Smallest(
        chosen([[math.log(0.11), math.log(0.09), math.log(0.15)]], [[math.log(0.1)] * 3], surrogate={"kind": "ppo_clip"}),
        "loss", -1.06667, -1.2,
    ),
)  # fmt: skip
class OneClipPerRow(Plain):
    """The token-level clip acts on one ratio per row, the product of its tokens' ratios."""

    def surrogate_ratio(self, s: Any, rule: Any) -> Array:
        d = super().surrogate_ratio(s, rule)
        return self.level(d, "sequence", s.mask) if rule.kind == "ppo_clip" else d


@mutant(
    "gspo-with-token-ratios", [], "", "formula", SURROGATE,
    Smallest(
        logps("surrogate", [[-1.0, -1.2]], [[-1.1, -1.1]], kind="gspo", eps_low=0.5, eps_high=0.5),
        "slope", [[-1.0, -1.0]], [[-1.1052, -0.9048]],
    ),
)  # fmt: skip
class GspoTokenRatios(Plain):
    """GSPO with each token's ratio in place of the row's geometric mean."""

    def surrogate_ratio(self, s: Any, rule: Any) -> Array:
        return super().surrogate_ratio(s, replace(rule, kind="ppo_clip"))


@mutant(
    "row-mean-b-by-b", [18], "ms-swift #6014", "shape", LEVEL,
    Smallest(
        logps("ratio", [[-1.0, -1.1], [-1.0, -9.0]], [[-1.1, -1.3], [-1.6, -1.0]], mask=[[1, 1], [1, 0]], **GEOMETRIC),
        "log_ratio", [[0.15, 0.15], [0.6, 0.0]], [[0.15, 0.3], [0.3, 0.0]],
    ),
)  # fmt: skip
class RowMeanBByB(Plain):
    """sums [B] / lengths [B, 1] = [B, B], silent against [B, T] when B = T."""

    def level(self, d: Array, level: str, mask: Array) -> Array:
        if level != "geometric":
            return super().level(d, level, mask)
        matrix = self.row_sum(d, mask) / self.row_count(mask)[:, None]
        return self.select(np.broadcast_to(matrix, mask.shape), mask)


@mutant(
    "row-values-on-columns", [19], "OpenRLHF #1250", "shape", LEVEL,
    Smallest(
        logps("ratio", [[-1.0, -1.0], [-1.0, -1.0]], [[-2.0, -4.0], [-11.0, -15.0]], **GEOMETRIC),
        "log_ratio", [[2.0, 2.0], [12.0, 12.0]], [[2.0, 12.0], [2.0, 12.0]],
    ),
)  # fmt: skip
class RowValuesOnColumns(Plain):
    """Row means [B] without the kept dimension: they broadcast along the last axis."""

    def spread(self, per_row: Array, mask: Array) -> Array:
        return self.select(np.broadcast_to(per_row[None, :], mask.shape), mask)


@mutant(
    "advantages-on-columns", [22], "prime-rl 8d77a2cd9, TRL 4db63af98", "shape", ("surrogate", *OBJECTIVE),
    Smallest(
        logps("surrogate", [[-1.0, -1.0]] * 2, [[-1.0, -1.0]] * 2, a=[[1.0, 1.0], [2.0, 2.0]]),
        "slope", [[-1.0, -1.0], [-2.0, -2.0]], [[-1.0, -2.0], [-1.0, -2.0]],
    ),
)  # fmt: skip
class AdvantagesOnColumns(EditedState):
    """Advantages [B] against ratios [B, T] without a new axis: aligned with T."""

    def edit(self, s: State) -> State:
        return replace(s, advantages=np.broadcast_to(s.advantages[:, 0], s.advantages.shape).copy())


@mutant(
    "padding-in-row-mean", [20], "AReaL #1346", "mask", LEVEL,
    Smallest(
        logps("ratio", [[-1.0] * 4], [[-2.0, -2.0, -11.0, -11.0]], mask=[[1, 1, 0, 0]], **GEOMETRIC),
        "log_ratio", [[1.0, 1.0, 0.0, 0.0]], [[5.5, 5.5, 0.0, 0.0]],
    ),
)  # fmt: skip
class PaddingInRowMean(Uncleaned):
    """The row's mean runs over all T positions, padding included."""

    def row_mean(self, values: Array, mask: Array) -> Array:
        return values.mean(axis=1)


@mutant(
    "row-mean-over-padded-width", [], "", "reduction", LEVEL,
    Smallest(
        logps("ratio", [[-1.0, -1.0]], [[-2.0, -5.0]], mask=[[1, 0]], **GEOMETRIC),
        "log_ratio", [[1.0, 0.0]], [[0.5, 0.0]],
    ),
)  # fmt: skip
class RowMeanOverWidth(Plain):
    """The row's sum is divided by the padded width T in place of its number of valid tokens."""

    def row_mean(self, values: Array, mask: Array) -> Array:
        return self.row_sum(values, mask) / self.dtype(mask.shape[1])


@mutant(
    "segments-merged", [], "", "semantics", RATIO,
    Smallest(
        logps("ratio", [[-1.0, -9.0, -3.0]], [[-2.0, -1.0, -2.0]], mask=[[1, 0, 1]], level="segment"),
        "log_ratio", [[1.0, 0.0, -1.0]], [[0.0, 0.0, 0.0]],
    ),
)  # fmt: skip
class SegmentsMerged(Plain):
    """Runs of valid tokens are joined across a gap: one mean per row."""

    def level(self, d: Array, level: str, mask: Array) -> Array:
        return super().level(d, "geometric" if level == "segment" else level, mask)


@mutant(
    "clamp-order-exchanged", [], "", "semantics", RATIO,
    Smallest(
        logps("ratio", [[-5.0, -27.0, -29.0]], [[-30.0, -5.0, -30.0]], level="sequence", log_clamp=20.0),
        "log_ratio", [[4.0] * 3], [[1.0] * 3],
    ),
)  # fmt: skip
class ClampOrderExchanged(Plain):
    """Tokens clamped before the row's reduction where the reduction is to be clamped, and the reverse."""

    def leveled(self, s: Any, rule: Any) -> Array:
        if getattr(rule, "log_clamp", None) is None:
            return super().leveled(s, rule)
        return super().leveled(s, replace(rule, clamp_order="aggregate" if rule.clamp_order == "token" else "token"))


@mutant(
    "built-in-clamp", [], "", "semantics", LOG_PROBS,
    Smallest(logps("ratio", [[-5.0]], [[-30.0]]), "log_ratio", [[25.0]], [[20.0]]),
)  # fmt: skip
class BuiltInClamp(Plain):
    """Every log-ratio is clamped to +-20 although the definition has no clamp."""

    def log_ratio(self, s: Any, numerator: str | None) -> Array:
        return np.clip(super().log_ratio(s, numerator), -20, 20)


@mutant(
    "clamp-ignored", [], "", "semantics", ("ratio", "weight", "reject", "head_coefficients", *OBJECTIVE),
    Smallest(logps("ratio", [[-5.0]], [[-30.0]], log_clamp=20.0), "log_ratio", [[20.0]], [[25.0]]),
)  # fmt: skip
class ClampIgnored(Plain):
    """The safety clamp of the definition is not applied."""

    def clamp(self, d: Array, bound: float | None) -> Array:
        return d
