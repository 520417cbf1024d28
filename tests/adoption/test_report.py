"""Report, strict expected failures and profiles of the plugin."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import rlcorr_ref
from rlcorr_ref import evaluate_case
from rlcorr_ref.vectors import store
from rlcorr_ref.vectors.adopt import profile as profiles
from rlcorr_ref.vectors.adopt.expected import under
from rlcorr_ref.vectors.adopt.report import build, outcome
from rlcorr_ref.vectors.adopt.xfails import read_xfails, reason_for

pytest_plugins = "pytester"

SCHEMA = json.loads((Path(rlcorr_ref.__file__).parent / "vectors/adopt/schema/report.json").read_text(encoding="utf-8"))
# The reference as a consumer, with a share of the tolerance added to the answers of chosen cases.
CONSUMER = """
import rlcorr_ref
SHIFT, CLAMP = {shift!r}, {clamp!r}
@rlcorr.cases({arguments})
def test_reference(rlcorr_case):
    case = rlcorr_case.record
    question = {{key: case[key] for key in ("function", "inputs", "definition", "parameters") if key in case}}
    if CLAMP and question["definition"].get("weight") is not None:
        weight = {{**question["definition"]["weight"], "log_clamp": CLAMP}}
        question["definition"] = {{**question["definition"], "weight": weight}}
    found = rlcorr_ref.evaluate_case(question)
    answer = {{name: found[name] for name in rlcorr_case.outputs}}
    share = SHIFT.get(rlcorr_case.id)
    if share == "raise":
        raise RuntimeError("the consumer stops")
    if share == "skip":
        import pytest
        getattr(pytest, "skip")("not built")
    if share is not None:
        out = case["expected"]["value"]
        answer["value"] += share * 2 * (2.0**-24 * out["err_scale"] + 2.0**-24 * out["acc_scale"])
    rlcorr_case.check(answer)
