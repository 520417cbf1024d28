"""The measuring instrument on a real engine: float32 reads almost nothing, bfloat16 something, a spoilt answer is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from repro.measure import engines, scoring
from repro.measure.engines import Format, MeasureError, open_model
from repro.measure.prompts import task_prompts
from repro.samplers.vllm_engine import EngineUnavailable
from repro.tasks import countdown_tiny as task

from .engine_case import CHECKPOINT, EXACT

PROMPTS = task_prompts("countdown_tiny", 6, 0)


def measured(fmt: Format):
    model = open_model(CHECKPOINT, task.EOS)
    return scoring.measure_model(model, model, fmt, PROMPTS, tokens=12, seed=0, oracle_tokens=4)


def test_float32_reads_almost_nothing_and_bfloat16_does_not():
    gaps = {}
    for dtype in ("float32", "bfloat16"):
        records, run = measured(Format("vllm", dtype))
        gaps[dtype] = (records["logp_trainer"] - records["logp_sampler"]).abs()
        assert records["sequence"].nunique() == 6 and (records["kl_coarse"] > -1e-6).all()
        assert run["oracle_tokens"] == sum(min(4, n) for n in records.groupby("sequence").size())
        assert (records["oracle_error"].dropna() < 2e-5).all()
    assert gaps["float32"].max() < EXACT < 1e-3 < gaps["bfloat16"].mean()


def test_an_answer_without_log_probs_is_refused(monkeypatch):
    honest = engines.decode
    monkeypatch.setattr(
        engines, "decode",
        lambda completion, row, **options: honest(
            SimpleNamespace(token_ids=completion.token_ids, logprobs=None, finish_reason="stop"), row, **options
        ),
    )  # fmt: skip
    with pytest.raises(MeasureError, match="engine: vllm float32: logprobs: response 0 came with NoneType"):
        measured(Format("vllm", "float32"))


def test_a_format_the_engine_does_not_know():
    with pytest.raises(EngineUnavailable, match="does not start as vllm bfloat16 . no_such_format"):
        measured(Format("vllm", "bfloat16", quantization="no_such_format"))
