"""Mutants of diagnostics: sums and means over the wrong tokens, rows, micro-batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from .edits import Uncleaned, last_valid
from .faults_metrics import at, metrics
from .plain import Plain
from .registry import METRIC, Smallest, mutant
from .smallest import chosen

Array = np.ndarray


@mutant(
    "clamp-rate-counts-padding", [27], "prime-rl #1329", "mask", METRIC,
    Smallest(
        metrics([[-1.0] * 4], [[-1.0, -1.0, -26.0, -31.0]], mask=[[1, 1, 0, 0]], weight={"high": 2.0, "outside": "clip"}),
        at("fraction_high"), 0.0, 1.0,
    ),
)  # fmt: skip
class ClampRateCountsPadding(Uncleaned):
    """The numerator of a rate counts all positions, the denominator only the valid ones."""

    def token_mean(self, values: Array, mask: Array) -> Any:
        return values.sum() / max(mask.sum(), 1) if values.dtype == bool else super().token_mean(values, mask)


@mutant(
    "rejected-rows-by-first-token", [38], "verl #4544", "semantics", METRIC,
    Smallest(
        metrics([[-1.0, -1.0, -1.0], [-1.0] * 3], [[-3.0, -1.0, -1.0], [-1.0] * 3],
                rejection=[{"statistic": "ratio", "reduce": "token", "high": 2.0}]),
        at("fraction_rejected_rows"), 0.0, 0.5,
    ),
)  # fmt: skip
class RejectedByFirstToken(Plain):
    """Rows count as rejected where their first token is, whatever the others are."""

    def rejected_rows(self, s: Any, keep: Array) -> Array:
        return ~keep[:, 0]


@mutant(
    "k3-mixes-row-and-token", [53], "TRL #6713", "formula", METRIC,
    Smallest(metrics([[-1.0, -1.0]], [[-1.3, -0.8]]), at("kl_k3"), 0.03430, 0.00127),
)  # fmt: skip
class K3MixesLevels(Plain):
    """s - 1 - log r_t with s the row's mean ratio and r_t the token's: may be negative."""

    def kl_estimates(self, d: Array, mask: Array) -> dict[str, Any]:
        row = self.spread(self.row_mean(d, mask), mask)
        return {**super().kl_estimates(d, mask), "kl_k3": self.token_mean(np.expm1(row) - d, mask)}


@mutant(
    "metric-is-mean-of-row-means", [62], "TRL #3248, #6380, NeMo-RL #230", "reduction", METRIC,
    Smallest(
        metrics([[-2.0] * 9, [-12.0] + [0.0] * 8], [[-1.0] * 9, [-1.0] + [0.0] * 8], mask=[[1] * 9, [1] + [0] * 8]),
        at("kl_k1"), 2.0, 6.0,
    ),
)  # fmt: skip
class MeanOfRowMeans(Plain):
    """The mean over rows (ranks, micro-batches) of their means; an empty one counts as 0."""

    def token_mean(self, values: Array, mask: Array) -> Any:
        return self.row_mean(values, mask).mean()


@mutant(
    "metrics-by-loss-normaliser", [63], "NeMo-RL #2683", "reduction", ("objective",),
    Smallest(
        chosen([[-1.0] * 8] * 2, aggregation={"kind": "seq-mean-token-sum"}), at("ratio_mean"), 1.0, 8.0
    ),
)  # fmt: skip
class MetricsByLossNormaliser(Plain):
    """Token metrics divide by the loss's normaliser: off by the mean length under row reductions."""

    def diagnostics_of(self, s: Any, *args: Any) -> dict[str, Any]:
        out = super().diagnostics_of(s, *args)
        factor = self.coefficients(s.objective.aggregation, s.mask)[s.mask].sum()
        names = ("kl_k1", "kl_k2", "kl_k3", "ratio_mean", "weight_mean", "clip_fraction")
        return {name: value * factor if name in names else value for name, value in out.items()}


