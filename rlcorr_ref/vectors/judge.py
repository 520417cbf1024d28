"""Judging answers: the tolerance rule, and a report that names the fault and the smallest numbers.

    tol = m (u err_scale + u_acc acc_scale) + eta         m = 2; eta the dtype's smallest normal number
    used = |got - wanted|/tol                             an answer passes where used <= 1 everywhere

Exact outputs (masks, counts, number grids) and non-finite entries have to match exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ContractError
from ..wire import evaluate_case
from . import model
from .store import envelope

MULTIPLE = 2.0
SMALLEST_NORMAL = {"fp64": 2.0**-1022, "fp32": 2.0**-126, "bf16": 2.0**-126}
NON_FINITE = ("NaN", "Infinity", "-Infinity")
SHOWN = 3


@dataclass
class Miss:
    """One entry beyond its tolerance (or an output that is missing: `index` None)."""

    output: str
    index: tuple[int, ...] | None
    wanted: Any
    got: Any
    used: float

    def line(self) -> str:
        if self.index is None:
            return f"{self.output}: not answered"
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        share = f"{self.used:.3g} x tolerance" if self.used < float("inf") else "must match exactly"
        return f"{self.output}{place}: wanted {_show(self.wanted)}, got {_show(self.got)} ({share})"


def _show(x: Any) -> str:
    return x if isinstance(x, str) else f"{x:.9g}"


@dataclass
class Verdict:
    """The judgement of one answer: passes when `misses` is empty; `used` is the largest share of a tolerance."""

    id: str
    level: str
    dtype: str
    used: float
    misses: list[Miss] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.misses


@dataclass
class Report:
    """Verdicts of a response; `unanswered` and `unclaimed` (dtype or level the case does not claim) are ids."""

    verdicts: list[Verdict]
    unanswered: list[str]
    unclaimed: list[str]

    @property
    def failed(self) -> list[Verdict]:
        return [v for v in self.verdicts if not v.passed]


def judge(
    case: Mapping[str, Any], answer: Mapping[str, Any], dtype: str, level: str, multiple: float = MULTIPLE
) -> Verdict:
    """Compare one answer's outputs with a case. Raises `ContractError` for wrong shapes, unknown keys or bare NaN."""
    entry, expected, name = case["levels"][level], case["expected"], case["id"]
    _known_outputs(case, answer, level)
    verdict = Verdict(name, level, dtype, 0.0)
    for output in (*entry["required"], *entry.get("optional", ())):
        got = _pick(answer, output)
        if got is None:
            if output in entry["required"]:
                verdict.misses.append(Miss(output, None, None, None, float("inf")))
            continue
        record = expected[output]
        err = record.get("err_scale", 0.0)
        unit = multiple * model.UNIT_ROUNDOFF[dtype]
        floor = multiple * model.ACCUMULATOR_ROUNDOFF[dtype] * record.get("acc_scale", 0.0) + SMALLEST_NORMAL[dtype]
        exact = record["kind"] == "exact"
        for index, want, have, scale in _walk(f"{name}: {output}", (), record["data"], got, err):
            used = _used(want, have, exact, unit * scale + floor)
            verdict.used = max(verdict.used, used if used < float("inf") else 0.0)
            if not used <= 1.0:
                verdict.misses.append(Miss(output, index, want, have, used))
    # smallest wanted numbers first: they are the ones that can be worked by hand
    verdict.misses.sort(key=lambda miss: (miss.index is None, len(str(miss.wanted)), str(miss.output)))
    return verdict


def _used(want: Any, have: Any, exact: bool, tol: float) -> float:
    if isinstance(want, str) or isinstance(have, str) or want is None or have is None:
        return 0.0 if want == have else float("inf")
    if exact:
        return 0.0 if want == have else float("inf")
    return abs(have - want) / tol


