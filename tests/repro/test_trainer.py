"""The training loop: one right update, metrics, the oracle that stops a wrong loss, kill and resume, clear errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import cell

from repro import controls, losses
from repro.arms import Control
from repro.losses import LossBatch, correction_loss
from repro.optimizers import Optimizer
from repro.oracle import OracleMismatch
from repro.policies import forward
from repro.samplers import RolloutError
from repro.state import load_state
from repro.tasks import countdown_tiny as task
from repro.trainer import ARMS, COUNTDOWN_TINY, Trainer, TrainingDiverged, run_cell

ROOT = Path(__file__).resolve().parents[2]
EXPECTED_COLUMNS = [
    "step", "train_accuracy", "reward_mean", "heldout_accuracy_trainer", "heldout_accuracy_sampler",
    "kl_sampler_trainer", "kl_k1", "ess", "log_ratio_max", "entropy", "head_mass_sampler", "head_mass_trainer",
    "tail_ratio_mean", "tail_ratio_max", "eos_rate", "response_length", "gradient_groups", "grad_norm", "update_norm",
    "oracle_error", "weights_read_back", "seconds",
]  # fmt: skip


class Recorder:
    """A sampler that remembers its rollouts."""

    def __init__(self, sampler):
        self.sampler, self.rollouts = sampler, []

    def load_weights(self, state, version):
        self.sampler.load_weights(state, version)

    def generate(self, *arguments):
        self.rollouts.append(self.sampler.generate(*arguments))
        return self.rollouts[-1]


PLAIN = [name for name, arm in ARMS.items() if arm.control == Control() and not arm.anchored]


@pytest.mark.parametrize("arm", PLAIN)
def test_one_step_is_one_plain_sgd_update_of_the_whole_batch(arm):
    """Chunks, skipped groups and length cuts change nothing: the update is lr times the gradient over all rows at once."""
    trainer = Trainer(cell(arm, lr=0.01))
    trainer.sampler = recorder = Recorder(trainer.sampler)
    before = {name: value.clone() for name, value in trainer.policy.items()}
    problems = task.training_problems(np.random.default_rng(3), 6)
    metrics = trainer.run_step()
    rollout = recorder.rollouts[0]
    rewards = torch.tensor(
        [task.reward(problems[i], r) for i, r in zip(rollout.prompt_index, rollout.tokens.tolist(), strict=True)]
    )
    advantages = (rewards.view(6, 4) - rewards.view(6, 4).mean(1, keepdim=True)).flatten()
    assert (advantages == 0).any() and (advantages != 0).any()
    leaves = {name: value.clone().requires_grad_() for name, value in before.items()}
    logits = forward(leaves, trainer.policy_config, torch.cat([rollout.prompts, rollout.tokens[:, :-1]], 1))[:, 5:]
    batch = LossBatch(
        rollout.tokens, rollout.mask, advantages[:, None].expand_as(rollout.logp_sampler), rollout.logp_sampler,
        head_ids=rollout.head_ids, head_logp_sampler=rollout.head_logp_sampler,
    )  # fmt: skip
    definition = {**ARMS[arm].definition, "aggregation": {"kind": "seq-mean-token-sum"}}
    correction_loss(logits, batch, definition).backward()
    for name in before:
        step = (before[name] - trainer.policy[name]) / 0.01
        torch.testing.assert_close(step, leaves[name].grad, rtol=1e-3, atol=2e-4)
    assert metrics["train_accuracy"] == pytest.approx(float((rewards > 0).double().mean()))
    assert metrics["grad_norm"] == pytest.approx(
        float(sum(v.grad.double().square().sum() for v in leaves.values()) ** 0.5), rel=1e-4
    )
    assert metrics["response_length"] == pytest.approx(float(rollout.mask.sum(-1).double().mean()))


def test_columns_evaluations_and_callbacks():
    seen = []
    rows = run_cell(cell("tis", steps=4), on_step=seen.append)
    assert rows == seen
    assert [list(row) for row in rows] == [EXPECTED_COLUMNS] * 4
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["heldout_accuracy_trainer"] is not None for row in rows] == [True, False, True, False]
    assert [row["oracle_error"] is not None for row in rows] == [True, True, False, True]
    assert all(row["oracle_error"] < 2e-6 for row in rows if row["oracle_error"] is not None)
    for row in rows:
        assert 0 < row["ess"] <= 1 and 0 <= row["train_accuracy"] <= 1
        assert row["reward_mean"] == pytest.approx(2 * row["train_accuracy"] - 1)


def test_only_the_quantised_arms_have_a_mismatch():
    clean, quantised = (run_cell(cell(arm, steps=1))[0] for arm in ("onpolicy", "pg"))
    assert abs(clean["kl_sampler_trainer"]) < 1e-6 and clean["ess"] == pytest.approx(1.0, abs=1e-6)
    assert quantised["kl_sampler_trainer"] > 5e-3 and quantised["ess"] < 0.99
    assert clean["tail_ratio_max"] < 1.5 < quantised["tail_ratio_max"]


def test_staleness_holds_the_sampler_back():
    rows = run_cell(cell("onpolicy", steps=3, lr=0.02))
    stale = Trainer(cell("pg", steps=3, lr=0.02, weights="", activations="", kv="", staleness=2))
    kl = [stale.run_step()["kl_sampler_trainer"] for _ in range(4)]
    assert all(abs(row["kl_sampler_trainer"]) < 1e-6 for row in rows)
    assert abs(kl[0]) < 1e-6 < 1e-5 < kl[1] and kl[2] > 1e-5 and abs(kl[3]) < 1e-6


def test_no_reward_anywhere_means_no_update(monkeypatch):
    monkeypatch.setattr(task, "reward", lambda problem, response: -1.0)
    trainer = Trainer(cell())
    before = trainer.policy
    metrics = trainer.run_step()
    assert (metrics["grad_norm"], metrics["gradient_groups"], metrics["oracle_error"]) == (0.0, 0.0, 0.0)
    assert all(torch.equal(before[name].detach(), trainer.policy[name]) for name in before)


# --- controls, optimizers, three policies ------------------------------------------------------------------------------


def first_update(arm, **changes):
    """The first step's metrics and weight change, on the same rollout for every quantised arm."""
    trainer = Trainer(cell(arm, **changes))
    before = trainer.policy
    metrics = trainer.run_step()
    return metrics, {name: (before[name] - trainer.policy[name]) / trainer.config["lr"] for name in before}


