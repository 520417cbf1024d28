"""The simulated engine: what it records is what it sampled, and bad rollouts are refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from repro.mismatch import Mismatch, measure
from repro.policies import forward
from repro.quantise import quantise_weights
from repro.samplers import RolloutError
from repro.samplers.torch_sampler import TorchSampler
from repro.tasks import countdown_tiny as task

EXACT = {"rtol": 0, "atol": 1e-5}


def generate(sampler, prompts, seed=0, samples=3, tokens=12, temperature=1.0, head_k=5):
    return sampler.generate(prompts, samples, tokens, temperature, torch.Generator().manual_seed(seed), head_k)


@pytest.fixture
def clean_sampler(config, policy):
    sampler = TorchSampler(config, eos=task.EOS, pad=task.PAD)
    sampler.load_weights(policy, 0)
    return sampler


def trainer_logp(policy, config, rollout, temperature=1.0):
    sequence = torch.cat([rollout.prompts, rollout.tokens[:, :-1]], dim=1)
    with torch.no_grad():
        logits = forward(policy, config, sequence)[:, rollout.prompts.shape[1] - 1 :]
    return torch.log_softmax(logits / temperature, -1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_unquantised_record_equals_the_trainer(clean_sampler, config, policy, prompts, temperature):
    rollout = generate(clean_sampler, prompts, temperature=temperature, tokens=30).validate(task.VOCABULARY, 5)
    assert rollout.ended.any() and rollout.mask.sum(-1).unique().numel() > 2  # ragged, and rows were dropped on the way
    logp = trainer_logp(policy, config, rollout, temperature)
    mask = rollout.mask
    torch.testing.assert_close(rollout.logp_sampler_full[mask], logp[mask], **EXACT)
    torch.testing.assert_close(
        rollout.logp_sampler[mask], logp.gather(-1, rollout.tokens[..., None])[..., 0][mask], **EXACT
    )
    torch.testing.assert_close(rollout.head_logp_sampler[mask], logp[mask].topk(5, -1).values, **EXACT)


def test_the_head_and_the_token_come_from_the_recorded_row(quantised_sampler, prompts):
    rollout = generate(quantised_sampler, prompts, head_k=16)
    full, mask = rollout.logp_sampler_full, rollout.mask
    assert torch.equal(rollout.logp_sampler[mask], full.gather(-1, rollout.tokens[..., None])[..., 0][mask])
    assert torch.equal(rollout.head_logp_sampler[mask], full.gather(-1, rollout.head_ids.clamp_min(0))[mask])
    torch.testing.assert_close(full[mask].exp().sum(-1), torch.ones(int(mask.sum())), rtol=0, atol=1e-5)
    assert (rollout.head_ids[~mask] == -1).all() and (rollout.head_logp_sampler[~mask] == -torch.inf).all()


def test_weight_only_quantisation_is_the_trainer_on_quantised_weights(config, policy, prompts):
    sampler = TorchSampler(config, eos=task.EOS, pad=task.PAD, weights="int4")
    sampler.load_weights(policy, 0)
    rollout = generate(sampler, prompts)
    mask = rollout.mask
    expected = trainer_logp(quantise_weights(policy, "int4"), config, rollout)
    torch.testing.assert_close(rollout.logp_sampler_full[mask], expected[mask], **EXACT)
    assert (expected - trainer_logp(policy, config, rollout))[mask].abs().max() > 0.05


def test_each_kind_of_quantisation_moves_the_distribution(config, policy, prompts):
    kl = {}
    for name, settings in {
        "none": {},
        "weights": {"weights": "fp4_e2m1"},
        "activations": {"activations": "fp8_e4m3"},
        "kv": {"kv": "fp4_e2m1"},
    }.items():
        sampler = TorchSampler(config, eos=task.EOS, pad=task.PAD, **settings)
        sampler.load_weights(policy, 0)
        rollout = generate(sampler, prompts, tokens=20)
        kl[name] = measure(trainer_logp(policy, config, rollout), rollout)["kl_sampler_trainer"]
    assert abs(kl["none"]) < 1e-6
    assert kl["activations"] > 1e-5
    assert kl["weights"] > 1e-3 and kl["kv"] > 1e-3


def test_sampled_frequencies_follow_the_recorded_distribution(clean_sampler, prompts):
    rollout = generate(clean_sampler, prompts[:1], samples=20_000, tokens=1)
    counts = torch.bincount(rollout.tokens[:, 0], minlength=task.VOCABULARY).double()
    p = rollout.logp_sampler_full[0, 0].double().exp()
    z = (counts - 20_000 * p) / (20_000 * p * (1 - p)).sqrt().clamp_min(1.0)
    assert z.abs().max() < 5


def test_seeds_versions_and_independence_of_other_rows(quantised_sampler, prompts):
    first, again, other = (generate(quantised_sampler, prompts, seed, tokens=30) for seed in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.logp_sampler, again.logp_sampler)
    assert first.tokens.shape != other.tokens.shape or not torch.equal(first.tokens, other.tokens)
    assert first.version == 3
    assert first.prompt_index.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert torch.equal(first.prompts, prompts[first.prompt_index])


def test_eos_ends_a_response_and_pad_fills_it(clean_sampler, prompts):
    rollout = generate(clean_sampler, prompts, samples=40, tokens=25)
    assert 0 < rollout.ended.sum() < len(rollout.ended)
    for row in range(len(rollout.tokens)):
        length = int(rollout.mask[row].sum())
        tokens = rollout.tokens[row].tolist()
        assert (task.EOS in tokens) == bool(rollout.ended[row])
        assert tokens.index(task.EOS) + 1 == length if rollout.ended[row] else length == rollout.tokens.shape[1]
        assert set(tokens[length:]) <= {task.PAD}


def test_loading_copies_the_weights(config, policy, prompts):
    state = {name: value.clone() for name, value in policy.items()}
    sampler = TorchSampler(config, eos=task.EOS, pad=task.PAD)
    sampler.load_weights(state, 0)
    before = generate(sampler, prompts)
    for value in state.values():
        value.zero_()
    assert torch.equal(before.logp_sampler, generate(sampler, prompts).logp_sampler)
    sampler.load_weights(policy, 9)
    assert generate(sampler, prompts).version == 9


def corrupt(rollout, name, index, value):
    tensor = getattr(rollout, name).clone()
    tensor[index] = value
    return replace(rollout, **{name: tensor})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: replace(r, head_ids=None), "head_ids: a head of 5 was asked for and the sampler returned none"),
        (
            lambda r: replace(r, head_logp_sampler=r.head_logp_sampler[..., :4]),
            r"head_logp_sampler: expected shape \(12, ",
        ),
        (lambda r: replace(r, logp_sampler=r.logp_sampler[:, 1:]), "logp_sampler: expected shape"),
        (lambda r: corrupt(r, "logp_sampler", (2, 0), float("nan")), "logp_sampler: .* row 2, token 0, got nan"),
        (lambda r: corrupt(r, "logp_sampler", (2, 0), 0.1), "logp_sampler: .* row 2, token 0"),
        (lambda r: corrupt(r, "logp_sampler", (1, 0), -torch.inf), "logp_sampler: must be finite"),
        (lambda r: corrupt(r, "tokens", (0, 0), 73), r"tokens: must lie in \[0, 73\); first at row 0, token 0"),
        (lambda r: corrupt(r, "mask", (3, 0), False), "mask: "),
        (lambda r: corrupt(r, "head_ids", (0, 0, 1), 73), "head_ids: must lie in"),
        (lambda r: corrupt(r, "head_ids", (0, 0, 1), -1), "absent slots carry -inf"),
        (lambda r: corrupt(r, "head_ids", (0, 0, 1), r.head_ids[0, 0, 0]), "head_ids: holds an id twice"),
        (lambda r: corrupt(r, "head_logp_sampler", (0, 0, 1), float("nan")), "head_logp_sampler: NaN or above 0"),
        (
            lambda r: replace(r, head_logp_sampler=r.head_logp_sampler - 0.01),
            "head_logp_sampler: disagrees with logp_sampler on the sampled token",
        ),
        (lambda r: replace(r, logp_sampler_full=r.logp_sampler_full[..., :-1]), "logp_sampler_full: expected shape"),
    ],
)
def test_bad_rollouts_are_refused(quantised_sampler, prompts, damage, message):
    rollout = generate(quantised_sampler, prompts)
    assert rollout.validate(task.VOCABULARY, 5) is rollout
    with pytest.raises(RolloutError, match=message):
        damage(rollout).validate(task.VOCABULARY, 5)


def test_junk_off_the_mask_is_accepted(quantised_sampler, prompts):
    rollout = generate(quantised_sampler, prompts, samples=40, tokens=25)
    assert not rollout.mask.all()
    corrupt(rollout, "logp_sampler", ~rollout.mask, float("nan")).validate(task.VOCABULARY, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples_per_prompt"),
        ({"tokens": 0}, "max_tokens"),
        ({"tokens": 1000}, "exceed the model's 128 positions"),
        ({"head_k": 74}, r"head_k: expected 0\.\.73"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_bad_requests_are_refused(quantised_sampler, prompts, changes, message):
    with pytest.raises(RolloutError, match=message):
        generate(quantised_sampler, prompts, **changes)


def test_no_weights_ragged_prompts_diverged_weights_unknown_format(config, policy, prompts):
    sampler = TorchSampler(config, eos=task.EOS, pad=task.PAD)
    with pytest.raises(RolloutError, match="load_weights has not been called"):
        generate(sampler, prompts)
    sampler.load_weights({**policy, "lm_head.weight": policy["lm_head.weight"] * float("nan")}, 4)
    with pytest.raises(RolloutError, match="policy version 4; the policy has diverged"):
        generate(sampler, prompts)
    with pytest.raises(RolloutError, match="prompts: expected int64"):
        generate(sampler, prompts.float())
    with pytest.raises(ValueError, match="weights: format: expected one of"):
        Mismatch(weights="fp3")
    with pytest.raises(ValueError, match="staleness"):
        Mismatch(staleness=-1)
    with pytest.raises(ValueError, match="weight_noise"):
        Mismatch(weight_noise=-0.1)


def test_noise_is_relative_seeded_and_staleness_refreshes_on_schedule(policy):
    noisy = [Mismatch(weight_noise=0.01).perturb(policy, seed) for seed in (1, 1, 2)]
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(noisy[0][name], noisy[1][name]) and not torch.equal(noisy[0][name], noisy[2][name])
    relative = (noisy[0][name] / policy[name] - 1).std()
    assert abs(float(relative) - 0.01) < 1e-3
    assert Mismatch().perturb(policy, 1) is policy
    assert [step for step in range(10) if Mismatch(staleness=3).refreshes(step)] == [0, 4, 8]


def test_measure_against_plain_arithmetic(config, policy, quantised_sampler, prompts):
    rollout = generate(quantised_sampler, prompts, tokens=9)
    logp = trainer_logp(policy, config, rollout)
    found = measure(logp, rollout)  # log-softmax of log-probs is itself
    p, q, mask = logp.double()[rollout.mask], rollout.logp_sampler_full.double()[rollout.mask], rollout.mask
    d = p.gather(-1, rollout.tokens[mask][:, None])[:, 0] - rollout.logp_sampler[mask].double()
    ids = rollout.head_ids[mask]
    head_p, head_q = p.gather(-1, ids).exp().sum(-1), q.gather(-1, ids).exp().sum(-1)
    expected = {
        "kl_sampler_trainer": (q.exp() * (q - p)).sum(-1).mean(),
        "kl_k1": -d.mean(),
        "ess": d.exp().sum() ** 2 / (len(d) * d.exp().square().sum()),
        "log_ratio_max": d.max(),
        "entropy": -(p.exp() * p).sum(-1).mean(),
        "head_mass_sampler": head_q.mean(),
        "head_mass_trainer": head_p.mean(),
        "tail_ratio_max": ((1 - head_q) / (1 - head_p)).max(),
        "tail_ratio_mean": ((1 - head_q) / (1 - head_p)).mean(),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), rel=2e-3, abs=1e-6), name
    estimate = measure(logp, replace(rollout, logp_sampler_full=None, head_ids=None, head_logp_sampler=None))
    assert estimate["kl_sampler_trainer"] == estimate["kl_k1"] == found["kl_k1"]
