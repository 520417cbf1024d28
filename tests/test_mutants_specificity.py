"""No vector may fail a correct implementation: plain in float64 and float32, sharded in float32, against every case."""

from __future__ import annotations

import numpy as np
import pytest

from rlcorr_ref import evaluate_case, vectors
from rlcorr_ref.mutants.compare import as_array, share_used, wanted
from rlcorr_ref.mutants.matrix import used
from rlcorr_ref.mutants.plain import Plain
from rlcorr_ref.mutants.sharded import Sharded, claims

CASES = vectors.load()


@pytest.mark.parametrize("dtype, name", [(np.float64, "fp64"), (np.float32, "fp32")])
def test_plain_passes_every_case_it_may_be_asked(dtype: type, name: str) -> None:
    shares = {case["id"]: used(Plain(dtype), case, name) for case in CASES if name in case["dtypes"]}
    assert len(shares) == len(CASES)
    assert {key: share for key, share in shares.items() if not share <= 1.0} == {}
    assert max(shares.values()) > 1e-4  # something was compared


def test_sharded_passes_every_case_it_claims() -> None:
    asked = [case for case in CASES if claims(case)]
    kinds = {(case.get("definition") or {}).get("surrogate", {}).get("kind") for case in asked}
    tails = {((case.get("definition") or {}).get("centering") or {}).get("tail", "rescaled") for case in asked}
    assert len(asked) > 150 and {"ppo_clip", "cispo"} <= kinds and len(tails) == 6
    failed = {}
    for case in asked:
        answer = Sharded().answer(vectors.envelope(case))
        share = share_used(wanted(case, "fp32"), answer)
        if not share <= 1.0:
            failed[case["id"]] = share
    assert failed == {}


def test_plain_in_float64_agrees_with_the_reference_on_unjudged_outputs_too() -> None:
    compared = 0
    for case in CASES:
        reference, answer = evaluate_case(vectors.envelope(case)), Plain().answer(vectors.envelope(case))
        for name, value in flat(reference).items():
            if "@" in name:
                continue
            compared += 1
            got = flat(answer)[name]
            assert (got is None) == (value is None), (case["id"], name)
            if value is not None:
                np.testing.assert_allclose(
                    as_array(got), as_array(value), rtol=1e-7, atol=1e-9, err_msg=f"{case['id']} {name}"
                )
    assert compared > 5 * len(CASES)


def flat(answer: dict) -> dict:
    out = {}
    for name, value in answer.items():
        out.update({f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value})
    return out


def test_sharded_does_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if claims(case) and np.size(case["inputs"]["mask"]) > 5)
    one = Sharded().answer(vectors.envelope(case))
    monkeypatch.setattr("rlcorr_ref.mutants.sharded.CHUNK", 1)
    assert Sharded().answer(vectors.envelope(case)) == one


def test_a_share_is_reported_where_an_answer_is_wrong_or_missing() -> None:
    case = vectors.get("grad.0001")
    right = evaluate_case(vectors.envelope(case))
    targets = wanted(case, "fp32")
    assert share_used(targets, right) < 0.01
    off = {**right, "grad_logits": (np.array(right["grad_logits"]) * (1 + 1e-4)).tolist()}
    assert 1.0 < share_used(targets, off) < np.inf
    assert share_used(targets, {key: value for key, value in right.items() if key != "grad_logits"}) == np.inf
    assert share_used(targets, {**right, "grad_logits": [[[1.0]]]}) == np.inf
    assert share_used(targets, {**right, "loss": "NaN"}) == np.inf
    assert share_used(targets, {**right, "mask": [[0]]}) == np.inf