def test_clipping_and_norm_matching_change_the_length_alone(monkeypatch):
    plain, along = first_update("pg")
    monkeypatch.setitem(ARMS, "pg_clip", ARMS["pg_clip"]._replace(control=Control(clip=0.5 * plain["grad_norm"])))
    target = first_update("sc")[0]["grad_norm"]
    assert abs(target - plain["grad_norm"]) > 0.01 * target
    for arm, length in (("pg_clip", 0.5 * plain["grad_norm"]), ("pg_norm", target)):
        metrics, scaled = first_update(arm)
        assert metrics["grad_norm"] == plain["grad_norm"]
        assert metrics["update_norm"] == pytest.approx(length * 0.003, rel=1e-3)
        for name, value in along.items():
            torch.testing.assert_close(scaled[name], value * (length / plain["grad_norm"]), rtol=1e-2, atol=2e-3)


def test_a_loose_clip_is_no_clip(monkeypatch):
    monkeypatch.setitem(ARMS, "pg_clip", ARMS["pg_clip"]._replace(control=Control(clip=1e6)))
    for name, value in first_update("pg")[1].items():
        assert torch.equal(first_update("pg_clip")[1][name], value)
        break


def test_placebos_have_the_size_of_centering_and_the_permuted_difference_no_direction():
    _, plain = first_update("pg")

    def added(arm):
        _, update = first_update(arm)
        return torch.cat([(update[n] - plain[n]).flatten() for n in plain])

    true, row, difference = (added(arm) for arm in ("sc", "placebo", "placebo_diff"))
    for term in (row, difference):
        assert 0.2 < float(term.norm() / true.norm()) < 5
    cosine = torch.nn.functional.cosine_similarity
    assert abs(float(cosine(true, difference, dim=0))) < 0.3 < float(cosine(true, row, dim=0))


