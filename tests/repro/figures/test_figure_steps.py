"""The steps of the figure notebooks: which data they refuse and what they print."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import table

from repro import manifest
from repro.cells import publication
from repro.figures import steps
from repro.figures.training import FigureDataError
from repro.provenance import file_sha256

ROW = manifest.load()["countdown-fig4"]
TUNED = ROW.tuning_seeds[0]


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    return table(ROW, steps=40)


def write(folder: Path, data: pd.DataFrame, **changes) -> Path:
    path = folder / "data.csv"
    data.to_csv(path, index=False)
    meta = {"row": ROW.id, "tier": "tiny", "steps": 40, "settings": {"checkpoint": "a/warm7"}, **changes}
    (folder / "meta.json").write_text(json.dumps({"data_sha256": file_sha256(path), **meta}))
    return path


def test_the_table_comes_with_its_row_and_record_and_without_tuning_seeds(data, tmp_path):
    tuned = data[data["arm"] == "pg"].assign(seed=TUNED)
    row, found, meta = steps.load(ROW.id, "tiny", write(tmp_path, pd.concat([data, tuned])))
    assert row == ROW and meta["steps"] == 40
    pd.testing.assert_frame_equal(found.reset_index(drop=True), data, check_dtype=False)


def test_a_table_of_one_warm_start_takes_its_name_from_the_record(data, tmp_path):
    one = data[data["checkpoint"] == "countdown_tiny_seed0"].drop(columns=["variant", "checkpoint"])
    assert set(steps.load(ROW.id, "tiny", write(tmp_path, one))[1]["checkpoint"]) == {"warm7"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"row": "countdown-lr"}, "expected row 'countdown-fig4', got 'countdown-lr'"),
        ({"tier": "cpu"}, "expected tier 'tiny', got 'cpu'"),
        ({"steps": 41}, "expected 41 steps of base, onpolicy, countdown_tiny_seed0, 10, got 40"),
        ({"data_sha256": "ab"}, "changed after they were written"),
    ],
)
def test_data_that_do_not_belong_to_the_notebook(data, tmp_path, changes, words):
    with pytest.raises(publication.PublicationError, match=words):
        steps.load(ROW.id, "tiny", write(tmp_path, data, **changes))


def test_gradients_are_within_the_limit_or_an_error(data):
    assert steps.gradient_check(data.assign(oracle_error=2e-5)) == "largest gradient error 2.0e-05, limit 2e-05"
    with pytest.raises(FigureDataError, match=r"largest 2\.1e-05 exceeds the limit 2e-05"):
        steps.gradient_check(data.assign(oracle_error=2.1e-5))
    with pytest.raises(FigureDataError, match="no step was compared"):
        steps.gradient_check(data.assign(oracle_error=np.nan))


def test_summaries_are_means_per_condition(data):
    one = steps.summary(data)
    assert list(one.index) == list(ROW.arms)
    assert one.loc["sc", "ess"] == data.loc[data["arm"] == "sc", "ess"].mean().round(3)
    assert list(steps.summary(pd.concat([data, data.assign(variant="other")])).index.names) == ["variant", "arm"]


def test_the_claim_ends_with_its_overall_verdict(data):
    lines = steps.verdicts(ROW, data).splitlines()
    assert len(lines) == 6 and ": sc ends above pg by more than 0.05" in lines[0] and lines[-1].startswith("claim: ")


def test_what_was_published_has_a_table_where_an_ordering_was(data):
    text = steps.published(ROW, data)
    assert text.startswith("Fig. 4, left") and text.count("\n|") == 5
    other = manifest.load()["countdown-lr"]
    assert steps.published(other, data) == other.published.paper
