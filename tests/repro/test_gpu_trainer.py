"""The GPU tier's training loop on the CPU: one right update, the oracle, kill and resume, staleness, clear errors."""

from __future__ import annotations

import json
import re

import pytest
import torch
from small_run import without_time
from test_trainer import EXPECTED_COLUMNS

from repro import losses, manifest
from repro.__main__ import main
from repro.arms import ARMS
from repro.cells.store import Store
from repro.gpu.dry_run import SMALL, even_bytes
from repro.gpu.engines import torch_engine
from repro.gpu.settings import VERL_ARMS, DeviceUnavailable, complete_config
from repro.gpu.tiny import write_tiny
from repro.gpu.trainer import GpuTrainer, run_cell
from repro.losses import LossBatch, correction_loss
from repro.mismatch import measure
from repro.oracle import OracleMismatch
from repro.samplers.refit import RefitError
from repro.state import StateError
from repro.tasks import countdown


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    write_tiny(path)
    return path


@pytest.fixture
def cell(folder):
    def make(arm="sc", **changes):
        return {**SMALL, "checkpoint": str(folder), "compute": "float32", "arm": arm, **changes}

    return make


class Recorder:
    """A sampler that remembers its updates and rollouts; without ``next_logp``, so that it is not compared."""

    def __init__(self, sampler):
        self.sampler, self.versions, self.rollouts = sampler, [], []

    def load_weights(self, state, version):
        self.versions.append(version)
        self.sampler.load_weights(state, version)

    def generate(self, *arguments):
        self.rollouts.append(self.sampler.generate(*arguments))
        return self.rollouts[-1]


@pytest.mark.parametrize("arm", VERL_ARMS)
def test_one_step_is_one_plain_sgd_update_of_the_whole_batch(cell, arm):
    """Micro-batches, skipped rows, length cuts and the one-pass loss change nothing."""
    trainer = GpuTrainer(cell(arm, lr=0.5, micro_batch=3), accept=even_bytes)
    trainer.sampler = recorder = Recorder(trainer.sampler)
    before = {name: value.clone() for name, value in trainer.policy.items()}
    metrics = trainer.run_step()
    rollout = recorder.rollouts[0]
    responses = [tokens[mask] for tokens, mask in zip(rollout.tokens, rollout.mask, strict=True)]
    texts = trainer.task.tokenizer.batch_decode(responses, skip_special_tokens=True)
    rewards = torch.tensor([2 * even_bytes(trainer.task.training[0], text) - 1 for text in texts])
    advantages = (rewards.view(2, 4) - rewards.view(2, 4).mean(1, keepdim=True)).flatten()
    assert (advantages != 0).any()
    leaves = {name: value.clone().requires_grad_() for name, value in before.items()}
    logits = trainer.model.response_logits(leaves, rollout.prompts, rollout.tokens)
    batch = LossBatch(
        rollout.tokens, rollout.mask, advantages[:, None].expand_as(rollout.logp_sampler), rollout.logp_sampler,
        head_ids=rollout.head_ids, head_logp_sampler=rollout.head_logp_sampler,
    )  # fmt: skip
    definition = {**ARMS[arm].definition, "aggregation": {"kind": "token-mean"}}
    correction_loss(logits, batch, definition).backward()
    for name in before:
        step = (before[name] - trainer.policy[name]) / 0.5
        torch.testing.assert_close(step, leaves[name].grad, rtol=1e-3, atol=1e-5)
    assert list(metrics) == EXPECTED_COLUMNS
    assert metrics["reward_mean"] == pytest.approx(float(rewards.mean()))
    assert 0 <= metrics["oracle_error"] < 2e-5
    for name, value in measure(logits.detach(), rollout).items():
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_the_on_policy_arm_samples_without_quantisation(cell):
    clean, quantised = (run_cell(cell(arm, steps=1), accept=even_bytes)[0] for arm in ("onpolicy", "pg"))
    assert abs(clean["log_ratio_max"]) < 1e-4 < 0.05 < quantised["log_ratio_max"]


def test_a_wrong_loss_stops_the_run(cell):
    def attached(logits, batch, definition):
        return 1.001 * losses.correction_loss(logits, batch, definition)

    with pytest.raises(OracleMismatch, match="arm 'tis', step 1"):
        run_cell(cell("tis"), loss=attached, accept=even_bytes)


def test_a_killed_run_resumes_bit_for_bit(cell, tmp_path):
    config = cell("tis_sc", steps=3, staleness=1, weight_noise=0.01, optimizer="adamw", lr=1e-3, checkpoint_every=1)
    whole = run_cell(config, accept=even_bytes)

    class Killed(Exception):
        pass

    def kill(metrics):
        if metrics["step"] == 1:
            raise Killed

    with pytest.raises(Killed):
        run_cell(config, kill, tmp_path, accept=even_bytes)
    seen = []
    resumed = run_cell(config, seen.append, tmp_path, accept=even_bytes)
    assert [m["step"] for m in seen] == [2, 3]
    assert without_time(resumed) == without_time(whole)
    with pytest.raises(StateError, match="lr: saved 0.001, asked for 0.002"):
        run_cell({**config, "lr": 0.002}, checkpoint_dir=tmp_path, accept=even_bytes)


