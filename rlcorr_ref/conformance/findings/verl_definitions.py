"""Findings for verl that follow from its definitions: statistics over all rows, extremes before truncation, padded
width.

Each function feeds the package the smallest input and compares with the reference.
"""

from __future__ import annotations

import math
from typing import Any

from .inputs import ones, right, tensor
from .records import Finding, Observation, differ
from .verl_calls import ALGOS, HELPER


def empty_row(verl: Any) -> Observation:
    """Training perplexity of one row of log-prob -2 next to an empty one."""
    mask = [[1], [0]]
    found = tensor([[-2.0], [-9.0]])
    return differ(
        lambda: verl.p.helper.compute_offpolicy_metrics(found, found, tensor(mask, whole=True))["training_ppl"],
        math.exp(2.0),
    )


def sequence_maximum(verl: Any) -> Observation:
    """Maximum weight of a row whose product 20.1 is truncated to 2."""
    d = [[1.0, 2.0]]
    m = tensor(ones(d), whole=True)
    rule = {"weight": {"level": "sequence", "high": 2.0, "outside": "clip"}}
    compute = verl.p.helper.compute_rollout_correction_weights
    return differ(
        lambda: compute(tensor(d), m, "sequence", 2.0)[1]["rollout_is_max"], right("diagnostics", "weight_max", d, rule)
    )


def padded_width(verl: Any) -> Observation:
    """The same loss with no and with two padded columns, no scale factor given."""
    mode = "seq-mean-token-sum-norm"

    def both() -> list[Any]:
        narrow = verl.p.algos.agg_loss(tensor([[2.0, 2.0]]), tensor([[1, 1]], whole=True), mode)
        wide = tensor([[2.0, 2.0, 0.0, 0.0]]), tensor([[1, 1, 0, 0]], whole=True)
        return [narrow, verl.p.algos.agg_loss(*wide, mode)]

    return differ(both, [2.0, 2.0])


def lone_sample(verl: Any) -> Observation:
    """GRPO advantage of a group of one with reward 1."""
    one = tensor([[1]], whole=True)
    return differ(
        lambda: verl.p.algos.compute_grpo_outcome_advantage(tensor([[1.0]]), one, [0], norm_adv_by_std_in_grpo=False)[
            0
        ],
        [[0.0]],
    )


FINDINGS = (
    Finding(
        "verl-empty-rows-counted",
        "Row metrics count an empty row as perplexity 1",
        "training_ppl is the mean of the rows' perplexities",
        "log-probs [[-2], [padding]], mask [[1], [0]]",
        "An empty row has mean log-prob 0, hence perplexity 1, and enters the mean; log_ppl_diff, ppl_ratio and "
        "chi2_seq likewise. Batches with rows that were masked as a whole read closer to on-policy than they are.",
        HELPER,
        empty_row,
        lambda o: o.outputs.get("ppl_trainer") == "by definition",
        kind="by definition",
    ),
    Finding(
        "verl-sequence-maximum",
        "The largest sequence weight is reported before truncation",
        "rollout_is_max is a statistic of the weights; the code takes row statistics from the unclamped logs",
        "log-ratios [[1, 2]], rollout_is=sequence, rollout_is_threshold=2",
        "At token level the same metric is over the applied weights and never exceeds the threshold, at sequence "
        "level it is over the raw products.",
        HELPER,
        sequence_maximum,
        lambda o: o.outputs.get("weight_max") == "by definition",
        kind="by definition",
    ),
    Finding(
        "verl-norm-padded-width",
        "Without a scale factor the loss depends on the padding",
        "loss_scale_factor defaults to the width of the mask; a constant is advised",
        "losses [[2, 2]] and the same with two padded columns, seq-mean-token-sum-norm",
        "Two micro-batches that hold the same rows and are padded to different lengths differ in loss and gradient.",
        ALGOS,
        padded_width,
        kind="by definition",
    ),
    Finding(
        "verl-group-of-one",
        "A group of one keeps its reward as advantage",
        "GRPO advantages are rewards centred by the group; for one sample the code sets mean 0 and deviation 1",
        "one sample with reward 1",
        "The group's mean is the reward itself, which leaves 0. A prompt whose other samples were filtered pushes "
        "with its full reward, never with a negative sign when rewards are 0 and 1.",
        ALGOS,
        lone_sample,
        lambda o: o.outputs.get("advantages") == "by definition",
        kind="by definition",
        beyond=True,
    ),
)