@pytest.mark.parametrize("kind", controls.PLACEBOS)
def test_the_placebo_term_on_the_logits_is_as_long_as_the_true_one(kind):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((2, 3, 7), generator=generator)
    q = torch.log_softmax(torch.randn((2, 3, 7), generator=generator), -1)
    mask = torch.tensor([[True] * 3, [True, False, False]])
    tokens, advantages = torch.zeros((2, 3), dtype=torch.int64), torch.full((2, 3), -0.7)
    batch = LossBatch(tokens, mask, advantages, q[..., 0], logp_sampler_full=q)
    placebo = controls.with_rotation(batch, 7, (1, 2), kind)
    definition = {"temperature": 1.0, "aggregation": {"kind": "seq-mean-token-sum", "sequences": 2}}
    expected = controls.placebo_gradient(logits, placebo, definition)
    true = (q.exp() - logits.softmax(-1)).norm(dim=-1).numpy() * 0.7 / 2
    np.testing.assert_allclose(np.linalg.norm(expected, axis=-1), np.where(mask, true, 0), rtol=1e-5)
    leaf, plain = (logits.clone().requires_grad_() for _ in range(2))
    controls.placebo_loss(leaf, placebo, definition).backward()
    correction_loss(plain, batch, definition).backward()
    np.testing.assert_allclose((leaf.grad - plain.grad).numpy(), expected, atol=1e-7)
    with pytest.raises(ValueError, match="logp_sampler_full: the placebo permutes whole sampler rows"):
        controls.with_rotation(replace(batch, logp_sampler_full=None), 7, (1, 2), kind)
    with pytest.raises(ValueError, match="kind: expected one of row, difference, got 'noise'"):
        controls.with_rotation(batch, 7, (1, 2), "noise")


def test_a_constant_reward_moves_every_row():
    metrics, _ = first_update("pg_minus")
    _, plus = first_update("pg_plus")
    _, minus = first_update("pg_minus")
    assert metrics["oracle_error"] < 2e-6
    for name, value in plus.items():
        torch.testing.assert_close(minus[name], -value, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("mean", [4 / 3, -2 / 3, -2 / 3]), ("mean_std", [2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5]), ("raw", [1, -1, -1]),
     ("raw01", [1, 0, 0])],
)  # fmt: skip
def test_advantages_from_rewards(kind, expected):
    found = Trainer(cell("pg", advantage=kind))._advantages(torch.tensor([[1.0, -1.0, -1.0]]))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=2e-6)


def test_two_updates_per_rollout_use_three_policies():
    changes = {
        "updates_per_rollout": 2,
        "optimizer": "adamw",
        "lr": 1e-3,
        "advantage": "mean_std",
        "aggregation": "token-mean",
    }
    rows = run_cell(cell("grpo_tis", steps=3, oracle_every=1, **changes))
    assert all(row["oracle_error"] < 5e-6 for row in rows)
    # The anchor is the policy before the first update; by the second part of the batch the trainer has left it.
    seen = []

    def loss(logits, batch, definition):
        logp = torch.log_softmax(logits.detach(), -1).gather(-1, batch.tokens[..., None])[..., 0]
        seen.append(float((logp - batch.logp_anchor).abs().where(batch.mask, 0.0).max()))
        return correction_loss(logits, batch, definition)

    Trainer(cell("grpo", **changes), loss=loss).run_step()
    assert seen[0] == 0.0 and seen[-1] > 1e-4


