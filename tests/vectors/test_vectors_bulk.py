"""The bulk tier: the same bytes every time, exact against a second evaluation, passed by float32, failed by planted faults."""

from __future__ import annotations

import math
import os
import shutil
import sys
import zlib

import bulk_torch
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rlcorr_ref.errors import ContractError
from rlcorr_ref.vectors import judge as core
from rlcorr_ref.vectors import store
from rlcorr_ref.vectors.bulk import exact, files, grid, judge, vocabulary
from rlcorr_ref.vectors.canonical import read
from rlcorr_ref.vectors.flags import NOTES
from rlcorr_ref.wire import FUNCTIONS

IDS = [f"bulk.{i:04d}" for i in range(1, 11)]


@pytest.fixture(scope="module")
def tier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bulk") / "tier"
    files.build(folder)
    return folder


@pytest.fixture(scope="module")
def cases(tier):
    return {case["id"]: case for case in files.read_manifest(tier)["cases"]}


def given(tier, case):
    stored = load_file(tier / case["inputs"]["file"])
    return {name: stored[name] for name in case["inputs"]["names"]}


@pytest.fixture(scope="module")
def answers(tier, cases, tmp_path_factory):
    """Answers of the float32 implementation, one file per case."""
    folder = tmp_path_factory.mktemp("answers")
    for name, case in cases.items():
        save_file(bulk_torch.answer(case, given(tier, case)), folder / f"{name}.safetensors")
    return folder


def linked(source, target):
    """A copy that costs nothing; files must be replaced, not edited."""
    return shutil.copytree(source, target, copy_function=os.link)


def test_building_twice_gives_the_same_bytes_and_fits(tier, cases, tmp_path):
    files.build(tmp_path / "again")
    names = sorted(p.name for p in tier.iterdir())
    assert names == sorted(p.name for p in (tmp_path / "again").iterdir())
    assert all((tier / n).read_bytes() == (tmp_path / "again" / n).read_bytes() for n in names)
    assert sum(len(zlib.compress((tier / n).read_bytes(), 1)) for n in names) <= 8 * 2**20
    assert sum((tier / n).stat().st_size for n in names if ".inputs." in n) <= 8 * 2**20
    assert {name: case["sha256"] for name, case in cases.items()} == read(files.PUBLISHED)["cases"]
    assert sorted(cases) == IDS


def test_inputs_lie_on_the_grids_they_claim(tier, cases):
    from rlcorr_ref.vectors.build import on_grid

    for name in IDS[:3]:
        z = given(tier, cases[name])["logits"].astype(np.float64)
        assert on_grid(z[np.isfinite(z)], "bf16") and z.shape[-1] == 151_936
    for case in cases.values():
        assert all(x.dtype.name in ("float16", "float32", "uint8", "int32") for x in given(tier, case).values())
        assert case["margin"] is None or case["margin"] > 1e-4
        assert case["precision"]["disagreement"] <= files.AGREEMENT


def test_reference_in_float64_passes_at_fp64(tier, cases):
    for case in cases.values():
        settings = case.get("definition", case.get("parameters"))
        out = FUNCTIONS[case["function"]](files.as_reference(given(tier, case)), settings)
        answer = {name: np.asarray(out[name], dtype=np.float64) for name in case["expected"]}
        verdict, beyond = judge.judge(case, answer, tier)
        assert verdict.passed and beyond == 0 and verdict.dtype == "fp64" and verdict.used < 0.5, verdict


def test_values_against_exact_summation():
    """math.fsum over all 151,936 terms, on rows built here, against counts of distinct values."""
    rows = grid.pair(5, 13, 30_011)
    lse = math.log(math.fsum(np.exp(rows.logits / 16.0)))
    assert abs(lse - float(rows.lse)) < 1e-14
    token = vocabulary.Token(rows, 4242, 1.0)
    np.testing.assert_allclose(token.logp_all, rows.logits / 16.0 - lse, rtol=0, atol=1e-14)
    mass = math.fsum(np.exp(rows.sampler / 64.0))
    assert math.exp(-1 / 64) <= mass <= 1.0
    part = vocabulary.Centered(token)
    q, p = np.exp(rows.sampler[part.ids] / 64.0), np.exp(token.logp_all[part.ids])
    assert abs(float(part.tail_p) - math.fsum(np.exp(np.delete(token.logp_all, part.ids)))) < 1e-13
    np.testing.assert_allclose([float(m) for m in part.mass], np.minimum(p, 2 * q), rtol=1e-13)


