"""The presets of the field as training losses, alone and centered, with two and three policies, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import ROW_LEVEL, SETTINGS, assert_equals_reference, for_reference, gradient, random_batch

from repro.head_only import head_only_loss
from repro.losses import correction_loss
from repro.oracle import reference
from rlcorr_ref import presets

ALONE = (
    "vanilla_is", "tis", "mis", "icepop_inside_one", "ppo_band", "dapo_band", "dppo_tv", "topr", "cispo", "gspo_band",
    "sequence_tis", "sequence_mis", "swift_token_truncate", "swift_token_mask", "swift_sequence_truncate",
    "swift_sequence_mask",
)  # fmt: skip
CENTERED = ("vanilla_is", "mis", "icepop_inside_one", "ppo_band", "dapo_band", "cispo", "topr", "swift_token_mask",
            "swift_sequence_mask", "gspo_band", "sequence_mis")  # fmt: skip


@pytest.mark.parametrize("anchor", [False, True], ids=["two", "three"])
@pytest.mark.parametrize("name", ALONE)
def test_a_preset_equals_the_reference(name, anchor):
    assert_equals_reference(correction_loss, presets.definition(name), anchor, name in ROW_LEVEL)
    assert_equals_reference(head_only_loss, presets.definition(name), anchor, name in ROW_LEVEL)


@pytest.mark.parametrize("anchor", [False, True], ids=["two", "three"])
@pytest.mark.parametrize("tail", ["rescaled", "exact"])
@pytest.mark.parametrize("name", CENTERED)
def test_a_centered_preset_equals_the_reference(name, tail, anchor):
    definition = {**presets.definition(name), "centering": {"tail": tail}}
    assert_equals_reference(correction_loss, definition, anchor, name in ROW_LEVEL)
    if tail == "rescaled":
        assert_equals_reference(head_only_loss, definition, anchor, name in ROW_LEVEL)


@pytest.mark.parametrize("anchor", [False, True], ids=["two", "three"])
def test_dppo_is_centered_exactly(anchor):
    definition = {**presets.definition("dppo_tv"), "centering": {"tail": "exact"}}
    assert_equals_reference(correction_loss, definition, anchor, False)


@pytest.mark.parametrize("name", ALONE)
def test_a_preset_is_not_plain_policy_gradient(name):
    """Every preset's rule binds somewhere on the batches above: one that never acted would prove nothing."""
    acted = set()
    for setting in SETTINGS:
        logits, batch = random_batch(noise=0.004 if name == "gspo_band" else 0.7, **setting)
        definition = {**presets.definition(name), "temperature": setting["temperature"]}
        w = reference(logits, for_reference(batch, {}), definition).weights
        logp = torch.log_softmax(logits.double() / setting["temperature"], -1)
        plain = (logp.gather(-1, batch.tokens[..., None])[..., 0] - batch.logp_sampler).exp().numpy()
        w, plain = w[batch.mask.numpy()], plain[batch.mask.numpy()]
        acted |= {"one"} if (w != 1).any() else set()
        acted |= {"bound"} if (np.abs(w - plain) > 1e-3 * plain).any() else set()
    # Vanilla IS has no bound; the gate at a geometric mean of 2 is beyond these rows (narrower gates are tested below).
    assert acted == ({"one"} if name in ("vanilla_is", "swift_sequence_mask") else {"one", "bound"})


@pytest.mark.parametrize(
    "rule",
    [
        {"weight": {"level": "token", "log_clamp": 20.0}, "gate": {"level": "geometric", "high": 0.9}},
        {"gate": {"level": "sequence", "low": 0.4, "high": 1.2}},
        {"weight": {"level": "geometric", "high": 0.9, "outside": "clip", "log_clamp": 20.0, "clamp_order": "token"}},
    ],
)
def test_a_bound_on_rows_binds(rule):
    kept = {}
    for setting in SETTINGS:
        logits, batch = random_batch(noise=0.7, **setting)
        w = reference(logits, for_reference(batch, {}), {**rule, "temperature": setting["temperature"]}).weights
        limit = 0.9 if "gate" not in rule else 0.0
        for value in w[batch.mask.numpy()] == limit:
            kept[bool(value)] = kept.get(bool(value), 0) + 1
    assert min(kept.get(True, 0), kept.get(False, 0)) >= 5
    for definition in (rule, {**rule, "centering": {"tail": "rescaled"}}):
        assert_equals_reference(correction_loss, definition, True, False)
        assert_equals_reference(head_only_loss, definition, False, False)


def test_a_clamp_binds():
    """log_clamp at 0.3 in both orders: at 20 it never binds on ordinary ratios."""
    for rule in (
        {"level": "token", "log_clamp": 0.3},
        {"level": "geometric", "log_clamp": 0.3},
        {"level": "sequence", "log_clamp": 0.3, "clamp_order": "token"},
        {"level": "token", "high": 1.2, "outside": "zero", "log_clamp": 0.3, "sign": "negative"},
    ):
        for definition in ({"weight": rule}, {"weight": rule, "centering": {"tail": "rescaled"}}):
            assert_equals_reference(correction_loss, definition, False, False)
            assert_equals_reference(head_only_loss, definition, True, False)


def test_weights_of_rows_need_no_anchor_on_the_head():
    logits, batch = random_batch(3, anchor=True)
    batch = replace(batch, head_logp_anchor=None)
    definition = {**presets.definition("sequence_tis"), "centering": {"tail": "rescaled"}}
    expected = reference(logits, for_reference(batch, definition), definition).grad_logits
    for loss in (correction_loss, head_only_loss):
        np.testing.assert_allclose(gradient(logits, batch, definition, loss)[1], expected, rtol=0, atol=1e-6)
        with pytest.raises(ValueError, match="head_logp_anchor: centering 'rescaled' needs it"):
            loss(logits, batch, {**presets.definition("tis"), "centering": {"tail": "rescaled"}})
