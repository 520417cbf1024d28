"""Judging answers: the tolerance rule by hand, correct implementations that must pass, wrong ones that must not."""

from __future__ import annotations

import copy as copying

import numpy as np
import plain_float32
import plain_stages
import pytest

from rlcorr_ref import evaluate_case, vectors
from rlcorr_ref.errors import ContractError
from rlcorr_ref.vectors import judge, store
from rlcorr_ref.vectors.command import answer
from rlcorr_ref.wire import to_wire

CASES = {case["id"]: case for case in store.load()}
NOTES = {f: n for name in {c.rpartition(".")[0] for c in CASES} for f, n in store.family_file(name)["notes"].items()}


def first_level(case):
    return next(level for level in ("logits", "logprobs", "weights") if level in case["levels"])


def without_diagnostics(case):
    """The case without outputs that the plain implementation of the objective does not have."""
    out = copying.deepcopy(case)
    for level in out["levels"].values():
        for key in ("required", "optional"):
            level[key] = [name for name in level.get(key, []) if not name.startswith("diagnostics.")]
    return out


def test_the_reference_passes_everything_in_float64():
    response = {name: evaluate_case(vectors.envelope(case)) for name, case in CASES.items()}
    report = judge.check(CASES, response)
    assert [v.id for v in report.failed] == [] and len(report.verdicts) == len(CASES)
    assert max(v.used for v in report.verdicts) < 0.5


def test_the_published_answers_use_no_tolerance_at_all():
    report = judge.check(CASES, {name: answer(case) for name, case in CASES.items()})
    assert not report.failed and all(v.used == 0.0 for v in report.verdicts)


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if "fp32" in case["dtypes"]))
def test_a_plain_float32_implementation_passes(name):
    """No case may fail a correct implementation; half of the tolerance stays free."""
    case = CASES[name]
    got = plain_stages.answer(case)
    verdict = judge.judge(without_diagnostics(case), got, "fp32", first_level(case))
    assert [miss.line() for miss in verdict.misses] == []
    assert verdict.used < 0.5


def head_only(case):
    with np.errstate(all="ignore"):
        out = plain_float32.objective(case["inputs"], case["definition"], head_only=True)
    return to_wire({k: None if v is None else np.asarray(v, dtype=np.float64) for k, v in out.items()})


def test_head_only_float32_fails_where_the_tail_ratio_is_huge_and_nowhere_else():
    """Head coefficients near -rho p cancel: rho 3e3 and 1.5e5 without a weight, and the floored and unfloored tails of 1e-8."""
    failed = set()
    for name, case in CASES.items():
        if case["function"] == "objective" and case["definition"].get("centering") is not None:
            verdict = judge.judge(without_diagnostics(case), head_only(case), "fp32", "logits")
            if not verdict.passed:
                failed.add(name)
    assert failed == {"centre.0078", "centre.0079", "centre.0082", "centre.0083", "centre.0084", "centre.0085"}


@pytest.mark.parametrize(
    "name", sorted(n for n, c in CASES.items() if "weights" in c["levels"] and c["function"] == "objective")
)
def test_entering_at_weights_needs_no_rule(name):
    """grad_logp from the given log-probs, weights and mask alone: slope times weight times aggregation coefficient."""
    case = CASES[name]
    given, definition = case["levels"]["weights"]["inputs"], case["definition"]
    x = {**case["inputs"], "logp_trainer": given["logp_trainer"]}
    kind = {"kind": "reinforce", **definition.get("surrogate", {})}
    slope = np.array(evaluate_case({"function": "surrogate", "inputs": pick(x), "parameters": kind})["slope"])
    shrunk = any(rule.get("denominator") == "shrunk" for rule in definition.get("rejection", []))
    mask = given["mask_kept"] if shrunk else case["inputs"]["mask"]
    zeros = np.zeros_like(slope).tolist()
    coef = evaluate_case(
        {
            "function": "aggregate",
            "inputs": {"values": zeros, "mask": mask},
            "parameters": definition.get("aggregation", {}),
        }
    )
    w, kept = np.array(given["weights"]), np.array(given["mask_kept"])
    kl = definition.get("kl")
    if kl is not None:
        d = np.where(kept != 0, np.array(case["inputs"]["logp_reference"]) - np.array(given["logp_trainer"]), 0.0)
        own = {"k1": np.ones_like(d), "k2": -d, "k3": -np.expm1(d), "k3+": -d}[kl["kind"]]
        total = w * slope + kl["beta"] * own * (w if kl.get("weighted") else 1.0)
    else:
        total = w * slope
    grad = np.where(kept != 0, np.array(coef["coefficients"]) * total, 0.0)
    verdict = judge.judge(case, {"grad_logp": grad.tolist()}, "fp64", "weights")
    assert [miss.line() for miss in verdict.misses] == []


