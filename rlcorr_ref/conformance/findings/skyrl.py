"""Findings for SkyRL: each function feeds the package the smallest input and compares with the reference."""

from __future__ import annotations

import math
from typing import Any

from ..adapters.skyrl import options
from .inputs import tensor
from .records import Finding, Observation, differ

SOURCE = "skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py"
LOSSES = "skyrl/backends/skyrl_train/utils/ppo_utils.py"
NAN = float("nan")


def _correct(skyrl: Any, d: list[list[float]], mask: list[list[int]], **given: Any) -> Any:
    p = tensor([[-1.0 for _ in row] for row in d])
    return skyrl.p.names["compute_off_policy_correction"](p, p - tensor(d), tensor(mask, whole=True), options(**given))


TIS = {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 2.0}


def padded_statistics(skyrl: Any) -> Observation:
    """Minimum and deviation of two ratios of 1 next to two padded positions."""
    keys = ("is_ratio_min", "is_ratio_std")
    d, mask = [[0.0, 0.0, 0.0, 0.0]], [[1, 1, 0, 0]]
    return differ(lambda: [_correct(skyrl, d, mask, **TIS)[1][key] for key in keys], [1.0, 0.0])


def edited_product(skyrl: Any) -> Observation:
    """Ratios [4, 1, 1]; the token mask drops the first, then the row product is taken over the rest."""
    d, mask = [[math.log(4.0), 0.0, 0.0]], [[1, 1, 1]]
    band = {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}
    sequence = {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 5.0}
    return differ(lambda: _correct(skyrl, d, mask, **band, **sequence)[0], [[4.0]])


def nan_padding(skyrl: Any) -> Observation:
    """A NaN loss under the mask, summed."""
    reduce = skyrl.p.names["reduce_loss"]
    return differ(lambda: reduce(tensor([[1.0, NAN]]), tensor([[1, 0]], whole=True)), 1.0)


def dual_uncounted(skyrl: Any) -> Observation:
    """A token stopped by the dual clip: clip_ratio."""
    rule = {"dual": 4.0, "eps_low": 0.2, "eps_high": 0.2}
    one = tensor([[1]], whole=True)
    return differ(
        lambda: skyrl._loss(rule, tensor([[-1.0]]), tensor([[-3.0]]), tensor([[-1.0]]), one, None, options())[1][
            "clip_ratio"
        ],
        1.0,
    )


FINDINGS = (
    Finding(
        "skyrl-statistics-padding",
        "Minimum and standard deviation of the ratio include padding",
        "named as statistics of the importance ratio; the mean next to them is masked",
        "two valid tokens at ratio 1, two padded positions; tis_ratio_type token",
        "The ratio is multiplied by the mask and then reduced over all positions: padding counts as ratio 0, so the"
        " minimum is 0 in any padded batch and the deviation grows with the padding. The deviation is also the "
        "unbiased one.",
        SOURCE,
        padded_statistics,
        lambda o: any(o.outputs.get(key) == "departs" for key in ("ratio_std", "ratio_min", "ratio_max")),
    ),
    Finding(
        "skyrl-product-after-mask",
        "The row product leaves out the tokens that a mask dropped",
        "sequence TIS is the product of the row's token ratios",
        "ratios [4, 1, 1], token mask [0.5, 2], tis_ratio_type sequence, cap 5",
        "Token and outlier masks edit the mask before the product is formed. The remaining product is not the "
        "importance ratio of the row, and the factor that was left out is the largest.",
        SOURCE,
        edited_product,
    ),
    Finding(
        "skyrl-nan-under-mask",
        "NaN in padding reaches loss, metrics and gradient",
        "loss_mask marks valid tokens",
        "losses [[1, NaN]], mask [[1, 0]]",
        "The reduction is a sum of loss times mask, and NaN times 0 is NaN.",
        LOSSES,
        nan_padding,
        lambda o: any("got NaN" in miss for miss in o.misses),
    ),
    Finding(
        "skyrl-dual-clip-not-counted",
        "Tokens stopped by the dual clip are missing from clip_ratio",
        "clip_ratio is the share of clipped tokens",
        "A = -1, r = exp(2), dual_clip with clip_ratio_c = 4, epsilon 0.2",
        "The share is taken before the dual bound. A token at the dual bound has gradient 0 and counts as free.",
        LOSSES,
        dual_uncounted,
        lambda o: o.outputs.get("clip_fraction") == "departs",
        beyond=True,
    ),
)
