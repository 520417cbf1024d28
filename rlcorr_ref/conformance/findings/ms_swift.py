"""Findings for ms-swift: each function feeds its methods the smallest input and compares with the reference."""

from __future__ import annotations

import math
from typing import Any

from .inputs import ones, right, tensor
from .records import Finding, Observation, by_row_weight, differ, settings

SOURCE = "swift/rlhf_trainers/grpo_trainer.py"
NAN = float("nan")
MIS = {"weight": {"level": "token", "high": 2.0, "outside": "zero"}}


def _is_metrics(swift: Any, d: list[list[float]], mode: str) -> dict[str, Any]:
    me = swift.me(rollout_importance_sampling_mode=mode, rollout_importance_sampling_threshold=2.0)
    m = tensor(ones(d), whole=True).bool()
    return me._compute_is_correction_metrics(tensor(d), me._apply_rollout_importance_sampling(tensor(d), m), m)


def ess_floor(swift: Any) -> Observation:
    """Every token dropped: ESS of all-zero weights."""
    d = [[3.0, 3.0]]
    return differ(lambda: _is_metrics(swift, d, "token_mask")["ess"], right("diagnostics", "ess", d, MIS))


def ess_half(swift: Any) -> Observation:
    """One of two tokens dropped: half of the sample is left."""
    d = [[0.0, 3.0]]
    return differ(lambda: _is_metrics(swift, d, "token_mask")["ess"], right("diagnostics", "ess", d, MIS))


def weighted_kl(swift: Any) -> Observation:
    """A = 0, so the gradient is the KL term's: beta 1, log ref = log p + log 2, weight 2."""
    import torch

    def run() -> Any:
        leaf = torch.tensor([[-2.0]], requires_grad=True)
        one = tensor([[1]], whole=True)
        loss, _ = swift.loss(
            leaf,
            None,
            tensor([[0.0]]),
            one,
            {"kind": "reinforce"},
            {"kind": "token-mean", "tokens": None},
            mode=("token_truncate", 2.0),
            sampler=tensor([[-2.0 - math.log(2.0)]]),
            kl=({"beta": 1.0}, tensor([[-2.0 + math.log(2.0)]])),
        )
        return torch.autograd.grad(loss, leaf)[0]

    return differ(run, [[-1.0]])


def geometric(swift: Any) -> Observation:
    """Token ratios 4 and 1 under sequence_truncate without an active cap."""
    d = [[math.log(4.0), 0.0]]
    me = swift.me(rollout_importance_sampling_mode="sequence_truncate", rollout_importance_sampling_threshold=100.0)
    wanted = right("weight", "weights", d, {"level": "sequence", "high": 100.0, "outside": "clip"})
    return differ(lambda: me._apply_rollout_importance_sampling(tensor(d), tensor(ones(d), whole=True).bool()), wanted)


def untruncated_survivors(swift: Any) -> Observation:
    """Token ratios 64 and 1/64, geometric mean 1, under sequence_mask."""
    d = [[math.log(64.0), math.log(1 / 64.0)]]
    me = swift.me(rollout_importance_sampling_mode="sequence_mask", rollout_importance_sampling_threshold=2.0)
    wanted = right("weight", "weights", d, {"level": "geometric", "high": 2.0, "outside": "zero"})
    return differ(lambda: me._apply_rollout_importance_sampling(tensor(d), tensor(ones(d), whole=True).bool()), wanted)


def geometric_chi(swift: Any) -> Observation:
    """chi2_seq of one row with token ratios 4 and 1."""
    d = [[math.log(4.0), 0.0]]
    m = tensor(ones(d), whole=True).bool()
    me = swift.me(rollout_importance_sampling_mode=None)
    return differ(
        lambda: me._compute_rollout_offpolicy_metrics(tensor(d), tensor([[0.0, 0.0]]), m)["chi2_seq"],
        right("diagnostics", "chi2_sequence", d, {}),
    )


def nan_padding(swift: Any) -> Observation:
    """A NaN log-prob under the mask, mean log-ratio."""
    m = tensor([[1, 0]], whole=True).bool()
    me = swift.me(rollout_importance_sampling_mode=None)
    return differ(
        lambda: me._compute_rollout_offpolicy_metrics(tensor([[-1.0, NAN]]), tensor([[-2.0, -2.0]]), m)["kl"], -1.0
    )


def overflow(swift: Any) -> Observation:
    """A surrogate log-ratio of 100 nats with A > 0: the clip stops the gradient."""
    import torch

    def run() -> Any:
        leaf = torch.tensor([[-1.0]], requires_grad=True)
        rule = {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.2, "dual": None}
        one = tensor([[1]], whole=True)
        loss, _ = swift.loss(
            leaf, tensor([[-101.0]]), tensor([[1.0]]), one, rule, {"kind": "token-mean", "tokens": None}
        )
        return torch.autograd.grad(loss, leaf)[0]

    return differ(run, [[0.0]])


