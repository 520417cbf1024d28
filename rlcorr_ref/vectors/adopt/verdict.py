"""One run of a case: its arguments, the judgement of an answer, and the text of a failure.

A failure names the bug class, at most three of the smallest numbers, the known wrong implementation with the same numbers where
there is one, the definition and the upstream threads. It never prints an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...dialects.formula import formula
from ...dialects.pieces import THREE, TWO
from ...errors import ContractError
from .. import judge, model, store
from .arrays import answer as read_answer
from .arrays import arguments
from .expected import under
from .selection import Selected
from .suspects import same_dialect, suspects

SHOWN = 3


class VectorCase:
    """What the fixture `rlcorr_case` holds: `arguments()` for the consumer, `check(answer)` for its answer.

    Also `id`, `level`, `dtype`, `definition` (complete) or `parameters`, `inputs` (everything, wire values) and `record`.
    """

    def __init__(self, selected: Selected, fail: Any) -> None:
        self.record, self.by_definition = under(selected.case, selected.profile)
        self.id, self.level, self.dtype = self.record["id"], selected.level, selected.dtype
        self.function = self.record["function"]
        self.inputs: dict[str, Any] = {**self.record["inputs"], **self.record["levels"][self.level].get("inputs", {})}
        self.verdict: judge.Verdict | None = None
        self._library, self._fail = selected.arrays, fail
        self.properties: dict[str, Any] = self._summary()

    def __repr__(self) -> str:
        return f"<rlcorr case {self.id} at {self.level}, {self.dtype}>"

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs that an answer must hold."""
        return list(self.record["levels"][self.level]["required"])

    def arguments(self) -> dict[str, Any]:
        """Inputs as arrays of the run's dtype, and the complete definition (or parameters), as keyword arguments."""
        return arguments(self.record, self.level, self.dtype, self._library)

    def check(self, answer: Any) -> None:
        """Judge an answer: {output: array}, or the array alone where one output is required. Fails the test with a report."""
        __tracebackhide__ = True
        try:
            given = read_answer(answer, self.outputs, self.id)
            self.verdict = judge.judge(self.record, given, self.dtype, self.level)
        except ContractError as error:
            self.verdict = judge.Verdict(self.id, self.level, self.dtype, float("inf"))
            self.properties.update(self._summary())
            self._fail(f"rlcorr {error}", pytrace=False)
            return
        self.properties.update(self._summary())
        if not self.verdict.passed:
            self._fail(self.explain(given), pytrace=False)

    def explain(self, given: Mapping[str, Any]) -> str:
        """The text of a failure."""
        case, verdict = self.record, self.verdict
        lines = [f"rlcorr {case['id']} {case['slug']} ({self.level}, {self.dtype}): {case['title']}"]
        lines += [f"  {miss.line()}" for miss in verdict.misses[:SHOWN]]
        if len(verdict.misses) > SHOWN:
            lines.append(f"  and {len(verdict.misses) - SHOWN} more entries")
        named = suspects(case, given, self.level, self.dtype)
        self.properties["suspects"] = [mutant.name for mutant in named]
        for mutant in named:
            threads = f" ({mutant.threads})" if mutant.threads else ""
            lines.append(f"  same numbers as the known fault {mutant.name}{threads}: {mutant.says}")
        other = same_dialect(case, given, self.level, self.dtype)
        if other:
            lines.append(
                f"  equals the dialect {other}: {case['dialects'][other]['note']} (differs by definition, not by fault)"
            )
        seen = []
        for flag in case["flags"]:
            note = store.note_of(flag, case["id"].rpartition(".")[0])
            lines.append(f"  {note['bug_type']} {flag}: {note['description']}; {note['effect']}")
            seen += note["links"]
        if case["function"] == "objective":
            policies = THREE if case["inputs"].get("logp_anchor") is not None else TWO
            lines.append(f"  definition: {formula(case['definition'], policies)}")
        elif case.get("parameters"):
            lines.append(f"  parameters: {case['parameters']}")
        if self.by_definition:
            lines.append(f"  judged under the profile: {self.by_definition}")
        seen += [source["cite"] for source in case["source"] if source["role"] == "regression"]
        if seen:
            lines.append(f"  seen in: {', '.join(dict.fromkeys(seen))}")
        lines.append(
            f"  rlcorr-vectors {model.SET_VERSION}, {case['id']}, sha256:{case['sha256'][:12]}; rlcorr vectors show {case['id']}"
        )
        return "\n".join(lines)

    def _summary(self) -> dict[str, Any]:
        """What the report keeps of this run: plain values only."""
        verdict = self.verdict
        out: dict[str, Any] = {
            "case": self.id,
            "level": self.level,
            "dtype": self.dtype,
            "checked": verdict is not None,
        }
        if self.by_definition:
            out["by_definition"] = self.by_definition
        if verdict is not None:
            out["used"] = verdict.used if verdict.used < float("inf") else None
            out["misses"] = [miss.line() for miss in verdict.misses[:SHOWN]]
        return out
