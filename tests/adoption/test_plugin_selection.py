"""Selection, options and errors of the plugin: one clear line for every mistake of its user."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcorr_ref import pytest_plugin as rlcorr
from rlcorr_ref.vectors import store
from rlcorr_ref.vectors.adopt.arrays import arguments, array, wire
from rlcorr_ref.vectors.adopt.selection import read_request, select

pytest_plugins = "pytester"

PASSES = """
@rlcorr.cases({arguments})
def test_expected(rlcorr_case):
    record = rlcorr_case.record["expected"]
    rlcorr_case.check({{name: record[name]["data"] for name in rlcorr_case.outputs if "." not in name}})
"""


def chosen(*families, **options):
    return select(read_request(families, options))


def test_hooks_and_options_exist():
    for hook in ("pytest_addoption", "pytest_configure", "pytest_generate_tests", "cases", "rlcorr_case", "Session"):
        assert hasattr(rlcorr, hook)
    assert set(rlcorr.OPTIONS) == {"profile", "xfails", "set", "report"}


@pytest.mark.parametrize("level, stored", [("logits", "logits"), ("logp", "logprobs"), ("weights", "weights")])
@pytest.mark.parametrize("dtype, short", [("float64", "fp64"), ("float32", "fp32"), (torch.bfloat16, "bf16")])
def test_level_and_dtype_select_what_cases_claim(level, stored, dtype, short):
    runs = chosen("grad", level=level, dtype=dtype).runs
    wanted = [c["id"] for c in store.load("grad", level=stored, dtype=short)]
    assert [run.case["id"] for run in runs] == wanted and wanted
    assert {(run.level, run.dtype) for run in runs} == {(stored, short)}


def test_features_leave_out_with_a_reason_and_needs_narrow():
    found = chosen("grad", features={"weight", "weight.outside:clip"})
    assert found.runs and all(
        {f for f in run.case["features"] if not f.startswith("function:")} <= {"weight", "weight.outside:clip"}
        for run in found.runs
    )
    left = {name for names in found.left_out.values() for name in names}
    assert left | {run.case["id"] for run in found.runs} == {case["id"] for case in store.load("grad")}
    assert all(reason.startswith(("feature ", "does not claim")) for reason in found.left_out)
    needed = chosen("grad", needs="surrogate.kind:ppo_clip").runs
    assert needed and all("surrogate.kind:ppo_clip" in run.case["features"] for run in needed)


def test_prefixes_ids_flags_and_several_dtypes():
    assert {run.case["id"][:7] for run in chosen("grad.00").runs} == {"grad.00"}
    assert [run.name for run in chosen("grad.0001", level=["logits", "logp"], dtype=["float64", "float32"]).runs] == [
        "grad.0001-logits-fp64", "grad.0001-logits-fp32", "grad.0001-logprobs-fp64", "grad.0001-logprobs-fp32",
    ]  # fmt: skip
    assert all("WeightNotDetached" in run.case["flags"] for run in chosen(flag="WeightNotDetached").runs)


def test_arguments_have_the_dtype_shape_and_complete_definition():
    case = store.get("edge.0003")
    given = arguments(case, "logprobs", "fp32", "torch")
    assert "logits" not in given and "tokens" not in given
    assert given["logp_trainer"].dtype == torch.float32 and given["mask"].dtype == torch.int64
    assert given["logp_trainer"].shape == given["advantages"].shape == (3, 3)
    assert given["advantages"][0, 2] == -torch.inf, "junk under the mask arrives as it is"
    assert given["definition"]["weight"]["inside"] == "ratio" and given["definition"]["centering"] is None
    whole = arguments(case, "logits", "fp64", "numpy")
    assert whole["logits"].shape == (3, 3, 4) and whole["logits"].dtype == np.float64
    assert arguments(store.get("weight.0002"), "logprobs", "fp64", "lists")["parameters"]["closed"] is True
    assert array("x", [["NaN", 1]], "bf16", "torch").dtype == torch.bfloat16


def test_answers_come_back_as_wire_values():
    tensor = torch.tensor([1.0, torch.nan, -torch.inf], requires_grad=True)
    assert wire(tensor, "x") == [1.0, "NaN", "-Infinity"]
    assert wire({"a": np.float32([[0.5]]), "b": (True, 2)}, "x") == {"a": [[0.5]], "b": [True, 2]}
    with pytest.raises(ValueError, match="x: expected an array.*got object"):
        wire(object(), "x")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ('"gradient"', "family: unknown name 'gradient'; known: adv, agg"),
        ('"grad.9999"', "id: unknown case 'grad.9999'; grad has grad.0001 to"),
        ('"grad", features={"weight.outside:clap"}', "no case has the feature 'weight.outside:clap'; near: weight.outside:clip"),
        ('"grad", level="logit"', "level: expected one of 'logits', 'logprobs'"),
        ('"grad", dtype="float16"', "dtype: expected one of 'fp64', 'fp32', 'bf16'; got 'float16'"),
        ('"grad", dtype="bfloat16"', "NumPy has no bfloat16"),
        ('"grad", flag="WeightNotDetachd"', "flag: unknown name 'WeightNotDetachd'; near: WeightNotDetached"),
        ('"grad", feature={"weight"}', "unknown key 'feature'; known keys: level, dtype, features"),
        ('"adv", level="trace"', "no case to run (13 not entered at trace)"),
    ],
)  # fmt: skip
def test_a_mistake_in_cases_is_one_clear_line(consumer, arguments, message):
    result = consumer.run(PASSES.format(arguments=arguments))
    assert result.ret == 2
    text = result.stdout.str()
    assert f"rlcorr: {message}" in text or message in text
    assert "Traceback" not in text and "pytest_plugin.py" not in text


@pytest.mark.parametrize(
    "option, content, message",
    [
        ("--rlcorr-set", "2025.9", "--rlcorr-set: the tests are pinned to set 2025.9, installed is 2026.1"),
        ("--rlcorr-xfails", "grad.0001\n", "line 1: 'grad.0001' has no reason"),
        ("--rlcorr-xfails", "\ngrud.0001 # why\n", "line 2: no case begins with 'grud.0001'; near: grad.0001"),
        ("--rlcorr-xfails", "grad. # a\ngrad. # b\n", "line 2: 'grad.' is listed twice"),
        ("--rlcorr-xfails", None, "cannot be read (No such file or directory)"),
        ("--rlcorr-profile", '{"verll": {}}', "one framework at the top (verl, trl"),
        ("--rlcorr-profile", '{"verl": {"rollout_iss": 1}}', "unknown option 'rollout_iss' of verl"),
        ("--rlcorr-profile", '{"profile": "x", "feature": []}', "unknown key 'feature'"),
        ("--rlcorr-profile", '{"profile": "x", "features": ["weigt"]}', "no case has the feature 'weigt'; near: weight"),
        ("--rlcorr-profile", '{"profile": "x", "options": {"a": {"weight": {"high": 2}}}}', "outside"),
        ("--rlcorr-profile", "{", "not valid JSON"),
        ("--rlcorr-report", "nowhere/report.json", "its folder does not exist"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_option_is_one_clear_line(consumer, option, content, message):
    value = content
    if option in ("--rlcorr-xfails", "--rlcorr-profile"):
        value = "missing.txt" if content is None else consumer.write("given.json", content)
    result = consumer.run(PASSES.format(arguments='"agg.0001", dtype="float64"'), option, value)
    assert result.ret == 4
    errors = [
        line
        for line in (result.stderr.str() + result.stdout.str()).splitlines()
        if "rlcorr" in line and "ERROR" in line
    ]
    assert len(errors) == 1 and message in errors[0]
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_missing_marker_argument_and_check_are_errors(consumer):
    result = consumer.run("def test_a(rlcorr_case): pass")
    assert result.ret == 2 and "add @rlcorr.cases" in result.stdout.str()
    result = consumer.run("@rlcorr.cases('adv')\ndef test_a(): pass")
    assert result.ret == 2 and "no argument rlcorr_case" in result.stdout.str()
    result = consumer.run("@rlcorr.cases('adv.0001')\ndef test_a(rlcorr_case): pass")
    result.assert_outcomes(passed=1, errors=1)
    assert "never called rlcorr_case.check" in result.stdout.str()


def test_wrong_shape_and_unknown_output_are_failures_in_one_line(consumer):
    text = """
@rlcorr.cases("agg.0001")
def test_shape(rlcorr_case): rlcorr_case.check([1.0])
@rlcorr.cases("agg.0001")
def test_name(rlcorr_case): rlcorr_case.check({"valu": 1.0})
@rlcorr.cases("logsoftmax.0001")
def test_bare(rlcorr_case): rlcorr_case.check([1.0])
"""
    result = consumer.run(text)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "rlcorr agg.0001: value: expected a number*",
            "rlcorr agg.0001: unknown key 'valu'*",
            "rlcorr logsoftmax.0001: this case asks for logp, logp_token, score; answer with a dict*",
        ]
    )


def test_plain_tests_are_left_alone(consumer):
    result = consumer.run("def test_a(): assert True")
    result.assert_outcomes(passed=1)
    assert "rlcorr vectors" not in result.stdout.str()
