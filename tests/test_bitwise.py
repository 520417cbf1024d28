"""Promises that hold to the last bit: no-ops, junk under the mask, packed and padded, untouched inputs, threads."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from cases_helper import MIS, TIS, random_inputs

from rlcorr_ref import Batch, Objective, vocabulary
from rlcorr_ref.categorical import log_softmax as ref_log_softmax

SHAPES = [(3, 5, 7, 3), (4, 4, 6, 6), (5, 2, 2, 1), (1, 6, 9, 8)]
FIELDS = ("grad_logits", "grad_logp", "grad_head_logp", "grad_logp_full", "weights", "mask", "token_loss")
DEFINITIONS = [
    {},
    {"weight": TIS},
    {"weight": MIS, "centering": {}},
    {"weight": TIS, "centering": {}, "temperature": 0.7},
    {"weight": TIS, "centering": {"tail": "exact"}, "entropy": {"coef": 0.01}},
    {"centering": {"tail": "uniform"}, "aggregation": {"kind": "seq-mean-token-mean"}},
    {"weight": {"level": "sequence", "high": 2.0, "outside": "clip", "normalise": "rows"}, "centering": {}},
    {"surrogate": {"kind": "ppo_clip"}, "centering": {"tail": "dropped"}},
    {"surrogate": {"kind": "gspo"}, "aggregation": {"kind": "seq-mean-token-mean"}},
    {
        "rejection": [{"statistic": "k3", "reduce": "mean", "high": 0.05, "denominator": "shrunk"}],
        "centering": {},
        "aggregation": {"kind": "token-sum"},
    },
]


def same(a, b, but=()) -> None:
    assert a.loss == b.loss and a.loss_dense == b.loss_dense
    for name in FIELDS:
        x, y = getattr(a, name), getattr(b, name)
        if name in but:
            continue
        assert (x is None) == (y is None), name
        if x is not None:
            np.testing.assert_array_equal(x, y, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", [None, TIS, MIS, {**TIS, "high": 0.5}, {**TIS, "high": 0.3}, {**MIS, "inside": "one"}])
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_on_policy_head_is_a_no_op(shape, rule, scale):
    """The head fed with the trainer's own bits: the centered gradient equals the plain one, cap below 1 included."""
    data = random_inputs(np.random.default_rng(7), *shape, scale=scale)
    for temperature in (1.0, 0.7):
        logp = ref_log_softmax(data["logits"], temperature)
        data["head_logp_sampler"] = np.take_along_axis(logp, data["head_ids"], -1)
        data["logp_sampler"] = np.take_along_axis(logp, data["tokens"][..., None], -1)[..., 0]
        data["logp_sampler_full"] = logp
        plain = Objective.from_dict({"weight": rule, "temperature": temperature}).evaluate(Batch(**data))
        for tail in ("rescaled", "exact"):
            definition = {"weight": rule, "temperature": temperature, "centering": {"tail": tail}}
            centered = Objective.from_dict(definition).evaluate(Batch(**data))
            np.testing.assert_array_equal(centered.grad_logits, plain.grad_logits)
            if tail == "rescaled":
                assert not np.any(centered.grad_head_logp)
                assert centered.loss == plain.loss


@pytest.mark.parametrize(
    "definition", [{}, {"centering": {}}, {"surrogate": {"kind": "ppo_clip"}, "centering": {"tail": "exact"}}]
)
def test_no_weight_equals_a_weight_that_is_one(definition):
    data = random_inputs(np.random.default_rng(3), 3, 5, 7, 3, anchor=True)
    base = Objective.from_dict(definition).evaluate(Batch(**data))
    for rule in ({"inside": "one"}, {"inside": "one", "low": 0.0, "high": 1e9, "outside": "zero"}):
        same(base, Objective.from_dict({**definition, "weight": rule}).evaluate(Batch(**data)))


