"""The cases discriminate: what a case is about changes its answer, and every option of the contract has a case."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rlcorr_ref import evaluate_case, records, vectors
from rlcorr_ref.errors import ContractError
from rlcorr_ref.quantise import FORMATS
from rlcorr_ref.vectors import judge, registry, store
from rlcorr_ref.vectors.flags import NOTES
from rlcorr_ref.wire import FUNCTIONS

CASES = store.load()
# Cases whose point is that a part of their definition changes nothing.
UNCHANGED = {
    ("faults.0019", "aggregation"): "everything is rejected: 0 under every reduction, and that is what it checks",
    ("centre.0072", "centering"): "a support of one token has no gradient to center",
    ("centre.0080", "centering"): "every ratio is in TIS's identity region, the tail's included",
    ("centre.0096", "centering"): "the same, and the slot with p = 0 has coefficient 0",
    ("centre.0097", "centering"): "plain importance sampling leaves nothing to center",
    ("centre.0101", "centering"): "every ratio is out of the band, the tail's included",
    ("centre.0076", "weight"): "on-policy every weight is 1",
    ("centre.0077", "weight"): "on-policy every weight is 1",
    ("edge.0014", "weight"): "no valid token",
    ("edge.0016", "weight"): "one weight normalised by itself is 1",
    ("kl.0008", "kl"): "the reference equals the trainer",
    ("kl.0015", "kl"): "beta is 0",
}
PARTS = ("weight", "gate", "rejection", "centering", "kl", "entropy", "surrogate", "temperature", "aggregation")


def definitions():
    for case in CASES:
        definition = case.get("definition") if case["function"] == "objective" else None
        for part in PARTS:
            if definition and definition.get(part) not in (None, [], {"kind": "token-mean"}):
                yield case, part


@pytest.mark.parametrize("case, part", list(definitions()), ids=lambda x: x if isinstance(x, str) else x["id"])
def test_every_part_of_a_definition_matters(case, part):
    """Leaving one part of the definition out is a wrong answer at float32, or an error."""
    less = {key: value for key, value in case["definition"].items() if key != part}
    try:
        answer = evaluate_case({**vectors.envelope(case), "definition": less})
        passed = judge.judge(case, {k: v for k, v in answer.items() if v is not None}, "fp32", "logits").passed
    except ContractError:
        passed = False
    assert passed == ((case["id"], part) in UNCHANGED)


@pytest.mark.parametrize("name", [f"reject.{i:04d}" for i in range(1, 25)])
def test_rejection_bounds_separate_statistics_and_reductions(name):
    """What the descriptions say: other reductions keep other tokens, so do nearly all other statistics, and the exchange."""
    case = store.get(name)
    base = vectors.envelope(case)

    def mask(parameters=(), swap=False):
        inputs = dict(base["inputs"])
        if swap:
            inputs["logp_trainer"], inputs["logp_sampler"] = inputs["logp_sampler"], inputs["logp_trainer"]
        out = evaluate_case({**base, "inputs": inputs, "parameters": {**base["parameters"], **dict(parameters)}})
        return np.array(out["mask"])

    kept = mask()
    assert 0 < kept.sum() < np.array(base["inputs"]["mask"]).sum()
    own = base["parameters"]
    for reduce in {"token", "sum", "mean", "max"} - {own["reduce"]}:
        assert (mask({"reduce": reduce}) != kept).any(), reduce
    others = {"ratio", "k1", "k2", "k3", "tv", "binary_kl"} - {own["statistic"]}
    assert sum((mask({"statistic": s}) != kept).any() for s in others) >= 4
    if "RatioDirection" in case["flags"]:
        assert (mask(swap=True) != kept).any()
    if "K2Factor" in case["flags"]:  # d^2 in place of d^2/2 is half the bound
        assert (mask({"high": own["high"] / 2}) != kept).any()


def test_constant_advantage_has_mean_zero_under_the_sampler():
    """centre.0102: q-weighted, the three centered gradients cancel; the trainer's mean or none leaves a drift."""
    case = store.get("centre.0102")
    q = np.exp(np.array(case["inputs"]["logp_sampler_full"])[0, 0])
    grad = np.array(case["expected"]["grad_logits"]["data"])[:, 0]
    np.testing.assert_allclose(q @ grad, 0.0, atol=1e-7)
    plain = np.array(evaluate_case({"inputs": case["inputs"]})["grad_logits"])[:, 0]
    assert np.abs(q @ plain).max() > 0.05