def test_a_stale_sampler_takes_the_weights_every_other_step(cell):
    made = []

    def engine(*arguments):
        made.append(Recorder(torch_engine(*arguments)))
        return made[-1]

    run_cell(cell("pg", steps=3, staleness=1, eval_every=9), engine=engine, accept=even_bytes)
    assert made[0].versions == [0, 2]


def test_an_engine_that_keeps_its_weights_is_found(cell):
    class Stuck:
        def __init__(self, sampler):
            self.sampler = sampler

        def load_weights(self, state, version):
            if version == 0:
                self.sampler.load_weights(state, version)

        def __getattr__(self, name):
            return getattr(self.sampler, name)

    with pytest.raises(RefitError, match="still answers with earlier weights at update 2"):
        run_cell(cell("pg", lr=1.0), engine=lambda *a: Stuck(torch_engine(*a)), accept=even_bytes)


def test_problems_and_rewards_are_those_of_official_countdown(cell):
    trainer = GpuTrainer(cell())
    task = trainer.task
    training, held_out = countdown.split(countdown.rows(8), SMALL["seed"], 2)
    assert task.held_out == held_out and task.problems(1, 4) == (training + training)[4:8]
    row = training[0]
    prompts = task.prompts(training)
    assert (prompts[:, -1] != task.pad).all() and (prompts[:, 0] == task.pad).any()
    text = task.tokenizer.decode(prompts[0], skip_special_tokens=True)
    assert countdown.messages(row)[1]["content"] in text and text.endswith("assistant\n")
    answers = [f"<think> so </think><answer> {row.solution} </answer>", f"<answer> {row.target} </answer>"]
    responses = [[*task.tokenizer.encode(answer), task.eos] for answer in answers]
    assert task.rewards([row, row], responses).tolist() == [1.0, -1.0]


def test_without_a_gpu_the_default_device_is_a_clear_error(cell, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match=r"device: expected a CUDA GPU.*repro\.gpu\.dry_run"):
        run_cell({k: v for k, v in cell().items() if k != "device"})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"arm": "grpo"}, "arm: expected one of onpolicy, pg.* got 'grpo'"),
        ({"arm": "swift_sequence_mask"}, "arm: expected one of"),
        ({"weights": "fp4_e2m1"}, "weights: expected one of , fp8_e4m3, got 'fp4_e2m1'"),
        ({"activations": ""}, "activations: expected 'fp8_e4m3' as for weights, got ''"),
        ({"engine": "vllm"}, "weights: expected '' with engine 'vllm', got 'fp8_e4m3'"),
        ({"kv": "fp3"}, "kv: format: expected one of .* got 'fp3'"),
        ({"data_rows": 2}, "data_rows: expected more than the 2 held-out problems, got 2"),
        ({"micro_batch": 0}, "micro_batch: expected a positive whole number, got 0"),
        ({"updates_per_rollout": 2}, "updates_per_rollout: expected one of 1, got 2"),
        ({"lr": 0.0}, "lr: expected a positive number"),
        ({"seed": -1}, "seed: expected a whole number >= 0"),
        ({"colour": 1}, "colour: not a setting of the GPU tier"),
    ],
)
def test_settings_that_make_no_sense_are_refused(cell, change, message):
    with pytest.raises(ValueError, match=message):
        complete_config({**cell(), **change})


def test_a_run_needs_a_model(cell):
    with pytest.raises(ValueError, match="checkpoint: required"):
        complete_config({k: v for k, v in cell().items() if k != "checkpoint"})


def test_the_tier_runs_by_name_on_a_cpu_with_a_tiny_model(folder, tmp_path, capsys):
    """Manifest, plan, store, worker and trainer together; only the device and the sizes are not those of the row."""
    text = manifest.MANIFEST.read_text(encoding="utf-8").replace('"repro/models/start"', f'"{folder}"')
    start = text.index("[settings.official]")
    end = text.index("[[row]]", start)
    for name, value in {**SMALL, "oracle_every": 2}.items():
        part = re.sub(rf"(?m)^{name} = .*$", f"{name} = {json.dumps(value)}", text[start:end])
        text, end = text[:start] + part + text[end:], start + len(part)
    path = tmp_path / "manifest.toml"
    path.write_text(text, encoding="utf-8")
    where = ["countdown-official", "--tier", "gpu", "--manifest", str(path), "--store", str(tmp_path / "store")]
    choice = ["--arms", "sc", "--seeds", "10", "--steps", "2"]
    assert main(["run", *where, *choice, "--workers", "1", "--no-draw"]) == 0
    store = Store.attach(tmp_path / "store")
    (cell,) = manifest.load(path)["countdown-official"].cells("gpu", arms=["sc"], seeds=[10], steps=2)
    rows, meta = store.read(cell)
    assert store.header["runner"] == "repro.gpu.trainer:run_cell" and len(rows) == 2
    assert rows[0]["oracle_error"] < 2e-5 and list(store.header["inputs"]) == [str(folder)]


def test_the_tier_says_what_is_missing(capsys):
    assert main(["plan", "countdown-official", "--tier", "gpu"]) == 2
    assert "put a Hugging Face model" in capsys.readouterr().err
