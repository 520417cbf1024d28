"""Mutants of micro-batches and ranks: whose count divides, what an empty part contributes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contract import Objective
from .plain import Plain
from .plain_stages import wire_rule
from .registry import LOG_PROBS, Smallest, mutant
from .smallest import chosen, logps, shards

Array = np.ndarray
SHARD = ("shard",)


def split(
    lengths: list[int], a: list[float], parts: list[list[int]], denominators: str = "global", **definition: Any
) -> dict:
    """Rows of the given lengths, one advantage per row, log p = -1: loss per token = a."""
    width = max(lengths)
    mask = [[int(t < n) for t in range(width)] for n in lengths]
    p = [[-1.0] * width for _ in lengths]
    return shards(chosen(p, mask=mask, a=[[x] * width for x in a], **definition), parts, denominators)


UNEVEN = split([4, 1], [1.0, 5.0], [[0], [1]])


@mutant(
    "mean-of-micro-batch-means", [72, 76, 80],
    "open-instruct #1161, prime-rl #583, TRL #5890, verl #7200, #7321, #6957", "reduction", SHARD,
    Smallest(UNEVEN, "loss", 1.8, 3.0),
)  # fmt: skip
class MeanOfMeans(Plain):
    """(1/M) sum_j S_j/c_j over the non-empty parts in place of sum S_j/sum c_j: each part divides by its own count."""

    def shard_counts(self, mask: Array, shards: list[Array], rows: Array) -> Array:
        own = np.zeros_like(mask)
        own[rows] = mask[rows]
        return own

    def share(self, mask: Array, shards: list[Array], local: bool) -> Any:
        parts = sum(bool(mask[rows].any()) for rows in shards)
        return super().share(mask, shards, local) if local else self.dtype(1 / max(parts, 1))


@mutant(
    "mean-over-ranks-with-empty", [73], "prime-rl #2358, #2562, #1957, #1960", "reduction", SHARD,
    Smallest(split([4, 1, 0], [1.0, 5.0, 0.0], [[0], [1], [2]]), "loss", 1.8, 2.0),
)  # fmt: skip
class MeanOverRanks(MeanOfMeans):
    """mean over all ranks of S_r/c_r, an empty rank counting as 0, because gradients are averaged over ranks."""

    def share(self, mask: Array, shards: list[Array], local: bool) -> Any:
        return self.dtype(1 / len(shards))


@mutant(
    "sum-of-micro-batch-means", [80], "verl #7200, #7321, #6957", "reduction", SHARD,
    Smallest(UNEVEN, "loss", 1.8, 6.0),
)  # fmt: skip
class SumOfMeans(MeanOfMeans):
    """Counts are missing, so each micro-batch falls back to its own; the means are added up."""

    def share(self, mask: Array, shards: list[Array], local: bool) -> Any:
        return self.dtype(1)


@mutant(
    "counts-of-another-window", [75], "TRL #5619, #6024", "reduction", SHARD,
    Smallest(split([2, 2], [1.0, 1.0], [[0], [1]]), "loss", 1.0, 2.0),
)  # fmt: skip
class CountsOfAnotherWindow(Plain):
    """The denominator counts the tokens of half as many micro-steps as are accumulated."""

    def shard_counts(self, mask: Array, shards: list[Array], rows: Array) -> Array:
        window = np.zeros_like(mask)
        for part in shards[: (len(shards) + 1) // 2]:
            window[part] = mask[part]
        return window if window.any() else mask


@mutant(
    "sample-mean-factor-on-token-mean", [82], "slime #987, #990, #919", "reduction", SHARD,
    Smallest(split([2, 2, 2, 2], [1.0] * 4, [[0, 1], [2, 3]]), "loss", 1.0, 0.5),
)  # fmt: skip
class SampleMeanFactor(Plain):
    """loss * micro-batches/batch size although the loss is already divided by tokens."""

    def share(self, mask: Array, shards: list[Array], local: bool) -> Any:
        return super().share(mask, shards, local) * self.dtype(len(shards) / mask.shape[0])


@mutant(
    "local-read-as-global", [], "", "semantics", SHARD,
    Smallest(split([4, 1], [1.0, 5.0], [[0], [1]], "local"), "loss", 3.0, 1.8),
)  # fmt: skip
class LocalReadAsGlobal(Plain):
    """Global counts where each shard is asked to count for itself."""

    def share(self, mask: Array, shards: list[Array], local: bool) -> Any:
        return self.dtype(1)

    def shard_rule(self, rule: Any, mask: Array, shards: list[Array], rows: Array, local: bool) -> dict:
        return super().shard_rule(rule, mask, shards, rows, False)


@mutant(
    "selection-per-micro-batch", [56], "AReaL #1546", "reduction", SHARD,
    Smallest(
        shards(
            chosen([[-1.0] * 4] * 2, [[-1.0] * 4, [-1.0, -3.0, -3.0, -3.0]], a=[[1.0] * 4, [3.0] * 4],
                   rejection=[{"statistic": "ratio", "reduce": "token", "high": 2.0}]),
            [[0], [1]],
        ),
        "loss", 0.875, 2.0,
    ),
)  # fmt: skip
class SelectionPerMicroBatch(Plain):
    """sum_j (n_j/N) A_j/k_j: each part divides by its retained count k_j and is weighted by its original n_j."""

    def shard_case(self, x: dict[str, Array], settings: Any) -> dict[str, Any]:
        o = Objective.from_dict(settings.get("definition"))
        if not o.rejection or settings.get("denominators", "global") == "local" or o.aggregation.kind != "token-mean":
            return super().shard_case(x, settings)
        definition = o.to_dict()
        for rule in definition["rejection"]:
            rule["denominator"] = "shrunk"
        definition["aggregation"] = wire_rule(o.aggregation)
        mask, losses, grad = x["mask"] != 0, [], np.zeros_like(x["logits"])
        for rows in settings["shards"]:
            part = self.objective_case({name: value[rows] for name, value in x.items()}, definition)
            share = mask[rows].sum() / mask.sum()
            losses.append(share * part["loss"])
            grad[rows] = share * part["grad_logits"]
        return {"losses": np.array(losses), "loss": np.sum(losses), "grad_logits": grad}


@mutant(
    "first-part-empty-drops-sampler", [61], "SkyRL #176", "semantics", LOG_PROBS,
    Smallest(
        logps("ratio", [[0.0], [-1.0]], [[0.0], [-1.5]], mask=[[0], [1]]), "log_ratio", [[0.0], [0.5]], [[0.0], [0.0]]
    ),
)  # fmt: skip
class FirstPartEmpty(Plain):
    """`if parts[0]:` decides for all: when the first row has no token, every sampler log-prob is dropped (w = 1)."""

    def log_ratio(self, s: Any, numerator: str | None) -> Array:
        d = super().log_ratio(s, numerator)
        return d if s.mask[:1].any() else np.zeros_like(d)
