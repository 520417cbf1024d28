"""Judging a folder of answers to the bulk tier: `<id>.safetensors` per case, with tensors named like the outputs.

The rule is the core set's: tol = m (u err_scale + u_acc acc_scale) + eta, exact outputs match exactly. The dtype is that of the
answer's tensors: float32 tensors are judged at fp32, float64 tensors at fp64. A float32 implementation answers in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ContractError
from ..flags import note
from ..judge import MULTIPLE, SHOWN, SMALLEST_NORMAL, Miss, Verdict
from ..model import ACCUMULATOR_ROUNDOFF, UNIT_ROUNDOFF
from .files import read_manifest, read_tensors

DTYPE_OF = {"float32": "fp32", "float64": "fp64"}
SUFFIX = ".safetensors"


def used(want: np.ndarray, got: np.ndarray, err: np.ndarray, acc: float, kind: str, dtype: str) -> np.ndarray:
    """Share of the tolerance per entry, any shape; inf where an exact or non-finite entry differs."""
    tol = MULTIPLE * (UNIT_ROUNDOFF[dtype] * err.astype(np.float64) + ACCUMULATOR_ROUNDOFF[dtype] * acc)
    gap = np.abs(got.astype(np.float64) - want)
    share = gap / (tol + SMALLEST_NORMAL[dtype])
    return np.where(gap == 0.0, 0.0, np.where(np.isfinite(share) & (kind == "real"), share, np.inf))


def judge(case: dict[str, Any], answer: dict[str, np.ndarray], folder: Path) -> tuple[Verdict, int]:
    """The verdict on one case's answer, with at most three misses per output, and how many entries are beyond tolerance.

    Raises `ContractError` for unknown output names, wrong shapes and dtypes other than float32 and float64.
    """
    name = case["id"]
    unknown = sorted(set(answer) - set(case["expected"]))
    if unknown:
        raise ContractError(f"{name}: unknown output {unknown[0]!r}; outputs: {', '.join(sorted(case['expected']))}")
    dtypes = {x.dtype.name for x in answer.values()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPE_OF):
        found = ", ".join(sorted(dtypes)) or "no tensor at all"
        raise ContractError(f"{name}: expected tensors of one dtype, float32 or float64, got {found}")
    dtype = DTYPE_OF[dtypes.pop()]
    expected = read_tensors(folder / f"{name}.expected{SUFFIX}")
    scales = read_tensors(folder / f"{name}.scales{SUFFIX}")
    verdict, beyond = Verdict(name, "logits", dtype, 0.0), 0
    for output, entry in case["expected"].items():
        if output not in answer:
            if output in case["required"]:
                verdict.misses.append(Miss(output, None, None, None, float("inf")))
                beyond += 1
            continue
        want, got = expected[output], answer[output]
        if got.shape != want.shape:
            raise ContractError(f"{name}: {output}: expected shape {list(want.shape)}, got {list(got.shape)}")
        share = used(want, got, scales.get(output, np.zeros(())), entry["acc_scale"], entry["kind"], dtype)
        verdict.used = max(verdict.used, float(share.max(initial=0.0, where=np.isfinite(share))))
        wrong = ~(share <= 1.0)
        beyond += int(wrong.sum())
        order = np.argsort(-np.where(wrong, share, -1.0), axis=None, kind="stable")[: min(SHOWN, int(wrong.sum()))]
        for flat in order:
            index = tuple(int(i) for i in np.unravel_index(flat, want.shape))
            verdict.misses.append(Miss(output, index, float(want[index]), float(got[index]), float(share[index])))
    return verdict, beyond


def check(folder: Path, responses: Path) -> tuple[str, int, int]:
    """The report as text, how many cases failed and how many were not answered.

    Raises `ContractError` for a damaged tier, a folder without any answer, and files that answer no case.
    """
    manifest = read_manifest(folder)
    cases = {case["id"]: case for case in manifest["cases"]}
    if not responses.is_dir():
        raise ContractError(f"{responses}: expected a folder of answers <id>{SUFFIX}")
    found = sorted(responses.glob(f"*{SUFFIX}"))
    strange = [path.name for path in found if path.name.removesuffix(SUFFIX) not in cases]
    if strange or not found:
        what = f"{strange[0]} answers no case" if strange else "no answer in this folder"
        raise ContractError(f"{responses}: {what}; answers are named {min(cases)}{SUFFIX} to {max(cases)}{SUFFIX}")
    lines, failed, worst = [], 0, (0.0, "none")
    for path in found:
        case = cases[path.name.removesuffix(SUFFIX)]
        verdict, beyond = judge(case, read_tensors(path), folder)
        if verdict.passed:
            worst = max(worst, (verdict.used, verdict.id))
            continue
        failed += 1
        lines.append(f"FAILED {verdict.id} {case['slug']} ({verdict.dtype}): {case['title']}")
        lines += [f"  {note(flag).bug_type} {flag}: {note(flag).description}" for flag in case["flags"]]
        lines += [f"  {miss.line()}" for miss in verdict.misses[:SHOWN]]
        if beyond > SHOWN:
            lines.append(f"  and {beyond - min(SHOWN, len(verdict.misses))} more entries")
    missing = len(cases) - len(found)
    if failed < len(found):
        lines.append(f"largest share of a tolerance used by a passing answer: {worst[0]:.2g} ({worst[1]})")
    lines.append(f"{len(found) - failed} passed, {failed} failed, {missing} not answered")
    return "\n".join(lines), failed, missing
