"""From a draft to a record: values at 50 digits, the float64 witness against them, scales, margin, dtypes, checksum.

The published value is the 50-digit value rounded to the nearest double, so that regenerating the set gives the same bytes on
any platform; the float64 closed form has to agree within 1e-12 of the output's error scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ContractError
from ..wire import evaluate_case
from . import model
from .canonical import sha256
from .features import features
from .flags import note
from .levels import judged_outputs, levels
from .margins import gaps, guarded, nearest
from .model import Case, Dialect, Expected, Precision, plain, value_part
from .registry import Draft
from .scales import as_floats, exact, scales
from .trace import trace_gaps, trace_level
from .witness import DIGITS, pick, rounded, witness

AGREEMENT = 1e-12
LARGEST = {"fp64": np.finfo(np.float64).max, "fp32": 3.4e38, "bf16": 3.38e38}
# What earlier runs of the tool or a person decided, kept when a record is computed anew.
BOOKKEEPING = ("kills", "status", "errata", "superseded_by", "withdrawn_because", "since")
INTEGER_INPUTS = ("tokens", "mask", "head_ids", "support", "groups")


def wire_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs as plain JSON values: arrays as lists, non-finite numbers as strings, no -0."""
    return {name: _wire(value) for name, value in inputs.items()}


def _wire(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_wire(item) for item in value]
    if isinstance(value, (int, str, np.integer)):
        return value if isinstance(value, str) else int(value)
    return rounded(value)


def record(draft: Draft, old: dict[str, Any] | None = None, with_scales: bool = True) -> dict[str, Any]:
    """The plain record of a draft. `old` is the record it replaces, for bookkeeping; without `with_scales` its scales are kept.

    Raises `ContractError` naming the case where the witness disagrees, a threshold is too near, or a flag is unknown.
    """
    draft.inputs = wire_inputs(draft.inputs)
    key = "definition" if draft.function == "objective" else "parameters"
    for name in draft.flags:
        note(name)
    try:
        own = evaluate_case(draft.envelope)
        high = witness(draft.function, draft.inputs, draft.settings)
    except (ContractError, ValueError) as error:
        raise ContractError(f"{draft.id}: {error}") from None
    judged = judged_outputs(draft.function, own, draft.outputs)
    value = rounded(high)
    entry = levels(draft.function, draft.inputs, draft.settings, judged)
    data = {name: pick(value, name) for name in judged}
    kinds: dict[str, Any] = {name: "exact" if exact(draft.function, name, value) else "real" for name in judged}
    traced: dict[str, tuple[Any, Any, float]] = {}
    if draft.trace is not None:
        entry["trace"], traced = trace_level(draft)
        data.update({name: out[0] for name, out in traced.items()})
        kinds.update(dict.fromkeys(traced, "real"))
    if with_scales or old is None:
        scaled = scales(draft, judged, value)
        scaled.update({name: (err, acc) for name, (_, err, acc) in traced.items()})
    else:
        before = old["expected"]
        scaled = {name: (before[name].get("err_scale"), before[name].get("acc_scale")) for name in data}
    expected = {}
    for name in data:
        err, acc = scaled[name] if kinds[name] == "real" else (None, None)
        expected[name] = Expected(data[name], kinds[name], err, acc)
    disagreement = max((_disagreement(draft.id, name, pick(own, name), expected[name]) for name in judged), default=0.0)
    found = gaps(draft.function, draft.inputs, draft.settings) if draft.trace is None else trace_gaps(draft)
    claimed = _dtypes(draft, found, data)
    case = Case(
        id=draft.id,
        slug=draft.slug,
        title=draft.title,
        description=draft.description,
        function=draft.function,
        inputs=draft.inputs,
        expected=expected,
        levels=entry,
        derivation=draft.derivation,
        source=draft.source,
        flags=draft.flags,
        features=features(draft.function, draft.inputs, draft.settings),
        dtypes=claimed,
        margin=None if nearest(found) is None else float(f"{nearest(found):.3g}"),
        precision=Precision(
            "nearest double of a multi-precision evaluation", DIGITS, "float64 closed form", disagreement
        ),
        kills=[],
        status="active",
        since=model.SET_VERSION,
        sha256="",
        dialects=_dialects(draft, judged, own),
        **{key: _wire_settings(draft.settings)},
    )
    out = plain(case)
    out["expected"] = {name: plain(item) for name, item in expected.items()}
    for name in BOOKKEEPING:
        if old is not None and name in old:
            out[name] = old[name]
    out["sha256"] = sha256(value_part(out))
    if old is not None and old.get("sha256") == out["sha256"]:
        _keep_measured(out, old)
    return out


