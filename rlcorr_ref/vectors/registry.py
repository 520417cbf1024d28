"""Where cases are declared: one decorated function per case (or per parametrised group), ids written out and permanent.

    ratio = Family("ratio", "Importance ratios at every level")

    @ratio.case(7, "product-not-geometric", flags=["SeqProductVsGeomean"])
    def _():
        '''Title.

        Description: what is computed and which mistake it exposes.
        '''
        return envelope("ratio", inputs, parameters)

An id is `<family>.<serial with 4 digits>`. It is assigned once, never reused, never renumbered; order means nothing.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ContractError
from .model import Source

# One file per family, in the order of the notebooks that derive them.
FAMILIES = (
    "logsoftmax",
    "ratio",
    "weight",
    "gate",
    "reject",
    "surrogate",
    "grad",
    "centre",
    "coef",
    "agg",
    "shard",
    "adv",
    "kl",
    "diag",
    "quant",
    "edge",
    "faults",
    "trace",
)

# Families whose cases fill more than one module: the first defines the family, the others add to it.
MORE = {
    "grad": ("grad_pairs",),
    "weight": ("weight_limits",),
    "centre": ("centre_limits", "centre_zeros"),
    "faults": ("faults_objective", "faults_head"),
}

SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass
class Draft:
    """A case as its author states it; everything else (values, scales, margin, features) is computed.

    `outputs` are judged, in wire names ("diagnostics.tail_ratio_max" reaches into the diagnostics); None takes the
    function's standard outputs. `dialects`: name -> (settings, note), evaluated under those settings on the same inputs.
    `metrics`: framework -> {output: its name in the diagnostics, such as "chi2_seq@verl"}, further dialect values.
    `trace`: the program of a trace case (see INTERPRETING.md). `fp64_only`: the case tests what no narrower dtype can hold.
    """

    function: str
    inputs: dict[str, Any]
    settings: dict[str, Any]
    outputs: tuple[str, ...] | None = None
    dialects: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    metrics: dict[str, dict[str, str]] = field(default_factory=dict)
    trace: dict[str, Any] | None = None
    fp64_only: bool = False
    id: str = ""
    slug: str = ""
    title: str = ""
    description: str = ""
    derivation: str = ""
    flags: list[str] = field(default_factory=list)
    source: list[Source] = field(default_factory=list)

    @property
    def envelope(self) -> dict[str, Any]:
        """The wire form that `evaluate_case` takes."""
        key = "definition" if self.function == "objective" else "parameters"
        return {"function": self.function, "inputs": self.inputs, key: self.settings}


def envelope(function: str, inputs: dict[str, Any], settings: dict[str, Any] | None = None, **more: Any) -> Draft:
    """A draft from the three parts of the wire format."""
    return Draft(function, inputs, settings or {}, **more)


def row(slug: str, title: str, says: str, **arguments: Any) -> dict[str, Any]:
    """One row of a parametrised group: `says` is what this row catches; `flags` and `regression` are the case's own, everything
    else goes to the decorated function."""
    return {"slug": slug, "title": title, "says": says, **arguments}


class Family:
    """The cases of one file. `derivation` is the notebook anchor that derives them, overridable per case."""

    def __init__(self, name: str, title: str, derivation: str, source: Iterable[str] = ()) -> None:
        self.name, self.title, self.derivation = name, title, derivation
        self.source = [Source("definition", text) for text in source]
        self.builders: dict[str, Callable[[], Draft]] = {}

    def case(
        self, serial: int, slug: str, *, flags: Iterable[str], derivation: str = "", regression: Iterable[str] = ()
    ) -> Callable[[Callable[[], Draft]], Callable[[], Draft]]:
        """Declare one case; the docstring's first line is its title, the rest its description."""

        def register(function: Callable[[], Draft]) -> Callable[[], Draft]:
            self._add(serial, slug, inspect.getdoc(function) or "", list(flags), derivation, list(regression), function)
            return function

        return register

    def cases(
        self, rows: Mapping[int, Mapping[str, Any]], *, flags: Iterable[str] = (), derivation: str = ""
    ) -> Callable[[Callable[..., Draft]], Callable[..., Draft]]:
        """Declare one case per `row`: serial -> row. The function's docstring, shared by the rows, says what is computed."""

        def register(function: Callable[..., Draft]) -> Callable[..., Draft]:
            shared = inspect.getdoc(function) or ""
            for serial, row in rows.items():
                own = {k: v for k, v in row.items() if k not in ("slug", "title", "says", "flags", "regression")}
                text = f"{row['title']}\n\n{shared}\n\n{row['says']}"
                names = [*flags, *(f for f in row.get("flags", ()) if f not in flags)]

                def build(own: Mapping[str, Any] = own) -> Draft:
                    return function(**own)

                self._add(serial, row["slug"], text, names, derivation, list(row.get("regression", ())), build)
            return function

        return register

    def _add(
        self,
        serial: int,
        slug: str,
        text: str,
        flags: list[str],
        derivation: str,
        regression: list[str],
        function: Callable[[], Draft],
    ) -> None:
        if not 1 <= serial <= 9999:
            raise ContractError(f"{self.name}: expected a serial from 1 to 9999, got {serial!r}")
        name = f"{self.name}.{serial:04d}"
        if name in self.builders:
            raise ContractError(f"{name}: declared twice; serials are never reused")
        if not SLUG.fullmatch(slug):
            raise ContractError(f"{name}: slug {slug!r} is not of the form words-with-hyphens")
        title, _, rest = text.strip().partition("\n")
        description = " ".join(rest.split())
        if not title or not description:
            raise ContractError(f"{name}: the docstring needs a title line and a description of what the case catches")
        if not flags:
            raise ContractError(f"{name}: needs at least one flag; use 'Basic' for a plain case")

        def build() -> Draft:
            draft = function()
            draft.id, draft.slug, draft.title, draft.description = name, slug, title.rstrip("."), description
            draft.flags, draft.derivation = flags, derivation or self.derivation
            draft.source = [*self.source, *(Source("regression", text) for text in regression)]
            return draft

        self.builders[name] = build


def family(name: str) -> Family:
    """The declared family; its modules (`cases/<name>.py` and those of MORE) are imported on first use."""
    if name not in FAMILIES:
        raise ContractError(f"family: unknown name {name!r}; known: {', '.join(FAMILIES)}")
    found: Family = importlib.import_module(f"rlcorr_ref.vectors.cases.{name}").FAMILY
    for more in MORE.get(name, ()):
        importlib.import_module(f"rlcorr_ref.vectors.cases.{more}")
    return found


def families() -> list[Family]:
    """All declared families, in the order of FAMILIES."""
    return [family(name) for name in FAMILIES]
