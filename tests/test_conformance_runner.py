"""Judging an adapter: every state, with small adapters that ask the reference or are wrong on purpose."""

from __future__ import annotations

import types

import numpy as np
import pytest

from rlcorr_ref.conformance import Named, NotSupported
from rlcorr_ref.conformance.protocol import numbers, prepare, read_adapter
from rlcorr_ref.conformance.runner import answer, run
from rlcorr_ref.errors import ContractError
from rlcorr_ref.vectors import store
from rlcorr_ref.wire import evaluate_case

TIS = "weight.0002"
SEQUENCE = "weight.0017"


def adapter(**names):
    """An adapter in float64 NumPy from functions and constants."""
    module = types.ModuleType("adapter_of_a_test")
    for key, value in {"NAME": "mine", "DTYPE": "fp64", "ARRAYS": "numpy", **names}.items():
        setattr(module, key, value)
    return prepare(module, "mine")


def reference(change=None):
    """A weight function that asks the reference, with settings changed on the way."""

    def weight(parameters, **inputs):
        plain = {key: value.tolist() for key, value in inputs.items()}
        settings = {**parameters, **(change or {})}
        return evaluate_case({"function": "weight", "inputs": plain, "parameters": settings})

    return weight


def outcome(case_id, **names):
    return answer(adapter(**names), store.get(case_id))


def test_right_numbers_pass_with_their_share_of_the_tolerance():
    out = outcome(TIS, weight=reference())
    assert out.state == "pass" and out.outputs == {"weights": "pass", "divisor": "pass"}
    assert 0.0 <= out.used <= 1.0 and out.level == "logprobs" and out.family == "weight"


def test_wrong_numbers_depart_and_name_the_fault():
    out = outcome(SEQUENCE, weight=reference({"level": "geometric"}))
    assert out.state == "departs" and out.outputs["weights"] == "departs"
    assert "sequence-is-geometric" in out.faults
    assert any(miss.startswith("weights[0, 0]: wanted 2, got") for miss in out.misses)


def test_a_documented_meaning_of_the_name_is_no_departure():
    weight = reference({"level": "geometric"})

    def named(parameters, **inputs):
        return Named(
            {"weights": weight(parameters, **inputs)["weights"]},
            "geometric by documentation",
            settings={**parameters, "level": "geometric"},
        )

    out = outcome(SEQUENCE, weight=named)
    assert (out.state, out.why) == ("by definition", "geometric by documentation") and out.faults == []
    # the meaning explains its own numbers only
    shifted = outcome(
        SEQUENCE,
        weight=lambda parameters, **x: Named({"weights": named(parameters, **x).outputs["weights"]}, "clamped"),
    )
    assert shifted.state == "departs"


@pytest.mark.parametrize("factor", [1.001, 2.0])
def test_a_meaning_explains_nothing_but_its_own_numbers(factor):
    weight = reference({"level": "geometric"})

    def named(parameters, **inputs):
        w = factor * np.array(weight(parameters, **inputs)["weights"])
        return Named({"weights": w}, "geometric by documentation", settings={**parameters, "level": "geometric"})

    assert outcome(SEQUENCE, weight=named).state == "departs"


def test_a_shift_is_added_to_the_published_value():
    weight, by = reference(), np.full((3, 4), 0.5)

    def shifted(parameters, mask, **inputs):
        w = np.array(weight(parameters, mask=mask, **inputs)["weights"])
        return Named({"weights": w + by}, "half more, as documented", shift={"weights": by})

    assert outcome(SEQUENCE, weight=shifted).state == "by definition"


def test_published_dialect_values_count_for_their_framework_only():
    case = store.get("diag.0005")
    value = case["dialects"]["ms-swift"]["expected"]["ess"]
    report = {"diagnostics": lambda parameters, **_: {"ess": value}}
    assert outcome("diag.0005", DIALECT="ms-swift", **report).state == "by definition"
    assert outcome("diag.0005", DIALECT="verl", **report).state == "departs"


