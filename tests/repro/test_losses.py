"""The training loss against the float64 reference: on recorded rollouts, over the grid of definitions, at extremes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import CENTERINGS, RULES, SURROGATES, for_reference, gradient, random_batch

from repro.arms import ARMS
from repro.losses import AGGREGATIONS, LossBatch, correction_loss
from repro.oracle import OracleMismatch, compare, reference
from repro.policies import forward
from repro.samplers.torch_sampler import TorchSampler
from repro.settings import complete_config, definition_of, with_denominator
from repro.tasks import countdown_tiny as task


def far_from_thresholds(logits, batch, definition):
    """Whether every ratio lies at least 1e-4 from every bound: float32 may fall on the other side of a nearer one."""
    logp = torch.log_softmax(logits.double() / definition["temperature"], -1)
    n = logp if batch.logp_anchor_full is None else batch.logp_anchor_full.double()
    q = batch.logp_sampler_full.double()
    heads = [x.gather(-1, batch.head_ids).exp().sum(-1, keepdim=True) for x in (logp, n, q)]
    tail_p, tail_n, tail_q = ((1 - x).clamp_min(1e-6).log() for x in heads)
    weights = torch.cat([n - q, tail_n - tail_q], -1).exp()[batch.mask]
    ratios = torch.cat([logp - n, tail_p - tail_n], -1).exp()[batch.mask] if n is not logp else weights
    bounds = [0.5, 1.5, 2.0, 0.8, 1.2, 1.28]
    return all(((x - b).abs() > 1e-4).all() for x in (weights, ratios) for b in bounds)


@pytest.mark.parametrize("anchor", [False, True], ids=["two", "three"])
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("centering", CENTERINGS)
@pytest.mark.parametrize("rule", RULES)
def test_gradient_and_value_equal_the_reference(anchor, surrogate, centering, rule):
    if surrogate != "reinforce" and RULES[rule] is not None and not anchor:
        logits, batch = random_batch(0)
        with pytest.raises(ValueError, match="logp_anchor: without it p/q would be applied twice"):
            correction_loss(logits, batch, {"surrogate": SURROGATES[surrogate], "weight": RULES[rule]})
        return
    compared = 0
    for seed, (kind, shape) in enumerate(
        [(k, s) for k in AGGREGATIONS for s in ({"rows": 3, "length": 5}, {"rows": 4, "length": 4})]
    ):
        temperature = (1.0, 0.7)[seed % 2]
        definition = {
            "temperature": temperature,
            "surrogate": SURROGATES[surrogate] or {"kind": "reinforce"},
            "weight": RULES[rule],
            "centering": CENTERINGS[centering],
            "aggregation": {"kind": kind, **({"length": 7} if kind.endswith("norm") else {})},
        }
        logits, batch = random_batch(seed, temperature=temperature, anchor=anchor, **shape)
        if not far_from_thresholds(logits, batch, definition):
            continue
        compared += 1
        loss, found = gradient(logits, batch, definition)
        expected = reference(logits, for_reference(batch, definition), definition)
        scale = np.abs(expected.grad_logits).max()
        np.testing.assert_allclose(found.numpy(), expected.grad_logits, rtol=0, atol=3e-6 * scale)
        assert loss == pytest.approx(expected.loss_dense, rel=1e-5, abs=1e-5)
        assert not found[~batch.mask].any()
    assert compared >= 6


@pytest.fixture(scope="module")
def recorded(config, policy):
    """A real rollout of the quantised sampler with the trainer's logits and group-centred advantages."""
    sampler = TorchSampler(
        config, eos=task.EOS, pad=task.PAD, weights="fp4_e2m1", activations="fp8_e4m3", kv="fp8_e4m3"
    )
    sampler.load_weights(policy, 0)
    problems = task.training_problems(np.random.default_rng(5), 3)
    prompts = torch.tensor([task.prompt(problem) for problem in problems])
    rollout = sampler.generate(prompts, 4, 20, 1.0, torch.Generator().manual_seed(1), 16)
    rewards = torch.tensor([1.0, -1, -1, -1, 1, 1, -1, 1, -1, -1, -1, -1])
    groups = rewards.view(3, 4)
    advantages = (groups - groups.mean(1, keepdim=True)).flatten()
    with torch.no_grad():
        logits = forward(policy, config, torch.cat([rollout.prompts, rollout.tokens[:, :-1]], 1))
    batch = LossBatch(
        rollout.tokens, rollout.mask, advantages[:, None].expand_as(rollout.logp_sampler), rollout.logp_sampler,
        head_ids=rollout.head_ids, head_logp_sampler=rollout.head_logp_sampler,
    )  # fmt: skip
    return logits[:, prompts.shape[1] - 1 :], batch