@mutant(
    "metric-counts-rows", [64], "RLinf #1475", "shape", METRIC,
    Smallest(metrics([[-2.0] * 4], [[-1.0] * 4]), at("kl_k1"), 1.0, 4.0),
)  # fmt: skip
class MetricCountsRows(Plain):
    """A sum over [B, T] divided by the count of a [B, 1] mask."""

    def token_mean(self, values: Array, mask: Array) -> Any:
        return self.select(values, mask).sum() / max(mask.any(axis=1).sum(), 1)


@mutant(
    "metric-of-last-micro-batch", [65], "verl #2259", "reduction", METRIC,
    Smallest(metrics([[-2.0], [-4.0]], [[-1.0], [-1.0]]), at("kl_k1"), 2.0, 3.0),
)  # fmt: skip
class MetricOfLast(Plain):
    """The logged value is overwritten by every micro-batch (row); the last one remains."""

    def token_mean(self, values: Array, mask: Array) -> Any:
        last = np.flatnonzero(mask.any(axis=1))[-1:]
        return super().token_mean(values[last], mask[last])


@mutant(
    "metric-scaled-twice", [65], "verl #4711", "reduction", METRIC,
    Smallest(metrics([[-2.0], [-4.0]], [[-1.0], [-1.0]]), at("kl_k1"), 2.0, 1.0),
)  # fmt: skip
class MetricScaledTwice(Plain):
    """Pieces that already carry 1/M are averaged over the M micro-batches (rows) again."""

    def token_mean(self, values: Array, mask: Array) -> Any:
        return super().token_mean(values, mask) / max(mask.any(axis=1).sum(), 1)


@mutant(
    "logged-kl-overwritten-by-reward", [67], "slime #2114", "numerics", METRIC,
    Smallest(
        metrics([[-1.0, -1.2, -1.4]], [[-0.9, -1.0, -1.1]]), at("kl_k1"), 0.2, 0.31333
    ),
)  # fmt: skip
class LoggedKlOverwritten(Plain):
    """kl *= -0.1 and kl[last] += 1 in place, for the reward, before it is logged."""

    def kl_estimates(self, d: Array, mask: Array) -> dict[str, Any]:
        stored = 0.1 * d + last_valid(mask)
        return {**super().kl_estimates(d, mask), "kl_k1": self.token_mean(stored, mask)}


@mutant(
    "row-metrics-count-empty-rows", [], "", "reduction", METRIC,
    Smallest(
        metrics([[-2.0], [0.0]], [[-1.0], [0.0]], mask=[[1], [0]]), at("log_ppl_diff_mean"), 1.0, 0.5
    ),
)  # fmt: skip
class RowMetricsCountEmpty(Plain):
    """Means over rows include rows without a valid token."""

    def over_rows(self, per_row: Array, mask: Array) -> Any:
        return per_row.mean()


@mutant(
    "padding-in-extremes", [], "", "mask", METRIC,
    Smallest(
        metrics([[-1.0, -9.0]], [[-1.5, -9.0]], mask=[[1, 0]]), at("ratio_min"), 1.6487, 1.0
    ),
)  # fmt: skip
class PaddingInExtremes(Plain):
    """Minimum and maximum run over the padded array: a ratio of 1 (or 0) from the padding."""

    def extremes(self, values: Array, mask: Array) -> tuple[Any, Any]:
        return values.min(), values.max()


@mutant(
    "ess-with-epsilon", [], "", "numerics", METRIC,
    Smallest(
        metrics([[-21.0, -21.0]], [[-1.0, -1.0]], weight={"high": 2.0, "outside": "clip"}), at("ess"), 1.0, 34.242
    ),
)  # fmt: skip
class EssWithEpsilon(Plain):
    """1/mean((w/(mean w + 1e-8))^2): weights near the epsilon give more than 1, all-zero weights infinity."""

    def ess(self, w: Array) -> Any:
        return 1 / ((w / (w.mean() + 1e-8)) ** 2).mean()
