"""A row's claim, computed from its data: window means per condition and replicate, paired comparisons, one verdict each.

HOLDS           the corrected interval of the mean difference lies above the margin, and the exact test rejects
FAILS           it lies at or below the margin, and the exact test rejects
UNDERPOWERED    it contains the margin, the test does not reject, there are fewer than two checkpoints or three
                replicates, or the data lack the conditions or steps that the comparison needs
NOT TESTED AT THIS SCALE    the published claim says it, and no run of this size can decide it

A replicate is (checkpoint, seed), a condition (variant, arm), written "arm" when the row has one variant and
"variant/arm" otherwise. The m comparisons of a row share a 5 % error: each interval is hierarchical (checkpoints, then
seeds) at level ``1 - 0.05/m``, and beside it stands Holm's adjusted p-value of the exact sign-flip contrast. The interval
resamples checkpoints, which the p-value takes no account of; the p-value cannot be small with few replicates, where the
interval is too narrow. A verdict needs both.

Data are the long table of ``data.csv``: columns variant, arm, checkpoint, seed, step and one per metric. A table from
before variants and checkpoints were varied lacks these two columns; `complete` fills them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from repro.rows import BASE, Check
from repro.statistics.inference import (
    Interval,
    PairedDifferences,
    Replicate,
    hierarchical_interval,
    holm,
    paired_differences,
    sign_flip_floor,
    sign_flip_test,
    window_mean,
)

HOLDS, FAILS, UNDERPOWERED, NOT_TESTED = "HOLDS", "FAILS", "UNDERPOWERED", "NOT TESTED AT THIS SCALE"
ALPHA = 0.05
MINIMUM_CHECKPOINTS, MINIMUM_REPLICATES = 2, 3
BOOTSTRAP_SEED = 0  # of every interval anew, so that one comparison's interval does not depend on the others


class NotComparable(ValueError):
    """Data without the conditions, replicates or steps of a comparison; the message is the reason."""


class Contrast(NamedTuple):
    """``better`` ends above ``worse`` by more than ``margin``; ``worse`` None: above its own first window."""

    better: str
    worse: str | None
    margin: float


@dataclass(frozen=True)
class Difference:
    """The numbers of one comparison; ``adjusted`` is Holm's p-value over the comparisons judged together."""

    margin: float
    pairs: PairedDifferences
    interval: Interval
    p_value: float
    adjusted: float
    unpaired: int


@dataclass(frozen=True)
class Verdict:
    """One comparison: what was compared, the verdict, its numbers in words, and as numbers where there are any."""

    statement: str
    state: str
    detail: str
    difference: Difference | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.statement}" + (f" ({self.detail})" if self.detail else "")


def complete(data: pd.DataFrame, checkpoint: str = "warm start") -> pd.DataFrame:
    """``data`` with the columns variant and checkpoint: `rows.BASE` and ``checkpoint`` where the table has none."""
    absent = {"variant": BASE, "checkpoint": checkpoint}
    return data.assign(**{name: value for name, value in absent.items() if name not in data.columns})


def conditions(data: pd.DataFrame) -> list[str]:
    """The conditions of ``data`` in order of appearance: "arm", or "variant/arm" when it has several variants."""
    pairs = complete(data)[["variant", "arm"]].drop_duplicates()
    several = pairs["variant"].nunique() > 1
    return [f"{variant}/{arm}" if several else arm for variant, arm in pairs.itertuples(index=False)]


def replicates(data: pd.DataFrame) -> list[Replicate]:
    """Every (checkpoint, seed) in ``data``, sorted."""
    pairs = complete(data)[["checkpoint", "seed"]].drop_duplicates()
    return sorted(Replicate(str(checkpoint), int(seed)) for checkpoint, seed in pairs.itertuples(index=False))


def curves(data: pd.DataFrame, condition: str, metric: str) -> dict[Replicate, pd.Series]:
    """Replicate -> ``metric`` against step for ``condition``, replicates sorted; empty when it was not run.

    Raises ``KeyError`` without the column ``metric``; ``ValueError`` for steps that repeat or leave gaps, and for a bare
    arm in data with several variants.
    """
    if metric not in data.columns:
        raise KeyError(f"{metric}: expected a column of the data, got {', '.join(data.columns)}")
    data = complete(data)
    variant, _, arm = condition.rpartition("/")
    chosen = data[data["arm"] == arm]
    if variant:
        chosen = chosen[chosen["variant"] == variant]
    elif chosen["variant"].nunique() > 1:
        names = ", ".join(dict.fromkeys(chosen["variant"]))
        raise ValueError(f"condition: expected variant/arm for one of the variants {names}, got {condition!r}")
    found = {}
    for (checkpoint, seed), run in chosen.groupby(["checkpoint", "seed"]):
        run = run.sort_values("step")
        if (np.diff(run["step"]) != 1).any():
            raise ValueError(f"step: expected consecutive steps, each once, in {condition}, {checkpoint} seed {seed}")
        found[Replicate(str(checkpoint), int(seed))] = pd.Series(run[metric].to_numpy(float), run["step"].to_numpy())
    return dict(sorted(found.items()))


