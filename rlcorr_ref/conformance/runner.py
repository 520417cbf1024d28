"""Running an adapter over the vectors: one outcome per case, judged output by output.

pass            equals the published value within the case's tolerance by definition   misses it and equals what
the package's documented meaning of the name gives (`Named`, or a published dialect) departs         equals
neither, or the package's code raised not supported   the package has no option with this meaning, or the vectors
do not claim the precision
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ContractError
from ..vectors import judge, store
from ..vectors.adopt.arrays import arguments, wire
from ..vectors.adopt.suspects import suspects
from ..wire import evaluate_case
from .protocol import Adapter, Named, NotSupported

STATES = ("pass", "by definition", "departs", "not supported", "not run")
SHOWN = 3
MISFITS = (AttributeError, NameError, KeyError, ImportError, TypeError)
# Where a package's meaning replaces the published value: slack of a few roundings relative to the new value.
RELATIVE = 32.0


@dataclass
class Outcome:
    """One case: its state, share of tolerance (largest over passing outputs), reason, and what was missed."""

    id: str
    family: str
    state: str
    level: str = ""
    used: float | None = None
    why: str = ""
    misses: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    unreported: list[str] = field(default_factory=list)


def run(adapter: Adapter, cases: Iterable[Mapping[str, Any]] | None = None) -> list[Outcome]:
    """All outcomes of an adapter that is ready; [] for one that is not run."""
    if adapter.status != "ready":
        return []
    chosen = store.load() if cases is None else cases
    wanted = adapter.families
    return [answer(adapter, case) for case in chosen if not wanted or case["id"].rpartition(".")[0] in wanted]


def answer(adapter: Adapter, case: Mapping[str, Any]) -> Outcome:
    """One case through one adapter."""
    function, family = case["function"], case["id"].rpartition(".")[0]
    level = "logprobs" if function == "objective" else next(iter(case["levels"]))
    out = Outcome(case["id"], family, "not supported", level)
    handler = adapter.handler(function)
    if handler is None:
        out.why = adapter.absent(function)
    elif lacking := _lacking(adapter, case):
        out.why = f"needs {lacking}, which FEATURES does not list"
    elif adapter.dtype not in case["dtypes"]:
        out.why = f"the case does not claim {adapter.dtype}"
    elif level not in case["levels"]:
        out.why = "the case starts at logits"
    else:
        try:
            given = handler(**arguments(case, level, adapter.dtype, adapter.arrays))
        except NotSupported as reason:
            out.why = str(reason)
        except MISFITS as error:
            # a built-in adapter that does not fit its package must not pass for a fault of the package
            if adapter.verified:
                raise ContractError(f"{adapter.name}: the adapter failed on {case['id']}: {error!r}") from error
            out.state, out.why = "departs", f"raised {type(error).__name__}: {str(error)[:160]}"
        except Exception as error:  # what the package's code raises is its answer
            out.state, out.why = "departs", f"raised {type(error).__name__}: {str(error)[:160]}"
        else:
            _judge(out, adapter, case, given)
    return out


def _lacking(adapter: Adapter, case: Mapping[str, Any]) -> str:
    """The first feature of a case outside the adapter's FEATURES; a function that it defines needs no mention."""
    if adapter.features is None:
        return ""
    needed = (f for f in case["features"] if not f.startswith("function:") and f not in adapter.features)
    return next(needed, "")


def _judge(out: Outcome, adapter: Adapter, case: Mapping[str, Any], given: Any) -> None:
    named = given if isinstance(given, Named) else Named(given, "")
    if not isinstance(named.outputs, Mapping):
        raise ContractError(f"{adapter.name}: {case['id']}: expected a dict of outputs, got {type(given).__name__}")
    entry = case["levels"][out.level]
    asked = [*entry["required"], *entry.get("optional", ())]
    answered = {name: wire(value, f"{case['id']}: {name}") for name, value in named.outputs.items() if name in asked}
    out.unreported = [name for name in entry["required"] if name not in answered]
    if not answered:
        out.why = f"none of its outputs is reported: {', '.join(asked)}"
        return
    meaning = _meaning(adapter, case, named)
    shares = []
    for name, value in answered.items():
        verdict = _verdict(case, out.level, name, value, adapter.dtype)
        state = "pass" if verdict.passed else "departs"
        if not verdict.passed and name in meaning:
            wanted, why = meaning[name]
            if _verdict(_replaced(case, name, wanted), out.level, name, value, adapter.dtype).passed:
                state, out.why = "by definition", why
        if state == "pass":
            shares.append(verdict.used)
        else:
            out.misses += [miss.line() for miss in verdict.misses[:SHOWN]]
        out.outputs[name] = state
    out.state = next(s for s in ("departs", "by definition", "pass") if s in out.outputs.values())
    out.used = max(shares) if shares else None
    if out.state == "departs":
        wrong = {name: value for name, value in answered.items() if out.outputs[name] == "departs"}
        restricted = {
            **case,
            "levels": {**case["levels"], out.level: {**entry, "required": list(wrong), "optional": []}},
        }
        out.faults = [mutant.name for mutant in suspects(restricted, wrong, out.level, adapter.dtype)]


def _verdict(case: Mapping[str, Any], level: str, name: str, value: Any, dtype: str) -> judge.Verdict:
    entry = {**case["levels"][level], "required": [name], "optional": []}
    return judge.judge({**case, "levels": {level: entry}}, _nested(name, value), dtype, level)


def _nested(name: str, value: Any) -> dict[str, Any]:
    for key in reversed(name.split(".")):
        value = {key: value}
    return value


def _pick(value: Any, name: str) -> Any:
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _meaning(adapter: Adapter, case: Mapping[str, Any], named: Named) -> dict[str, tuple[Any, str]]:
    """output -> (value under the package's documented meaning, the difference in words)."""
    out: dict[str, tuple[Any, str]] = {}
    published = case.get("dialects", {}).get(adapter.dialect)
    if published:
        out |= {name: (value, published["note"]) for name, value in published["expected"].items()}
    if named.settings is not None or named.renamed:
        key = "definition" if case["function"] == "objective" else "parameters"
        settings = named.settings if named.settings is not None else case.get(key) or {}
        try:
            found = evaluate_case({"function": case["function"], "inputs": case["inputs"], key: settings})
        except ContractError:
            found = {}  # the meaning has no value on this input; the numbers then stand as they are
        if named.settings is not None:
            out |= {n: (_pick(found, n), named.why) for n in named.outputs if _pick(found, n) is not None}
        out |= {n: (found[metric], named.why) for n, metric in named.renamed.items() if metric in found}
    out |= {name: (wire(value, name), named.why) for name, value in named.values.items()}
    for name, by in named.shift.items():
        before = out[name][0] if name in out else case["expected"][name]["data"]
        out[name] = (_added(before, wire(by, name)), named.why)
    return out


def _added(value: Any, by: Any) -> Any:
    if isinstance(value, list):
        return [_added(v, b) for v, b in zip(value, by, strict=True)]
    return float(value) + float(by)


def _replaced(case: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    record = case["expected"][name]
    scale = _grown(value, record.get("err_scale", 0.0))
    return {**case, "expected": {**case["expected"], name: {**record, "data": value, "err_scale": scale}}}


def _grown(value: Any, err: Any) -> Any:
    if isinstance(value, list):
        return [_grown(v, err[i] if isinstance(err, list) else err) for i, v in enumerate(value)]
    return max(err, 0.0 if isinstance(value, str) else RELATIVE * abs(float(value)))
