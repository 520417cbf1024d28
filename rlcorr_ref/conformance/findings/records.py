"""The record of a finding, and running one: the smallest input, what the package returns on it, what is right.

`observe` of a finding calls the package through its adapter and the reference for the right value; `present` is
whether the two still differ. `matches` says which outcomes of the vectors the finding explains.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import ContractError
from ...vectors import store
from ..protocol import Adapter
from ..runner import Outcome

PAGES = ("verl", "trl", "ms_swift", "openrlhf", "areal", "skyrl", "tinker_cookbook")


@dataclass(frozen=True)
class Observation:
    """What one run showed: returned and right value as text, and whether they differ."""

    returned: str
    right: str
    present: bool


@dataclass(frozen=True)
class Finding:
    """One finding. `kind`: "departs" from documentation or name, or "by definition"; `since`: first version known to
    do so.
    """

    id: str
    title: str
    documents: str
    input: str
    explanation: str
    source: str
    observe: Callable[[Any], Observation]
    matches: Callable[[Outcome], bool] = lambda outcome: False
    kind: str = "departs"
    since: str = "not traced"
    beyond: bool = False  # found by running the vectors, on no list that the project started from


def of_package(name: str) -> tuple[Finding, ...]:
    """The findings written for a package; () for a user's adapter."""
    stem = name.replace("-", "_")
    if stem not in PAGES:
        return ()
    return importlib.import_module(f"rlcorr_ref.conformance.findings.{stem}").FINDINGS


def observe(adapter: Adapter, outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """All findings of an adapter that is ready, each observed now and with the cases that it explains."""
    if adapter.status != "ready":
        return []
    out = []
    for finding in of_package(adapter.name):
        seen = finding.observe(adapter.handlers)
        cases = [o.id for o in outcomes if o.state in ("departs", "by definition") and finding.matches(o)]
        record = {key: value for key, value in asdict(finding).items() if not callable(value)}
        out.append(
            {
                **record,
                "package": adapter.name,
                "version": adapter.version,
                "returned": seen.returned,
                "right": seen.right,
                "present": seen.present,
                "cases": cases,
                "command": f"rlcorr conformance {adapter.name} --finding {finding.id}",
            }
        )
    return out


def one(adapter: Adapter, name: str) -> tuple[Finding, Observation]:
    """A single finding by id. Raises `ContractError` listing the known ones."""
    known = of_package(adapter.name)
    for finding in known:
        if finding.id == name:
            return finding, finding.observe(adapter.handlers)
    raise ContractError(
        f"--finding: unknown id {name!r} for {adapter.name}; known: {', '.join(f.id for f in known) or 'none'}"
    )


def settings(outcome: Outcome) -> dict[str, Any]:
    """Definition or parameters of the outcome's case."""
    case = store.get(outcome.id)
    return case.get("definition") or case.get("parameters") or {}


def by_row_weight(outcome: Outcome) -> bool:
    """A case by definition whose weight is asked for at sequence level."""
    given = settings(outcome)
    rule = given.get("weight") if outcome.family not in ("weight", "ratio") else given
    return outcome.state == "by definition" and (rule or {}).get("level") == "sequence"


def attempt(call: Callable[[], Any]) -> str:
    """The value of a call as text, or the error that it raised: for packages, raising is an answer."""
    try:
        return show(call())
    except Exception as error:  # any error of the package's code is what it returned
        return f"raises {type(error).__name__}: {str(error)[:120]}"


def show(value: Any) -> str:
    """Numbers in six significant digits; arrays as lists; tensors by value."""
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, (bool, int, str)) or value is None:
        return str(value)
    return f"{value:.6g}"


def differ(call: Callable[[], Any], right: Any) -> Observation:
    """Observation of a call against the right value, compared in the digits shown."""
    returned, wanted = attempt(call), show(right)
    return Observation(returned, wanted, returned != wanted)
