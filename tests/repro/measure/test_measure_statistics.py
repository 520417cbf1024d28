"""From token records to metrics, intervals, tables and files of several samplers, on invented records."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from repro.cells.publication import PublicationError, load
from repro.figures.styles import FigureDataError
from repro.measure import report, scoring, statistics
from repro.measure.engines import MeasureError
from rlcorr_ref import Batch, Objective
from rlcorr_ref.diagnostics import ess_from_log

SHARED = {"model": {"name": "m"}, "seed": 0}
RUN = {"command": "c", "commit": "0", "dirty": False, "versions": {}}


def invented(sequences=6, length=20, seed=0, scale=0.1, sampler="a"):
    """Records with known log-ratios; the last sequence ends half-way."""
    rng = np.random.default_rng(seed)
    rows = [(s, t) for s in range(sequences) for t in range(length if s < sequences - 1 else length // 2)]
    table = pd.DataFrame(rows, columns=["sequence", "position"])
    table["logp_sampler"] = -1 - rng.exponential(1.0, len(table))
    table["logp_trainer"] = table["logp_sampler"] + scale * rng.standard_normal(len(table))
    fixed = {"sampler": sampler, "token": 0, "entropy_trainer": 1.0, "kl_coarse": 0.01, "head_q_2": 0.5, "head_p_2": 0.4,
             "oracle_error": 1e-7}  # fmt: skip
    return table.assign(**fixed)


def overall(summary, sampler="a"):
    at = summary[(summary["sampler"] == sampler) & (summary["bin"] == -1)]
    return at.set_index("metric")


# --- metrics


def test_metrics_are_those_of_the_reference():
    records = invented()
    found = overall(statistics.summarise(records))["value"]
    lengths = records.groupby("sequence").size()
    mask = np.arange(20) < lengths.to_numpy()[:, None]
    logp, logq = (np.full((6, 20), -1.0) for _ in range(2))
    logp[mask], logq[mask] = records["logp_trainer"], records["logp_sampler"]
    evaluation = Objective.from_dict({"weight": {"level": "token", "high": 2.0, "outside": "clip"}}).evaluate(
        Batch(
            logits=np.stack([logp, np.log1p(-np.exp(logp))], -1), tokens=np.zeros((6, 20), int), mask=mask,
            advantages=np.ones((6, 20)), logp_sampler=logq,
        )
    )  # fmt: skip
    for ours, theirs in {"kl_k1": "kl_k1", "kl_k3": "kl_k3", "chi2": "chi2_token", "ess_cap2": "ess"}.items():
        assert found[ours] == pytest.approx(evaluation.diagnostics[theirs], rel=1e-9), ours
    d = (records["logp_trainer"] - records["logp_sampler"]).to_numpy()
    assert found["ess_raw"] == pytest.approx(ess_from_log(d))
    assert found["abs_max"] == abs(d).max()
    assert found["sequence_sd"] == pytest.approx(np.std(np.bincount(records["sequence"], d), ddof=1))


def test_bins_are_the_positions_and_their_spread_accumulates():
    records = invented()
    summary = statistics.summarise(records)
    d = records["logp_trainer"] - records["logp_sampler"]
    edges = statistics.bin_edges(20)
    assert edges == [0, 3, 5, 8, 10, 13, 15, 18, 20]
    for number, first, end in zip(range(8), edges[:-1], edges[1:], strict=True):
        inside = records["position"].between(first, end - 1)
        one = statistics.value(summary, "a", "abs_mean", number)
        assert one["value"] == pytest.approx(d[inside].abs().mean())
        until = d[records["position"] < end].groupby(records["sequence"]).sum()
        assert statistics.value(summary, "a", "sequence_sd", number)["value"] == pytest.approx(until.std())
    assert statistics.bin_edges(3) == [0, 1, 2, 3]


def test_intervals_hold_the_value_shrink_with_sequences_and_repeat():
    few, many = (overall(statistics.summarise(invented(n))) for n in (12, 120))
    for metric in ("abs_mean", "kl_k1", "ratio_mean", "ess_raw"):
        for one in (few, many):
            assert one.loc[metric, "low"] < one.loc[metric, "value"] < one.loc[metric, "high"]
        assert np.ptp(many.loc[metric, ["low", "high"]]) < 0.6 * np.ptp(few.loc[metric, ["low", "high"]])
    width = many.loc["abs_mean", "high"] - many.loc["abs_mean", "low"]
    assert width == pytest.approx(2 * 1.96 * many.loc["abs_mean", "se"], rel=0.15)
    assert np.isnan(few.loc["abs_max", "low"])
    pd.testing.assert_frame_equal(few, overall(statistics.summarise(invented(12))))


def test_a_ratio_beyond_float64_leaves_no_warning_and_no_nan():
    records = invented()
    records.loc[0, "logp_trainer"] = records.loc[0, "logp_sampler"] + 800
    assert overall(statistics.summarise(records)).loc["ess_cap2", "value"] < 1


def test_records_that_cannot_be_summarised_are_named():
    with pytest.raises(FigureDataError, match="missing column 'kl_coarse'"):
        statistics.summarise(invented().drop(columns="kl_coarse"))
    with pytest.raises(FigureDataError, match="'logp_trainer' is not finite"):
        statistics.summarise(invented().assign(logp_trainer=np.nan))
    with pytest.raises(FigureDataError, match="expected one row for 'b'"):
        statistics.value(statistics.summarise(invented()), "b", "abs_mean")


# --- files and tables


def test_samplers_share_a_folder_and_a_rerun_replaces_its_own(tmp_path):
    for sampler, seed in (("a", 0), ("b", 1), ("a", 2)):
        scoring.merge(tmp_path, invented(seed=seed, sampler=sampler), RUN, SHARED)
    data, meta = load(tmp_path / "data.csv")
    assert list(dict.fromkeys(data["sampler"])) == ["b", "a"] == list(meta["runs"])
    assert data[data["sampler"] == "a"]["logp_trainer"].to_numpy() == pytest.approx(
        invented(seed=2)["logp_trainer"], rel=1e-8
    )
    with pytest.raises(MeasureError, match="with another seed"):
        scoring.merge(tmp_path, invented(), RUN, {**SHARED, "seed": 1})
    with open(tmp_path / "data.csv", "a") as handle:
        handle.write("\n")
    with pytest.raises(PublicationError, match="sha256"):
        scoring.merge(tmp_path, invented(), RUN, SHARED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "meta.json"]


def test_the_table_says_what_the_data_say():
    records = pd.concat([invented(), invented(seed=1, scale=0.3, sampler="b")])
    records.loc[records["sampler"] == "b", "oracle_error"] = np.nan
    summary = statistics.summarise(records)
    text = report.table(records, summary)
    assert f"{overall(summary, 'b').loc['abs_mean', 'value']:.3g} [" in text
    assert "| 1e-07 (110 tokens) | not compared |" in text and "| 6, 110 | 6, 110 |" in text
    assert "\n| 19-20 | " in text


def test_a_difference_with_one_sign_is_named_and_a_symmetric_one_is_not():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(400)
    shifted = pd.DataFrame({"sampler": "shifted", "logp_sampler": -1.0, "logp_trainer": -1.0 - 1e-5 + 2e-6 * noise})
    noisy = pd.DataFrame({"sampler": "noisy", "logp_sampler": -1.0, "logp_trainer": -1.0 + 0.1 * noise})
    text = report.one_sided(pd.concat([shifted, noisy]))
    assert text.startswith("One-sided: shifted (mean d -1e-05") and "one sign in 100%" in text and "noisy" not in text
    assert report.one_sided(noisy) == ""