def _walk(
    where: str, index: tuple[int, ...], want: Any, got: Any, err: Any
) -> Iterable[tuple[tuple[int, ...], Any, Any, float]]:
    """Entries of two nested lists side by side with their scale; a shape that differs is an error that names the place."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            shape = f"a list of {len(got)}" if isinstance(got, list) else type(got).__name__
            raise ContractError(f"{where}{list(index) if index else ''}: expected a list of {len(want)}, got {shape}")
        for i, (w, g) in enumerate(zip(want, got, strict=True)):
            yield from _walk(where, (*index, i), w, g, err[i] if isinstance(err, list) else err)
        return
    if isinstance(got, bool):
        got = int(got)
    if isinstance(got, list) or not (isinstance(got, (int, float)) or got in NON_FINITE or got is None):
        raise ContractError(
            f"{where}{list(index) if index else ''}: expected a number or one of {', '.join(NON_FINITE)}, got {got!r}"
        )
    if isinstance(got, float) and got != got:
        raise ContractError(f'{where}{list(index) if index else ""}: bare NaN; write it as the string "NaN"')
    yield index, want, got, err


def _pick(answer: Mapping[str, Any], output: str) -> Any:
    value: Any = answer
    for key in output.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _known_outputs(case: Mapping[str, Any], answer: Mapping[str, Any], level: str) -> None:
    """Refuse keys that are no output of the case's function at all."""
    expected = {output.split(".")[0] for output in case["expected"]}
    unknown = [key for key in answer if key not in expected and key not in ("dtype", "level")]
    if unknown:
        outputs = set(evaluate_case(envelope(dict(case)))) | expected
        unknown = [key for key in unknown if key not in outputs]
        if unknown:
            raise ContractError(
                f"{case['id']}: unknown key {unknown[0]!r}; outputs: {', '.join(sorted(outputs))}, dtype, level"
            )


def check(cases: Mapping[str, Mapping[str, Any]], response: Any, multiple: float = MULTIPLE) -> Report:
    """Judge `{id: answer}`; "dtype" and "level" at the top hold for answers that state none (defaults fp64 and logits).

    An answer that does not state a level is judged at the first level that its case offers.
    """
    if not isinstance(response, Mapping):
        raise ContractError(f"response: expected an object {{id: answer}}, got {type(response).__name__}")
    common = {key: response[key] for key in ("dtype", "level") if key in response}
    answers = {key: value for key, value in response.items() if key not in ("dtype", "level")}
    verdicts, unclaimed = [], []
    for name, answer in answers.items():
        if name not in cases:
            raise ContractError(f"response: unknown id {name!r}; ids look like 'grad.0001', see `rlcorr vectors list`")
        if not isinstance(answer, Mapping):
            raise ContractError(f"{name}: expected an object of outputs, got {type(answer).__name__}")
        case = cases[name]
        dtype = _choice(name, "dtype", {**common, **answer}.get("dtype", "fp64"), model.DTYPES)
        level = {**common, **answer}.get("level")
        level = (
            _choice(name, "level", level, model.LEVELS) if level is not None else next(iter(_ordered(case["levels"])))
        )
        if case["status"] == "withdrawn" or dtype not in case["dtypes"] or level not in case["levels"]:
            unclaimed.append(name)
            continue
        verdicts.append(judge(case, answer, dtype, level, multiple))
    active = [name for name, case in cases.items() if case["status"] != "withdrawn"]
    return Report(verdicts, [name for name in active if name not in answers], unclaimed)


def _ordered(levels: Mapping[str, Any]) -> list[str]:
    return [name for name in model.LEVELS if name in levels]


def _choice(name: str, key: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ContractError(f"{name}: {key} {value!r} is not one of {', '.join(choices)}")
    return value


def render(report: Report, cases: Mapping[str, Mapping[str, Any]], notes: Mapping[str, Mapping[str, Any]]) -> str:
    """The report as text: failures with their bug classes and at most three numbers each, then the counts."""
    lines = []
    for verdict in report.failed:
        case = cases[verdict.id]
        lines.append(f"FAILED {verdict.id} {case['slug']} ({verdict.level}, {verdict.dtype}): {case['title']}")
        for flag in case["flags"]:
            lines.append(f"  {notes[flag]['bug_type']} {flag}: {notes[flag]['description']}")
        lines += [f"  {miss.line()}" for miss in verdict.misses[:SHOWN]]
        if len(verdict.misses) > SHOWN:
            lines.append(f"  and {len(verdict.misses) - SHOWN} more entries")
    passed = [v for v in report.verdicts if v.passed]
    if passed:
        worst = max(passed, key=lambda v: v.used)
        lines.append(f"largest share of a tolerance used by a passing answer: {worst.used:.2g} ({worst.id})")
    lines.append(
        f"{len(passed)} passed, {len(report.failed)} failed, {len(report.unanswered)} not answered"
        + (
            f", {len(report.unclaimed)} not judged (dtype or level not claimed, or withdrawn)"
            if report.unclaimed
            else ""
        )
    )
    return "\n".join(lines)
