"""The caption of a figure, written from its data: every number in it is computed here, none is typed.

It says what was measured and how often, what is simulated, what is smaller than in the paper, the ordering as it came
out beside the published one, which runs collapsed, and what each comparison of the claim gave.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from repro.arms import ARMS
from repro.figures.layouts import arms_figure, constant_figure, layout_of, map_figure, variants_figure
from repro.figures.map import FIRST
from repro.figures.styles import label as arm_label
from repro.figures.training import ORACLE_LIMIT, largest_oracle_error
from repro.rows import Check, Row, checkpoint_name, settings_of
from repro.statistics import streaks
from repro.statistics.claims import (
    ALPHA,
    FAILS,
    HOLDS,
    NOT_TESTED,
    Contrast,
    NotComparable,
    complete,
    conditions,
    evaluate,
    extent_per_condition,
    fullest,
    judge,
    ordering,
    overall,
    replicates,
)
from repro.statistics.inference import RESAMPLES, sign_flip_floor
from repro.statistics.survival import survivals

PANELS = {
    arms_figure: "The large panels show the accuracy of the samples that train (sampler q) and of the trainer p on "
    "{eval_problems} held-out problems; the small ones KL(q||p), the effective sample size of the raw ratios p/q, the share of "
    "responses that end, and the gradient's norm.",
    variants_figure: "A column per variant shows the accuracy of the samples that train (sampler q) and the ends of its arms; "
    "where the variants are values of one setting, the ends follow against it, with the trainer's accuracy on {eval_problems} "
    "held-out problems beside them.",
    constant_figure: "The panels show the accuracy of the samples that train (sampler q), the share of responses that end, and "
    "KL(q||p).",
    map_figure: "Left KL(q||p) of the plain policy gradient in the first {first} steps, in the middle the mean accuracy of the "
    "samples that train (sampler q) in the last {window} steps, right its difference to the plain policy gradient from the "
    "same warm start with the same seed.",
}


def label(condition: str) -> str:
    """The name of ``condition`` as the legend writes it, with its variant in front when it has one."""
    variant, _, arm = condition.rpartition("/")
    name = arm_label(arm)
    return f"{variant}: {name}" if variant else name


def results_table(data: pd.DataFrame, check: Check) -> str:
    """Conditions from best to worst with their ends and collapses, a Markdown table; or why there is none."""
    try:
        ranked = ordering(data, check.metric, check.window)
        alive = survivals(data, check)
    except NotComparable as lacking:
        return f"No ordering: {lacking}."
    lines = [
        f"Ordering by {check.metric}, mean of the last {check.window} steps [95% bootstrap interval over checkpoints, then "
        f"seeds]. A replicate counts as collapsed while its trailing {check.window}-step mean is below {check.collapse:g}; the "
        "interval of the fraction not collapsed reaches to the outer ends of Wilson's and the bootstrap's.",
        "",
        f"| Condition | {check.metric} | Not collapsed at the end | Replicates ever collapsed |",
        "|---|---|---|---|",
    ]
    for name, end in ranked:
        one = alive[name]
        first = one.first_steps
        fell = f"{len(first)} of {end.count}"
        if first:
            fell += f", first at step {first[0]}" + (f" to {first[-1]}" if first[-1] != first[0] else "")
        lines.append(
            f"| {label(name)} | {end.mean:.3f} [{end.low:.3f}, {end.high:.3f}] "
            f"| {one.fraction[-1]:.2f} [{one.low[-1]:.2f}, {one.high[-1]:.2f}] | {fell} |"
        )
    return "\n".join(lines)


def ordering_table(data: pd.DataFrame, published: Sequence[str], metric: str, window: int) -> str:
    """The published ordering (best first) beside the measured one, a Markdown table with a row per adjacent pair.

    "yes" and "no": the interval of the paired difference, corrected for the number of pairs, lies above or not above
    zero. "not separable here": it contains zero, or there are too few replicates to say. Empty for fewer than two.
    """
    contrasts = [Contrast(above, below, 0.0) for above, below in zip(published[:-1], published[1:], strict=True)]
    if not contrasts:
        return ""
    lines = [
        f"| Published | Here: mean difference [{100 * (1 - ALPHA / len(contrasts)):.4g}% interval] | Same ordering? |",
        "|---|---|---|",
    ]
    for contrast, verdict in zip(contrasts, judge(contrasts, data, metric, window), strict=True):
        if verdict.difference is None:
            here, answer = verdict.detail, "not separable here"
        else:
            interval = verdict.difference.interval
            here = f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
            answer = {HOLDS: "yes", FAILS: "no"}.get(verdict.state, "not separable here")
        lines.append(f"| {label(contrast.better)} above {label(contrast.worse)} | {here} | {answer} |")
    return "\n".join(lines)


def describe_seeds(seeds: Collection[int], tuning: Collection[int]) -> str:
    """Which seeds are shown, and which of them the settings were chosen on."""
    seen, unseen = sorted(set(seeds) & set(tuning)), sorted(set(seeds) - set(tuning))
    if not tuning:
        return f"Seeds: {_listed(unseen)}; no seeds are recorded as used for choosing settings."
    tuned = f"Settings were chosen on seeds {_listed(tuning)}. "
    if not seen:
        return f"{tuned}All seeds shown were unseen then: {_listed(unseen)}."
    return (
        f"{tuned}Of the seeds shown, {_listed(seen)} are among them and {_listed(unseen) or 'none'} were unseen then."
    )


def describe_variants(row: Row) -> str:
    """The settings in which each variant differs from the row's; empty for a row with one variant."""
    if len(row.variants) == 1:
        return ""
    parts = []
    for name, changes in row.variants.items():
        settings = ", ".join(f"{key} {value}" for key, value in settings_of(changes).items())
        parts.append(f"{name} ({settings or 'the settings of the row'})")
    return f"Variants: {'; '.join(parts)}."


