"""The published files are what the cases give, and a published value can neither change nor disappear."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from rlcorr_ref.errors import ContractError
from rlcorr_ref.vectors import edit, lint, model, registry, store
from rlcorr_ref.vectors.build import record
from rlcorr_ref.vectors.canonical import document, read, sha256
from rlcorr_ref.vectors.scales import as_floats

EVERYTHING = store.load(withdrawn=True)


@pytest.mark.slow
def test_files_are_what_the_cases_give():
    """Every value recomputed at 50 digits; bytes of every file, manifest, change log and schema compared."""
    assert lint.lint(with_scales=False) == []


@pytest.mark.parametrize(
    "name", ["logsoftmax.0003", "weight.0029", "centre.0047", "diag.0005", "kl.0004", "shard.0004"]
)
def test_error_scales_are_what_the_rule_gives(name):
    case = store.get(name)
    again = record(registry.family(name.split(".")[0]).builders[name]())
    for output, entry in case["expected"].items():
        if entry["kind"] == "real":
            np.testing.assert_allclose(
                as_floats(again["expected"][output]["err_scale"]), as_floats(entry["err_scale"]), rtol=0.05
            )


def test_published_values_are_in_the_ledger_unchanged():
    published = lint.ledger(store.ROOT)
    found = {case["id"]: case["sha256"] for case in EVERYTHING}
    assert len(published) >= 500
    assert {name: found.get(name) for name in published} == published


def test_checksums_cover_values_and_files():
    for case in EVERYTHING:
        assert sha256(model.value_part(case)) == case["sha256"] == store.manifest()["cases"][case["id"]]
    for name, entry in store.manifest()["files"].items():
        data = (store.ROOT / store.DATA / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"] and len(data) == entry["bytes"]
    assert store.manifest()["counts"]["total"] == len(EVERYTHING)


def test_checksum_sees_values_and_ignores_text():
    case = json.loads(json.dumps(store.get("grad.0001")))
    before = sha256(model.value_part(case))
    case.update(title="another", description="text", flags=[], kills=["x"], margin=1.0)
    case["expected"]["loss"]["err_scale"] = 1e3
    assert sha256(model.value_part(case)) == before
    case["inputs"]["advantages"][0][0] = 2.0
    assert sha256(model.value_part(case)) != before


@pytest.fixture
def one_family(copy, monkeypatch):
    """The copy restricted to the family "adv", which regenerates in milliseconds."""
    monkeypatch.setattr(lint, "families", lambda: [registry.family("adv")])
    for path in (copy / store.DATA).glob("*.json"):
        if path.stem != "adv":
            path.unlink()
    assert lint.write(copy) == []
    assert lint.append_to_ledger(copy) == 13
    return copy


def change(copy, name, edit):
    """Edit one record of the copy on disk."""
    path = copy / store.DATA / "adv.json"
    doc = read(path)
    edit(next(case for case in doc["cases"] if case["id"] == name))
    path.write_text(document(doc, "cases"))


def test_a_clean_set_has_no_problems(one_family):
    assert lint.lint(one_family) == []
    assert lint.write(one_family) == []


def test_a_hand_edited_file_is_seen_and_restored(one_family):
    change(one_family, "adv.0003", lambda case: case["inputs"]["rewards"].__setitem__(0, 7.0))
    assert any("adv.0003" in line for line in lint.lint(one_family))
    assert lint.write(one_family) == []
    assert lint.lint(one_family) == []


def altered(monkeypatch, name, **edits):
    """The declared case with its draft changed, as an edit of the source would do."""
    family = registry.family("adv")
    original = family.builders[name]

    def build():
        draft = original()
        for key, value in edits.items():
            setattr(draft, key, value)
        return draft

    monkeypatch.setitem(family.builders, name, build)


def test_a_changed_published_value_is_refused_and_the_old_file_survives(one_family, monkeypatch):
    path = one_family / store.DATA / "adv.json"
    before = path.read_bytes()
    altered(monkeypatch, "adv.0001", inputs={"rewards": [1.0, 0.0], "groups": [0, 0]})
    problems = lint.write(one_family)
    assert problems == [p for p in problems if p.startswith("adv.0001") and "published value changed" in p] and problems
    assert path.read_bytes() == before
    assert json.loads(path.with_name("adv.json.rej").read_text())["cases"][0]["inputs"]["rewards"] == [1, 0]


def test_a_removed_published_case_is_refused(one_family, monkeypatch):
    monkeypatch.delitem(registry.family("adv").builders, "adv.0005")
    assert any(p.startswith("adv.0005") and "removed" in p for p in lint.write(one_family))


def test_an_unpublished_case_may_change(one_family, monkeypatch):
    lint.ledger_path(one_family).unlink()
    altered(monkeypatch, "adv.0001", inputs={"rewards": [1.0, 0.0], "groups": [0, 0]})
    assert lint.write(one_family) == []


def test_corrected_text_counts_as_an_erratum(one_family, monkeypatch):
    altered(monkeypatch, "adv.0002", slug="another-word")
    assert lint.write(one_family) == []
    case = next(c for c in read(one_family / store.DATA / "adv.json")["cases"] if c["id"] == "adv.0002")
    assert (case["status"], case["errata"]) == ("errata", 1)
    assert lint.lint(one_family) == []


def test_scales_may_grow_but_not_shrink(one_family):
    def scale(factor):
        def edit(case):
            entry = case["expected"]["advantages"]
            entry["err_scale"] = (as_floats(entry["err_scale"]) * factor).tolist()

        return edit

    change(one_family, "adv.0002", scale(0.5))
    assert lint.write(one_family) == []
    change(one_family, "adv.0004", scale(2.0))
    assert any(p.startswith("adv.0004") and "narrower" in p for p in lint.write(one_family))


def test_kills_and_status_survive_regeneration(one_family):
    change(one_family, "adv.0002", lambda case: case.update(kills=["ddof", "eps-inside"]))
    lint.write(one_family)
    case = next(c for c in read(one_family / store.DATA / "adv.json")["cases"] if c["id"] == "adv.0002")
    assert case["kills"] == ["ddof", "eps-inside"]


def test_kills_are_recorded_outside_the_checksum(copy):
    edit.set_kills({"adv.0002": ["zeta", "alpha"]}, copy)
    case = store.get("adv.0002", copy)
    assert case["kills"] == ["alpha", "zeta"] and case["sha256"] == store.get("adv.0002")["sha256"]
    assert store.get("adv.0003", copy)["kills"] == store.get("adv.0003")["kills"]
    assert len(store.verify(copy)) == len(store.manifest()["files"])
    with pytest.raises(ContractError, match="unknown case 'adv.9999'"):
        edit.set_kills({"adv.9999": []}, copy)


def test_a_disagreeing_witness_stops_the_generator(monkeypatch):
    """The float64 closed form has to agree with the 50-digit value within 1e-12 of the error scale."""
    from rlcorr_ref.vectors import build

    def off(function, inputs, settings):
        out = witness(function, inputs, settings)
        out["advantages"][0] *= 1 + 1e-10
        return out

    witness = build.witness
    monkeypatch.setattr(build, "witness", off)
    with pytest.raises(ContractError, match=r"adv\.0001: advantages\[0\] is .* of the error scale, allowed 1e-12"):
        record(registry.family("adv").builders["adv.0001"]())


def test_a_threshold_within_reach_stops_the_generator():
    draft = registry.family("weight").builders["weight.0002"]()
    draft.inputs["logp_trainer"][0][0] = draft.inputs["logp_sampler"][0][0] + 0.69314718  # log 2 to 8 digits
    with pytest.raises(ContractError, match="cannot claim fp32"):
        record(draft)


def test_inputs_off_the_float32_grid_stop_the_generator():
    draft = registry.family("adv").builders["adv.0001"]()
    draft.inputs["rewards"][0] = 0.1
    with pytest.raises(ContractError, match="cannot claim fp32"):
        record(draft)