def test_an_update_in_place_cannot_move_the_anchor_unseen():
    trainer = Trainer(cell("grpo", updates_per_rollout=2, optimizer="adamw", lr=1e-3))

    class InPlace(Optimizer):
        def step(self, policy, gradients):
            for name, value in policy.items():
                value.data.sub_(0.01 * gradients[name])
            return policy

    trainer.optimizer = InPlace("sgd", 0.01)
    with pytest.raises(TrainingDiverged, match="logp_anchor: changed during the updates of step 1 of arm 'grpo'"):
        trainer.run_step()


def test_adamw_is_torchs_and_resumes(tmp_path):
    changes = {"optimizer": "adamw", "lr": 1e-3, "steps": 4}
    whole = run_cell(cell("pg", **changes))
    run_cell(cell("pg", **{**changes, "steps": 2}), checkpoint_dir=tmp_path)
    resumed = run_cell(cell("pg", **changes), checkpoint_dir=tmp_path)
    assert [r["grad_norm"] for r in whole] == [r["grad_norm"] for r in resumed]
    policy, gradient = {"w": torch.tensor([1.0, -2.0])}, {"w": torch.tensor([0.5, 1e-3])}
    optimizer = Optimizer("adamw", 0.1)
    # The first AdamW step is lr * sign(g) up to eps, whatever the gradient's size.
    torch.testing.assert_close(optimizer.step(policy, gradient)["w"], torch.tensor([0.9, -2.1]), rtol=0, atol=1e-5)
    assert torch.equal(policy["w"], torch.tensor([1.0, -2.0]))


# --- the oracle -------------------------------------------------------------------------------------------------------


def attached_weight(logits, batch, definition):
    """Token TIS that forgets to detach the weight."""
    logp = torch.log_softmax(logits, -1).gather(-1, batch.tokens[..., None])[..., 0]
    weight = (logp - batch.logp_sampler).exp().clamp_max(2.0)
    return (-weight * batch.advantages * logp).where(batch.mask, 0.0).sum() / definition["aggregation"]["sequences"]


def not_zero_without_advantage(logits, batch, definition):
    """A right loss with a small entropy-like term that does not know about advantages."""
    logp = torch.log_softmax(logits, -1)
    return (
        correction_loss(logits, batch, definition) + 1e-7 * (logp.exp() * logp).where(batch.mask[..., None], 0.0).sum()
    )


def test_an_attached_weight_stops_the_run():
    with pytest.raises(OracleMismatch) as caught:
        run_cell(cell("tis"), loss=attached_weight)
    message = str(caught.value)
    for part in ("arm 'tis'", "step 1", "row ", "token ", "the float64 reference says", "limit 2e-05", "detached"):
        assert part in message


def test_an_inverted_tail_ratio_stops_the_run(monkeypatch):
    right = losses._effective_mass

    def inverted(logq, logn, logp, *rest):
        # Tail masses come as [..., 1]; the head keeps its direction.
        return right(logn, logq, logq, *rest) if logq.shape[-1] == 1 else right(logq, logn, logp, *rest)

    run_cell(cell("sc", steps=1, head_k=4))
    monkeypatch.setattr(losses, "_effective_mass", inverted)
    with pytest.raises(OracleMismatch, match="arm 'sc', step 1"):
        run_cell(cell("sc", head_k=4))


def test_a_gradient_on_rows_without_advantage_stops_the_run():
    with pytest.raises(OracleMismatch, match="scaled error inf"):
        run_cell(cell("pg"), loss=not_zero_without_advantage)


def test_a_mismatch_leaves_the_last_saved_state(tmp_path):
    calls = 0

    def late(logits, batch, definition):
        nonlocal calls
        calls += 1
        return (
            correction_loss(logits, batch, definition)
            if trainer_step() < 3
            else attached_weight(logits, batch, definition)
        )

    def trainer_step():
        saved = load_state(tmp_path)
        return 0 if saved is None else saved.step + 1

    with pytest.raises(OracleMismatch, match="step 4"):
        run_cell(cell("tis", steps=6), loss=late, checkpoint_dir=tmp_path)
    assert calls > 3
    assert load_state(tmp_path).step == 2
    assert len(run_cell(cell("tis", steps=6), checkpoint_dir=tmp_path)) == 6


