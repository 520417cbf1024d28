"""Mutants of diagnostics: the wrong quantity, after truncation, in the wrong direction."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .plain import Plain
from .registry import METRIC, Smallest, mutant
from .smallest import logps

Array = np.ndarray
PPO = {"kind": "ppo_clip"}


def metrics(p: Any, q: Any, **more: Any) -> dict:
    """A diagnostics case."""
    return logps("diagnostics", p, q, **more)


def at(name: str) -> str:
    return f"diagnostics.{name}"


@mutant(
    "kl-of-clamped-log-ratio", [27, 35], "prime-rl #1329, OpenRLHF 3a9815c5", "semantics", METRIC,
    Smallest(metrics([[-31.0, -1.0]], [[-1.0, -1.0]]), at("kl_k1"), 15.0, 10.0),
)  # fmt: skip
class KlOfClamped(Plain):
    """KL metrics of the log-ratio clamped to +-20 in place of the raw one."""

    def metric_log_ratio(self, s: Any, rule: Any) -> Array:
        return np.clip(super().metric_log_ratio(s, rule), -20, 20)


@mutant(
    "mismatch-of-sampler-with-itself", [30], "verl #4070", "semantics", METRIC,
    Smallest(metrics([[-1.5]], [[-1.0]]), at("kl_k1"), 0.5, 0.0),
)  # fmt: skip
class MismatchOfItself(Plain):
    """Two policies: mismatch metrics compare log q with old := log q and are 0 for ever."""

    def metric_log_ratio(self, s: Any, rule: Any) -> Array:
        return super().metric_log_ratio(s if s.logo is not None else replace(s, logp=s.logq), rule)


@mutant(
    "mismatch-against-current-policy", [], "verl #4070", "semantics", METRIC,
    Smallest(metrics([[-1.0]], [[-1.0]], o=[[-1.5]]), at("kl_k1"), 0.5, 0.0),
)  # fmt: skip
class MismatchAgainstCurrent(Plain):
    """Three policies: mismatch metrics compare the sampler with the trainer in place of the anchor."""

    def metric_log_ratio(self, s: Any, rule: Any) -> Array:
        return super().metric_log_ratio(replace(s, logo=None), rule)


@mutant(
    "clip-fraction-wrong-way", [31], "TRL #3032", "formula", METRIC,
    Smallest(
        metrics([[-1.0, -1.6931]], [[-1.4055, -1.0]], a=[[1.0, -1.0]], surrogate=PPO), at("clip_fraction"), 1.0, 0.0
    ),
)  # fmt: skip
class ClipFractionWrongWay(Plain):
    """Counts tokens where the unclipped objective is the smaller one: r > 1 + eps with A > 0 is not counted."""

    def clipped_tokens(self, s: Any, o: Any, clipped: Array) -> Array:
        if o.surrogate.kind not in ("ppo_clip", "gspo"):
            return clipped
        r = self.ratio(self.surrogate_ratio(s, o.surrogate))
        return r * s.advantages < np.clip(r, *self.clip_range(o.surrogate)) * s.advantages


@mutant(
    "dual-clip-fraction-zero", [32], "verl #972", "formula", METRIC,
    Smallest(
        metrics([[-1.0]], [[-1.0 - math.log(10.0)]], a=[[-1.0]], surrogate={**PPO, "dual": 3.0}),
        at("clip_fraction"), 1.0, 0.0,
    ),
)  # fmt: skip
class DualFractionZero(Plain):
    """gt(min(L3, C1), L3) can never be true: tokens stopped by the dual bound are not counted."""

    def clipped_tokens(self, s: Any, o: Any, clipped: Array) -> Array:
        return self.surrogate_terms(s, replace(o.surrogate, dual=None))[2]


@mutant(
    "cispo-clip-fraction-zero", [33], "open-instruct #1735", "formula", METRIC,
    Smallest(
        metrics([[-1.0, -1.0]], [[-1.6931, -1.0]], surrogate={"kind": "cispo"}), at("clip_fraction"), 0.5, 0.0
    ),
)  # fmt: skip
class CispoFractionZero(Plain):
    """Both branches of the truncated loss are the same, so none is ever larger: fraction 0."""

    def clipped_tokens(self, s: Any, o: Any, clipped: Array) -> Array:
        return np.zeros_like(clipped) if o.surrogate.kind == "cispo" else clipped


@mutant(
    "exported-ratio-clamped", [34], "prime-rl #2973", "semantics", ("ratio",),
    Smallest(logps("ratio", [[-5.0]], [[-30.0]]), "ratio", [[7.2005e10]], [[4.8517e8]]),
)  # fmt: skip
class ExportedRatioClamped(Plain):
    """ratio = exp(clip(d, +-20)) beside the raw log-ratio d."""

    def ratio_outputs(self, d: Array, mask: Array) -> dict[str, Any]:
        out = super().ratio_outputs(d, mask)
        return {**out, "ratio": self.select(self.ratio(np.clip(d, -20, 20)), mask)}


@mutant(
    "kl-of-the-ratio", [35], "OpenRLHF feeb0283", "formula", METRIC,
    Smallest(metrics([[-1.0, -2.0]], [[-1.0, -2.0]]), at("kl_k1"), 0.0, -1.0),
)  # fmt: skip
class KlOfTheRatio(Plain):
    """mean(-ratio) in place of mean(-log ratio): -1 at zero drift."""

    def kl_estimates(self, d: Array, mask: Array) -> dict[str, Any]:
        return {**super().kl_estimates(d, mask), "kl_k1": self.token_mean(-np.exp(d), mask)}


@mutant(
    "ess-of-floored-weights", [36], "verl #5722", "semantics", METRIC,
    Smallest(
        metrics([[math.log(0.0001), -1.0]], [[math.log(0.1), -1.0]], weight={"high": 2.0, "outside": "clip"}),
        at("ess"), 0.501, 0.9,
    ),
)  # fmt: skip
class EssOfFloored(Plain):
    """ESS of weights clamped to [1/cap, cap]: vanishing weights are hidden."""

    def ess_weights(self, weights: Array, rule: Any) -> Array:
        return weights if rule is None or rule.high is None else np.clip(weights, 1 / rule.high, rule.high)


@mutant(
    "ess-of-raw-ratios", [], "", "semantics", METRIC,
    Smallest(
        metrics([[-1.0, -1.0]], [[-4.0, -1.0]], weight={"high": 2.0, "outside": "clip"}), at("ess"), 0.9, 0.5494
    ),
)  # fmt: skip
class EssOfRaw(Plain):
    """ESS of the raw ratios in place of the applied weights."""

    def diagnostics_of(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        out = super().diagnostics_of(*args, **kwargs)
        return {**out, "ess": out["ess_raw"]} if "ess" in out else out


@mutant(
    "metrics-after-truncation", [37], "verl #6806, NeMo-RL #3900", "semantics", METRIC,
    Smallest(
        metrics([[-1.5, -1.0, -1.2]], [[-1.0, -3.5, -1.0]], weight={"high": 5.0, "outside": "clip"}),
        at("ratio_mean"), 4.5359, 2.1418,
    ),
)  # fmt: skip
class MetricsAfterTruncation(Plain):
    """Mean ratio and fraction above the cap of the truncated weights: the fraction is always 0."""

    def metric_ratio(self, s: Any, rule: Any, weights: Array) -> Array:
        return super().metric_ratio(s, rule, weights) if rule is None else weights


@mutant(
    "kl-metric-sign", [50], "ms-swift #7145", "formula", METRIC,
    Smallest(metrics([[-1.5]], [[-1.0]]), at("kl_k1"), 0.5, -0.5),
)  # fmt: skip
class KlMetricSign(Plain):
    """mean(log p - log q) over samples of q, labelled KL(p || q): minus KL(q || p)."""

    def kl_estimates(self, d: Array, mask: Array) -> dict[str, Any]:
        return {**super().kl_estimates(d, mask), "kl_k1": self.token_mean(d, mask)}


@mutant(
    "k3-metric-reversed", [], "", "formula", METRIC,
    Smallest(metrics([[-1.0]], [[-1.5]]), at("kl_k3"), 0.1487, 0.1065),
)  # fmt: skip
class K3MetricReversed(Plain):
    """k3 on the reciprocal ratio and its reverse exchanged."""

    def kl_estimates(self, d: Array, mask: Array) -> dict[str, Any]:
        out = super().kl_estimates(d, mask)
        return {**out, "kl_k3": out["kl_k3_reverse"], "kl_k3_reverse": out["kl_k3"]}


@mutant(
    "chi-square-without-minus-one", [], "", "formula", METRIC,
    Smallest(metrics([[-1.0]], [[-1.0]]), at("chi2_token"), 0.0, 1.0),
)  # fmt: skip
class ChiSquareWithoutOne(Plain):
    """E[w^2] in place of E[w^2] - 1."""

    def chi_square(self, log_ratio: Array) -> Array:
        return np.exp(2 * log_ratio)


@mutant(
    "chi-square-sign", [], "", "formula", METRIC,
    Smallest(metrics([[-1.0]], [[-1.5]]), at("chi2_token"), 1.7183, -1.7183),
)  # fmt: skip
class ChiSquareSign(Plain):
    """1 - E[w^2]."""

    def chi_square(self, log_ratio: Array) -> Array:
        return -np.expm1(2 * log_ratio)
