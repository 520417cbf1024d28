"""The vectors reach every public function of the reference mathematics: running the whole set calls each of them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import rlcorr_ref
from rlcorr_ref import evaluate_case, vectors

ROOT = Path(rlcorr_ref.__file__).parent
MODULES = (
    "advantages", "aggregation", "batch", "categorical", "centering", "diagnostics", "full_centering", "functions",
    "head_centering", "numerics", "objective", "quantise", "ratios", "rejection", "shards", "surrogates", "tokens",
    "vocabulary", "weights", "wire",
)  # fmt: skip
# Public functions that no wire function asks for; each is tested by hand values where stated.
OUTSIDE_THE_WIRE = {
    "m2po_mask": "needs the whole batch's order, no rule of the contract; tests/test_fixture_f.py",
    "gspo_true_gradient": "shown beside the contract's straight-through form; tests/test_functions.py",
    "ess_of_shards": "what ranks all-reduce; tests/test_shards.py",
    "preset": "names of weight rules; tests/test_functions.py",
    "tail_softmax": "only where a trainer tail underflows below 1e-200 without a floor; tests/test_extremes.py",
    "coefficients_to_logits": "the formula alone, for readers; tests/test_functions.py",
}


def public_functions() -> set[str]:
    """Names of top-level public functions of the mathematical modules."""
    names = set()
    for module in MODULES:
        for node in ast.parse((ROOT / f"{module}.py").read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                names.add(node.name)
    return names


def called_by_the_vectors() -> set[str]:
    """Names of the package's functions that run while the active set is answered."""
    seen: set[str] = set()
    folder = str(ROOT)

    def watch(frame, event, _argument):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            seen.add(frame.f_code.co_name)

    cases = vectors.load()
    sys.setprofile(watch)
    try:
        for case in cases:
            evaluate_case({k: case[k] for k in ("function", "inputs", "definition", "parameters") if k in case})
    finally:
        sys.setprofile(None)
    return seen


def test_every_public_function_has_a_vector():
    missing = public_functions() - called_by_the_vectors()
    assert missing == set(OUTSIDE_THE_WIRE)


def test_every_vector_has_a_derivation_anchor():
    assert all(case["derivation"] and "#" in case["derivation"] for case in vectors.load())
