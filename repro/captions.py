"""The caption of a figure, written from its data: every number in it is computed here, none is typed.

It says what was measured and how often, what is simulated, what is smaller than in the paper, the ordering as it came
out and what each comparison of the claim gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from repro.claims import evaluate, ordering, overall
from repro.figures import ORACLE_LIMIT, STYLES, largest_oracle_error
from repro.manifest import Row
from repro.statistics import sign_test_floor


def describe_ordering(data: pd.DataFrame, metric: str, window: int) -> str:
    """Arms from best to worst with mean and range over seeds, or why there is none."""
    shortest = int(data.groupby(["arm", "seed"]).size().min())
    if shortest < window:
        return f"No ordering: the shortest run has {shortest} steps, the window {window}."
    parts = [
        f"{STYLES[arm].label} {interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
        for arm, interval in ordering(data, metric, window)
    ]
    return f"Ordering by {metric}, mean of the last {window} steps [95% bootstrap interval over seeds]: {'; '.join(parts)}."


def caption(row: Row, data: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """The caption in Markdown. ``data`` is the table of data.csv, ``meta`` the record that belongs to it."""
    settings = {**meta["settings"], "steps": meta["steps"]}
    seeds = data["seed"].nunique()
    error = largest_oracle_error(data)
    verdicts = evaluate(row.check, data)
    plural = "seed" if seeds == 1 else "seeds"
    caution = (
        f"With {seeds} {plural} even a unanimous sign has a two-sided sign-test p of "
        f"{sign_test_floor(seeds):.3g}: these are descriptions of the runs shown, not significance claims. Intervals over "
        "so few seeds are narrower than their nominal level."
    )
    checked = (
        "no step was compared with the float64 reference."
        if error is None
        else f"largest row-scaled difference {error:.2g}, limit {ORACLE_LIMIT:.0e}, on the "
        f"{int(data['oracle_error'].notna().sum())} steps that were compared."
    )
    lines = [
        f"**{row.title}** ({row.figure}; tier {meta['tier']}).",
        "",
        f"Measured: {len(meta['arms'])} arms x {seeds} {plural} x {meta['steps']} steps. The large panels show the accuracy of "
        f"the samples that train (sampler q) and of the trainer p on {settings['eval_problems']} held-out problems; the small "
        "ones KL(q||p), the effective sample size of the raw ratios p/q, the share of responses that end, and the gradient's "
        "norm.",
        "",
        f"The sampler's quantisation is simulated: values are rounded to the format's grid and computed in float32. "
        f"The on-policy control uses the unquantised sampler at the same learning rate, {settings['lr']:g}.",
        "",
        f"Gradients against the reference: {checked}",
        "",
        "Scaled down from the paper:",
        "",
        *(f"- {line.format(**settings)}" for line in row.scaled_down),
        "",
        describe_ordering(data, row.check.metric, row.check.window),
        "",
        f"Claim: {row.claim} Overall: **{overall(verdicts)}**.",
        "",
        *(f"- {verdict}" for verdict in verdicts),
        "",
        caution,
        "",
        f"Published: {row.published.paper} {row.published.rerun}",
    ]
    return "\n".join(lines) + "\n"