def describe_sampler(row: Row, data: pd.DataFrame, settings: Mapping[str, Any]) -> str:
    """What is simulated in the sampler, and what the on-policy control is; empty when neither applies."""
    tables = (settings, *row.variants.values())
    text = []
    if any(table.get(name) for table in tables for name in ("weights", "activations", "kv")):
        text.append(
            "The sampler's quantisation is simulated: values are rounded to the format's grid and computed in float32."
        )
    if "onpolicy" in set(data["arm"]):
        rate = (
            "the learning rate of its variant"
            if any("lr" in changes for changes in row.variants.values())
            else f"the same learning rate, {settings['lr']:g}"
        )
        text.append(f"The on-policy control uses the unquantised sampler at {rate}.")
    return " ".join(text)


def describe_anchors(data: pd.DataFrame) -> str:
    """How often the anchor of a run with several updates was computed again; empty where no arm has one."""
    anchored = data[data["arm"].map(lambda arm: ARMS[arm].anchored) & data["oracle_error"].notna()]
    if anchored.empty:
        return ""
    return (
        f"Anchors: on the {len(anchored)} compared steps of arms with an anchor its log-probs, computed again after the updates "
        "from the weights before them, were the same bit for bit."
    )


def describe_correction(data: pd.DataFrame, comparisons: int) -> str:
    """How the comparisons are corrected, and what so few checkpoints and replicates cannot show."""
    runs = fullest(data)
    checkpoints = len({replicate.checkpoint for replicate in runs})
    together = "The one comparison has" if comparisons == 1 else f"The {comparisons} comparisons share"
    return (
        f"{together} a two-sided error of {100 * ALPHA:g}%: each interval is at level {100 * (1 - ALPHA / comparisons):.4g}% "
        f"(1 - {ALPHA:g}/{comparisons}) and resamples checkpoints, then the seeds of each, {RESAMPLES} times; p is that of "
        f"the exact sign-flip test over replicates, adjusted by Holm's procedure. With {len(runs)} replicates it cannot fall "
        f"below {sign_flip_floor(len(runs)):.2g}. Replicates of one checkpoint are not independent, which p ignores; the "
        f"interval resamples checkpoints for that reason; a verdict needs both. With checkpoints alone as units "
        f"({checkpoints}) no p could fall below {sign_flip_floor(checkpoints):.2g}. Resampling them shows "
        f"{1 - 1 / checkpoints:.2f} of the variance between checkpoints, so that the intervals are narrower than their nominal "
        "level: a verdict describes the runs shown."
    )


def _missing(meta: Mapping[str, Any]) -> str:
    """How much of the tier these data are, when they are not all of it."""
    finished, planned = len(meta.get("cells", {})), meta.get("planned_cells", 0)
    return f", {finished} of the {planned} runs that this tier plans" if finished < planned else ""


def caption(row: Row, data: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """The caption in Markdown. ``data`` is the table of data.csv, ``meta`` the record that belongs to it."""
    settings = {**meta["settings"], "steps": meta["steps"]}
    data = complete(data, checkpoint_name(settings.get("checkpoint", "warm start")))
    runs = replicates(data)
    error = largest_oracle_error(data)
    verdicts = evaluate(row.check, data)
    tested = [verdict for verdict in verdicts if verdict.state != NOT_TESTED]
    check = row.check
    checked = (
        "no step was compared with the float64 reference."
        if error is None
        else f"largest row-scaled difference {error:.2g}, limit {ORACLE_LIMIT:.0e}, on the "
        f"{int(data['oracle_error'].notna().sum())} steps that were compared."
    )
    table = ordering_table(data, row.published.ordering, check.metric, check.window)
    lines = [
        f"**{row.title}** ({row.figure}; tier {meta['tier']}).",
        "",
        f"Measured: {len(conditions(data))} conditions x {extent_per_condition(data)} x {meta['steps']} steps{_missing(meta)}. "
        + PANELS[layout_of(row, data)].format(**settings, first=FIRST, window=check.window),
        "",
        f"Warm starts: {', '.join(dict.fromkeys(replicate.checkpoint for replicate in runs))}. "
        + describe_seeds({replicate.seed for replicate in runs}, row.tuning_seeds),
        "",
        *(
            line
            for text in (describe_variants(row), describe_sampler(row, data, settings))
            if text
            for line in (text, "")
        ),
        f"Gradients against the reference: {checked}",
        "",
        "Scaled down from the paper:",
        "",
        *(f"- {line.format(**settings)}" for line in row.scaled_down),
        "",
        results_table(data, check),
        "",
        streaks.table(data, label),
        "",
        *([text, ""] if (text := " ".join(filter(None, (streaks.transfers(data), describe_anchors(data))))) else []),
        f"Claim: {row.claim} Overall{', of what this scale tests' if len(tested) < len(verdicts) else ''}: "
        f"**{overall(verdicts)}**.",
        "",
        *(f"- {verdict}" for verdict in verdicts),
        "",
        *([describe_correction(data, len(tested)), ""] if tested else []),
        f"Published: {row.published.paper} {row.published.rerun}",
        *(["", table] if table else []),
    ]
    return "\n".join(lines) + "\n"


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