def definition_for(arm, batch):
    definition = definition_of(complete_config({"arm": arm, "seed": 0, "steps": 1}))
    return with_denominator(definition, len(batch.mask), int(batch.mask.sum()))


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_on_a_recorded_rollout(recorded, arm):
    logits, batch = recorded
    definition = definition_for(arm, batch)
    if ARMS[arm].anchored:
        logp = torch.log_softmax(logits, -1).gather(-1, batch.tokens[..., None])[..., 0]
        batch = replace(
            batch, logp_anchor=logp + 0.2 * torch.randn(logp.shape, generator=torch.Generator().manual_seed(2))
        )
    _, found = gradient(logits, batch, definition)
    assert compare(logits, found, batch, definition, {"arm": arm, "step": 0, "row": 0}) < 2e-6
    zero = (batch.advantages[:, 0] == 0).nonzero()[:, 0]
    assert len(zero) == 4 and not found[zero].any()
    assert found.abs().max() > 1e-3


def test_the_arms_differ_from_each_other(recorded):
    logits, batch = recorded
    gradients = {}
    for arm in ("pg", "tis", "sc", "tis_sc"):
        gradients[arm] = gradient(logits, batch, definition_for(arm, batch))[1]
    names = list(gradients)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            assert (gradients[a] - gradients[b]).abs().max() > 1e-5, (a, b)


@pytest.mark.parametrize("rule", RULES)
def test_on_policy_head_leaves_the_gradient_to_rounding(rule):
    logits, batch = random_batch(3)
    logp = torch.log_softmax(logits, -1)
    batch = replace(
        batch,
        logp_sampler=logp.gather(-1, batch.tokens[..., None])[..., 0],
        head_logp_sampler=logp.gather(-1, batch.head_ids),
    )
    plain = gradient(logits, batch, {"weight": RULES[rule]})[1]
    centered = gradient(logits, batch, {"weight": RULES[rule], "centering": {"tail": "rescaled"}})[1]
    torch.testing.assert_close(centered, plain, rtol=0, atol=3e-7)


def test_constant_advantage_has_zero_expected_gradient_under_the_sampler():
    logits, batch = random_batch(4, rows=1, length=1, head=9)
    definition = {"weight": RULES["tis"], "centering": {"tail": "exact"}}
    total = torch.zeros_like(logits)
    for v in range(9):
        token = torch.full((1, 1), v)
        here = replace(batch, tokens=token, logp_sampler=batch.logp_sampler_full[..., v], advantages=torch.ones(1, 1))
        total += batch.logp_sampler_full[0, 0, v].exp() * gradient(logits, here, definition)[1]
    assert total.abs().max() < 1e-6
    plain = sum(
        batch.logp_sampler_full[0, 0, v].exp()
        * gradient(
            logits,
            replace(batch, tokens=torch.full((1, 1), v), logp_sampler=batch.logp_sampler_full[..., v],
                    advantages=torch.ones(1, 1)),
            {},
        )[1]
        for v in range(9)
    )  # fmt: skip
    assert plain.abs().max() > 1e-2