"""


def asking(arguments, shift, clamp=None):
    return CONSUMER.format(arguments=arguments, shift=shift, clamp=clamp)


AGG = '"agg", dtype="float32", needs="function:aggregate"'


def test_outcomes_shares_and_schema(consumer):
    shift = {"agg.0001": 0.7, "agg.0002": 1.5, "agg.0003": "raise", "agg.0004": "skip", "agg.0005": 0.3}
    result, report = consumer.report(asking(arguments=AGG, shift=shift))
    assert result.ret == 1
    jsonschema.validate(report, SCHEMA)
    runs = {run["case"]: run for run in report["runs"]}
    assert {name: runs[name]["outcome"] for name in shift} == {
        "agg.0001": "near", "agg.0002": "failed", "agg.0003": "error", "agg.0004": "skipped", "agg.0005": "passed",
    }  # fmt: skip
    assert runs["agg.0001"]["used"] == pytest.approx(0.7, rel=1e-3)
    assert runs["agg.0002"]["used"] == pytest.approx(1.5, rel=1e-3)
    assert report["largest_used"] == pytest.approx(0.7, rel=1e-3)
    assert report["counts"]["near"] == report["counts"]["failed"] == report["counts"]["error"] == 1
    assert len(runs) == len([c for c in store.load("agg", dtype="fp32") if c["function"] == "aggregate"])
    assert report["families"]["agg"] == {"cases": len(store.load("agg")), "tested": len(runs)}
    assert "grad" in report["families_without_test"] and "agg" not in report["families_without_test"]


def test_cases_that_do_not_run_are_listed_with_the_reason(consumer):
    arguments = '"agg", dtype="float32", level="weights", features={"aggregation", "aggregation.kind:token-mean"}'
    _, report = consumer.report(asking(arguments=arguments, shift={}))
    ran = {run["case"] for run in report["runs"]}
    left = {name for names in report["not_run"].values() for name in names}
    assert ran and left and not ran & left
    assert ran | left == {case["id"] for case in store.load("agg")}
    assert all(reason.startswith("feature ") for reason in report["not_run"])


def test_expected_failures_are_strict(consumer):
    xfails = consumer.write("xfails.txt", "agg.0001  # off by design\n\n# a remark\ngrad.  # no gradients here\n")
    failing = asking(arguments=AGG, shift={"agg.0001": 2.0})
    result, report = consumer.report(failing, "--rlcorr-xfails", xfails)
    assert result.ret == 0 and result.parseoutcomes()["xfailed"] == 1
    run = next(run for run in report["runs"] if run["case"] == "agg.0001")
    assert run["outcome"] == "xfailed" and "off by design" in run["reason"]
    assert report["xfails_unused"] == ["grad."]
    result, report = consumer.report(asking(arguments=AGG, shift={}), "--rlcorr-xfails", xfails)
    assert result.ret == 1, "a case that is expected to fail and passes is an error"
    assert report["counts"]["xpassed"] == 1 and report["counts"]["failed"] == 0
    jsonschema.validate(report, SCHEMA)


def test_longest_line_gives_the_reason(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("grad # all\ngrad.00 # most\ngrad.0001 # this\n", encoding="utf-8")
    found = read_xfails(str(path))
    assert reason_for("grad.0001", found) == "this" and reason_for("grad.0002", found) == "most"
    assert reason_for("agg.0001", found) is None


def test_profile_of_a_framework_restricts_and_names_what_has_no_vector(consumer):
    given = consumer.write("profile.json", '{"verl": {"rollout_is": "token", "rollout_is_threshold": "2.0"}}')
    arguments = '"centre", "grad", dtype="float64", level="logits"'
    _, report = consumer.report(asking(arguments, {}, clamp=20.0), "--rlcorr-profile", given)
    jsonschema.validate(report, SCHEMA)
    assert report["profile"] == "verl" and report["counts"]["failed"] == 0
    _, unclamped = consumer.report(asking(arguments, {}), "--rlcorr-profile", given)
    differ = [run for run in unclamped["runs"] if run["outcome"] == "failed"]
    assert differ and all(run["by_definition"] == "weight.log_clamp=20.0" and "suspects" not in run for run in differ)
    profile = profiles.of_dialect("verl", {})
    for run in report["runs"]:
        assert {f for f in store.get(run["case"])["features"] if not f.startswith("function:")} <= profile.features
    assert any(reason.startswith("feature centering.tail:") for reason in report["not_run"]), "verl has one tail model"
    refused = report["options_without_vector"]
    assert "not expressible" in refused["loss_mode=sapo"]
    assert not any(name == "rollout_is=token" for name in refused)


def test_override_replaces_the_value_where_it_changes_it():
    profile = profiles.of_dialect("verl", {})
    assert profile.overrides == {"weight": {"log_clamp": 20.0}}
    changed = same = 0
    for case in store.load("weight"):
        found, why = under(case, profile)
        if not why:
            assert found is case
            same += 1
            continue
        changed += 1
        assert why == "weight.log_clamp=20.0"
        own = evaluate_case({**store.envelope(case), "parameters": {**case["parameters"], "log_clamp": 20.0}})
        assert found["expected"]["weights"]["data"] == own["weights"]
        assert found["expected"]["weights"]["data"] != case["expected"]["weights"]["data"]
    assert changed >= 1 and same >= 20


def test_own_profile_options_dialects_and_levels(tmp_path):
    path = tmp_path / "mine.json"
    options = {
        "tis": {"weight": {"high": 2, "outside": "clip"}},
        "gated pair": {"weight": {"level": "segment"}, "gate": {"level": "segment", "high": 2}},
    }
    content = {"profile": "mine", "levels": ["logp"], "dtypes": ["float32"], "dialects": ["verl"], "options": options}
    path.write_text(json.dumps(content), encoding="utf-8")
    profile = profiles.read_profile(str(path))
    assert profile.levels == ("logprobs",) and profile.dtypes == ("fp32",)
    case, why = under(store.get("diag.0003"), profile)
    name, value = next(iter(store.get("diag.0003")["dialects"]["verl"]["expected"].items()))
    assert case["expected"][name]["data"] == value and "dialect verl" in why
    report = build([], profile, {})
    assert set(report["options_without_vector"]) == {"gated pair"}
    assert (
        "no case combines gate.level:segment with weight.level:segment"
        in report["options_without_vector"]["gated pair"]
    )


def test_outcome_words():
    assert outcome({"pytest": "passed", "used": 0.51, "checked": True}) == "near"
    assert outcome({"pytest": "failed", "checked": False}) == "error"
    assert outcome({"pytest": "failed", "checked": True, "used": 2.0, "misses": ["x"]}) == "failed"
    assert outcome({"pytest": "failed", "checked": True, "used": None, "misses": []}) == "failed", "a wrong shape"
    assert outcome({"pytest": "failed", "checked": True, "used": 0.1, "misses": []}) == "error"