def bounded_kl(swift: Any) -> Observation:
    """Gradient of the KL term, reference 3 nats above the trainer."""
    import torch

    def run() -> Any:
        leaf = torch.tensor([[-4.0]], requires_grad=True)
        one, plain = tensor([[1]], whole=True), {"kind": "token-mean", "tokens": None}
        kl = ({"beta": 1.0}, tensor([[-1.0]]))
        loss, _ = swift.loss(leaf, None, tensor([[0.0]]), one, {"kind": "reinforce"}, plain, kl=kl)
        return torch.autograd.grad(loss, leaf)[0]

    return differ(run, [[1.0 - math.exp(3.0)]])


FINDINGS = (
    Finding(
        "ms-swift-ess-all-dropped",
        "Effective sample size is 1 when every weight is masked",
        "ess is documented as 1 / E[(w / E[w])^2] of the weights after correction",
        "log-ratios [[3, 3]], token_mask, threshold 2",
        "Weights are clamped to [1/C, C] first, so dropped tokens, weight 0, enter as 1/C: nothing is left and the "
        "metric reads best.",
        SOURCE,
        ess_floor,
        kind="by definition",
        since="the formula of verl 0.7, kept after verl changed it",
    ),
    Finding(
        "ms-swift-ess-floor",
        "A dropped token counts as weight 1/C in the effective sample size",
        "ess is documented as 1 / E[(w / E[w])^2] of the weights after correction",
        "log-ratios [[0, 3]], token_mask, threshold 2",
        "One of two tokens is left: half of the sample. With the other at 1/2 the metric reads 0.9.",
        SOURCE,
        ess_half,
        lambda o: o.outputs.get("ess") == "by definition",
        kind="by definition",
    ),
    Finding(
        "ms-swift-weighted-kl",
        "The importance weight multiplies the reference KL",
        "the weights multiply the loss (docstring); beta is the coefficient of the KL term",
        "A = 0, beta = 1, log ref - log p = log 2, ratio 2, token_truncate 2",
        "The KL term is added to the token loss before the weight is applied. Everywhere else it is added after. A "
        "mask mode then also removes the KL term of the tokens that it drops, which are the ones that moved most.",
        SOURCE,
        weighted_kl,
        kind="by definition",
    ),
    Finding(
        "ms-swift-sequence-geometric",
        "'sequence' is the geometric mean of the row",
        "sequence-level ratios are documented as the geometric mean of token ratios",
        "log-ratios [[log 4, 0]], sequence_truncate, threshold 100",
        "The row's importance ratio is the product, 4; the geometric mean is 2. verl, TRL and SkyRL use the product"
        " under the same name.",
        SOURCE,
        geometric,
        by_row_weight,
        kind="by definition",
    ),
    Finding(
        "ms-swift-survivors-raw",
        "sequence_mask leaves token ratios without a cap",
        "mask mode: sequences beyond the threshold are masked, the others weighted",
        "log-ratios [[log 64, -log 64]], sequence_mask, threshold 2",
        "The gate looks at the row's geometric mean, 1 here; the weights are the raw token ratios, up to exp(20). "
        "'Right' shows the weight of the gated level itself.",
        SOURCE,
        untruncated_survivors,
        kind="by definition",
    ),
    Finding(
        "ms-swift-chi2-geometric",
        "chi2_seq is formed from the geometric mean",
        "documented twice: as E[(product of ratios)^2] - 1 in the docstring, as geometric in the code",
        "log-ratios [[log 4, 0]]",
        "The docstring's formula gives 15, the code returns 3.",
        SOURCE,
        geometric_chi,
        lambda o: o.outputs.get("chi2_sequence") == "by definition",
    ),
    Finding(
        "ms-swift-nan-under-mask",
        "NaN in padding reaches metrics, loss and gradient",
        "completion_mask marks the completion tokens",
        "log-probs [-1, NaN], rollout [-2, -2], mask [[1, 0]]",
        "Means are sums of value times mask, and NaN times 0 is NaN.",
        SOURCE,
        nan_padding,
        lambda o: o.family != "surrogate" and any("got NaN" in miss for miss in o.misses),
    ),
    Finding(
        "ms-swift-ratio-overflow",
        "An overflowing ratio makes the gradient NaN where the clip should make it 0",
        "epsilon bounds the ratio: a token beyond 1 + epsilon with A > 0 has no gradient",
        "log p = -1, log old = -101, A = 1, epsilon 0.2, float32",
        "The correction clamps its log-ratio to +-20, the surrogate does not clamp log p - log old.",
        SOURCE,
        overflow,
        lambda o: o.family == "surrogate" and any("got NaN" in miss for miss in o.misses),
        beyond=True,
    ),
    Finding(
        "ms-swift-k3-gradient-vanishes",
        "The KL term stops pulling when the reference is far away",
        "k3 is bounded to [-10, 10] in the code",
        "log p = -4, log ref = -1, beta = 1, A = 0",
        "A bounded value has derivative 0: beyond log ref - log p = 2.6 the penalty no longer acts on the token.",
        SOURCE,
        bounded_kl,
        lambda o: o.state == "by definition" and "kl" in settings(o),
        kind="by definition",
        beyond=True,
    ),
)
