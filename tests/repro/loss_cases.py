"""Random batches and the grid of definitions that the tests of the training loss share."""

from __future__ import annotations

from dataclasses import replace

import torch

from repro.losses import LossBatch, correction_loss

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


def gradient(logits, batch, definition):
    leaf = logits.detach().clone().requires_grad_()
    loss = correction_loss(leaf, batch, definition)
    loss.backward()
    return float(loss.detach()), leaf.grad


def random_batch(seed, *, rows=3, length=5, vocabulary=9, head=4, temperature=1.0, noise=0.5, anchor=False):
    """Ragged random rows; the sampler is a noisy copy of the trainer, recorded in float32."""
    generator = torch.Generator().manual_seed(seed)

    def noisy(scale):
        shift = scale * torch.randn((rows, length, vocabulary), generator=generator)
        return torch.log_softmax(logits.double() / temperature + shift, -1).float()

    logits = 2.0 * torch.randn((rows, length, vocabulary), generator=generator)
    logq, logo = noisy(noise), noisy(0.3 * noise)
    tokens = torch.multinomial(logq.exp().flatten(0, 1), 1, generator=generator).view(rows, length)
    lengths = torch.randint(1, length + 1, (rows,), generator=generator)
    lengths[0] = length
    head_logp, head_ids = logq.topk(head, -1)

    def pick(x):
        return x.gather(-1, tokens[..., None])[..., 0]

    third = dict(logp_anchor=pick(logo), head_logp_anchor=logo.gather(-1, head_ids), logp_anchor_full=logo)
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
