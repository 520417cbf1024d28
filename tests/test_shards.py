"""Micro-batches and ranks: with global denominators the shards add up to the whole batch, for every partition."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cases_helper import TIS, random_inputs

from rlcorr_ref import Batch, ContractError, Objective, evaluate_case
from rlcorr_ref.diagnostics import ess_from_log, ess_of_shards
from rlcorr_ref.shards import evaluate_shards

AGGREGATIONS = [
    {"kind": "token-mean"},
    {"kind": "token-sum"},
    {"kind": "seq-mean-token-sum"},
    {"kind": "seq-mean-token-mean"},
    {"kind": "seq-mean-token-sum-norm", "length": 7.0},
]


def partitions(items: list[int]):
    """Every partition of a list into non-empty parts."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for i in range(len(smaller)):
            yield [*smaller[:i], [first, *smaller[i]], *smaller[i + 1 :]]


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a["kind"])
def test_every_partition_gives_the_same_gradient(aggregation):
    """Four rows, one of them fully masked (so some shards are empty of tokens): all 15 partitions, bit for bit per row."""
    data = random_inputs(np.random.default_rng(0), 4, 5, 6, 3)
    assert data["mask"][1].sum() == 0
    batch = Batch(**data)
    objective = Objective.from_dict({"weight": TIS, "centering": {}, "aggregation": aggregation})
    whole = objective.evaluate(batch)
    count = 0
    for parts in partitions([0, 1, 2, 3]):
        parts = [*parts, []]  # and a rank that got no rows at all
        results = evaluate_shards(objective, batch, parts)
        assert sum(r.loss for r in results) == pytest.approx(whole.loss, rel=1e-13, abs=1e-15)
        for rows, result in zip(parts, results, strict=True):
            np.testing.assert_array_equal(result.grad_logits, whole.grad_logits[rows])
        count += 1
    assert count == 15


def test_local_denominators_are_another_objective():
    """A mean of means: the two shards have 5 and 1 valid tokens, so the lone token counts five times as much."""
    data = random_inputs(np.random.default_rng(1), 2, 5, 6, 3)
    data["mask"][:] = [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    inputs = {k: v.tolist() for k, v in data.items()}
    ask = {"function": "shard", "inputs": inputs}
    whole = evaluate_case({**ask, "parameters": {"shards": [[0, 1]]}})
    split = evaluate_case({**ask, "parameters": {"shards": [[0], [1]]}})
    local = evaluate_case({**ask, "parameters": {"shards": [[0], [1]], "denominators": "local"}})
    np.testing.assert_array_equal(split["grad_logits"], whole["grad_logits"])
    ratio = np.array(local["grad_logits"])[:, 0] / np.array(whole["grad_logits"])[:, 0]
    np.testing.assert_allclose(ratio, np.array([[6 / 10], [6 / 2]]) * np.ones((2, 6)), rtol=1e-12)


def test_global_and_micro_local_effective_sample_size():
    """Two shards of equal weights within, 1 and 9 between: each is locally perfect, the batch is not: 100/(2 * 82)."""
    shards = [np.log([1.0]), np.log([9.0]), np.zeros(0)]
    out = ess_of_shards(shards)
    assert out["global"] == pytest.approx(100 / 164, rel=1e-14)
    assert out["mean_of_local"] == 1.0
    rng = np.random.default_rng(5)
    log_w = 800.0 + rng.normal(size=12)  # exp overflows, the ESS does not
    for cut in (1, 5, 11):
        out = ess_of_shards([log_w[:cut], log_w[cut:]])
        assert out["global"] == pytest.approx(ess_from_log(log_w), rel=1e-13)
        assert out["mean_of_local"] != pytest.approx(out["global"], rel=1e-3)
    assert ess_of_shards([np.full(3, -np.inf)])["global"] == 0.0


def test_what_has_no_global_count_is_refused():
    batch = Batch(**random_inputs(np.random.default_rng(2), 3, 4, 6, 3))
    with pytest.raises(ContractError, match="weight.normalise and shards"):
        evaluate_shards(Objective.from_dict({"weight": {**TIS, "normalise": "tokens"}}), batch, [[0], [1, 2]])
    rule = {"statistic": "k2", "reduce": "token", "high": 1.0, "denominator": "shrunk"}
    with pytest.raises(ContractError, match="rejection.denominator and shards"):
        evaluate_shards(Objective.from_dict({"rejection": [rule]}), batch, [[0], [1, 2]])
    with pytest.raises(ContractError, match="shards: expected every row"):
        evaluate_shards(Objective(), batch, [[0], [1, 1]])


def _rank(rank: int, port: int, data: dict, folder: str) -> None:
    """One rank: its rows, an all-reduced token count, a plain torch TIS loss, an all-reduced gradient on a shared weight."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    rows = [[0, 2, 3], [1]][rank]  # row 1 is fully masked: this rank has no token, and still takes part in the backward
    x = {k: torch.as_tensor(v[rows]) for k, v in data.items()}
    bias = torch.zeros(x["logits"].shape[-1], dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(x["logits"] + bias, -1).gather(-1, x["tokens"][..., None])[..., 0]
    mask = x["mask"].bool()
    count = mask.sum().to(torch.float64)
    dist.all_reduce(count)
    weight = (logp.detach() - x["logp_sampler"]).exp().clamp(max=2.0)
    loss = torch.where(mask, -x["advantages"] * weight * logp, 0.0).sum() / count
    loss.backward()
    dist.all_reduce(bias.grad)
    torch.save(bias.grad, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_process_gloo_gradient_against_the_oracle(tmp_path):
    """Two real ranks, one fully masked: the all-reduced gradient on a shared bias is the oracle's, summed over tokens."""
    data = random_inputs(np.random.default_rng(3), 4, 5, 6, 3)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(_rank, args=(port, data, str(tmp_path)), nprocs=2)
    oracle = Objective.from_dict({"weight": TIS}).evaluate(Batch(**data)).grad_logits.sum((0, 1))
    for rank in (0, 1):
        grad = torch.load(tmp_path / f"{rank}.pt", weights_only=True).numpy()
        np.testing.assert_allclose(grad, oracle, rtol=0, atol=1e-14)