def test_an_output_that_is_not_reported_is_listed_and_not_judged():
    case = store.get("diag.0005")
    mean = case["expected"]["weight_mean"]["data"]
    out = outcome("diag.0005", diagnostics=lambda parameters, **_: {"weight_mean": mean})
    assert out.state == "pass" and "ess" in out.unreported and out.outputs == {"weight_mean": "pass"}
    nothing = outcome("diag.0005", diagnostics=lambda parameters, **_: {})
    assert nothing.state == "not supported" and "none of its outputs" in nothing.why


def test_declined_cases_are_not_supported_with_the_reason():
    def weight(parameters, **_):
        raise NotSupported("no such option")

    assert (outcome(TIS, weight=weight).state, outcome(TIS, weight=weight).why) == ("not supported", "no such option")
    assert outcome("adv.0001", weight=weight).why == "no entry point for 'advantages'"
    assert outcome("adv.0001", weight=weight, ABSENT={"advantages": "elsewhere"}).why == "elsewhere"


def test_features_keep_out_what_they_do_not_list():
    out = outcome(SEQUENCE, weight=reference({"level": "geometric"}), FEATURES={"weight", "weight.outside:clip"})
    assert out.state == "not supported" and "weight.level:sequence" in out.why
    assert outcome(TIS, weight=reference(), FEATURES={"weight", "weight.outside:clip"}).state == "pass"
    with pytest.raises(ContractError, match="FEATURES"):
        adapter(weight=reference(), FEATURES={"weight.levle:*"})


def test_what_the_code_raises_is_its_answer():
    def weight(parameters, **_):
        raise ZeroDivisionError("float division by zero")

    out = outcome(TIS, weight=weight)
    assert out.state == "departs" and out.why == "raised ZeroDivisionError: float division by zero"


def test_an_adapter_that_does_not_fit_its_package_is_an_error_and_no_departure():
    def weight(parameters, **_):
        return parameters.missing

    misfit = adapter(weight=weight, DISTRIBUTION="numpy", VERIFIED=("1", "9999"))
    assert misfit.status == "ready" and misfit.version == np.__version__
    with pytest.raises(ContractError, match="the adapter failed on weight.0002"):
        answer(misfit, store.get(TIS))
    assert outcome(TIS, weight=weight).state == "departs"  # a user's own function has no package to be blamed


def test_nan_where_a_number_is_wanted_departs():
    out = outcome(TIS, weight=lambda parameters, mask, **_: {"weights": np.where(mask, np.nan, 0.0)})
    assert out.state == "departs" and "got NaN" in out.misses[0]


def test_another_version_or_an_absent_package_is_not_run():
    old = adapter(weight=reference(), DISTRIBUTION="numpy", VERIFIED=("0.1", "0.2"))
    assert old.status == "not run" and np.__version__ in old.reason and ">=0.1,<0.2" in old.reason
    assert "pip install --no-deps numpy==0.1" in old.reason
    absent = adapter(weight=reference(), DISTRIBUTION="no-such-distribution-name", VERIFIED=("1.0", "1.1"))
    assert absent.status == "not run" and absent.reason.startswith("not installed")
    assert run(old) == [] and run(absent) == []


def test_a_package_that_cannot_be_imported_is_not_run():
    def load():
        raise ImportError("no GPU library")

    broken = adapter(load=load)
    assert broken.status == "not run" and "no GPU library" in broken.reason


def test_an_adapter_without_functions_or_with_wrong_constants_is_refused():
    with pytest.raises(ContractError, match="defines none of"):
        adapter()
    with pytest.raises(ContractError, match="DTYPE"):
        adapter(weight=reference(), DTYPE="float32")
    with pytest.raises(ContractError, match="unknown package 'verll'"):
        read_adapter("verll")


@pytest.mark.parametrize(
    ("version", "wanted"),
    [("0.9.1", (0, 9, 1)), ("1.16.0rc1", (1, 16, 0)), ("2.13.0+cpu", (2, 13, 0)), ("1.0.post2", (1, 0))],
)
def test_versions_compare_by_their_release_numbers(version, wanted):
    assert numbers(version) == wanted


def test_families_restrict_the_run():
    out = run(adapter(weight=reference(), FAMILIES=("weight",)))
    assert {o.family for o in out} == {"weight"} and {o.state for o in out} <= {"pass", "not supported"}
    assert sum(o.state == "pass" for o in out) == len(out)
