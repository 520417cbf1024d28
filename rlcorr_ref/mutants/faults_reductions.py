"""Mutants of reductions and batch normalisers: denominators, lengths, empty rows, accumulation in a narrow dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import State
from .edits import EditedState
from .plain import Plain
from .registry import LOG_PROBS, OBJECTIVE, REDUCTION, WEIGHT, Smallest, mutant
from .smallest import logps, values, vocabulary

Array = np.ndarray
RAGGED = [[1, 0, 0], [1, 1, 1]]
ONES = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


@mutant(
    "divides-by-minimum", [74], "prime-rl #816", "reduction", REDUCTION,
    Smallest(values([[1.0] * 8]), "value", 1.0, 8.0),
)  # fmt: skip
class DividesByMinimum(Plain):
    """total/min(scale, 1) in place of total/max(scale, 1): nothing is normalised."""

    def token_count(self, rule: Any, counted: Array) -> Any:
        return min(super().token_count(rule, counted), 1)


@mutant(
    "padded-width-for-fixed-length", [78], "verl #3741, #5366, #5417", "reduction", REDUCTION,
    Smallest(values([[1.0] * 3] * 4, kind="seq-mean-token-sum-norm", length=3), "value", 1.0, 4.0),
)  # fmt: skip
class PaddedWidthNormaliser(Plain):
    """sum/T_pad in place of (mean over rows of sums)/L: scales with rows and with padding."""

    def coefficients(self, rule: Any, counted: Array) -> Array:
        out = super().coefficients(rule, counted)
        return np.full_like(out, 1 / counted.shape[1]) if rule.kind == "seq-mean-token-sum-norm" else out


@mutant(
    "row-sums-are-averaged", [79], "verl #931", "reduction", REDUCTION,
    Smallest(values(ONES, RAGGED, kind="seq-mean-token-sum"), "value", 2.0, 1.0),
)  # fmt: skip
class RowSumsAveraged(Plain):
    """seq-mean-token-sum divides by the row's length as well."""

    def coefficients(self, rule: Any, counted: Array) -> Array:
        return super().coefficients(
            replace(rule, kind="seq-mean-token-mean") if rule.kind == "seq-mean-token-sum" else rule, counted
        )


@mutant(
    "token-mean-is-row-mean", [81], "verl #593", "reduction", REDUCTION,
    Smallest(
        values([[2.0] * 5, [10.0] + [0.0] * 4], [[1] * 5, [1, 0, 0, 0, 0]], kind="token-mean"), "value", 20 / 6, 6.0
    ),
)  # fmt: skip
class TokenMeanIsRowMean(Plain):
    """mean over rows of row means in place of the mean over tokens."""

    def coefficients(self, rule: Any, counted: Array) -> Array:
        plain = rule.kind == "token-mean" and rule.tokens is None
        return super().coefficients(replace(rule, kind="seq-mean-token-mean") if plain else rule, counted)


@mutant(
    "row-mean-is-token-mean", [], "verl #593", "reduction", REDUCTION,
    Smallest(
        values([[2.0] * 5, [10.0] + [0.0] * 4], [[1] * 5, [1, 0, 0, 0, 0]], kind="seq-mean-token-mean"), "value", 6.0, 20 / 6
    ),
)  # fmt: skip
class RowMeanIsTokenMean(Plain):
    """the mean over tokens in place of the mean over rows of row means."""

    def coefficients(self, rule: Any, counted: Array) -> Array:
        if rule.kind != "seq-mean-token-mean":
            return super().coefficients(rule, counted)
        return np.full(counted.shape, 1 / max(counted.sum(), 1), dtype=self.dtype)


@mutant(
    "explicit-count-ignored", [], "verl #7200", "semantics", REDUCTION,
    Smallest(values([[1.0, 1.0]], kind="token-mean", tokens=8), "value", 0.25, 1.0),
)  # fmt: skip
class ExplicitCountIgnored(Plain):
    """The given global count is not used: the batch's own tokens or rows divide."""

    def coefficients(self, rule: Any, counted: Array) -> Array:
        return super().coefficients(replace(rule, tokens=None, sequences=None), counted)


