"""Other witnesses of the published values: torch autograd, torch's own log-softmax in bf16, a float32 trace, decoded grids."""

from __future__ import annotations

import numpy as np
import plain_float32
import pytest
import torch
import witness_torch

from rlcorr_ref.quantise import FORMATS, to_grid
from rlcorr_ref.vectors import judge, store
from rlcorr_ref.vectors.scales import as_floats
from rlcorr_ref.vectors.trace import first_step, sampler_inputs
from rlcorr_ref.vectors.witness_arrays import advantages, grid_values
from rlcorr_ref.wire import to_wire

OBJECTIVES = [case for case in store.load() if case["function"] == "objective"]
TRACES = store.load("trace")
BF16 = store.load("logsoftmax", dtype="bf16")


@pytest.mark.parametrize("case", OBJECTIVES, ids=lambda case: case["id"])
def test_torch_autograd_agrees(case):
    """An independently written loss with explicit detach, differentiated by autograd in float64."""
    definition = {"aggregation": {"kind": "token-mean"}, **case["definition"]}
    if definition.get("centering") is not None:
        definition["centering"] = {"tail": "rescaled", **definition["centering"]}
    out = witness_torch.evaluate(case["inputs"], definition)
    modelled = "TailPrecision" in case["flags"] or "FloorSide" in case["flags"]
    for name, key in (("grad_logits", "grad_logits_dense"), ("grad_logp", "grad_logp"), ("weights", "weights")):
        if name in case["expected"]:
            entry = case["expected"][name]
            gap = np.abs(out[key] - as_floats(entry["data"]))
            # 2^-40 of the error scale; a tail of 1e-8 formed as 1 - P keeps only 8 digits in torch
            limit = (
                np.broadcast_to(as_floats(entry["err_scale"]), gap.shape) * (1e-7 if modelled else 2.0**-40) + 1e-300
            )
            assert (gap <= limit).all(), (name, gap.max())


@pytest.mark.parametrize("case", BF16, ids=lambda case: case["id"])
def test_torch_log_softmax_in_bf16_passes_where_bf16_is_claimed(case):
    """torch.log_softmax on bf16 tensors, the usual production call; float32 accumulation inside."""
    z = torch.tensor(as_floats(case["inputs"]["logits"])).to(torch.bfloat16)
    assert torch.equal(z.to(torch.float64), torch.tensor(as_floats(case["inputs"]["logits"])))
    temperature = case["parameters"].get("temperature", 1.0)
    z = z / temperature
    if "support" in case["inputs"]:
        z = z.masked_fill(torch.tensor(case["inputs"]["support"]) == 0, -torch.inf)
    logp = torch.log_softmax(z, dim=-1)
    y = torch.tensor(case["inputs"]["tokens"])[..., None]
    hit = torch.zeros_like(logp).scatter_(-1, y, 1.0)
    answer = {
        "logp": logp.double(),
        "logp_token": logp.gather(-1, y)[..., 0].double(),
        "score": ((hit - logp.exp()) / temperature).double(),
    }
    verdict = judge.judge(case, to_wire({k: v.numpy() for k, v in answer.items()}), "bf16", "logits")
    assert [miss.line() for miss in verdict.misses] == []


def run_float32(case, late=0):
    """The trace in plain float32; `late` shifts every refresh of the sampler by that many steps."""
    f = np.float32
    program = {"head_ids": None, **case["levels"]["trace"]["inputs"]}
    definition, mask = case["definition"], case["inputs"]["mask"]
    z = as_floats(case["inputs"]["logits"]).astype(f)
    offset, base, losses = as_floats(program["offset"]).astype(f), z, []
    for step in range(program["steps"]):
        if step % program["resync_every"] == late or step == 0:
            base = z
        logq = plain_float32.log_softmax(base + offset, None, definition.get("temperature", 1.0))
        inputs = {"logits": z.tolist(), **sampler_inputs(program, step, logq.tolist(), mask)}
        with np.errstate(all="ignore"):
            out = plain_float32.objective(inputs, definition)
        losses.append(float(out["loss"]))
        z = z - f(program["learning_rate"]) * out["grad_logits"]
    return {"trace_logits": z.astype(float).tolist(), "trace_losses": losses}


@pytest.mark.parametrize("case", TRACES, ids=lambda case: case["id"])
def test_a_float32_trajectory_passes(case):
    verdict = judge.judge(case, run_float32(case), "fp32", "trace")
    assert [miss.line() for miss in verdict.misses] == [] and verdict.used < 0.5


@pytest.mark.parametrize("case", [c for c in TRACES if "StaleSampler" in c["flags"]], ids=lambda case: case["id"])
def test_a_sampler_of_the_wrong_age_fails(case):
    if case["levels"]["trace"]["inputs"]["resync_every"] < 10:
        assert not judge.judge(case, run_float32(case, late=1), "fp32", "trace").passed
    else:  # never refreshed: a sampler that follows every step is the fault
        fresh = {**case, "levels": {"trace": {**case["levels"]["trace"]}}}
        fresh["levels"]["trace"]["inputs"] = {**case["levels"]["trace"]["inputs"], "resync_every": 1}
        assert not judge.judge(case, run_float32(fresh), "fp32", "trace").passed


@pytest.mark.parametrize("case", TRACES, ids=lambda case: case["id"])
def test_a_step_of_the_wrong_size_fails_only_at_the_end(case):
    """1/T forgotten, or a learning rate off by one part in a thousand: visible in the last logits."""
    wrong = {**case["levels"]["trace"]["inputs"], "learning_rate": 0.5005}
    other = {**case, "levels": {"trace": {**case["levels"]["trace"], "inputs": wrong}}}
    assert not judge.judge(case, run_float32(other), "fp32", "trace").passed


@pytest.mark.parametrize("case", TRACES, ids=lambda case: case["id"])
def test_a_trace_case_also_stands_alone_as_its_first_step(case):
    """The case's own inputs are step 0 with log-probs on the float32 grid, and its loss is the trace's first to that rounding."""
    program = {"head_ids": None, **case["levels"]["trace"]["inputs"]}
    start = {"logits": case["inputs"]["logits"], "mask": case["inputs"]["mask"]}
    again = first_step(start, program, case["definition"].get("temperature", 1.0))
    np.testing.assert_array_equal(again["logp_sampler"], case["inputs"]["logp_sampler"])
    assert again["tokens"] == case["inputs"]["tokens"] == program["tokens"][0]
    first = case["expected"]["trace_losses"]["data"][0]
    assert case["expected"]["loss"]["data"] == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_decoded_grids_are_the_reference_grids(name):
    grid = np.array([float(x) for x in grid_values(name)])
    assert grid[-1] == FORMATS[name][2] and (np.diff(grid) > 0).all()
    np.testing.assert_array_equal(to_grid(grid, name), grid)


def test_advantage_witness_by_hand():
    inputs = {"rewards": [1.0, 0.0, 5.0], "groups": [0, 0, 1]}
    assert [float(x) for x in advantages(inputs, {})["advantages"]] == [0.5, -0.5, 0.0]
    assert [float(x) for x in advantages(inputs, {"kind": "leave_one_out"})["advantages"]] == [1.0, -1.0, 5.0]
    std = advantages(inputs, {"kind": "mean_std", "eps": 0.0, "ddof": 1})["advantages"]
    assert [float(x) for x in std] == [pytest.approx(0.5**0.5), pytest.approx(-(0.5**0.5)), 0.0]