def test_counts_and_scales():
    k = np.array([[3, -2, 3], [0, 3, -2]])
    counted = exact.Counted(k, 4)
    assert float(counted.sum(lambda x: x * x)) == float((k / 4) @ np.ones(3) @ np.zeros(2) + ((k / 4) ** 2).sum())
    np.testing.assert_array_equal(counted.spread(lambda x: 2 * x), k / 2)
    err = np.array([0.0, 1.0, 1.001, 340.7, 1e-30])
    up = exact.upward(err).astype(np.float64)
    assert (up >= err * (1 - 2.0**-24)).all() and (up <= err * (1 + 2.0**-7)).all() and up[1] == 1.0


def test_rule_is_that_of_the_core_set():
    case = store.get("grad.0012")
    record, shift = case["expected"]["grad_logits"], 3e-7
    want = np.array(record["data"])
    err = np.broadcast_to(np.array(record["err_scale"]), want.shape)
    share = judge.used(want, want + shift, err, record["acc_scale"], "real", "fp32")
    answer = {"loss": case["expected"]["loss"]["data"], "grad_logits": (want + shift).tolist()}
    assert share.max() == pytest.approx(core.judge(case, answer, "fp32", "logits").used, rel=1e-6)
    assert judge.used(np.ones(2), np.array([1.0, 2.0]), np.ones(2), 0.0, "exact", "fp32").tolist() == [0.0, math.inf]
    assert judge.used(np.ones(1), np.array([np.nan]), np.ones(1), 1e9, "real", "fp32").tolist() == [math.inf]


def test_float32_torch_passes(tier, answers, rlcorr):
    status, out, err = rlcorr("vectors", "bulk", "--out", tier, "--check", answers)
    assert (status, err) == (0, "") and "10 passed, 0 failed, 0 not answered" in out


FAULTS = [
    ("vocabulary-tile-cut", ["bulk.0001"]),
    ("sum-in-bfloat16", ["bulk.0001"]),
    ("weight-attached", ["bulk.0002"]),
    ("mask-ignored", ["bulk.0002", "bulk.0005", "bulk.0006", "bulk.0007", "bulk.0008"]),
    ("head-renormalised", ["bulk.0003"]),
    ("tail-dropped", ["bulk.0003"]),
    ("tail-untruncated", ["bulk.0003"]),
    ("geometric-for-product", ["bulk.0004", "bulk.0005"]),
    ("product-for-geometric", ["bulk.0006"]),
    ("off-by-one-length", ["bulk.0006"]),
    ("segment-is-row", ["bulk.0007"]),
    ("empty-row-counts", ["bulk.0009"]),
    ("metrics-pool-rows", ["bulk.0010"]),
    ("k3-in-bfloat16", ["bulk.0010"]),
]