def window_means(
    data: pd.DataFrame, condition: str, metric: str, window: int, *, first: bool = False
) -> dict[Replicate, float]:
    """Replicate -> mean of ``metric`` over the last (or ``first``) ``window`` steps of ``condition``.

    Raises `NotComparable` when the condition was not run, when its runs differ in length, or when they are shorter than
    the window.
    """
    runs = _equally_long(curves(data, condition, metric), condition, window)
    return {replicate: window_mean(run, window, end=window if first else None) for replicate, run in runs.items()}


def ordering(data: pd.DataFrame, metric: str, window: int) -> list[tuple[str, Interval]]:
    """Conditions from best to worst by the last-window mean (over checkpoints of the mean over seeds).

    Each comes with its own hierarchical 95 % interval. These are not intervals of differences: two that overlap may
    still be separated by their pairs.
    """
    ends = {name: window_means(data, name, metric, window) for name in conditions(data)}
    ranked = [(name, hierarchical_interval(means, _generator())) for name, means in ends.items()]
    return sorted(ranked, key=lambda item: item[1].mean, reverse=True)


def judge(contrasts: Sequence[Contrast], data: pd.DataFrame, metric: str, window: int) -> list[Verdict]:
    """One verdict per contrast, corrected for their number; one whose runs are missing counts in the correction."""
    results: list[Difference | str] = []
    for contrast in contrasts:
        try:
            results.append(_difference(contrast, data, metric, window, 1.0 - ALPHA / len(contrasts)))
        except NotComparable as lacking:
            results.append(str(lacking))
    if not results:
        return []
    adjusted = holm([1.0 if isinstance(result, str) else result.p_value for result in results])
    verdicts = []
    for contrast, result, p in zip(contrasts, results, adjusted, strict=True):
        statement = _statement(contrast, metric, window)
        if isinstance(result, str):
            verdicts.append(Verdict(statement, UNDERPOWERED, result))
            continue
        difference = replace(result, adjusted=float(p))
        state, why = _decide(difference)
        verdicts.append(Verdict(statement, state, _describe(difference) + why, difference))
    return verdicts


def evaluate(check: Check, data: pd.DataFrame) -> list[Verdict]:
    """One verdict per comparison of ``check``, per condition that must improve and per statement not tested.

    Raises ``KeyError`` when the metric's column is absent: that is a broken file, not a missing run.
    """
    if check.metric not in data.columns:
        raise KeyError(f"{check.metric}: expected a column of the data, got {', '.join(data.columns)}")
    contrasts = [Contrast(pair.better, pair.worse, pair.margin) for pair in check.comparisons]
    contrasts += [Contrast(condition, None, 0.0) for condition in check.improves]
    untested = [Verdict(statement, NOT_TESTED, "") for statement in check.not_tested]
    return judge(contrasts, data, check.metric, check.window) + untested


def overall(verdicts: Sequence[Verdict]) -> str:
    """FAILS if any comparison fails, else UNDERPOWERED if any is, else HOLDS: of what was tested, if anything was."""
    states = {verdict.state for verdict in verdicts} - {NOT_TESTED}
    return FAILS if FAILS in states else UNDERPOWERED if UNDERPOWERED in states else HOLDS if states else NOT_TESTED


def extent(names: Sequence[Replicate]) -> str:
    """The number of runs in words: "3 checkpoints x 4 seeds", or "11 replicates over 3 checkpoints" when it is ragged."""
    per = Counter(name.checkpoint for name in names)
    checkpoints = f"{len(per)} {'checkpoint' if len(per) == 1 else 'checkpoints'}"
    if len(set(per.values())) > 1:
        return f"{len(names)} replicates over {checkpoints}"
    seeds = len(names) // len(per)
    return f"{checkpoints} x {seeds} {'seed' if seeds == 1 else 'seeds'}"


def fullest(data: pd.DataFrame) -> list[Replicate]:
    """The replicates of the condition that has most of them: variants may start from warm starts of their own, and a row may
    share some arms with a row of more seeds."""
    return max((replicates(part) for _, part in complete(data).groupby(["variant", "arm"])), key=len)


