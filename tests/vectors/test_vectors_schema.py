"""The JSON Schema is generated from the typed models, and the published files obey it."""

from __future__ import annotations

import copy as copying
import json

import pytest
from jsonschema import Draft202012Validator, ValidationError

from rlcorr_ref.vectors import store
from rlcorr_ref.vectors.command import answer
from rlcorr_ref.vectors.schema import schemas

FILES = sorted((store.ROOT / store.DATA).glob("*.json"))


@pytest.mark.parametrize("name", sorted(schemas()))
def test_committed_schemas_are_the_generated_ones(name):
    committed = json.loads((store.ROOT / "schema" / f"{name}.json").read_text())
    assert committed == schemas()[name]
    Draft202012Validator.check_schema(committed)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_family_files_obey(path):
    Draft202012Validator(schemas()["family"]).validate(json.loads(path.read_text()))


def test_manifest_obeys():
    Draft202012Validator(schemas()["manifest"]).validate(store.manifest())


def test_answers_obey_the_response_schema():
    validator = Draft202012Validator(schemas()["response"])
    validator.validate({"dtype": "fp32", **{case["id"]: answer(case) for case in store.load()}})
    with pytest.raises(ValidationError):
        validator.validate({"not an id": {}})
    with pytest.raises(ValidationError):
        validator.validate({"grad.0001": {"dtype": "fp16"}})


@pytest.mark.parametrize(
    "damage",
    [
        lambda case: case.update(extra=1),
        lambda case: case.pop("sha256"),
        lambda case: case.update(id="grad.1"),
        lambda case: case.update(status="retired"),
        lambda case: case["expected"]["loss"].update(kind="about"),
        lambda case: case["expected"]["loss"].update(data="nan"),
        lambda case: case["source"].append({"cite": "x"}),
        lambda case: case["levels"]["logits"].pop("required"),
    ],
)
def test_the_schema_sees_damage(damage):
    doc = json.loads((store.ROOT / store.DATA / "grad.json").read_text())
    doc["cases"] = [copying.deepcopy(doc["cases"][0])]
    damage(doc["cases"][0])
    with pytest.raises(ValidationError):
        Draft202012Validator(schemas()["family"]).validate(doc)
