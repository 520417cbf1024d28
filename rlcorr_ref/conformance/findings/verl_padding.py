"""Findings for verl on what should not count: NaN in padding, and thresholds that are no numbers.

Each function feeds the package the smallest input and compares with the reference.
"""

from __future__ import annotations

from typing import Any

from .inputs import right, tensor
from .records import Finding, Observation, differ
from .verl_calls import ALGOS, HELPER, TIS, nan_misses, weights

NAN = float("nan")


def nan_in_rows(verl: Any) -> Observation:
    """A NaN loss under the mask, row mean of token means."""
    values, mask = tensor([[1.0, NAN]]), tensor([[1, 0]], whole=True)
    return differ(lambda: verl.p.algos.agg_loss(values, mask, "seq-mean-token-mean"), 1.0)


def nan_in_weights(verl: Any) -> Observation:
    """A NaN log-ratio under the mask, token weights [B, T]."""
    return differ(
        lambda: weights(verl, [[0.0, NAN]], 2.0, [[1, 0]])[0],
        right("weight", "weights", [[0.0, 0.0]], TIS["weight"], [[1, 0]]),
    )


def nan_in_gspo(verl: Any) -> Observation:
    """One row, one valid token; the padding's old log-prob is NaN."""
    import torch

    logp = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    config = verl._config({"eps_low": 0.2, "eps_high": 0.2}, {"kind": "token-mean"})
    loss = verl.p.algos.get_policy_loss_fn("gspo")

    def gradient() -> Any:
        value = loss(
            tensor([[-1.0, NAN]]), logp, tensor([[1.0, 1.0]]), tensor([[1, 0]], whole=True), "token-mean", config
        )[0]
        return torch.autograd.grad(value, logp)[0]

    return differ(gradient, [[-1.0, 0.0]])


def nan_threshold(verl: Any) -> Observation:
    """The threshold "nan" on log-ratios 0 and 0.5."""
    return differ(lambda: weights(verl, [[0.0, 0.5]], "nan")[0], "an error naming the threshold")


def underscore_threshold(verl: Any) -> Observation:
    """The parsed (lower, upper) of a string with two underscores."""
    return differ(lambda: verl.p.helper._parse_rollout_is_threshold("0.5_2.0_3")[::-1], "an error naming the threshold")


FINDINGS = (
    Finding(
        "verl-nan-under-mask-rows",
        "NaN in padding reaches the sequence reductions",
        "loss_mask selects the tokens that enter the loss",
        "losses [[1, NaN]], mask [[1, 0]], loss_agg_mode=seq-mean-token-mean",
        "token-mean and token-sum select before summing; the three sequence modes multiply by the mask, and NaN "
        "times 0 is NaN.",
        ALGOS,
        nan_in_rows,
        lambda o: o.family == "agg" and any("got NaN" in miss for miss in o.misses),
    ),
    Finding(
        "verl-nan-under-mask-weights",
        "NaN in padding stays in the weights and in the gradient",
        "weights are documented as masked to zero for padding tokens",
        "log-ratios [[0, NaN]], mask [[1, 0]], rollout_is=token, rollout_is_threshold=2.0",
        "Padding is zeroed by multiplication. A token reduction still returns the right loss, because it selects, "
        "and its gradient at the padded position is NaN: the derivative of a selected branch times a NaN weight.",
        HELPER,
        nan_in_weights,
        nan_misses,
        beyond=True,
    ),
    Finding(
        "verl-nan-under-mask-gspo",
        "NaN in padding removes the gradient of GSPO without a sign",
        "response_mask marks the tokens that belong to the response",
        "one row, old log-probs [-1, NaN], current [-1, -1], A = 1, mask [[1, 0]], loss_mode=gspo",
        "The row's mean log-ratio is formed by multiplication with the mask and becomes NaN for every token of the "
        "row; the maximum of NaN branches has gradient 0 or NaN. The step then ignores the row or spreads NaN, "
        "depending on the reduction.",
        ALGOS,
        nan_in_gspo,
        lambda o: o.id == "edge.0010",
        beyond=True,
    ),
    Finding(
        "verl-threshold-nan",
        "The threshold 'nan' is accepted",
        "a positive float, a float-like string or 'lower_upper'; other values raise ValueError",
        "rollout_is_threshold='nan', log-ratios [[0, 0.5]]",
        "The check is `upper <= 0`, which is false for NaN. Every weight becomes NaN.",
        HELPER,
        nan_threshold,
    ),
    Finding(
        "verl-threshold-underscores",
        "The threshold '0.5_2.0_3' is read as (0.5, 2.03)",
        "'lower_upper', one separator",
        "rollout_is_threshold='0.5_2.0_3'",
        "The string is split at the first underscore and Python's float accepts underscores between digits, so "
        "'2.0_3' is 2.03.",
        HELPER,
        underscore_threshold,
    ),
)