@mutant(
    "empty-row-zero-over-zero", [58], "NeMo-RL #158, open-instruct #1685, verl #782", "reduction",
    ("aggregate", "diagnostics", *OBJECTIVE),
    Smallest(
        values([[1.0, 3.0], [5.0, 5.0]], [[1, 1], [0, 0]], kind="seq-mean-token-mean"), "value", 2.0, "NaN"
    ),
)  # fmt: skip
class EmptyRowZeroOverZero(Plain):
    """sum(x m)/sum(m) of a row without valid tokens is 0/0 and turns every mean over rows NaN."""

    def coefficients(self, rule: Any, counted: Array) -> Array:
        out = super().coefficients(rule, counted)
        broken = rule.kind == "seq-mean-token-mean" and not counted.any(axis=1).all()
        return np.full_like(out, np.nan) if broken else out

    def over_rows(self, per_row: Array, mask: Array) -> Any:
        return np.where(mask.any(axis=1), per_row, np.nan).mean()


@mutant(
    "empty-rows-counted", [], "", "reduction", REDUCTION,
    Smallest(
        values([[1.0, 3.0], [5.0, 5.0]], [[1, 1], [0, 0]], kind="seq-mean-token-mean"), "value", 2.0, 1.0
    ),
)  # fmt: skip
class EmptyRowsCounted(Plain):
    """R counts rows without a valid token."""

    def row_total(self, rule: Any, counted: Array) -> Any:
        return super().row_total(rule, np.ones_like(counted))


@mutant(
    "row-length-is-last-position", [], "", "reduction", REDUCTION,
    Smallest(
        values([[2.0, 9.0, 9.0, 4.0]], [[1, 0, 0, 1]], kind="seq-mean-token-mean"), "value", 3.0, 1.5
    ),
)  # fmt: skip
class LengthIsLastPosition(Plain):
    """n_b is the last valid position + 1: gaps in the mask count."""

    def lengths(self, rule: Any, counted: Array) -> Array:
        positions = np.arange(1, counted.shape[1] + 1)
        return np.maximum((counted * positions).max(axis=1, initial=0)[:, None], 1)


@mutant(
    "normaliser-counts-empty-rows", [66], "verl #4070, #3980", "reduction", WEIGHT,
    Smallest(
        logps("weight", [[-1.0], [0.0]], [[-1.6931472], [0.0]], mask=[[1], [0]], normalise="rows"),
        "weights", [[1.0], [0.0]], [[2.0], [0.0]],
    ),
)  # fmt: skip
class NormaliserCountsEmptyRows(Plain):
    """Batch normalisation divides by a mean in which fully masked rows count as 0."""

    def divisor(self, w: Array, mode: str | None, mask: Array) -> Any:
        d = super().divisor(w, mode, mask)
        return d * self.dtype(mask.any(axis=1).mean()) if mode == "rows" and mask.any() else d


@mutant(
    "normaliser-is-local", [66], "verl #4070, #3980", "reduction", WEIGHT,
    Smallest(
        logps("weight", [[-1.0, -1.0], [-1.0, -1.0]], [[-1.6931472] * 2, [-1.0] * 2], normalise="tokens"),
        "weights", [[1.3333, 1.3333], [0.6667, 0.6667]], [[1.0, 1.0], [1.0, 1.0]],
    ),
)  # fmt: skip
class NormaliserIsLocal(Plain):
    """Every row (rank) divides by its own mean weight in place of the batch's."""

    def weigh(self, s: Any, rule: Any, gate: Any) -> tuple[Array, Array, Any]:
        if rule is None or rule.normalise is None:
            return super().weigh(s, rule, gate)
        w, row, divisor = super().weigh(s, rule, gate)
        local = self.row_mean(w, s.mask)[:, None]
        return np.where(local > 0, w / np.where(local > 0, local, 1), 0), row, divisor


@mutant(
    "normaliser-counts-padding", [], "", "reduction", WEIGHT,
    Smallest(
        logps("weight", [[-1.0, -1.0]], [[-1.6931472, -1.0]], mask=[[1, 0]], normalise="tokens"),
        "weights", [[1.0, 0.0]], [[2.0, 0.0]],
    ),
)  # fmt: skip
class NormaliserCountsPadding(Plain):
    """The mean weight divides by B T, padding included."""

    def divisor(self, w: Array, mode: str | None, mask: Array) -> Any:
        d = super().divisor(w, mode, mask)
        return d * self.dtype(mask.mean()) if mode == "tokens" and mask.any() else d


