"""The records of a dialect: its options with their defaults, its settings, and what one setting means.

A dialect is what one framework means by its own option names. It says nothing that the objective cannot say: every setting
translates to a definition (see `rlcorr_ref.contract`) or is refused with the reason why no definition has that meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ContractError

KINDS = ("choice", "number", "bool", "text", "mapping", "list")
# Columns of the comparison table, in order: (key, heading).
COLUMNS = (
    ("sequence", "'sequence' means"),
    ("truncation", "truncation"),
    ("mask", "mask"),
    ("boundary", "boundary"),
    ("log_clamp", "log clamp"),
    ("denominator", "denominator shrinks"),
    ("kl_weighted", "KL weighted"),
    ("default", "default"),
    ("floors", "centering floors"),
)


class NotExpressible(ContractError):
    """The framework has this setting, and no definition of the contract means the same; the message says why."""


def refuse(reason: str) -> None:
    """Raise `NotExpressible`: the setting exists in the framework but not in the contract."""
    raise NotExpressible(f"not expressible: {reason}")


@dataclass(frozen=True)
class Option:
    """One option name of a framework. Names that begin with "@" are no options: they state how the framework is run.

    `selects` is the part of the definition that it decides (weight, mask, centering, surrogate, aggregation, kl, ...);
    `choices` maps each value of a choice to its meaning, `refused` maps values that exist but have no definition to the reason.
    """

    name: str
    default: Any
    selects: str
    meaning: str
    kind: str = "number"
    choices: Mapping[Any, str] = field(default_factory=dict)
    refused: Mapping[Any, str] = field(default_factory=dict)
    optional: bool = False
    above: float | None = None
    at_least: float | None = None


@dataclass(frozen=True)
class Entry:
    """A named setting of a framework, in its own option names; `dialects.translate` gives its meaning."""

    label: str
    options: Mapping[str, Any]


@dataclass
class Draft:
    """What a dialect's `build` returns: the definition so far, the number of policies and what the reader should know.

    `policies` is "three" (the batch carries `logp_anchor`) or "two" (it must not: the old policy is the sampler).
    """

    policies: str
    definition: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, key: str, value: Any) -> None:
        """Set a key of the definition; null values and empty lists are left out, they are the contract's defaults."""
        if value is not None and value != []:
            self.definition[key] = value

    def note(self, text: str) -> None:
        """Add a line for the reader."""
        self.notes.append(text)


@dataclass(frozen=True)
class Dialect:
    """One framework: what was read and when, its options, named settings, known traps and its row of the comparison.

    `build` maps complete option values to a `Draft`. `columns` has the keys of `COLUMNS`. `sources` are files and pull
    requests; a trap is a sentence about a place where the name and the number part ways.
    """

    name: str
    title: str
    version: str
    read: str
    sources: tuple[str, ...]
    options: tuple[Option, ...]
    build: Callable[[Mapping[str, Any]], Draft]
    entries: tuple[Entry, ...]
    traps: tuple[str, ...]
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Translation:
    """What a setting means: complete options, the definition, its formula in one line, the policies and notes."""

    framework: str
    options: dict[str, Any]
    definition: dict[str, Any]
    formula: str
    policies: str
    notes: tuple[str, ...]
