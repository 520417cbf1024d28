"""Random batches and the grid of definitions that the tests of the training loss share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from repro.losses import LossBatch, correction_loss
from repro.oracle import reference

RULES = {
    "none": None,
    "naive": {},  # the defaults: the unbounded ratio, not "no weight"
    "tis": {"level": "token", "high": 2.0, "outside": "clip"},
    "mis": {"low": 0.5, "high": 1.5, "outside": "zero"},
    "mis_one": {"low": 0.5, "high": 1.5, "outside": "zero", "inside": "one"},
}
SURROGATES = {
    "reinforce": None,
    "ppo": {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.28},
    "ppo_dual": {"kind": "ppo_clip", "dual": 1.5},
}
CENTERINGS = {"none": None, "exact": {"tail": "exact"}, "rescaled": {"tail": "rescaled"}, "default": {}}


def gradient(logits, batch, definition, loss_function=correction_loss):
    leaf = logits.detach().clone().requires_grad_()
    loss = loss_function(leaf, batch, definition)
    loss.backward()
    return float(loss.detach()), leaf.grad


def random_batch(seed, *, rows=3, length=5, vocabulary=9, head=4, temperature=1.0, noise=0.5, anchor=False, spread=2.0,
                 absent=False):  # fmt: skip
    """Ragged random rows; the sampler is a noisy copy of the trainer, recorded in float32.

    ``spread`` is the logits' standard deviation; ``absent`` empties about a third of the head's slots.
    """
    generator = torch.Generator().manual_seed(seed)

    def noisy(scale):
        shift = scale * torch.randn((rows, length, vocabulary), generator=generator)
        return torch.log_softmax(logits.double() / temperature + shift, -1).float()

    logits = spread * torch.randn((rows, length, vocabulary), generator=generator)
    logq, logo = noisy(noise), noisy(0.3 * noise)
    tokens = torch.multinomial(logq.exp().flatten(0, 1), 1, generator=generator).view(rows, length)
    lengths = torch.randint(1, length + 1, (rows,), generator=generator)
    lengths[0] = length
    head_logp, head_ids = logq.topk(head, -1)

    def pick(x):
        return x.gather(-1, tokens[..., None])[..., 0]

    if absent:
        head_ids = head_ids.masked_fill(torch.rand(head_ids.shape, generator=generator) < 0.3, -1)
        head_logp = head_logp.masked_fill(head_ids < 0, -torch.inf)
    head_logo = logo.gather(-1, head_ids.clamp_min(0)).masked_fill(head_ids < 0, -torch.inf)
    third = dict(logp_anchor=pick(logo), head_logp_anchor=head_logo, logp_anchor_full=logo)
    batch = LossBatch(
        tokens, torch.arange(length) < lengths[:, None], torch.randn((rows, length), generator=generator), pick(logq),
        head_ids=head_ids, head_logp_sampler=head_logp, logp_sampler_full=logq, **(third if anchor else {}),
    )  # fmt: skip
    return logits, batch


def for_reference(batch, definition):
    """Whole rows belong to exact centering only; elsewhere they would merely be checked again."""
    if (definition.get("centering") or {}).get("tail") == "exact":
        return batch
    return replace(batch, logp_sampler_full=None, logp_anchor_full=None)


# B != T, ragged rows, temperatures, peaked and flat logits, absent slots; the sampled token lies outside the head at times.
SETTINGS = [
    {"seed": 0, "rows": 3, "length": 6, "temperature": 1.0, "spread": 2.0},
    {"seed": 1, "rows": 6, "length": 4, "temperature": 0.7, "spread": 2.0, "absent": True},
    {"seed": 2, "rows": 4, "length": 5, "temperature": 1.3, "spread": 5.0},
    {"seed": 3, "rows": 5, "length": 3, "temperature": 1.0, "spread": 0.05, "absent": True},
    {"seed": 4, "rows": 2, "length": 5, "temperature": 1.0, "spread": 2.0, "head": 2},
]
ROW_LEVEL = ("gspo_band",)


def assert_equals_reference(loss_function, definition, anchor, narrow):
    """Gradient of the loss against the float64 reference over SETTINGS; ``narrow`` keeps ratios near 1."""
    nonzero = 0
    for i, setting in enumerate(SETTINGS):
        logits, batch = random_batch(anchor=anchor, noise=0.004 if narrow else 0.7, **setting)
        advantages = batch.advantages.clone()
        advantages[:, 1] = 0.0
        batch = replace(batch, advantages=advantages)
        full = {
            "temperature": setting["temperature"],
            "aggregation": {"kind": ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")[i % 3]},
            **definition,
        }
        _, found = gradient(logits, batch, full, loss_function)
        expected = reference(logits, for_reference(batch, full), full)
        scale = max(1.0, setting["spread"]) * (1 + np.maximum(1.0, expected.weights).max()) / len(batch.tokens)
        np.testing.assert_allclose(found.numpy(), expected.grad_logits, rtol=0, atol=1e-6 * scale)
        assert not found[:, 1].any() and not found[~batch.mask].any()
        nonzero += bool(found.any())
    assert nonzero >= 3
