"""Findings for TRL: each function feeds the package the smallest input and compares with what is documented."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from .inputs import tensor
from .records import Finding, Observation, differ, show

SOURCE = "trl/trainer/grpo_trainer.py"
CONFIG = "trl/trainer/grpo_config.py"
NAN = float("nan")


def _gradient(trl: Any, logp: list[list[float]], old: Any, advantages: Any, mask: Any, rule: dict[str, Any]) -> Any:
    import torch

    leaf = torch.tensor(logp, requires_grad=True)
    aggregation = {"kind": "token-sum", "slope": True}
    loss = trl._loss(leaf, tensor(old), tensor(advantages), tensor(mask, whole=True), rule, aggregation)
    return torch.autograd.grad(loss, leaf)[0]


PPO = {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.2, "dual": None}


def nan_padding(trl: Any) -> Observation:
    """The padding's old log-prob is NaN; one valid token at ratio 1 with A = 1."""
    return differ(lambda: _gradient(trl, [[-1.0, -1.0]], [[-1.0, NAN]], [[1.0, 1.0]], [[1, 0]], PPO), [[-1.0, 0.0]])


def overflow(trl: Any) -> Observation:
    """A log-ratio of 100 nats with A > 0: the clip stops the gradient."""
    return differ(lambda: _gradient(trl, [[-1.0]], [[-101.0]], [[1.0]], [[1]], PPO), [[0.0]])


def documented_default(trl: Any) -> Observation:
    """The default marked in the docstring and the default of the field."""
    config = trl.p.module.GRPOConfig
    text = re.search(r'`"(\w+)"`: [^\n]*\(default\)', config.__doc__.partition("vllm_importance_sampling_mode")[2])
    default = next(f.default for f in dataclasses.fields(config) if f.name == "vllm_importance_sampling_mode")
    stated = text.group(1) if text else default
    return Observation(
        f"default {default}, marked as default: {stated}", f"one and the same: {default}", stated != default
    )


def cispo_cap(trl: Any) -> Observation:
    """r = 1 with epsilon_high = 0.2: the weight of the gradient."""
    rule = {"kind": "cispo", "eps_low": None, "eps_high": 0.2 - 1.0}  # the adapter gives 1 + e as epsilon_high
    return differ(lambda: _gradient(trl, [[-1.0]], [[-1.0]], [[1.0]], [[1]], rule), [[-1.0]])


def delta_uncounted(trl: Any) -> Observation:
    """One token with A = -1 and ratio e^2 above delta = 4: its gradient is 0."""
    rule, seen = {**PPO, "dual": 4.0}, {}

    def run() -> Any:
        one = tensor([[1]], whole=True)
        trl._loss(tensor([[-1.0]]), tensor([[-3.0]]), tensor([[-1.0]]), one, rule, {"kind": "token-mean"}, seen=seen)
        return seen["clip_ratio/region_mean"][0]

    gradient = show(_gradient(trl, [[-1.0]], [[-3.0]], [[-1.0]], [[1]], rule))
    found = differ(run, 1.0)
    return Observation(f"{found.returned} with gradient {gradient}", found.right, found.present)


def lost_mass(trl: Any) -> Observation:
    """A sampling log-prob that is NaN, true ratio unknown: the weight."""
    rule = {**_token(), "high": 3.0, "outside": "clip"}
    one = tensor([[1]], whole=True)
    return differ(lambda: trl._weights(rule, tensor([[-1.0]]), tensor([[NAN]]), one)[0], "an error or a masked token")


def empty_row(trl: Any) -> Observation:
    """Token losses of 1 in one row next to an empty one."""
    aggregation = {"kind": "seq-mean-token-mean", "sequences": None}
    rows, mask = tensor([[1.0], [0.0]]), tensor([[1], [0]], whole=True)
    return differ(lambda: trl._loss(rows * 0, None, -rows, mask, {"kind": "reinforce"}, aggregation), 1.0)


