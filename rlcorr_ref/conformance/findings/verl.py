"""Findings for verl: each function feeds the package the smallest input and compares with the reference."""

from __future__ import annotations

import math
from typing import Any

from . import verl_definitions, verl_padding
from .inputs import ones, right, tensor
from .records import Finding, Observation, attempt, differ, settings, show
from .verl_calls import ALGOS, HELPER, TIS, nan_misses, weights

MIS = {"weight": {"level": "token", "low": 0.5, "high": 2.0, "outside": "zero"}}


def all_dropped(verl: Any) -> Observation:
    """Both tokens lie outside the band: ESS of all-zero weights."""
    d = [[3.0, -3.0]]
    metric = "rollout_is_eff_sample_size"
    return differ(lambda: weights(verl, d, "0.5_2.0")[1][metric], right("diagnostics", "ess", d, MIS))


def ess_above_one(verl: Any) -> Observation:
    """Two equal weights of exp(-20): ESS as a share of the tokens."""
    d = [[-20.0, -20.0]]
    return differ(lambda: weights(verl, d, 2.0)[1]["rollout_is_eff_sample_size"], right("diagnostics", "ess", d, TIS))


def reciprocal_band(verl: Any) -> Observation:
    """Ratios 1.5 and 0.7 against the band [0.5, 1.4]."""
    d = [[math.log(1.5), math.log(0.7)]]
    rule = {"statistic": "ratio", "reduce": "token", "low": 0.5, "high": 1.4}
    m = tensor(ones(d), whole=True)
    return differ(
        lambda: verl.p.helper.compute_rollout_rejection_mask(tensor(d), m, "token_k1", "0.5_1.4")[0],
        right("reject", "mask", d, rule),
    )


def clamp_order(verl: Any) -> Observation:
    """Weight and rejection of a row with log-ratios 25 and -22."""
    d = [[25.0, -22.0]]
    m = tensor(ones(d), whole=True)
    weight = attempt(lambda: weights(verl, d, "inf", level="sequence")[0][0, 0])
    kept = attempt(lambda: verl.p.helper.compute_rollout_rejection_mask(tensor(d), m, "seq_sum_k1", "0.5_2.0")[0][0, 0])
    exact = math.exp(3.0)
    return Observation(f"weight {weight}, kept {kept}", f"weight {show(exact)}, kept 0", kept != "0")


def unclamped_k3(verl: Any) -> Observation:
    """The k3 metric at a log-ratio of 100 nats."""
    d = tensor([[100.0]])
    found = attempt(
        lambda: verl.p.helper.compute_offpolicy_metrics(tensor([[0.0]]), -d, tensor([[1]], whole=True))["k3_kl"]
    )
    return Observation(found, show(math.exp(100.0) - 101.0), found == "inf")


def row_fraction(verl: Any) -> Observation:
    """Combined and per-option fraction of rejected rows with one empty row."""
    d, mask = [[3.0, 3.0], [0.0, 0.0], [0.0, 0.0]], [[1, 1], [1, 1], [0, 0]]
    rule = {"rejection": [{"statistic": "ratio", "reduce": "token", "low": 0.5, "high": 2.0}]}
    m = tensor(mask, whole=True)
    found = {}

    def run() -> Any:
        found.update(verl.p.helper.compute_rollout_rejection_mask(tensor(d), m, "token_k1", "0.5_2.0")[1])
        return [found["rollout_rs_seq_masked_fraction"], found["rollout_rs_token_k1_seq_masked_fraction"]]

    wanted = right("diagnostics", "fraction_rejected_rows", d, rule, mask)
    return differ(run, [wanted, wanted])


def moments(verl: Any) -> Observation:
    """Standard deviation of weights that differ in the fourth digit."""
    w = [1.0001, 0.9999, 1.0001, 0.9999]
    d = [[math.log(x) for x in w]]
    return differ(lambda: weights(verl, d, 2.0)[1]["rollout_is_std"], right("diagnostics", "weight_std", d, TIS))


def vanishing_kl(verl: Any) -> Observation:
    """Reference 3 nats above the trainer: k3 = 16.1 is clamped to 10, and its gradient with it."""
    import torch

    def gradient() -> Any:
        logp = torch.tensor([[-4.0]], requires_grad=True)
        return torch.autograd.grad(verl.p.algos.kl_penalty(logp, tensor([[-1.0]]), "low_var_kl").sum(), logp)[0]

    return differ(gradient, [[1.0 - math.exp(3.0)]])


def _ratio_band(outcome: Any) -> bool:
    """Rejection by a band on the ratio, at its own stage or inside an objective."""
    if outcome.state != "departs" or nan_misses(outcome):
        return False
    given = settings(outcome)
    rules = given.get("rejection") or ([given] if outcome.family == "reject" else [])
    return any(rule.get("statistic") == "ratio" for rule in rules)


def _raised(outcome: Any) -> bool:
    return outcome.why.startswith("raised ZeroDivisionError")