def pick(x):
    return {k: x[k] for k in ("logp_trainer", "logp_sampler", "logp_anchor", "advantages", "mask") if k in x}


TOY = {
    "id": "grad.0001",
    "slug": "toy",
    "title": "Toy",
    "status": "active",
    "function": "ratio",
    "inputs": {},
    "flags": ["Basic"],
    "dtypes": ["fp64", "fp32", "bf16"],
    "levels": {"logprobs": {"required": ["x"], "optional": ["y"]}},
    "expected": {
        "x": {"data": [1.0, 0.0, "Infinity"], "kind": "real", "err_scale": [3.0, 0.0, 0.0], "acc_scale": 5.0},
        "y": {"data": [1, 0], "kind": "exact"},
    },
}


def used(got, dtype):
    return judge.judge(TOY, {"x": got}, dtype, "logprobs").used


@pytest.mark.parametrize("dtype, u, acc", [("fp64", 2**-53, 2**-53), ("fp32", 2**-24, 2**-24), ("bf16", 2**-8, 2**-24)])
def test_the_tolerance_rule(dtype, u, acc):
    tol = 2 * (u * 3.0 + acc * 5.0)
    assert used([1 + 0.5 * tol, 0.0, "Infinity"], dtype) == pytest.approx(0.5, rel=1e-6 if dtype != "fp64" else 0.2)
    floor = 2 * acc * 5.0
    assert used([1.0, 0.25 * floor, "Infinity"], dtype) == pytest.approx(0.25, rel=1e-9)
    assert judge.judge(TOY, {"x": [1 + 1.5 * tol, 0.0, "Infinity"]}, dtype, "logprobs").misses[0].index == (0,)


def test_non_finite_and_exact_entries_must_match():
    for got in ([1.0, 0.0, "-Infinity"], [1.0, 0.0, 1e308], ["NaN", 0.0, "Infinity"], [None, 0.0, "Infinity"]):
        assert not judge.judge(TOY, {"x": got}, "bf16", "logprobs").passed
    x = TOY["expected"]["x"]["data"]
    assert judge.judge(TOY, {"x": x, "y": [True, 0.0]}, "bf16", "logprobs").passed
    assert not judge.judge(TOY, {"x": x, "y": [1.0, 1e-9]}, "bf16", "logprobs").passed


def test_a_missing_required_output_fails_and_an_optional_one_does_not():
    verdict = judge.judge(TOY, {"y": [1, 0]}, "fp64", "logprobs")
    assert [miss.line() for miss in verdict.misses] == ["x: not answered"]
    assert judge.judge(TOY, {"x": [1.0, 0.0, "Infinity"]}, "fp64", "logprobs").passed


