"""The training loss where float32 is in danger: huge tail ratios, junk under the mask, zero probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import CENTERINGS, RULES, gradient, random_batch

from repro.loss_rules import factor, mass
from repro.losses import LossBatch
from repro.oracle import reference


@pytest.mark.parametrize("tail", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("rule", RULES)
def test_a_huge_tail_ratio_costs_no_digits(tail, rule):
    """Sampler tail 0.3 over trainer tails down to 1e-6: ratios to 3e5, where the head-only form is off by 1e-2."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand((6, 4, 12), generator=generator).double() + 0.1
    p, q = weights.clone(), torch.rand((6, 4, 12), generator=generator).double() + 0.1
    for x, share in ((p, tail), (q, 0.3)):
        x[..., :4] *= (1 - share) / x[..., :4].sum(-1, keepdim=True)
        x[..., 4:] *= share / x[..., 4:].sum(-1, keepdim=True)
    logits, logq = p.log().float(), q.log().float()
    tokens = torch.randint(0, 12, (6, 4), generator=generator)
    ids = torch.arange(4).expand(6, 4, 4)
    batch = LossBatch(
        tokens, torch.ones((6, 4), dtype=torch.bool), torch.ones((6, 4)), logq.gather(-1, tokens[..., None])[..., 0],
        head_ids=ids, head_logp_sampler=logq[..., :4],
    )  # fmt: skip
    definition = {"weight": RULES[rule], "centering": {"tail": "rescaled"}, "aggregation": {"kind": "token-sum"}}
    _, found = gradient(logits, batch, definition)
    expected = reference(logits, batch, definition)
    scale = 1 + np.maximum(1.0, expected.weights)[..., None]
    assert (np.abs(found.numpy() - expected.grad_logits) / scale).max() < 2e-6


def test_sampled_token_and_head_fall_on_the_same_side_of_a_band_edge():
    """Ratios within a few ulp of 0.5: log p against log q + log bound decides otherwise than exp(log p - log q) on some pairs."""
    generator = torch.Generator().manual_seed(1)
    logq = -5 * torch.rand(20_000, generator=generator) - 0.7
    logp = logq + torch.tensor(0.5).log() + 1e-6 * (torch.rand(20_000, generator=generator) - 0.5)
    for rule in ({"low": 0.5, "outside": "zero"}, {"high": 0.5, "outside": "zero"}):
        one = torch.ones_like(logq)
        sampled = factor(logp, logq, logp - logq, one, rule)[0] == 0
        head = mass(logq, logp, one, rule)[0] == 0
        assert 0.2 < float(sampled.float().mean()) < 0.8
        assert torch.equal(sampled, head)


@pytest.mark.parametrize("centering", CENTERINGS)
def test_junk_off_the_mask_changes_no_bit(centering):
    logits, batch = random_batch(5, anchor=True)
    definition = {"temperature": 0.9, "weight": RULES["tis"], "centering": CENTERINGS[centering]}
    loss, found = gradient(logits, batch, definition)
    off = ~batch.mask
    assert off.any()
    junk = {
        name: torch.where(off.view(*off.shape, *[1] * (value.ndim - 2)), float("nan"), value)
        if value.is_floating_point()
        else torch.where(off.view(*off.shape, *[1] * (value.ndim - 2)), 10**9, value)
        for name, value in vars(batch).items()
        if name != "mask"
    }
    again, dirty = gradient(
        torch.where(off[..., None], float("nan"), logits), LossBatch(mask=batch.mask, **junk), definition
    )
    assert loss == again
    assert torch.equal(found, dirty)


def test_absent_slots_infinite_slots_and_a_full_head():
    logits, batch = random_batch(6, head=4)
    definition = {"weight": RULES["tis"], "centering": {"tail": "rescaled"}}
    _, found = gradient(logits, batch, definition)
    padded = replace(
        batch,
        head_ids=torch.cat([batch.head_ids[..., :2], torch.full((3, 5, 1), -1), batch.head_ids[..., 2:]], -1),
        head_logp_sampler=torch.cat(
            [batch.head_logp_sampler[..., :2], torch.full((3, 5, 1), -torch.inf), batch.head_logp_sampler[..., 2:]], -1
        ),
    )
    torch.testing.assert_close(gradient(logits, padded, definition)[1], found, rtol=0, atol=1e-7)

    logits, batch = random_batch(7, head=9)
    for rule in RULES.values():
        dense = gradient(logits, batch, {"weight": rule, "centering": {"tail": "exact"}})[1]
        whole = gradient(logits, batch, {"weight": rule, "centering": {"tail": "rescaled"}})[1]
        torch.testing.assert_close(whole, dense, rtol=0, atol=1e-6)


def test_a_token_outside_the_trainers_support_stays_finite():
    """A logit of -inf (probability 0 on both sides) in the head: no NaN from 0 * inf."""
    p = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.1, 0.0])
    q = torch.tensor([0.3, 0.1, 0.36, 0.18, 0.06, 0.0])
    batch = LossBatch(
        torch.tensor([[1]]), torch.ones((1, 1), dtype=torch.bool), torch.full((1, 1), 0.5), q[1].log().view(1, 1),
        head_ids=torch.tensor([[[2, 0, 5]]]), head_logp_sampler=q[[2, 0, 5]].log().view(1, 1, 3),
    )  # fmt: skip
    for rule in RULES.values():
        definition = {"weight": rule, "centering": {"tail": "rescaled"}}
        loss, found = gradient(p.log().view(1, 1, 6), batch, definition)
        expected = reference(p.log().view(1, 1, 6), batch, definition)
        np.testing.assert_allclose(found.numpy(), expected.grad_logits, rtol=0, atol=1e-6)
        assert loss == pytest.approx(expected.loss_dense, abs=1e-6)


def test_extreme_log_ratios_stay_finite():
    logits = torch.tensor([[[0.0, -300.0, -1.0]], [[0.0, 3.0, -1.0]]])
    logq = torch.tensor([[[-300.0, 0.0, -301.0]], [[-90.0, -0.1, -2.4]]])
    batch = LossBatch(
        torch.tensor([[0], [0]]), torch.ones((2, 1), dtype=torch.bool), torch.ones((2, 1)), logq[:, :, 0],
        head_ids=torch.tensor([[[1, 0]], [[1, 2]]]), head_logp_sampler=logq.gather(-1, torch.tensor([[[1, 0]], [[1, 2]]])),
    )  # fmt: skip
    for rule in ("tis", "mis"):
        definition = {"weight": RULES[rule], "centering": {"tail": "rescaled"}}
        _, found = gradient(logits, batch, definition)
        expected = reference(logits, batch, definition)
        np.testing.assert_allclose(found.numpy(), expected.grad_logits, rtol=0, atol=2e-6)
