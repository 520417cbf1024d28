"""Trainer p against sampler q from token records: what a sampler's departure does to rollout correction, with intervals.

A record is one sampled token (columns of `COLUMNS` and two masses per head width k). With d = log p(y) - log q(y):

    abs_mean, abs_max   mean and largest |d|, nats          ratio_mean   mean of r = e^d (1 when p covers q)
    kl_k1, kl_k3        KL(q||p): mean of -d, of e^d - 1 - d; kl_coarse: KL of the head's tokens and one slot for the tail,
                        a lower bound of it (equal to it where the head is the vocabulary) without sampling noise in y
    chi2                mean of e^{2d} - 1, chi-square of p from q
    ess_raw, ess_cap2   (sum w)^2 / (N sum w^2) of w = r and of w = min(r, 2)
    head_q_K, head_p_K  mean probability of the sampler's K most likely tokens under q and p
    sequence_sd         standard deviation over sequences of the sum of d (by bin: of the sum up to the bin's end)

Means are over tokens. Intervals are percentile bootstraps over sequences, because tokens of one sequence share a context;
``se`` is the standard error of a ratio of sums over sequences. `abs_max` has no interval: a resample never exceeds it.
Sources: J. Schulman, "Approximating KL divergence" (2020); `rlcorr_ref.diagnostics` for the same definitions in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from repro.figures.styles import FigureDataError

COLUMNS = (
    "sampler", "sequence", "position", "token", "logp_sampler", "logp_trainer", "entropy_trainer", "kl_coarse",
)  # fmt: skip
CAP, BINS, RESAMPLES, SEED, LEVEL = 2.0, 8, 4000, 0, 0.95
LARGEST = 300.0  # nats; a ratio beyond e^300 counts as e^300, so that its square is a number
Sums = dict[str, np.ndarray]


def widths(records: pd.DataFrame) -> list[int]:
    """The head widths K of the columns ``head_q_K``, ascending."""
    return sorted(int(name.removeprefix("head_q_")) for name in records.columns if name.startswith("head_q_"))


def check(records: pd.DataFrame) -> pd.DataFrame:
    """``records``, or `FigureDataError` naming the missing column or the number that is not finite."""
    missing = [name for name in COLUMNS if name not in records.columns]
    if missing or not widths(records):
        raise FigureDataError(
            f"data: missing column {(missing or ['head_q_K'])[0]!r}; has {', '.join(records.columns)}"
        )
    if records.empty:
        raise FigureDataError("data: expected at least one token")
    numbers = records.drop(columns=["sampler", "oracle_error"], errors="ignore")  # not every token is compared
    bad = numbers.columns[~np.isfinite(numbers.to_numpy(dtype=float)).all(0)]
    if len(bad):
        raise FigureDataError(f"data: column {bad[0]!r} is not finite everywhere")
    return records


def bin_of(positions: np.ndarray, length: int) -> np.ndarray:
    """The bin 0..BINS-1 of each position of responses of at most ``length`` tokens."""
    return positions * BINS // length


def bin_edges(length: int) -> list[int]:
    """First position of every bin that holds one, and ``length`` at the end."""
    starts = [-(-place * length // BINS) for place in range(BINS)]
    return [*dict.fromkeys(start for start in starts if start < length), length]


def _sums(records: pd.DataFrame, sequences: np.ndarray, upto: np.ndarray) -> Sums:
    """Per sequence [S]: sums over the chosen tokens, and ``upto``, the sum of d to the end of the choice."""
    d = (records["logp_trainer"] - records["logp_sampler"]).to_numpy()
    d_up = np.minimum(d, LARGEST)
    ratio, capped = np.exp(d_up), np.minimum(np.exp(d_up), CAP)
    columns = {
        "n": np.ones_like(d), "abs": np.abs(d), "k1": -d, "k3": np.expm1(d_up) - d, "r": ratio, "r2": ratio**2,
        "x2": np.expm1(2 * d_up), "w": capped, "w2": capped**2, "kl": records["kl_coarse"].to_numpy(),
    }  # fmt: skip
    columns |= {
        f"head_{side}_{k}": records[f"head_{side}_{k}"].to_numpy() for k in widths(records) for side in ("q", "p")
    }
    place = np.searchsorted(sequences, records["sequence"].to_numpy())
    sums = {name: np.bincount(place, values, len(sequences)) for name, values in columns.items()}
    return sums | {"upto": upto}


def _mean(name: str) -> Callable[[Sums, np.ndarray], np.ndarray]:
    return lambda sums, weights: (weights @ sums[name]) / (weights @ sums["n"])


def _ess(one: str, two: str) -> Callable[[Sums, np.ndarray], np.ndarray]:
    return lambda sums, weights: (weights @ sums[one]) ** 2 / ((weights @ sums["n"]) * (weights @ sums[two]))


def _spread(sums: Sums, weights: np.ndarray) -> np.ndarray:
    """Sample standard deviation over (weighted) sequences; 0 for one sequence."""
    total = weights.sum(-1)
    values = sums["upto"] - sums["upto"].mean()
    first, second = weights @ values / total, weights @ values**2 / total
    return np.sqrt(np.maximum(second - first**2, 0.0) * total / max(len(values) - 1, 1))


def estimators(records: pd.DataFrame) -> dict[str, Callable[[Sums, np.ndarray], np.ndarray]]:
    """Metric -> function of the sums per sequence and of sequence weights [..., S], returning [...]."""
    heads = {f"head_{side}_{k}": _mean(f"head_{side}_{k}") for k in widths(records) for side in ("q", "p")}
    return {
        "abs_mean": _mean("abs"), "ratio_mean": _mean("r"), "kl_k1": _mean("k1"), "kl_k3": _mean("k3"),
        "kl_coarse": _mean("kl"), "chi2": _mean("x2"), "ess_raw": _ess("r", "r2"), "ess_cap2": _ess("w", "w2"), **heads,
        "sequence_sd": _spread,
    }  # fmt: skip


def _se(sums: Sums, name: str) -> float:
    """Standard error of sum x / sum n over S independent sequences (linearised ratio estimator)."""
    count = len(sums["n"])
    residual = sums[name] - sums[name].sum() / sums["n"].sum() * sums["n"]
    return float(np.sqrt((residual**2).sum() * count / max(count - 1, 1)) / sums["n"].sum())


def _summary(records: pd.DataFrame, sequences: np.ndarray, upto: np.ndarray) -> list[dict]:
    sums = _sums(records, sequences, upto)
    drawn = np.random.default_rng(SEED).multinomial(
        len(sequences), np.full(len(sequences), 1 / len(sequences)), RESAMPLES
    )
    # In a late bin a resample may hold only sequences that have ended: it has no tokens, and no mean.
    drawn = drawn[drawn @ sums["n"] > 0].astype(float)
    once = np.ones(len(sequences))
    se = {"abs_mean": "abs", "ratio_mean": "r", "kl_k1": "k1", "kl_k3": "k3", "kl_coarse": "kl"}
    rows = []
    for metric, estimate in estimators(records).items():
        low, high = np.quantile(estimate(sums, drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        error = _se(sums, se[metric]) if metric in se else np.nan
        rows.append({"metric": metric, "value": float(estimate(sums, once)), "low": low, "high": high, "se": error})
    largest = float((records["logp_trainer"] - records["logp_sampler"]).abs().max())
    rows.append({"metric": "abs_max", "value": largest, "low": np.nan, "high": np.nan, "se": np.nan})
    return rows


def summarise(records: pd.DataFrame) -> pd.DataFrame:
    """Every metric of every sampler: columns sampler, bin (-1: all positions), metric, value, low, high, se.

    Raises `FigureDataError` as `check` does.
    """
    check(records)
    length, rows = int(records["position"].max()) + 1, []
    for sampler, mine in records.groupby("sampler", sort=False):
        sequences = np.unique(mine["sequence"])
        place, bins = bin_of(mine["position"].to_numpy(), length), bin_edges(length)
        d = (mine["logp_trainer"] - mine["logp_sampler"]).to_numpy()
        row = np.searchsorted(sequences, mine["sequence"].to_numpy())
        choices = [(-1, np.ones(len(mine), bool), np.ones(len(mine), bool))]
        choices += [
            (one, place == one, place <= one) for one in sorted({int(bin_of(np.array(b), length)) for b in bins[:-1]})
        ]
        for number, chosen, until in choices:
            upto = np.bincount(row[until], d[until], len(sequences))
            found = _summary(mine[chosen], sequences, upto) if chosen.any() else []
            rows += [{"sampler": sampler, "bin": number, **one} for one in found]
    return pd.DataFrame(rows)


def value(summary: pd.DataFrame, sampler: str, metric: str, bin: int = -1) -> pd.Series:
    """The row (value, low, high, se) of one sampler, metric and bin."""
    at = summary[(summary["sampler"] == sampler) & (summary["metric"] == metric) & (summary["bin"] == bin)]
    if len(at) != 1:
        raise FigureDataError(f"summary: expected one row for {sampler!r}, {metric!r}, bin {bin}, got {len(at)}")
    return at.iloc[0]
