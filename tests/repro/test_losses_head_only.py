"""The head-only loss: the same gradient as the reference, one array over the vocabulary, and the corners of float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import RULES, SURROGATES, assert_equals_reference, for_reference, gradient, random_batch
from torch.utils._python_dispatch import TorchDispatchMode

from repro import head_only
from repro.head_only import head_only_loss
from repro.losses import LossBatch, correction_loss
from repro.oracle import reference

CENTERED = {"centering": {"tail": "rescaled"}}


@pytest.mark.parametrize("anchor", [False, True], ids=["two", "three"])
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("rule", RULES)
def test_gradient_equals_the_reference(rule, surrogate, anchor):
    definition = {"surrogate": SURROGATES[surrogate] or {"kind": "reinforce"}, "weight": RULES[rule]}
    if surrogate != "reinforce" and RULES[rule] is not None and not anchor:
        logits, batch = random_batch(0)
        with pytest.raises(ValueError, match="logp_anchor: without it p/q would be applied twice"):
            head_only_loss(logits, batch, definition)
        return
    for floors in ({}, {"floor_sampler": None, "floor_trainer": None}, {"floor_sampler": 0.05, "floor_trainer": 0.2}):
        assert_equals_reference(head_only_loss, {**definition, "centering": floors}, anchor, False)
    assert_equals_reference(head_only_loss, definition, anchor, False)


def test_value_is_the_head_only_loss():
    for definition in ({}, {"weight": RULES["tis"], **CENTERED}, {"surrogate": SURROGATES["ppo"], **CENTERED}):
        logits, batch = random_batch(2, anchor=True, absent=True)
        expected = reference(logits, for_reference(batch, definition), definition)
        assert float(head_only_loss(logits, batch, definition)) == pytest.approx(expected.loss, rel=1e-5, abs=1e-6)


def two_level(tail, *, vocabulary=12):
    """Trainer with mass ``tail`` and sampler with mass 0.3 beyond a head of four, recorded in float32."""
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.rand((6, 4, vocabulary), generator=generator).double() + 0.1 for _ in range(2))
    logits, logq = (
        torch.cat(
            [x[..., :4].log() - x[..., :4].sum(-1, keepdim=True).log() + np.log1p(-mass),
             x[..., 4:].log() - x[..., 4:].sum(-1, keepdim=True).log() + np.log(mass)], -1
        ).float()
        for x, mass in ((p, tail), (q, 0.3))
    )  # fmt: skip
    tokens = torch.randint(0, vocabulary, (6, 4), generator=generator)
    batch = LossBatch(
        tokens, torch.ones((6, 4), dtype=torch.bool), torch.ones((6, 4)), logq.gather(-1, tokens[..., None])[..., 0],
        head_ids=torch.arange(4).expand(6, 4, 4), head_logp_sampler=logq[..., :4],
    )  # fmt: skip
    return logits, batch


@pytest.mark.parametrize("tail", [1e-2, 1e-4, 1e-6, 1e-30, 1e-60])
@pytest.mark.parametrize("floor", [1e-6, None])
@pytest.mark.parametrize("rule", ["none", "tis", "mis"])
def test_a_small_tail_keeps_its_digits(tail, floor, rule):
    """Down to tails whose probabilities are 0 in float32: 1 - P would have lost everything at 1e-7."""
    logits, batch = two_level(tail)
    definition = {"weight": RULES[rule], "centering": {"floor_trainer": floor}, "aggregation": {"kind": "token-sum"}}
    _, found = gradient(logits, batch, definition, head_only_loss)
    expected = reference(logits, batch, definition)
    scale = 1 + np.maximum(1.0, expected.weights)[..., None]
    assert (np.abs(found.numpy() - expected.grad_logits) / scale).max() < 2e-6


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_logits_come_back_bit_for_bit(temperature):
    logits, batch = random_batch(1)
    leaf = logits.clone().requires_grad_()
    upstream = torch.tanh(leaf)  # tanh's backward needs its output: an in-place change that counted would be refused
    before = upstream.detach().clone()
    loss = head_only_loss(upstream, batch, {"temperature": temperature, **CENTERED})
    assert torch.equal(upstream.detach(), before)
    loss.backward()
    wanted = logits.clone().requires_grad_()
    correction_loss(torch.tanh(wanted), batch, {"temperature": temperature, **CENTERED}).backward()
    torch.testing.assert_close(leaf.grad, wanted.grad, rtol=0, atol=3e-7)


def test_logits_come_back_after_a_failure(monkeypatch):
    logits, batch = random_batch(1)
    before = logits.clone()

    def fails(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(torch, "softmax", fails)
    with pytest.raises(MemoryError):
        head_only_loss(logits, batch, CENTERED)
    assert torch.equal(logits, before)


class Large(TorchDispatchMode):
    """Names of the operations that return at least ``size`` numbers, and how many memory blocks these occupy."""

    def __init__(self, size):
        super().__init__()
        self.size, self.names, self.blocks = size, [], set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.numel() >= self.size:
            self.names.append(str(function))
            self.blocks.add(out.untyped_storage().data_ptr())
        return out


def test_one_array_over_the_vocabulary_and_one_pass_of_exponentials():
    logits, batch = random_batch(0, vocabulary=5000, head=8)
    leaf = logits.requires_grad_()
    with Large(leaf.numel() // 2) as large:
        head_only_loss(leaf, batch, {"weight": RULES["tis"], **CENTERED}).backward()
    assert large.blocks == {leaf.untyped_storage().data_ptr(), leaf.grad.untyped_storage().data_ptr()}
    assert sum(any(word in name for word in ("exp", "softmax", "log")) for name in large.names) == 1
    with Large(leaf.numel() // 2) as dense:
        correction_loss(leaf.detach().requires_grad_(), batch, {"weight": RULES["tis"], **CENTERED}).backward()
    assert len(dense.names) > 2 * len(large.names)


@pytest.mark.parametrize("definition", [{}, {"weight": RULES["tis"], **CENTERED}])
def test_junk_off_the_mask_changes_no_bit(definition):
    logits, batch = random_batch(5, anchor=True)
    loss, found = gradient(logits, batch, definition, head_only_loss)
    off = ~batch.mask
    junk = {}
    for name, value in vars(batch).items():
        where = off.view(*off.shape, *[1] * (value.ndim - 2))
        junk[name] = (
            value if name == "mask" else torch.where(where, torch.nan if value.is_floating_point() else 10**9, value)
        )
    dirty_logits = torch.where(off[..., None], torch.nan, logits)
    again, dirty = gradient(dirty_logits, LossBatch(**junk), definition, head_only_loss)
    assert loss == again
    assert torch.equal(found, dirty)


def test_an_empty_tail_and_tokens_without_probability():
    logits, batch = random_batch(7, head=9)  # the head is the whole vocabulary
    for rule in RULES.values():
        definition = {"weight": rule, **CENTERED}
        expected = reference(logits, for_reference(batch, definition), definition).grad_logits
        found = gradient(logits, batch, definition, head_only_loss)[1]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    logits, batch = random_batch(7)
    outside = batch.head_logp_sampler.new_zeros(logits.shape).scatter(-1, batch.head_ids, 1.0)
    outside = outside.scatter(-1, batch.tokens[..., None], 1.0) == 0
    logits = logits.masked_fill(outside, -torch.inf)  # no trainer mass beyond the head
    expected = reference(logits, for_reference(batch, CENTERED), CENTERED).grad_logits
    np.testing.assert_allclose(gradient(logits, batch, CENTERED, head_only_loss)[1], expected, rtol=0, atol=1e-6)


def test_where_no_probe_has_an_ordinary_size(monkeypatch):
    """lse over the rest is read off the softmax at a token that is not tiny; without one it is summed."""
    monkeypatch.setattr(head_only, "PROBE", 2)
    logits, batch = two_level(0.2)
    logits[..., 4:6] -= 90.0
    moved = replace(
        batch, head_ids=torch.tensor([0, 1]).expand(6, 4, 2), head_logp_sampler=batch.head_logp_sampler[..., :2]
    )
    for temperature in (1.0, 1.2):
        definition = {"temperature": temperature, "weight": RULES["tis"], **CENTERED}
        expected = reference(logits, moved, definition).grad_logits
        np.testing.assert_allclose(gradient(logits, moved, definition, head_only_loss)[1], expected, rtol=0, atol=1e-6)


def test_backward_scales_and_runs_once():
    logits, batch = random_batch(8)
    _, once = gradient(logits, batch, CENTERED, head_only_loss)
    _, thrice = gradient(logits, batch, CENTERED, lambda *given: 3.0 * head_only_loss(*given))
    torch.testing.assert_close(thrice, 3.0 * once, rtol=1e-6, atol=1e-9)
    leaf = logits.clone().requires_grad_()
    loss = head_only_loss(leaf, batch, CENTERED)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="has become the gradient already"):
        loss.backward()


@pytest.mark.parametrize(
    ("definition", "changed", "message"),
    [
        ({"centering": {"tail": "exact"}}, {}, "centering.tail: head_only_loss takes 'rescaled', got 'exact'"),
        ({"kl": {"kind": "k1"}}, {}, "kl: not covered"),
        (CENTERED, {"head_ids": None}, "head_ids: centering 'rescaled' needs it"),
        (CENTERED, {"head_logp_sampler": None}, "head_logp_sampler: centering 'rescaled' needs it"),
        (
            {},
            {"mask": torch.ones((2, 2), dtype=torch.bool)},
            r"logits: expected float32 \[B, T, V\] with B, T = \[2, 2\]",
        ),
        ({}, {"mask": torch.zeros((3, 5), dtype=torch.bool)}, "mask: no valid token"),
    ],
)
def test_bad_input_is_an_error(definition, changed, message):
    logits, batch = random_batch(9)
    with pytest.raises(ValueError, match=message):
        head_only_loss(logits, replace(batch, **changed), definition)
    with pytest.raises(ValueError, match="logits: expected float32"):
        head_only_loss(logits.double(), batch, {})
