"""A correct float32 torch consumer passes; planted faults fail with their bug class, in text a person can read."""

from __future__ import annotations

import pytest
import torch
import torch_consumer

from rlcorr_ref.vectors import store

pytest_plugins = "pytester"
torch.set_num_threads(1)

LOSS = """
@rlcorr.cases({cases}, level="logp", dtype=torch.float32, features=torch_consumer.SUPPORTED, needs="function:objective")
def test_loss(rlcorr_case):
    rlcorr_case.check(torch_consumer.loss_gradient(**rlcorr_case.arguments(), fault={fault!r}))
"""
THREE_LINES = """
@rlcorr.cases("grad", level="logp", dtype=torch.float32, features=torch_consumer.SUPPORTED)
def test_tis(rlcorr_case):
    rlcorr_case.check(torch_consumer.loss_gradient(**rlcorr_case.arguments()))
"""
BFLOAT16 = """
@rlcorr.cases("ratio", level="logp", dtype=torch.bfloat16, features={"weight", "weight.level:sequence"})
def test_ratio(rlcorr_case):
    x = rlcorr_case.arguments()
    mask = x["mask"].bool()
    d = torch.where(mask, x["logp_trainer"] - x["logp_sampler"], 0)
    if x["parameters"]["level"] == "sequence":
        d = torch.where(mask, d.sum(-1, keepdim=True).expand_as(d), 0)
    rlcorr_case.check({"log_ratio": d, "ratio": torch.where(mask, d.exp(), 0)})

@rlcorr.cases("logsoftmax", level="logits", dtype=torch.bfloat16, features={"temperature"})
def test_score(rlcorr_case):
    x = rlcorr_case.arguments()
    z = x["logits"].requires_grad_()
    logp = torch.log_softmax(z / x["parameters"].get("temperature", 1), -1)
    own = logp.gather(-1, x["tokens"][..., None])[..., 0]
    own.sum().backward()
    rlcorr_case.check({"logp": logp, "logp_token": own, "score": z.grad})

@rlcorr.cases("agg", level="weights", dtype=torch.bfloat16, needs="function:aggregate")
def test_reduction(rlcorr_case):
    x = rlcorr_case.arguments()
    rlcorr_case.check(torch_consumer.reduce(x["values"], x["mask"].bool(), x["parameters"]))
"""
# fault -> (cases, bug type and flag that the failures name, known fault with the same numbers)
PLANTED = {
    "attached": ('"grad.0001"', "GRADIENT_LEAK WeightNotDetached", "weight-attached"),
    "geometric-for-product": ('"grad", "weight"', "DEFINITION SeqProductVsGeomean", "sequence-is-geometric"),
    "mask-ignored": ('"edge"', "MASKING MaskInRowSum", None),
    "low-clip": ('"grad"', "DEFINITION LowerClip", None),
    "denominator": ('"agg"', "REDUCTION AggDenominator", None),
    "nan-times-zero": ('"edge"', "MASKING PadSentinel", None),
}


def test_correct_consumer_passes(consumer):
    result, report = consumer.report(LOSS.format(cases='"grad", "edge", "agg"', fault=None))
    assert result.ret == 0
    assert report["counts"]["failed"] == report["counts"]["error"] == report["counts"]["near"] == 0
    assert report["counts"]["passed"] >= 40
    assert 0 < report["largest_used"] < 0.5


def test_correct_bfloat16_consumer_passes(consumer):
    result, report = consumer.report(BFLOAT16)
    assert result.ret == 0
    assert {run["dtype"] for run in report["runs"]} == {"bf16"}
    assert {run["case"].partition(".")[0] for run in report["runs"]} == {"ratio", "logsoftmax", "agg"}
    assert report["counts"]["near"] == 0 and report["counts"]["passed"] >= 30


def test_three_lines_are_enough(consumer):
    result = consumer.run(THREE_LINES)
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] >= 25


@pytest.mark.parametrize("fault", torch_consumer.FAULTS)
def test_planted_fault_is_found(consumer, fault):
    cases, bug_class, known = PLANTED[fault]
    result, report = consumer.report(LOSS.format(cases=cases, fault=fault))
    assert result.ret == 1
    text = result.stdout.str()
    assert bug_class in text
    assert known is None or f"same numbers as the known fault {known}" in text
    flag = bug_class.split()[1]
    failing = [run for run in report["runs"] if run["outcome"] == "failed"]
    assert any(flag in run["flags"] for run in failing)
    assert flag in [row["flag"] for row in report["bug_classes"]]
    for run in failing:
        assert 1 <= len(run["misses"]) <= 3


def test_failure_is_short_and_names_numbers_threads_and_citation(consumer):
    result = consumer.run(LOSS.format(cases='"grad.0001"', fault="attached"))
    lines = result.stdout.str().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("rlcorr grad.0001"))
    block = lines[start : start + 12]
    assert "grad_logp[0, 0]: wanted -2.00000001, got -0.6137" in block[1] and "x tolerance" in block[1]
    text = "\n".join(block)
    assert "definition: loss = " in text and "seen in: verl #4105" in text
    assert f"sha256:{store.get('grad.0001')['sha256'][:12]}" in text
    assert "tensor(" not in result.stdout.str() and "array(" not in result.stdout.str()
    assert "Traceback" not in result.stdout.str() and "torch_consumer.loss_gradient" not in result.stdout.str()


def test_every_failing_case_prints_few_lines(consumer):
    result = consumer.run(LOSS.format(cases='"edge"', fault="mask-ignored"), "-q")
    failed = result.parseoutcomes()["failed"]
    body = [line for line in result.stdout.str().splitlines() if line and not line.startswith("FAILED")]
    assert failed >= 5
    assert len(body) <= 16 * failed + 20


def test_a_dialect_value_is_named_as_such(consumer):
    text = """
@rlcorr.cases("weight.0002", dtype="float64", arrays="lists")
def test_two_sided(rlcorr_case):
    rlcorr_case.check(rlcorr_case.record["dialects"]["two-sided"]["expected"])
"""
    result = consumer.run(text)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*equals the dialect two-sided*differs by definition, not by fault*"])