def extent_per_condition(data: pd.DataFrame) -> str:
    """`extent` of every condition where they agree, else the smallest and the largest number of replicates."""
    parts = [replicates(part) for _, part in complete(data).groupby(["variant", "arm"], sort=False)]
    texts = {extent(part) for part in parts}
    if len(texts) == 1:
        return texts.pop()
    counts = sorted(map(len, parts))
    return f"{counts[0]} to {counts[-1]} replicates" if counts[0] < counts[-1] else f"{counts[0]} replicates"


def _generator() -> np.random.Generator:
    return np.random.default_rng(BOOTSTRAP_SEED)


def _statement(contrast: Contrast, metric: str, window: int) -> str:
    if contrast.worse is None:
        return f"{contrast.better} ends above its own first {window} steps in {metric}"
    if contrast.margin < 0:  # not worse than
        return f"{contrast.better} ends less than {-contrast.margin:g} below {contrast.worse} in {metric}, last {window} steps"
    by = f" by more than {contrast.margin:g}" if contrast.margin else ""
    return f"{contrast.better} ends above {contrast.worse}{by} in {metric}, last {window} steps"


def _equally_long(runs: dict[Replicate, pd.Series], condition: str, needed: int) -> dict[Replicate, pd.Series]:
    """``runs`` when there are any, all of one length and of ``needed`` steps at least; else `NotComparable`."""
    if not runs:
        raise NotComparable(f"not run: {condition}")
    lengths = sorted(len(run) for run in runs.values())
    if lengths[0] < needed:
        raise NotComparable(f"needs {needed} steps, the shortest run of {condition} has {lengths[0]}")
    if lengths[0] != lengths[-1]:
        raise NotComparable(f"the runs of {condition} have from {lengths[0]} to {lengths[-1]} steps")
    return runs


def _difference(contrast: Contrast, data: pd.DataFrame, metric: str, window: int, level: float) -> Difference:
    better = _equally_long(
        curves(data, contrast.better, metric), contrast.better, window if contrast.worse else 2 * window
    )
    worse = _equally_long(curves(data, contrast.worse, metric), contrast.worse, window) if contrast.worse else better
    length, other = (len(next(iter(runs.values()))) for runs in (better, worse))
    if length != other:
        raise NotComparable(f"{contrast.better} has {length} steps, {contrast.worse} {other}")
    if not set(better) & set(worse):
        raise NotComparable("the conditions have no replicate in common")
    ends = {name: window_mean(run, window) for name, run in better.items()}
    end = None if contrast.worse else window  # without a rival: the first window of the same run
    pairs = paired_differences(ends, {name: window_mean(run, window, end) for name, run in worse.items()})
    interval = hierarchical_interval(pairs.by_replicate(), _generator(), level)
    p = sign_flip_test(pairs.differences, contrast.margin)
    return Difference(contrast.margin, pairs, interval, p, p, len(set(better) ^ set(worse)))


def _decide(difference: Difference) -> tuple[str, str]:
    """The verdict's name, and for UNDERPOWERED what is missing.

    Both the interval and the exact test must agree: with three replicates the bootstrap interval is no wider than the
    data, and noise alone would hold in one comparison of eight.
    """
    interval, margin = difference.interval, difference.margin
    if interval.checkpoints < MINIMUM_CHECKPOINTS or interval.count < MINIMUM_REPLICATES:
        return UNDERPOWERED, (
            f"; needs at least {MINIMUM_CHECKPOINTS} checkpoints and {MINIMUM_REPLICATES} replicates, "
            f"ran {interval.checkpoints} and {interval.count}"
        )
    if interval.low > margin or interval.high <= margin:
        if difference.adjusted > ALPHA:
            return UNDERPOWERED, f"; the sign-flip test does not reject at {interval.count} replicates"
        return (HOLDS if interval.low > margin else FAILS), ""
    return UNDERPOWERED, (
        f"; {interval.count} replicates leave an interval of width {interval.high - interval.low:.3f} that contains "
        f"the margin {margin:g}"
    )


def _describe(difference: Difference) -> str:
    interval, pairs = difference.interval, difference.pairs
    by_checkpoint = ", ".join(f"{mean:+.3f}" for mean in pairs.by_checkpoint().values())
    left_out = f"; {difference.unpaired} replicates without a partner left out" if difference.unpaired else ""
    return (
        f"mean {interval.mean:+.3f}, {100 * interval.level:.4g}% interval [{interval.low:+.3f}, {interval.high:+.3f}] over "
        f"{extent(pairs.replicates)}; by checkpoint {by_checkpoint}; above the margin in "
        f"{pairs.above(difference.margin)} of {interval.count}; sign-flip p {difference.p_value:.2g} "
        f"(floor {sign_flip_floor(interval.count):.2g}), Holm {difference.adjusted:.2g}{left_out}"
    )