def test_coefficients_are_detached():
    """Differentiating the weight doubles the slope in band; the loss must not."""
    logits, batch = random_batch(8)
    definition = {"weight": {"level": "token"}}
    _, found = gradient(logits, batch, definition)
    leaf = logits.clone().requires_grad_()
    logp = torch.log_softmax(leaf, -1).gather(-1, batch.tokens[..., None])[..., 0]
    attached = (logp - batch.logp_sampler).exp()
    ((-attached * batch.advantages * logp)[batch.mask].sum() / batch.mask.sum()).backward()
    assert (leaf.grad - found).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"kl": {"kind": "k1"}}, "kl: not covered by the training loss"),
        ({"weight": {"level": "segment"}}, "weight.level: expected one of token, sequence, geometric, got 'segment'"),
        ({"weight": {"high": 2.0}}, "weight.outside: required"),
        ({"weight": {"gate": 1, "outside": "clip"}}, "weight.gate: not covered"),
        ({"weight": {"negative": {"low": 0.5}}}, "weight.outside: required"),
        ({"weight": {"statistic": "tv"}}, "weight.statistic: expected one of ratio, tv_signed, got 'tv'"),
        ({"weight": {"statistic": "tv_signed", "low": -0.1}}, "weight.outside: required"),
        ({"weight": {"statistic": "tv_signed", "level": "sequence", "outside": "zero"}}, "at level 'token' only"),
        ({"weight": {"statistic": "tv_signed", "high": 0.1, "outside": "clip"}}, "with outside 'zero' only"),
        (
            {"weight": {"statistic": "tv_signed", "outside": "zero"}, "centering": {}},
            "no constant value on a modelled tail",
        ),
        ({"gate": {}}, "gate.level: expected one of sequence, geometric, got 'token'"),
        ({"gate": {"level": "geometric", "closed": False}}, "gate.closed: not covered"),
        ({"surrogate": {"kind": "gspo"}}, "surrogate.kind: expected one of reinforce, ppo_clip"),
        ({"centering": {"tail": "uniform"}}, "centering.tail: expected one of exact, rescaled"),
        ({"aggregation": {"kind": "mean"}}, "aggregation.kind"),
        ({"aggregation": {"kind": "seq-mean-token-sum-norm"}}, "aggregation.length: required"),
        ({"temperature": 0.0}, "temperature: expected a positive number"),
    ],
)
def test_what_is_not_covered_is_an_error(definition, message):
    logits, batch = random_batch(9)
    with pytest.raises(ValueError, match=message):
        correction_loss(logits, batch, definition)


def test_missing_fields_and_empty_masks_are_errors():
    logits, batch = random_batch(9)
    with pytest.raises(ValueError, match="head_ids: centering 'rescaled' needs it"):
        correction_loss(logits, replace(batch, head_ids=None), {"centering": {"tail": "rescaled"}})
    with pytest.raises(ValueError, match="logp_sampler_full: centering 'exact' needs it"):
        correction_loss(logits, replace(batch, logp_sampler_full=None), {"centering": {"tail": "exact"}})
    empty = replace(batch, mask=torch.zeros_like(batch.mask))
    with pytest.raises(ValueError, match="no valid token"):
        correction_loss(logits, empty, {})
    assert float(correction_loss(logits, empty, {"aggregation": {"kind": "token-sum"}})) == 0.0
    assert float(correction_loss(logits, empty, {"aggregation": {"kind": "token-mean", "tokens": 5}})) == 0.0


def test_an_unclipped_ratio_of_ten_is_compared_by_its_own_gradient(recorded):
    """Rounding grows with the surrogate's ratio, which the contract's scale does not know; a wrong factor is still found."""
    logits, batch = recorded
    logp = torch.log_softmax(logits, -1).gather(-1, batch.tokens[..., None])[..., 0]
    batch = replace(batch, logp_anchor=logp - 2.3, advantages=-batch.advantages.abs())
    definition = definition_for("grpo", batch)
    wanted = torch.from_numpy(reference(logits, batch, definition).grad_logits)
    where = {"arm": "grpo", "step": 0, "row": 0}
    assert 5e-6 < compare(logits, (wanted * (1 + 1e-5)).float(), batch, definition, where) < 1.5e-5
    with pytest.raises(OracleMismatch, match="scaled error 0.001"):
        compare(logits, (wanted * 1.001).float(), batch, definition, where)