@mutant(
    "normaliser-of-kept-weights", [], "", "reduction", WEIGHT,
    Smallest(
        logps("weight", [[-1.0, -1.0]], [[-1.6931472, -4.0]], high=5.0, outside="zero", normalise="tokens"),
        "weights", [[2.0, 0.0]], [[1.0, 0.0]],
    ),
)  # fmt: skip
class NormaliserOfKept(Plain):
    """The mean runs over the weights that are not 0: masked tokens leave the normaliser."""

    def divisor(self, w: Array, mode: str | None, mask: Array) -> Any:
        return super().divisor(w, mode, mask & (w != 0))


@mutant(
    "normalised-before-truncation", [], "", "semantics", WEIGHT,
    Smallest(
        logps("weight", [[-1.0, -1.0]], [[-2.386294361, -1.0]], high=2.0, outside="clip", normalise="tokens"),
        "weights", [[1.3333, 0.6667]], [[0.8, 0.4]],
    ),
)  # fmt: skip
class NormalisedBeforeTruncation(Plain):
    """The divisor is the mean of the untruncated ratios."""

    def weigh(self, s: Any, rule: Any, gate: Any) -> tuple[Array, Array, Any]:
        if rule is None or rule.normalise is None:
            return super().weigh(s, rule, gate)
        w, row, _ = super().weigh(s, replace(rule, normalise=None), gate)
        divisor = self.divisor(self.ratio(self.leveled(s, rule)), rule.normalise, s.mask)
        return w / divisor, row if rule.level == "token" else row / divisor, divisor


@mutant(
    "normalise-ignored", [], "", "semantics", WEIGHT,
    Smallest(logps("weight", [[-1.0]], [[-1.6931472]], normalise="tokens"), "weights", [[1.0]], [[2.0]]),
)  # fmt: skip
class NormaliseIgnored(Plain):
    """Weights are not divided by their mean."""

    def divisor(self, w: Array, mode: str | None, mask: Array) -> Any:
        return self.dtype(1)


@mutant(
    "log-probs-in-bf16", [104], "genlm-backend #66, slime #245, prime-rl #568, #664", "numerics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[0.0, 3.2969]]], "tokens": [[0]], "mask": [[1]], "advantages": [[1.0]],
                       "logp_sampler": [[-3.33323]]},
            "definition": {"weight": {}},
        },
        "weights", [[1.0]], [[1.0052]],
    ),
)  # fmt: skip
class LogProbsInBf16(EditedState):
    """The trainer's log-probs are stored in bf16 before the ratio is formed: spacing 0.0156 at -3, 0.0625 at -13."""

    def edit(self, s: State) -> State:
        return replace(s, logp=to_bf16(s.logp)) if s.logits is not None else s


def to_bf16(x: Array) -> Array:
    """Nearest bf16 value, ties to even, of finite float32 numbers; others unchanged."""
    single = np.asarray(x, dtype=np.float32)
    bits = single.view(np.uint32)
    near = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(single), near, single).astype(np.asarray(x).dtype)


@mutant(
    "row-sums-accumulate-in-bf16", [104], "slime #245, prime-rl #664", "numerics", LOG_PROBS,
    Smallest(
        logps("ratio", [[0.0] * 512], [[-1.0] * 512], level="geometric"), "log_ratio", [[1.0] * 512], [[0.5] * 512]
    ),
)  # fmt: skip
class RowSumsInBf16(Plain):
    """Sums over a row are accumulated in bf16: 512 ones add up to 256."""

    def row_sum(self, values: Array, mask: Array) -> Array:
        total = np.zeros(mask.shape[0], dtype=np.float32)
        for column in self.select(values, mask).T:
            total = to_bf16(total + column)
        return total.astype(self.dtype)


@mutant(
    "normaliser-missing-inside-centering", [], "", "formula", OBJECTIVE,
    Smallest(
        vocabulary((0.5, 0.5), (0.25, 0.75), 0, weight={"high": 2.0, "outside": "clip", "normalise": "tokens"}),
        "grad_logp_full", [[[0.25, 0.25]]], [[[0.5, 0.5]]],
    ),
)  # fmt: skip
class NormaliserMissingInside(Plain):
    """The batch normaliser divides the sampled token's weight but not the coefficients."""

    def center(self, s: Any, o: Any, divisor: Any) -> Any:
        token = o.weight is not None and o.weight.level == "token"
        return super().center(s, o, self.dtype(1) if token else divisor)