def test_equal_policies_equal_the_base_loss():
    data = random_inputs(np.random.default_rng(4), 3, 5, 7, 3)
    data["logp_sampler"] = np.take_along_axis(ref_log_softmax(data["logits"]), data["tokens"][..., None], -1)[..., 0]
    del data["head_ids"], data["head_logp_sampler"], data["logp_sampler_full"]
    base = Objective().evaluate(Batch(**data))
    for rule in (
        TIS,
        MIS,
        {"level": "sequence", "high": 2.0, "outside": "clip"},
        {"level": "geometric"},
        {"level": "segment"},
    ):
        same(base, Objective.from_dict({"weight": rule}).evaluate(Batch(**data)))


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_junk_under_the_mask_changes_nothing(definition):
    data = random_inputs(np.random.default_rng(5), 4, 4, 6, 3)
    clean = Objective.from_dict(definition).evaluate(Batch(**data))
    off = data["mask"] == 0
    for junk in (np.nan, np.inf, -np.inf, -1e10, 1e4):
        dirty = copy.deepcopy(data)
        for name, value in dirty.items():
            if name in ("tokens", "head_ids"):
                value[off] = -7 if junk < 0 else 10**6
            elif name != "mask":
                value[off] = junk
        same(clean, Objective.from_dict(definition).evaluate(Batch(**dirty)))


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_packed_equals_padded(definition):
    data = random_inputs(np.random.default_rng(6), 4, 5, 6, 3)
    padded = Objective.from_dict(definition).evaluate(Batch(**data))
    b, t = np.nonzero(data["mask"])
    lengths = data["mask"].sum(1)
    packed = {name: value[b, t] for name, value in data.items() if name != "mask"}
    out = Objective.from_dict(definition).evaluate(
        Batch.from_packed(cu_seqlens=np.append(0, np.cumsum(lengths)), **packed)
    )
    width = lengths.max()
    assert out.loss == padded.loss
    for name in FIELDS:
        x, y = getattr(out, name), getattr(padded, name)
        if x is not None:
            np.testing.assert_array_equal(x, y[:, :width], err_msg=name)
    # wider padding changes no bit either
    wide = {name: np.concatenate([v, v[:, :3] * 0], axis=1) for name, v in data.items()}
    more = Objective.from_dict(definition).evaluate(Batch(**wide))
    assert more.loss == padded.loss
    np.testing.assert_array_equal(more.grad_logits[:, :5], padded.grad_logits)


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_inputs_are_not_mutated(definition):
    data = random_inputs(np.random.default_rng(8), 3, 4, 6, 3)
    before = copy.deepcopy(data)
    Objective.from_dict(definition).evaluate(Batch(**data))
    for name in data:
        np.testing.assert_array_equal(data[name], before[name])


def test_threads_and_chunks_do_not_change_a_bit(monkeypatch):
    data = random_inputs(np.random.default_rng(9), 6, 20, 50, 8)
    objective = Objective.from_dict({"weight": TIS, "centering": {}, "entropy": {"coef": 0.1}})
    base = objective.evaluate(Batch(**data))
    monkeypatch.setattr(vocabulary, "CHUNK_ELEMENTS", 130)
    monkeypatch.setattr(vocabulary, "threads", lambda: 4)
    same(base, objective.evaluate(Batch(**data)))


def test_zero_advantage_gives_exactly_zero_whatever_the_log_probs_are():
    data = random_inputs(np.random.default_rng(10), 2, 3, 5, 2)
    data["advantages"][:] = 0.0
    data["logp_sampler"][:] = -745.0
    data["head_ids"][:] = -1
    data["head_logp_sampler"][:] = -np.inf
    out = Objective.from_dict({"weight": {"level": "sequence"}, "centering": {}}).evaluate(Batch(**data))
    assert out.loss == 0.0 and not np.any(out.grad_logits)


def test_anchors_stay_frozen_over_repeated_updates():
    """Two updates on one batch: the second sees moved logits and the same anchor, and its weights are the first's."""
    data = random_inputs(np.random.default_rng(11), 3, 4, 6, 3, anchor=True)
    objective = Objective.from_dict({"surrogate": {"kind": "ppo_clip"}, "weight": TIS})
    first = objective.evaluate(Batch(**data))
    moved = {**data, "logits": data["logits"] - 0.5 * first.grad_logits}
    second = objective.evaluate(Batch(**moved))
    np.testing.assert_array_equal(first.weights, second.weights)
    assert not np.array_equal(first.grad_logits, second.grad_logits)