def _token() -> dict[str, Any]:
    from ..adapters.tools import complete

    return complete({"weight": {}})["weight"]


def _nan(outcome: Any) -> bool:
    return outcome.family != "surrogate" and any("got NaN" in miss for miss in outcome.misses)


FINDINGS = (
    Finding(
        "trl-nan-under-mask",
        "NaN in padding reaches loss and gradient",
        "completion_mask selects the completion tokens; reductions multiply by it",
        "log-probs [-1, -1], old [-1, NaN], A = 1, mask [[1, 0]], epsilon 0.2",
        "Reductions are sums of loss times mask, and NaN times 0 is NaN. A NaN sampling log-prob is replaced since "
        "1.16; a NaN old log-prob or per-token loss is not.",
        SOURCE,
        nan_padding,
        _nan,
    ),
    Finding(
        "trl-ratio-overflow",
        "An overflowing ratio makes the gradient NaN where the clip should make it 0",
        "epsilon bounds the ratio: a token beyond 1 + epsilon with A > 0 has no gradient",
        "log p = -1, log old = -101, A = 1, epsilon 0.2, float32",
        "exp(100) is infinite in float32. The branch that is not selected contributes 0 times infinity in the "
        "backward pass. A clamp of the log-ratio before the exponential keeps the derivative at 0.",
        SOURCE,
        overflow,
        lambda o: o.family == "surrogate" and any("got NaN" in miss for miss in o.misses),
        beyond=True,
    ),
    Finding(
        "trl-default-mode",
        "Two defaults for vllm_importance_sampling_mode in one docstring",
        "the default is stated in the head line and again in the list of modes",
        "GRPOConfig.__doc__ and the field's default",
        "The list marks token_truncate as the default, the field and the head line say sequence_mask.",
        CONFIG,
        documented_default,
    ),
    Finding(
        "trl-cispo-cap",
        "With loss_type cispo, epsilon_high is the cap itself",
        "epsilon_high is an offset of the clip; for cispo the help text makes it the epsilon_max of another paper",
        "r = 1, A = 1, epsilon_high = 0.2, loss_type cispo",
        "The same 0.2 that caps the ratio at 1.2 elsewhere caps it at 0.2 here, and scales every on-policy gradient"
        " by 0.2.",
        SOURCE,
        cispo_cap,
        kind="by definition",
    ),
    Finding(
        "trl-delta-not-counted",
        "Tokens stopped by delta are missing from clip_ratio",
        "clip_ratio/region_mean is the share of tokens that the clip stops",
        "A = -1, r = exp(2), delta = 4, epsilon 0.2",
        "With a negative advantage only ratios below 1 - epsilon are counted. A token capped by delta has gradient "
        "0 and counts as free.",
        SOURCE,
        delta_uncounted,
        lambda o: o.outputs.get("clip_fraction") == "departs",
        beyond=True,
    ),
    Finding(
        "trl-nan-is-ratio-one",
        "A missing sampling log-prob counts as ratio 1",
        "a NaN sampling log-prob is set to a difference of 0, so its ratio is exactly 1",
        "log p = -1, sampling log-prob NaN, token_truncate 3",
        "Documented in the code. An unknown ratio is then the most trusted one; masking the token would leave the "
        "estimate unbiased by it.",
        SOURCE,
        lost_mass,
        kind="by definition",
        since="1.16.0",
    ),
    Finding(
        "trl-empty-rows-counted",
        "An empty row halves a row mean",
        "loss_type grpo averages over the sequences",
        "losses [[1], [padding]], mask [[1], [0]], loss_type grpo",
        "Row means divide by the rows of the batch, empty ones included; dr_grpo and luspo likewise, and ms-swift "
        "and SkyRL do the same. verl and OpenRLHF divide by the non-empty rows unless global counts are given.",
        SOURCE,
        empty_row,
        lambda o: o.state == "by definition" and o.family in ("agg", "edge"),
        kind="by definition",
    ),
)