FINDINGS = (
    Finding(
        "verl-ess-all-dropped",
        "Effective sample size raises when every weight is masked",
        "rollout_is_eff_sample_size is an effective sample size; IcePop thresholds 'lower_upper' zero weights "
        "outside the band",
        "log-ratios [[3, -3]], mask all ones, rollout_is=token, rollout_is_threshold='0.5_2.0'",
        "The mean square of all-zero weights is 0 and its reciprocal is taken in Python. The exception leaves "
        "compute_rollout_correction_weights, so no weights come back either and the training step ends. No weight, "
        "no effective sample: 0.",
        HELPER,
        all_dropped,
        _raised,
    ),
    Finding(
        "verl-ess-above-one",
        "Effective sample size above its maximum for tiny weights",
        "rollout_is_eff_sample_size as a fraction of the tokens, hence at most 1",
        "log-ratios [[-20, -20]], mask all ones, rollout_is=token, rollout_is_threshold=2.0",
        "1e-8 is added to the mean weight, which is 2.1e-9 here. Equal weights have an effective sample share of "
        "exactly 1, whatever their size: the quantity is scale-free and needs no epsilon.",
        HELPER,
        ess_above_one,
        lambda o: "ess-with-epsilon" in o.faults,
    ),
    Finding(
        "verl-k1-band-reciprocal",
        "The k1 band holds the reciprocal of the documented ratio",
        "for k1 options 'lower_upper' denotes bounds on the ratio, and the log-ratio argument is training over rollout",
        "log-ratios [log 1.5, log 0.7], rollout_rs=token_k1, rollout_rs_threshold='0.5_1.4'",
        "The statistic is k1 = log q - log p, compared with the logs of the bounds, so the band holds q/p. A ratio "
        "of 1.5 is kept although it exceeds 1.4, because 1/1.5 = 0.67 lies inside. Bands that are their own "
        "reciprocal, such as 0.5_2.0, hide it.",
        HELPER,
        reciprocal_band,
        _ratio_band,
        since="present in 0.9.1 and in the repository of August 2026; not traced further back",
    ),
    Finding(
        "verl-clamp-order",
        "Weight and rejection of one row see different products",
        "both are functions of the product of the row's ratios",
        "log-ratios [[25, -22]], rollout_is=sequence without a cap; rollout_rs=seq_sum_k1, threshold '0.5_2.0'",
        "The weight clamps the row's sum to +-20, rejection clamps every token first. The sum is 3 for one and 0 "
        "for the other: a row whose weight is 20 passes a band that ends at 2.",
        HELPER,
        clamp_order,
        kind="by definition",
    ),
    Finding(
        "verl-k3-overflow",
        "k3_kl overflows to infinity",
        "k3_kl is described as the estimator chosen for stability; the module keeps exponents within +-20 for "
        "stability",
        "old log-prob 0, rollout log-prob -100",
        "This metric exponentiates the raw log-ratio in float32, where the true value has no representation; the "
        "rejection statistic of the same name clamps to +-20 and stays at 4.9e8. A single outlier turns the logged "
        "mean into infinity.",
        HELPER,
        unclamped_k3,
        kind="by definition",
    ),
    Finding(
        "verl-row-fraction",
        "Two rejected-row fractions with one meaning and two denominators",
        "the fraction of sequences with a masked token, combined and per option",
        "log-ratios [[3, 3], [0, 0], [0, 0]], mask [[1, 1], [1, 1], [0, 0]], token_k1, '0.5_2.0'",
        "The combined fraction averages over all rows and counts an empty row, the per-option one divides by the "
        "non-empty rows.",
        HELPER,
        row_fraction,
        lambda o: "fraction_rejected_rows" in o.outputs and o.outputs["fraction_rejected_rows"] == "departs",
    ),
    Finding(
        "verl-std-moments",
        "Standard deviation of nearly equal weights loses its digits",
        "rollout_is_std is the standard deviation of the weights",
        "weights [1.0001, 0.9999, 1.0001, 0.9999] in float32",
        "It is the root of a difference of two moments near 1, so below about 3e-4 only rounding is left. "
        "Deviations from the mean, squared and averaged, keep the digits.",
        HELPER,
        moments,
        lambda o: o.outputs.get("weight_std") == "departs",
        beyond=True,
    ),
    Finding(
        "verl-k3-gradient-vanishes",
        "The KL term stops pulling when the reference is far away",
        "low_var_kl is the k3 estimator; the code bounds it to [-10, 10] for numerical stability",
        "log p = -4, log ref = -1, kl_penalty low_var_kl",
        "A bounded value has derivative 0: beyond log ref - log p = 2.6 the penalty no longer acts on the token. "
        "The same bound is in ms-swift and OpenRLHF.",
        ALGOS,
        vanishing_kl,
        lambda o: o.state == "by definition" and "kl" in settings(o),
        kind="by definition",
        beyond=True,
    ),
    *verl_padding.FINDINGS,
    *verl_definitions.FINDINGS,
)
