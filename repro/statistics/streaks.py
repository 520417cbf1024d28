"""Runs that stand still: the longest streaks of steps without a reward and without a gradient, and rewards first and last.

A step is without reward when no response of its batch is correct, and without gradient when the norm is exactly 0, as it is
when all responses to every prompt got the same reward. A policy that has lost the task for good shows both to the end; a
streak that ends is a run that came back. The form of the table follows the report of UniRL's token-TIS pull request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from repro.statistics.claims import conditions, curves, window_means
from repro.statistics.inference import Replicate

WINDOW = 20  # steps at either end whose mean reward is reported


def longest_streak(condition: Sequence[bool]) -> int:
    """The largest number of consecutive entries that are true."""
    longest = current = 0
    for holds in condition:
        current = current + 1 if holds else 0
        longest = max(longest, current)
    return longest


def streaks(data: pd.DataFrame, condition: str) -> dict[Replicate, tuple[int, int]]:
    """Replicate -> longest streaks of steps (without a correct response, with a gradient norm of 0)."""
    accuracy, norm = (curves(data, condition, metric) for metric in ("train_accuracy", "grad_norm"))
    return {name: (longest_streak(accuracy[name] == 0), longest_streak(norm[name] == 0)) for name in accuracy}


def table(data: pd.DataFrame, name_of: Callable[[str], str]) -> str:
    """Every condition, named by ``name_of``, with its mean reward and held-out
    accuracy at both ends and its longest streaks: Markdown."""
    steps = int(data.groupby(["variant", "arm", "checkpoint", "seed"])["step"].max().min())
    window = min(WINDOW, steps)
    lines = [
        f"Means over replicates of the reward in the first and last {window} steps and of the trainer's held-out accuracy at "
        "its first and last evaluation; longest streaks in any replicate, in steps, of batches without a correct response and "
        "of gradients that are exactly 0.",
        "",
        "| Condition | reward, first | reward, last | held out, first | held out, last | no reward | no gradient |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in conditions(data):
        first, last = (
            np.mean(list(window_means(data, name, "reward_mean", window, first=at).values())) for at in (True, False)
        )
        held_out = [run.dropna() for run in curves(data, name, "heldout_accuracy_trainer").values()]
        ends = [np.mean([run.iloc[place] for run in held_out if len(run)]) for place in (0, -1)]
        found = streaks(data, name).values()
        lines.append(
            f"| {name_of(name)} | {first:+.3f} | {last:+.3f} | {ends[0]:.3f} | {ends[1]:.3f} "
            f"| {max(one for one, _ in found)} | {max(other for _, other in found)} |"
        )
    return "\n".join(lines)


def transfers(data: pd.DataFrame) -> str:
    """How many weight transfers were read back, in words; empty where the data record none."""
    if "weights_read_back" not in data.columns or not data["weights_read_back"].notna().any():
        return ""
    count = int(data["weights_read_back"].notna().sum())
    runs = data.loc[data["weights_read_back"].notna(), ["variant", "arm", "checkpoint", "seed"]].drop_duplicates()
    return (
        f"Weights read back: after each of {count} transfers in {len(runs)} runs the hash of what the sampler held was that of "
        "the weights it was given, or the run would have stopped."
    )