@pytest.mark.parametrize(
    "got, words",
    [
        ([1.0, 0.0], r"grad\.0001: x: expected a list of 3, got a list of 2"),
        (1.0, r"x: expected a list of 3, got float"),
        ([1.0, [0.0], "Infinity"], r"x\[1\]: expected a number"),
        ([1.0, "inf", "Infinity"], r"x\[1\]: expected a number .* got 'inf'"),
        ([1.0, float("nan"), "Infinity"], r"x\[1\]: bare NaN"),
    ],
)
def test_wrong_shapes_and_words_are_errors(got, words):
    with pytest.raises(ContractError, match=words):
        judge.judge(TOY, {"x": got}, "fp64", "logprobs")


def test_unknown_ids_keys_dtypes_and_levels_are_errors():
    good = answer(CASES["grad.0012"])
    for response, words in (
        ({"grad.9999": good}, "unknown id 'grad.9999'"),
        ({"grad.0012": {**good, "gradient": 1}}, "unknown key 'gradient'"),
        ({"grad.0012": good, "dtype": "fp16"}, "dtype 'fp16'"),
        ({"grad.0012": {**good, "level": "tokens"}}, "level 'tokens'"),
        ({"grad.0012": [1]}, "expected an object of outputs"),
        ([1], "expected an object"),
    ):
        with pytest.raises(ContractError, match=words):
            judge.check(CASES, response)


def test_outputs_of_the_function_that_the_case_does_not_judge_are_welcome():
    full = evaluate_case(vectors.envelope(CASES["grad.0012"]))
    assert "diagnostics" in full and not judge.check(CASES, {"grad.0012": full}).failed


def test_dtype_and_level_hold_per_answer_or_for_all():
    good = answer(CASES["grad.0012"])
    rough = {**good, "loss": good["loss"] * (1 + 1e-6)}
    assert judge.check(CASES, {"grad.0012": rough}).failed
    assert not judge.check(CASES, {"grad.0012": {**rough, "dtype": "fp32"}}).failed
    assert not judge.check(CASES, {"dtype": "fp32", "grad.0012": rough}).failed
    assert judge.check(CASES, {"dtype": "fp32", "grad.0012": {**rough, "dtype": "fp64"}}).failed
    at_logprobs = judge.check(CASES, {"level": "logprobs", "grad.0012": {"grad_logp": good["grad_logp"]}})
    assert not at_logprobs.failed and at_logprobs.verdicts[0].level == "logprobs"
    assert judge.check(CASES, {"grad.0012": {"grad_logp": good["grad_logp"]}}).failed  # at logits more is required


def test_what_a_case_does_not_claim_is_not_judged():
    case = next(c for c in CASES.values() if "bf16" not in c["dtypes"])
    report = judge.check(CASES, {case["id"]: {**answer(case), "dtype": "bf16"}})
    assert report.unclaimed == [case["id"]] and not report.verdicts
    gone = {**CASES, "grad.0012": {**CASES["grad.0012"], "status": "withdrawn"}}
    report = judge.check(gone, {"grad.0012": answer(CASES["grad.0012"])})
    assert report.unclaimed == ["grad.0012"] and "grad.0012" not in report.unanswered


def test_a_failure_names_the_bug_class_and_few_numbers():
    case = CASES["grad.0002"]
    wrong = copying.deepcopy(answer(case))
    wrong["grad_logits"] = (-2.0 * np.array(wrong["grad_logits"])).tolist()
    text = judge.render(judge.check(CASES, {"grad.0002": wrong}), CASES, NOTES)
    assert "FAILED grad.0002 detached-weight-sign-flip (logits, fp64)" in text
    assert "GRADIENT_LEAK WeightNotDetached: gradient flows through the importance weight" in text
    assert "grad_logits[0, 0, " in text and "x tolerance" in text and "wanted " in text and "got " in text
    big = CASES["centre.0103"]
    text = judge.render(
        judge.check(CASES, {big["id"]: {**answer(big), "grad_logits": np.ones((3, 3, 4)).tolist()}}), CASES, NOTES
    )
    assert len(text.splitlines()) < 12 and "more entries" in text
