"""Findings for OpenRLHF: each function feeds its loss the smallest input and compares with the reference."""

from __future__ import annotations

import math
from typing import Any

from .inputs import tensor
from .records import Finding, Observation, differ, settings

LOSS = "openrlhf/models/loss.py"
UTILS = "openrlhf/models/utils.py"
NAN = float("nan")


def _policy(openrlhf: Any, d: list[list[float]], mask: list[list[int]], **options: Any) -> Any:
    """PolicyLoss.forward at ratio 1 with A = 1 and log o - log q = d."""
    policy = openrlhf.p.PolicyLoss(**options)
    o = tensor([[-1.0 for _ in row] for row in d])
    return policy(o, o, tensor([[1.0 for _ in row] for row in d]), tensor(mask, whole=True), o - tensor(d))


def empty_row(openrlhf: Any) -> Observation:
    """Two rows at ratio 1, one of them fully masked: share that is filtered."""
    options = {"is_correction_level": "seq", "is_correction_threshold": [0.5, 2.0]}
    return differ(lambda: _policy(openrlhf, [[0.0], [0.0]], [[1], [0]], **options)[4], 0.0)


def nan_padding(openrlhf: Any) -> Observation:
    """A NaN loss under the mask, token-level reduction."""
    return differ(lambda: openrlhf.p.aggregate_loss(tensor([[1.0, NAN]]), tensor([[1, 0]], whole=True)), 1.0)


def lower_bound(openrlhf: Any) -> Observation:
    """Default threshold with mode clip and ratio 1/4: the loss at A = 1 is minus the weight."""
    options = {"is_correction_level": "token", "is_correction_mode": "clip"}
    return differ(lambda: -_policy(openrlhf, [[math.log(0.25)]], [[1]], **options)[0], 0.25)


def dual_uncounted(openrlhf: Any) -> Observation:
    """A token stopped by the dual clip: clip_ratio."""
    policy = openrlhf.p.PolicyLoss(dual_clip=4.0)
    one = tensor([[1]], whole=True)
    return differ(lambda: policy(tensor([[-1.0]]), tensor([[-3.0]]), tensor([[-1.0]]), one)[1], 1.0)


def bounded_k2(openrlhf: Any) -> Observation:
    """Gradient of k2 at a log-ratio of 6 nats."""
    import torch

    def run() -> Any:
        leaf = torch.tensor([[-7.0]], requires_grad=True)
        value = openrlhf.p.compute_approx_kl(leaf, tensor([[-1.0]]), kl_estimator="k2")
        return torch.autograd.grad(value.sum(), leaf)[0]

    return differ(run, [[-6.0]])


def gspo_correction(openrlhf: Any) -> Observation:
    """Gradient at p = o with a ratio o/q of 1.5, beyond the surrogate's band and inside the correction's."""
    import torch

    def run() -> Any:
        policy = openrlhf.p.PolicyLoss(policy_loss_type="gspo", is_correction_level="token")
        leaf = torch.tensor([[-1.0]], requires_grad=True)
        one = tensor([[1]], whole=True)
        loss = policy(leaf, tensor([[-1.0]]), tensor([[1.0]]), one, tensor([[-1.0 - math.log(1.5)]]))[0]
        return torch.autograd.grad(loss, leaf)[0]

    return differ(run, [[-1.5]])


FINDINGS = (
    Finding(
        "openrlhf-empty-row-filtered",
        "An empty row counts as filtered",
        "is_filter_ratio is the share of sequences that the gate drops",
        "two rows, the second fully masked, both at ratio 1, level seq, threshold [0.5, 2]",
        "The row's mean divides 0 by 0; comparisons with NaN are false, so the row is not kept and enters the share.",
        LOSS,
        empty_row,
    ),
    Finding(
        "openrlhf-nan-under-mask",
        "NaN in padding reaches loss, metrics and gradient",
        "action_mask selects the tokens of the response",
        "losses [[1, NaN]], mask [[1, 0]], token-level reduction",
        "Reductions are sums of loss times mask, and NaN times 0 is NaN.",
        LOSS,
        nan_padding,
        lambda o: any("got NaN" in miss for miss in o.misses),
        beyond=True,
    ),
    Finding(
        "openrlhf-lower-bound",
        "The default truncation also raises small weights",
        "mode clip clamps the ratio to [low, high], by default [0.5, 5]",
        "ratio 1/4, is_correction_level=token, is_correction_mode=clip, default threshold",
        "Truncated importance sampling caps the weight from above; with the default band a ratio of 0.25 weighs 0.5.",
        LOSS,
        lower_bound,
        kind="by definition",
    ),
    Finding(
        "openrlhf-dual-clip-not-counted",
        "Tokens stopped by the dual clip are missing from clip_ratio",
        "clip_ratio is the share of clipped tokens",
        "A = -1, r = exp(2), dual_clip = 4, epsilon 0.2",
        "The second branch alone is counted. A token at the dual bound has gradient 0 and counts as free.",
        LOSS,
        dual_uncounted,
        lambda o: o.outputs.get("clip_fraction") == "departs",
        beyond=True,
    ),
    Finding(
        "openrlhf-kl-bounded",
        "Every KL estimator stops pulling beyond 10 nats of its value",
        "k1, k2 and k3 by their formulas; the value is clamped to [-10, 10] in the code",
        "log p = -7, log ref = -1, estimator k2",
        "k2 is 18 here, clamped to 10, with derivative 0. The bound was meant for k3, where the exponential can "
        "overflow.",
        UTILS,
        bounded_k2,
        lambda o: o.state == "by definition" and "kl" in settings(o),
        kind="by definition",
        beyond=True,
    ),
    Finding(
        "openrlhf-gspo-correction",
        "With gspo the correction replaces the surrogate's ratio and applies no weight",
        "is_correction_* corrects the train/rollout mismatch by gating the per-token ratio",
        "one token, p = o, o/q = 1.5, A = 1, level token, default threshold [0.5, 5], gspo, epsilon 0.2",
        "With ppo the gradient at p = o is the weight, 1.5 here. With gspo the row ratio becomes p/q: the clip of "
        "the surrogate, epsilon 0.2, stops the token although the update has not moved yet; no gate and no weight "
        "are applied.",
        LOSS,
        gspo_correction,
        since="also in 0.11.0, before the options were renamed; not traced further back",
    ),
)