def _keep_measured(out: dict[str, Any], old: dict[str, Any]) -> None:
    """Keep what the publishing machine measured: how far float64 was from an unchanged value, and scales within 5 %.

    NumPy's exp and log differ in their last bits between processors, and these two follow them. The value itself comes
    from multi-precision arithmetic and does not; that float64 agrees with it has been checked again here.
    """
    out["precision"]["disagreement"] = old["precision"]["disagreement"]
    for name, entry in out["expected"].items():
        for key in ("err_scale", "acc_scale"):
            before = old["expected"].get(name, {}).get(key)
            if before is None or entry.get(key) is None:
                continue
            a, b = as_floats(before), as_floats(entry[key])
            if a.shape == b.shape and np.allclose(a, b, rtol=0.05, atol=0.0, equal_nan=True):
                entry[key] = before


def _wire_settings(settings: Any) -> Any:
    if isinstance(settings, dict):
        return {key: _wire_settings(value) for key, value in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [_wire_settings(item) for item in settings]
    return settings


def _disagreement(name: str, output: str, own: Any, expected: Expected) -> float:
    """Largest |float64 - value| in units of the output's error scale; exact outputs must agree entirely."""
    a, b = as_floats(own), as_floats(expected.data)
    if a.shape != b.shape:
        raise ContractError(
            f"{name}: {output} has shape {list(a.shape)} in float64 and {list(b.shape)} at {DIGITS} digits"
        )
    finite = np.isfinite(b)
    if not (np.isfinite(a) == finite).all() or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise ContractError(f"{name}: {output} is finite in one evaluation and not in the other")
    if expected.kind == "exact":
        if not np.array_equal(a, b):
            raise ContractError(f"{name}: {output} must be exact; float64 and {DIGITS} digits differ")
        return 0.0
    err = np.broadcast_to(as_floats(expected.err_scale), b.shape)
    gap = np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0))
    used = gap / np.where(err > 0, err, np.inf)
    missed = (err == 0) & (gap > 0)
    worst = float(used.max(initial=0.0))
    if missed.any() or worst > AGREEMENT:
        place = tuple(int(i) for i in np.argwhere(missed | (used >= worst))[0])
        raise ContractError(
            f"{name}: {output}{list(place)} is {float(a[place])!r} in float64 and {float(b[place])!r} at {DIGITS} digits: "
            f"{worst:.1e} of the error scale, allowed {AGREEMENT:.0e}"
        )
    return float(f"{worst:.1e}")


def _dtypes(draft: Draft, found: list, data: dict[str, Any]) -> list[str]:
    """Dtypes that the case claims: inputs exact on their grid, answers in range, no threshold within reach."""
    floats = [as_floats(value).ravel() for name, value in draft.inputs.items() if name not in INTEGER_INPUTS]
    if draft.trace is not None:
        floats += [as_floats(value).ravel() for name, value in draft.trace.items() if isinstance(value, list)]
    numbers = np.concatenate(floats) if floats else np.zeros(0)
    numbers = numbers[np.isfinite(numbers)]
    answers = np.concatenate([as_floats(value).ravel() for value in data.values()])
    answers = answers[np.isfinite(answers)]
    out = []
    for dtype in guarded(found, "ThresholdTie" in draft.flags):
        if on_grid(numbers, dtype) and np.abs(answers).max(initial=0.0) < LARGEST[dtype]:
            out.append(dtype)
    if "fp32-logprobs" in features(draft.function, draft.inputs, draft.settings) and "bf16" in out:
        out.remove("bf16")
    if draft.fp64_only:
        return ["fp64"]
    if "fp32" not in out:
        raise ContractError(
            f"{draft.id}: cannot claim fp32: inputs off its grid, an answer out of its range, or a threshold within "
            f"16 tolerances (nearest {nearest(found)!r}); round the inputs or move them away"
        )
    return out


def on_grid(numbers: np.ndarray, dtype: str) -> bool:
    """Whether all numbers are exactly representable."""
    if dtype == "fp64":
        return True
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    if not np.array_equal(single.astype(np.float64), numbers):
        return False
    return dtype == "fp32" or not (single.view(np.uint32) & 0xFFFF).any()


def _dialects(draft: Draft, judged: tuple[str, ...], own: dict[str, Any]) -> dict[str, Dialect]:
    out = {}
    for name, (settings, text) in draft.dialects.items():
        key = "definition" if draft.function == "objective" else "parameters"
        answer = evaluate_case({"function": draft.function, "inputs": draft.inputs, key: settings})
        out[name] = Dialect({output: _twelve(pick(answer, output)) for output in judged}, text)
    for framework, names in draft.metrics.items():
        values = {output: _twelve(own[name]) for output, name in names.items()}
        out[framework] = Dialect(values, f"{framework}: {', '.join(sorted(names.values()))}")
    return out


def _twelve(value: Any) -> Any:
    """12 digits: dialect values come from float64 and have to be the same bytes on every platform."""
    if isinstance(value, list):
        return [_twelve(item) for item in value]
    return float(f"{value:.12g}") + 0.0 if isinstance(value, float) else value
