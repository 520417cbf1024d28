# Copyright 2025 Bytedance Ltd. and/or its affiliates
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Rollout correction, policy losses and reductions against the rlcorr vectors (pip install rlcorr-ref).

Every case is a batch with the answer at 50 digits; the gradient is compared, not only the loss. Runs on CPU in seconds:
    pytest tests/trainer/ppo/test_rlcorr_vectors_on_cpu.py
A failure names the class of bug. `rlcorr vectors show ID` prints a case. Known differences are listed in XFAILS, strict.
"""

import math

import pytest
import torch
from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_reinforce, get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.workers.config import ActorConfig

rlcorr = pytest.importorskip("rlcorr_ref.pytest_plugin")

# What verl means by these names: the log-ratio of a weight is clamped to +-20 before exp.
PROFILE = {"profile": "verl", "overrides": {"weight": {"log_clamp": 20.0}, "rejection": {"log_clamp": 20.0}}}
COMMON = dict(dtype=torch.float32, profile=PROFILE)
TIS = {
    "weight",
    "weight.outside:clip",
    "weight.level:sequence",
    "weight.normalise:*",
    "input:logp_anchor",
    "fp32-logprobs",
}
ICEPOP = TIS - {"weight.outside:clip"} | {"weight.outside:zero", "weight.low"}
LOSSES = {"surrogate", "surrogate.*", "aggregation", "aggregation.*"}

# As of verl 0.9.1; strict: an entry that passes fails the test, so fix and remove together.
JUNK = "multiplies by the mask where it should select: NaN or inf in the padding reaches the result"
ALL_OUT = "every weight is 0: the effective sample size divides by 0.0 and raises ZeroDivisionError"
OTHER_MEAN = (
    "by definition: token weights are normalised over tokens, sequence weights over rows, no other pairing exists"
)
NO_OPTION = "by definition: rollout_rs has no seq_max_k1"
XFAILS = {
    "weight.0029": OTHER_MEAN,
    "weight.0031": OTHER_MEAN,
    "weight.0046": JUNK,
    "weight.0047": ALL_OUT,
    "reject.0008": NO_OPTION,
    "reject.0025": NO_OPTION,
    "reject.0038": NO_OPTION,
    "agg.0014": JUNK,
    "grad.0018": ALL_OUT,
    "grad.0065": ALL_OUT,
    "grad.0066": ALL_OUT,
    "edge.0001": JUNK,
    "edge.0002": JUNK,
    "edge.0003": JUNK,
    "edge.0006": JUNK,
    "edge.0007": OTHER_MEAN,
    "edge.0010": JUNK,
    "edge.0014": "by definition: a batch without valid tokens raises ValueError",
}


def _weights(log_ratio, mask, rule):
    """verl's weights for a rule of the contract: one number caps, "low_high" masks."""
    high = math.inf if rule["high"] is None else rule["high"]
    threshold = f"{rule['low']}_{high}" if rule["outside"] == "zero" else high
    return compute_rollout_correction_weights(log_ratio, mask, rule["level"], threshold, rule["normalise"] is not None)[
        0
    ]


def _config(rule):
    """The actor config whose clip options say what the surrogate of a case says."""
    low, high = rule.get("eps_low"), rule.get("eps_high")
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        use_dynamic_bsz=False,
        clip_ratio_low=1.0 if low is None else low,
        clip_ratio_high=1e9 if high is None else high,
        clip_ratio_c=rule.get("dual") or 1e9,
    )


def _loss_gradient(logp_trainer, logp_sampler, mask, advantages, definition, logp_anchor=None):
    """d loss / d log_prob through verl's policy loss of the same name."""
    log_prob = logp_trainer.clone().requires_grad_()
    old = logp_sampler if logp_anchor is None else logp_anchor
    rule, surrogate, aggregation = definition["weight"], definition["surrogate"], definition["aggregation"]
    weights = None
    if rule is not None:
        anchored = logp_anchor is not None and rule["numerator"] != "trainer"
        weights = _weights((logp_anchor if anchored else log_prob.detach()) - logp_sampler, mask, rule)
    config = _config(surrogate)
    config.global_batch_info.update(
        batch_num_tokens=aggregation["tokens"],
        global_batch_size=aggregation["sequences"],
        loss_scale_factor=aggregation["length"],
    )
    arguments = (old, log_prob, advantages, mask, aggregation["kind"], config, weights)
    if surrogate["kind"] == "reinforce":
        loss, _ = compute_policy_loss_reinforce(*arguments)
    else:
        loss, _ = get_policy_loss_fn({"ppo_clip": "vanilla"}.get(surrogate["kind"], surrogate["kind"]))(*arguments)
    loss.backward()
    return {"grad_logp": log_prob.grad}


@rlcorr.cases("weight", level="logp", features=TIS, needs="weight.outside:clip", xfails=XFAILS, **COMMON)
@rlcorr.cases("weight", level="logp", features=ICEPOP, needs=ICEPOP & {"weight.low"}, xfails=XFAILS, **COMMON)
def test_importance_weights(rlcorr_case):
    """rollout_is weights: token and sequence level, TIS and IcePop, batch normalisation."""
    case = rlcorr_case.arguments()
    numerator = case.get("logp_anchor", case["logp_trainer"])
    rlcorr_case.check({"weights": _weights(numerator - case["logp_sampler"], case["mask"], case["parameters"])})


@rlcorr.cases(
    "reject",
    level="logp",
    features={"rejection", "rejection.low", "rejection.statistic:k[123]", "rejection.reduce:*", "input:logp_anchor"},
    needs="function:reject",
    xfails=XFAILS,
    **COMMON,
)
def test_rejection_mask(rlcorr_case):
    """rollout_rs masks: k1, k2, k3 at token level and as row sum, mean and max."""
    case = rlcorr_case.arguments()
    numerator = case.get("logp_anchor", case["logp_trainer"])
    names, thresholds = [], []
    for rule in case["parameters"]["rejection"]:
        names.append({"token": "token"}.get(rule["reduce"], f"seq_{rule['reduce']}") + f"_{rule['statistic']}")
        low, high = (1e-30 if rule["low"] is None else math.exp(rule["low"])), rule["high"]
        thresholds.append(f"{low!r}_{math.exp(high)!r}" if rule["statistic"] == "k1" else repr(high))
    log_ratio = numerator - case["logp_sampler"]
    mask, _ = compute_rollout_rejection_mask(log_ratio, case["mask"], ",".join(names), ",".join(thresholds))
    rlcorr_case.check({"mask": mask})


@rlcorr.cases("agg", level="weights", needs="function:aggregate", xfails=XFAILS, **COMMON)
def test_agg_loss(rlcorr_case):
    """agg_loss: every mode, with local and with global denominators."""
    case = rlcorr_case.arguments()
    rule = case["parameters"]
    loss = agg_loss(
        case["values"],
        case["mask"],
        rule["kind"],
        batch_num_tokens=rule["tokens"],
        global_batch_size=rule["sequences"],
        loss_scale_factor=rule["length"],
    )
    rlcorr_case.check({"value": loss})


@rlcorr.cases(
    "grad", "agg", "edge", level="logp", features=TIS | LOSSES, needs="function:objective", xfails=XFAILS, **COMMON
)
@rlcorr.cases("grad", "edge", level="logp", features=ICEPOP | LOSSES, needs={"weight.low"}, xfails=XFAILS, **COMMON)
def test_policy_loss_gradient(rlcorr_case):
    """Gradients in log_prob of vanilla, cispo, gspo and REINFORCE with their weights and reductions."""
    rlcorr_case.check(_loss_gradient(**rlcorr_case.arguments()))