def test_equal_lengths_and_unequal_lengths():
    """Square batches hide broadcasting faults and rectangular ones raise them: both are there, with ragged masks."""
    shapes = Counter()
    for case in CASES:
        if "mask" in case["inputs"]:
            mask = np.array(case["inputs"]["mask"])
            shapes["square" if mask.shape[0] == mask.shape[1] > 1 else "other"] += 1
            shapes["ragged"] += len(set(mask.sum(1))) > 1
            shapes["one token"] += mask.shape == (1, 1)
    assert min(shapes["square"], shapes["other"], shapes["ragged"]) >= 40


def test_ids_slugs_and_texts():
    ids = [case["id"] for case in CASES]
    assert len(ids) == len(set(ids)) >= 500
    for name in registry.FAMILIES:
        slugs = [case["slug"] for case in store.load(name)]
        assert len(slugs) == len(set(slugs))
    texts = Counter((case["title"], case["description"]) for case in CASES)
    assert texts.most_common(1)[0][1] == 1
    assert all(len(case["description"]) > 20 for case in CASES)


def test_every_flag_is_known_and_every_known_flag_is_used():
    used = {flag for case in CASES for flag in case["flags"]}
    assert used == set(NOTES)


def test_every_option_of_the_contract_has_a_case():
    have = {feature for case in CASES for feature in case["features"]}
    want = {f"function:{name}" for name in FUNCTIONS}
    want |= {f"aggregation.kind:{kind}" for kind in records.AGGREGATIONS}
    want |= {f"centering.tail:{tail}" for tail in records.TAILS if tail != "rescaled"}
    want |= {f"surrogate.kind:{kind}" for kind in records.SURROGATE_KEYS}
    want |= {f"weight.level:{level}" for level in records.LEVELS if level != "token"}
    want |= {f"gate.level:{level}" for level in records.LEVELS if level != "token"}
    want |= {f"rejection.statistic:{s}" for s in ("ratio", "k1", "k2", "k3", "tv", "binary_kl")}
    want |= {f"rejection.reduce:{r}" for r in ("token", "sum", "mean", "max")}
    want |= {f"kl.kind:{k}" for k in ("k1", "k2", "k3", "k3+")} | {"kl.weighted", "entropy", "temperature"}
    want |= {"weight.outside:clip", "weight.outside:zero", "weight.inside:one", "weight.positive", "weight.negative"}
    want |= {"weight.sign:positive", "weight.sign:negative", "weight.statistic:tv", "weight.statistic:tv_signed"}
    want |= {"weight.numerator:trainer", "weight.log_clamp", "weight.clamp_order:token", "weight.open"}
    want |= {"weight.normalise:tokens", "weight.normalise:rows", "gate.open", "gate.sign:negative", "rejection.open"}
    want |= {"rejection.denominator:shrunk", "rejection.log_clamp", "rejection.sign:negative", "surrogate.dual"}
    want |= {"centering.floor_sampler:none", "centering.floor_trainer:none", "double-ratio", "surrogate.eps_low"}
    want |= {"aggregation.tokens", "aggregation.sequences", "shard.denominators:global", "shard.denominators:local"}
    want |= {f"quantise.format:{name}" for name in FORMATS} | {"quantise.scale:row", "quantise.scale:tensor"}
    want |= {f"advantages.kind:{kind}" for kind in ("mean", "mean_std", "leave_one_out")}
    want |= {f"input:{x}" for x in ("logp_anchor", "head_ids", "logp_sampler_full", "support", "logp_reference")}
    assert want - have == set()


def test_cases_claim_what_they_can():
    """Every case claims float64 and float32, many claim bf16, and all claimed inputs lie exactly on the grid."""
    from rlcorr_ref.vectors.build import INTEGER_INPUTS, on_grid
    from rlcorr_ref.vectors.scales import as_floats

    assert all({"fp64", "fp32"} <= set(case["dtypes"]) for case in CASES)
    assert sum("bf16" in case["dtypes"] for case in CASES) >= 100
    for case in CASES:
        for name, value in case["inputs"].items():
            numbers = as_floats(value).ravel()
            for dtype in case["dtypes"]:
                assert name in INTEGER_INPUTS or on_grid(numbers[np.isfinite(numbers)], dtype), (case["id"], name)
    assert not on_grid(np.array([1.00390625]), "bf16") and on_grid(np.array([1.0078125]), "bf16")
    assert not on_grid(np.array([0.1]), "fp32") and on_grid(np.array([0.1]), "fp64")


def test_guard_band():
    """Only cases that test a tie sit on a threshold; all others keep clear of it at float32."""
    for case in CASES:
        if case["margin"] is not None:
            assert case["margin"] > 32 * 2.0**-24 * 4, case["id"]
    ties = [case for case in CASES if "ThresholdTie" in case["flags"]]
    assert len(ties) >= 15