@pytest.mark.parametrize("fault, killers", FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_planted_fault_fails(tier, cases, tmp_path, rlcorr, fault, killers):
    for name in killers:
        save_file(bulk_torch.answer(cases[name], given(tier, cases[name]), fault), tmp_path / f"{name}.safetensors")
    status, out, _ = rlcorr("vectors", "bulk", "--out", tier, "--check", tmp_path)
    assert status == 1 and f"0 passed, {len(killers)} failed, {10 - len(killers)} not answered" in out
    for name in killers:
        assert f"FAILED {name} {cases[name]['slug']} (fp32)" in out
        assert all(f"  {NOTES[flag].bug_type} {flag}: " in out for flag in cases[name]["flags"])
    assert len(out.splitlines()) <= 10 * len(killers) + 1


def test_one_wrong_logit_in_a_row_is_found(tier, cases, answers, tmp_path, rlcorr):
    answer = load_file(answers / "bulk.0003.safetensors")
    answer["grad_logits"][0, 1, 150_000] *= 1.01
    save_file(answer, tmp_path / "bulk.0003.safetensors")
    status, out, _ = rlcorr("vectors", "bulk", "--out", tier, "--check", tmp_path)
    assert status == 1 and "grad_logits[0, 1, 150000]: wanted" in out and "more entries" not in out


def test_missing_outputs(tier, cases, answers):
    answer = load_file(answers / "bulk.0002.safetensors")
    answer.pop("weights")
    assert judge.judge(cases["bulk.0002"], answer, tier)[0].passed
    answer.pop("grad_logits")
    verdict, beyond = judge.judge(cases["bulk.0002"], answer, tier)
    assert beyond == 1 and verdict.misses[0].line() == "grad_logits: not answered"


def refused(rlcorr, *args):
    """The one line on standard error of a run that ends with status 2."""
    status, out, err = rlcorr("vectors", "bulk", *args)
    assert status == 2 and out == "" and len(err.splitlines()) == 1
    return err


def test_damaged_tier(tier, answers, tmp_path, rlcorr):
    broken = linked(tier, tmp_path / "tier")
    path = broken / "bulk.0002.expected.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(data)
    err = refused(rlcorr, "--out", broken, "--check", answers)
    assert "bulk.0002.expected.safetensors: sha256" in err and "build the tier again" in err
    path.unlink()
    err = refused(rlcorr, "--out", broken, "--check", answers)
    assert "bulk.0002.expected.safetensors: listed in manifest.json, cannot be read (No such file" in err
    (broken / "manifest.json").unlink()
    assert "no manifest.json here; build the tier with" in refused(rlcorr, "--out", broken, "--check", answers)
    (broken / "manifest.json").write_text("{}")
    assert "not a manifest of the bulk tier" in refused(rlcorr, "--out", broken, "--check", answers)


def test_malformed_answers(tier, tmp_path, rlcorr):
    target = tmp_path / "bulk.0008.safetensors"
    one = np.zeros((), dtype=np.float32)

    def error():
        return refused(rlcorr, "--out", tier, "--check", tmp_path)

    assert "no answer in this folder; answers are named bulk.0001" in error()
    target.write_bytes(b"not tensors")
    assert "bulk.0008.safetensors: not a safetensors file" in error()
    save_file({"value": one, "values": one}, target)
    assert "bulk.0008: unknown output 'values'; outputs: coefficients, value" in error()
    save_file({"value": np.zeros(2, dtype=np.float32)}, target)
    assert "bulk.0008: value: expected shape [], got [2]" in error()
    save_file({"value": np.zeros((), dtype=np.float16)}, target)
    assert "bulk.0008: expected tensors of one dtype, float32 or float64, got float16" in error()
    save_file({"value": one, "coefficients": np.zeros((64, 4096))}, target)
    assert "of one dtype, float32 or float64, got float32, float64" in error()
    save_file({"value": one}, target)
    save_file({"value": one}, tmp_path / "bulk.0011.safetensors")
    assert "bulk.0011.safetensors answers no case" in error()
    assert "expected a folder of answers" in refused(rlcorr, "--out", tier, "--check", target)


def test_a_changed_case_is_refused_and_leaves_no_manifest(tmp_path, monkeypatch):
    """Another sampled token is another case; what is published stays what it was."""
    monkeypatch.setattr(
        vocabulary, "chosen", lambda rows, low, high, first=vocabulary.chosen: first(rows, low + 1, high)
    )
    with pytest.raises(ContractError, match=r"bulk.0002: built with sha256 \w{12}, but published is \w{12}"):
        files.build(tmp_path / "tier")
    assert not (tmp_path / "tier" / "manifest.json").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ContractError, match="expected a folder, found a file"):
        files.build(tmp_path / "file")


def test_a_threshold_too_near_and_a_wrong_value_are_refused():
    case = vocabulary.tis_case()
    case.margin = 15 * case.margin_tolerance
    with pytest.raises(ContractError, match="bulk.0002: a threshold lies"):
        files.record(case)
    case = vocabulary.tis_case()
    case.flags = ("NoSuchFlag",)
    with pytest.raises(ContractError, match="flag: unknown name 'NoSuchFlag'"):
        files.record(case)
    case = vocabulary.tis_case()
    case.outputs["grad_logits"].data[0, 0, 5] *= 1 + 1e-9
    with pytest.raises(ContractError, match="bulk.0002: grad_logits differs between float64 and 50 digits"):
        files.record(case)


@pytest.mark.parametrize("module, extra", [("safetensors", "repro"), ("mpmath", "derive")])
def test_missing_extra(module, extra, tmp_path, monkeypatch, rlcorr):
    for name in list(sys.modules):
        if name.partition(".")[0] == module or name.startswith("rlcorr_ref.vectors.bulk."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert f"pip install 'rlcorr-ref[{extra}]'" in refused(rlcorr, "--out", tmp_path / "tier")
    assert not (tmp_path / "tier" / "manifest.json").exists()
