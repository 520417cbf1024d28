"""Minimal loader and judge for rlcorr vectors (standard library only; copy this file and the v1/*.json you need).

CC0-1.0. From rlcorr_ref/vectors, set 2026.1, schema 1. The rule is in INTERPRETING.md.
    cases = load("grad.json")
    for case in cases.values():
        assert judge(case, {"grad_logits": [[[...]]]}, "fp32")["ok"]
"""

import json

U = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-8}
U_ACC = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-24}
ETA = {"fp64": 2.0**-1022, "fp32": 2.0**-126, "bf16": 2.0**-126}


def load(path):
    """{id: case} of one family file; withdrawn cases are left out."""
    with open(path, encoding="utf-8") as file:
        return {case["id"]: case for case in json.load(file)["cases"] if case["status"] != "withdrawn"}


def entries(want, got, err):
    """Pairs of numbers with their scale; a wrong shape raises."""
    if not isinstance(want, list):
        return [(want, got, err)]
    assert isinstance(got, list) and len(got) == len(want), "wrong shape"
    return [e for i, w in enumerate(want) for e in entries(w, got[i], err[i] if isinstance(err, list) else err)]


def judge(case, answer, dtype, m=2.0):
    """Compare the outputs that `answer` holds; `used` is the largest share of a tolerance, exact mismatches are inf."""
    worst = 0.0
    for name, got in answer.items():
        out = case["expected"][name]
        floor = m * U_ACC[dtype] * out.get("acc_scale", 0.0) + ETA[dtype]
        for want, have, err in entries(out["data"], got, out.get("err_scale", 0.0)):
            special = out["kind"] == "exact" or isinstance(want, str) or isinstance(have, str) or want is None
            if want != have:
                worst = max(worst, float("inf") if special else abs(have - want) / (m * U[dtype] * err + floor))
    return {"ok": worst <= 1.0, "used": worst}
