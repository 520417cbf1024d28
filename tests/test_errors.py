"""Everything the contract calls an error, each with the words that must be in its message."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from cases_helper import MIS, TIS, random_inputs

from rlcorr_ref import Batch, ContractError, Objective, evaluate_case

DATA = random_inputs(np.random.default_rng(0), 2, 3, 5, 2, anchor=True)
DATA["mask"][:] = [[1, 1, 1], [1, 1, 0]]
TWO_POLICY = {k: v for k, v in DATA.items() if "anchor" not in k}


def refused(match: str, definition=None, data=None, drop=(), **changes) -> None:
    values = copy.deepcopy(DATA if data is None else data)
    for name, value in changes.items():
        values[name] = value(values[name]) if callable(value) else value
    for name in drop:
        del values[name]
    with pytest.raises(ContractError, match=match):
        Objective.from_dict(definition).evaluate(Batch(**values))


def put(index, value):
    def change(array):
        array[index] = value
        return array

    return change


DEFINITION_ERRORS = [
    ({"wieght": None}, "unknown key 'wieght'"),
    ({"weight": {"level": "rows"}}, "weight.level.*'rows'"),
    ({"weight": {"high": 2.0}}, "weight.outside.*required"),
    ({"weight": {"positive": {"high": 2.0}}}, "weight.positive"),
    ({"weight": {"low": 3.0, "high": 2.0, "outside": "clip"}}, "low 3 is above high 2"),
    ({"weight": {"high": float("nan"), "outside": "clip"}}, "weight.high.*nan"),
    ({"weight": {"high": True, "outside": "clip"}}, "weight.high.*True"),
    ({"weight": {"high": "2.0", "outside": "clip"}}, "weight.high.*'2.0'"),
    ({"weight": {"low": -1.0, "high": 2.0, "outside": "clip"}}, "weight.low.*>= 0"),
    ({"weight": {"statistic": "tv", "high": 0.2, "outside": "clip"}}, "weight.statistic and weight.outside"),
    (
        {"weight": {"statistic": "tv", "level": "sequence", "high": 0.2, "outside": "zero"}},
        "weight.statistic and weight.level",
    ),
    ({"weight": {"clamp_order": "token"}}, "weight.clamp_order and weight.log_clamp"),
    ({"weight": {"log_clamp": 0.0}}, "weight.log_clamp.*> 0"),
    ({"weight": {"closed": 1}}, "weight.closed.*true or false"),
    ({"gate": {"levels": "token"}}, "gate: unknown key 'levels'"),
    ({"surrogate": {"kind": "ppo"}}, "surrogate.kind.*'ppo'"),
    ({"surrogate": {"kind": "reinforce", "eps_low": 0.2}}, "unknown key 'eps_low'"),
    ({"surrogate": {"kind": "ppo_clip", "dual": 1.0}}, "surrogate.dual.*> 1"),
    ({"surrogate": {"kind": "ppo_clip", "eps_low": None}}, "surrogate.eps_low"),
    ({"centering": {"tail": "flat"}}, "centering.tail.*'flat'"),
    ({"centering": {"floor_sampler": 0.0}}, "centering.floor_sampler.*> 0"),
    ({"centering": {}, "surrogate": {"kind": "gspo"}}, "centering and surrogate"),
    (
        {"centering": {}, "weight": {"statistic": "tv", "high": 0.2, "outside": "zero"}},
        "weight.statistic and centering.tail",
    ),
    (
        {"centering": {"tail": "dropped"}, "weight": {"statistic": "tv_signed", "high": 0.2, "outside": "zero"}},
        "centering.tail",
    ),
    ({"rejection": [{"statistic": "k4", "reduce": "token", "high": 1}]}, r"rejection\[0\].statistic"),
    ({"rejection": [{"statistic": "k1", "reduce": "token"}]}, r"rejection\[0\].*low or high"),
    ({"rejection": {"statistic": "k1"}}, "rejection: expected a list"),
    ({"kl": {"kind": "k3"}}, "missing key 'beta'"),
    ({"kl": {"kind": "k4", "beta": 1.0}}, "kl.kind"),
    ({"entropy": {"coefficient": 1.0}}, "unknown key 'coefficient'"),
    ({"aggregation": {"kind": "mean"}}, "aggregation.kind"),
    ({"aggregation": {"kind": "seq-mean-token-sum-norm"}}, "aggregation.length: required"),
    ({"aggregation": {"kind": "token-mean", "length": 3}}, "aggregation.length and aggregation.kind"),
    ({"aggregation": {"kind": "token-sum", "tokens": 3}}, "aggregation.tokens and aggregation.kind"),
    ({"aggregation": {"kind": "token-mean", "sequences": 3}}, "aggregation.sequences and aggregation.kind"),
    ({"aggregation": {"kind": "token-mean", "tokens": 0}}, "aggregation.tokens.*> 0"),
    ({"temperature": 0.0}, "temperature.*> 0"),
    ({"temperature": float("inf")}, "temperature"),
    ({"allow_double_ratio": "yes"}, "allow_double_ratio"),
]


@pytest.mark.parametrize("definition, match", DEFINITION_ERRORS)
def test_definition(definition, match):
    with pytest.raises(ContractError, match=match):
        Objective.from_dict(definition)


@pytest.mark.parametrize("kind", ["ppo_clip", "cispo", "gspo"])
def test_double_ratio(kind):
    definition = {"surrogate": {"kind": kind}, "weight": TIS}
    refused("weight and surrogate", definition, TWO_POLICY)
    Objective.from_dict({**definition, "allow_double_ratio": True}).evaluate(Batch(**TWO_POLICY))


def test_definition_and_data_that_do_not_fit():
    refused("weight.numerator and logp_anchor", {"weight": {**TIS, "numerator": "anchor"}}, TWO_POLICY)
    refused("kl and logp_reference", {"kl": {"kind": "k3", "beta": 0.1}})
    refused("centering.tail and logp_sampler_full", {"centering": {"tail": "exact"}}, drop=["logp_sampler_full"])
    refused("centering.tail and head_ids", {"centering": {}}, TWO_POLICY, drop=["head_ids", "head_logp_sampler"])
    refused("head_logp_anchor", {"centering": {}, "weight": TIS}, drop=["head_logp_anchor", "logp_anchor_full"])
    refused("logp_anchor_full", {"centering": {"tail": "exact"}, "weight": TIS}, drop=["logp_anchor_full"])
    refused("mass must be 1", {"centering": {"tail": "support"}}, TWO_POLICY, drop=["logp_sampler_full"])


def test_values_on_valid_tokens_name_the_place():
    at = (1, 1)
    refused(r"logits.*b=1, t=1", logits=put((1, 1, 0), np.nan))
    refused(r"logits.*b=1, t=1", logits=put((1, 1, 0), np.inf))
    refused(r"logits.*b=1, t=1", logits=put((1, 1), -np.inf))
    refused(r"logp_sampler:.*b=1, t=1", logp_sampler=put(at, np.nan))
    refused(r"logp_sampler:.*b=1, t=1", logp_sampler=put(at, np.inf))
    refused(r"logp_sampler:.*<= 0.*b=1, t=1", logp_sampler=put(at, 1e-5))
    refused(r"logp_anchor:.*b=1, t=1", logp_anchor=put(at, np.nan))
    refused(r"advantages.*b=1, t=1", advantages=put(at, np.inf))
    refused(r"tokens.*\[0, 5\).*b=1, t=1", tokens=put(at, 5))
    refused(r"tokens.*b=1, t=1", tokens=put(at, -1))
    refused(r"head_ids.*b=1, t=1", head_ids=put((1, 1, 0), 5))
    refused(r"duplicate id.*b=1, t=1", head_ids=put((1, 1), 3))
    refused(r"head_logp_sampler.*b=1, t=1", head_logp_sampler=put((1, 1, 0), np.nan))
    refused(r"head mass above.*b=1, t=1", head_logp_sampler=put((1, 1), np.log(0.51)))
    refused(r"absent slot.*b=1, t=1", head_ids=put((1, 1, 0), -1))
    refused(r"logp_sampler_full.*sum to 1.*b=1, t=1", logp_sampler_full=put((1, 1, 0), -np.inf))
    refused(r"logp_sampler_full.*b=1, t=1", logp_sampler_full=put((1, 1, 0), np.nan))


def test_sampled_token_and_head_must_agree():
    data = copy.deepcopy(TWO_POLICY)
    data["tokens"][0, 0] = data["head_ids"][0, 0, 0]
    data["logp_sampler"][0, 0] = data["head_logp_sampler"][0, 0, 0] - 2e-4
    refused(r"disagree on the sampled token.*b=0, t=0", {}, data)
    data["logp_sampler"][0, 0] += 1.5e-4
    Objective().evaluate(Batch(**data))


def test_head_mass_rounded_above_one_is_accepted():
    data = copy.deepcopy(TWO_POLICY)
    logq = np.log(np.array([0.7, 0.3]) * (1 + 9e-5))
    data["head_logp_sampler"][:] = logq
    hit = data["head_ids"] == data["tokens"][..., None]
    data["logp_sampler"] = np.where(hit.any(-1), (hit * logq).sum(-1), -3.0)
    out = Objective.from_dict({"centering": {"floor_sampler": None}}).evaluate(Batch(**data))
    assert out.diagnostics["tail_ratio_max"] == 0.0  # 1 - Q is cut at 0


def test_support():
    support = np.ones((2, 3, 5), dtype=np.int64)
    support[1, 1, DATA["tokens"][1, 1]] = 0
    refused(r"tokens.*outside the support.*b=1, t=1", support=support)
    refused("support.*shape", support=np.ones((2, 3, 4)))
    refused("support", support=np.full((2, 3, 5), 2))


def test_shapes_and_dtypes():
    refused(r"logits.*\[B, T, V\]", logits=np.zeros((2, 3)))
    refused(r"tokens: expected shape \[2, 3\]", tokens=np.zeros((3, 2), dtype=int))
    refused(r"mask: expected only 0 and 1", mask=np.full((2, 3), 2))
    refused(r"logits: expected float64, got float32", logits=DATA["logits"].astype(np.float32))
    refused(r"head_ids and head_logp_sampler", drop=["head_logp_sampler", "head_logp_anchor"])
    refused(r"head_logp_sampler and head_ids", drop=["head_ids"])
    refused(r"K = 6 is larger than the vocabulary V = 5", head_ids=np.zeros((2, 3, 6), dtype=int))
    refused(r"head_logp_sampler: expected shape \[2, 3, 2\]", head_logp_sampler=np.zeros((2, 3, 3)))


def test_empty_mask_needs_an_explicit_denominator():
    empty = np.zeros((2, 3), dtype=int)
    for kind, key in [
        ("token-mean", "tokens"),
        ("seq-mean-token-sum", "sequences"),
        ("seq-mean-token-mean", "sequences"),
    ]:
        refused(f"mask: no valid token.*aggregation.{key}", {"aggregation": {"kind": kind}}, mask=empty)
        out = Objective.from_dict({"aggregation": {"kind": kind, key: 4}}).evaluate(Batch(**{**DATA, "mask": empty}))
        assert out.loss == 0.0 and not out.grad_logits.any()
    norm = {"kind": "seq-mean-token-sum-norm", "length": 3}
    refused("mask: no valid token", {"aggregation": norm}, mask=empty)
    for aggregation in ({"kind": "token-sum"}, {**norm, "sequences": 2}):
        out = Objective.from_dict({"aggregation": aggregation, "centering": {}, "weight": MIS}).evaluate(
            Batch(**{**TWO_POLICY, "mask": empty})
        )
        assert out.loss == 0.0 and not out.grad_logits.any()


def test_wire_envelope():
    with pytest.raises(ContractError, match="function: unknown name 'objektive'"):
        evaluate_case({"function": "objektive", "inputs": {}})
    with pytest.raises(ContractError, match="case: unknown key 'definitions'"):
        evaluate_case({"inputs": {}, "definitions": {}})
    with pytest.raises(ContractError, match="case: missing key 'inputs'"):
        evaluate_case({"definition": {}})
    with pytest.raises(ContractError, match="inputs: missing key 'logits'"):
        evaluate_case({"inputs": {}})
    with pytest.raises(ContractError, match="logits: expected a rectangular"):
        evaluate_case(
            {
                "inputs": {
                    "logits": [[[1, 2], [3]]],
                    "tokens": [[0]],
                    "mask": [[1]],
                    "advantages": [[1]],
                    "logp_sampler": [[-1]],
                }
            }
        )
    with pytest.raises(ContractError, match="logits: expected a number.*None"):
        evaluate_case(
            {
                "inputs": {
                    "logits": [[[1, None]]],
                    "tokens": [[0]],
                    "mask": [[1]],
                    "advantages": [[1]],
                    "logp_sampler": [[-1]],
                }
            }
        )