# --- divergence and bad settings --------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_stops_before_the_update():
    trainer = Trainer(cell("pg", oracle_every=1000), loss=lambda z, b, d: correction_loss(z, b, d) * float("nan"))
    trainer.step = 1  # past the first step's oracle
    before = {name: value.clone() for name, value in trainer.policy.items()}
    trainer.sampler.load_weights(trainer.policy, 0)
    with pytest.raises(TrainingDiverged, match="its norm is nan at step 2 of arm 'pg'; no update was made"):
        trainer.run_step()
    assert all(torch.equal(before[name], trainer.policy[name].detach()) for name in before)


def test_a_policy_that_is_not_finite_is_named():
    trainer = Trainer(cell("pg"))
    trainer.run_step()
    good = trainer.policy
    broken = {**good, "lm_head.weight": good["lm_head.weight"] * float("nan")}
    trainer.policy = broken
    with pytest.raises(RolloutError, match="diverged"):
        trainer.run_step()
    trainer.sampler = type("Clean", (Recorder,), {"load_weights": lambda self, state, version: None})(trainer.sampler)
    trainer.sampler.sampler.load_weights(good, 1)
    with pytest.raises(TrainingDiverged, match="logits: not finite at step 2, row .* lower lr"):
        trainer.run_step()


def test_a_sampler_without_a_head_is_refused():
    class Headless(Recorder):
        def generate(self, *arguments):
            return replace(super().generate(*arguments), head_ids=None, head_logp_sampler=None)

    trainer = Trainer(cell())
    trainer.sampler = Headless(trainer.sampler)
    with pytest.raises(RolloutError, match="a head of 16 was asked for"):
        trainer.run_step()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arm": "reinforce"}, "arm: expected one of onpolicy, pg, is, tis, .*got 'reinforce'"),
        ({"learning_rate": 1}, "learning_rate: not a setting of this trainer; known: arm, seed, steps"),
        ({"steps": 0}, "steps: expected a positive whole number"),
        ({"seed": -1}, "seed: expected a whole number"),
        ({"lr": 0.0}, "lr: expected a positive"),
        ({"weights": "fp3"}, "weights: format: expected one of"),
        (
            {"task": "chess"},
            "task: expected one of countdown_tiny, countdown_three, countdown_one, arithmetic, got 'chess'",
        ),
        ({"engine": "sglang"}, "engine: expected one of torch, vllm"),
        ({"optimizer": "lion"}, "optimizer: expected one of sgd, adamw"),
        ({"advantage": "rank"}, "advantage: expected one of mean, mean_std, raw, raw01"),
        ({"aggregation": "token-sum"}, "aggregation: expected one of seq-mean-token-sum, token-mean"),
        ({"arm": "grpo", "updates_per_rollout": 4}, "updates_per_rollout: 6 prompts cannot be divided among 4"),
        ({"updates_per_rollout": 2}, "arm 'sc' forms its ratios against the sampler; an anchored arm is needed: grpo"),
        ({"checkpoint": "repro/checkpoints/none"}, "expected config.json in this folder"),
        ({"prompts_per_step": 2.5}, "prompts_per_step: expected a positive whole number"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        run_cell(cell(**changes))


def test_missing_settings_and_defaults():
    with pytest.raises(ValueError, match="seed: required"):
        run_cell({"arm": "pg", "steps": 1})
    assert Trainer({"arm": "pg", "seed": 0, "steps": 1}).config == {
        **COUNTDOWN_TINY,
        "arm": "pg",
        "seed": 0,
        "steps": 1,
    }
