"""The records of a vector set as typed models; `schema.py` generates the JSON Schema from them.

Axes of arrays follow the contract: B rows, T response positions, V vocabulary, K head width; log-probs in nats.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

SET_VERSION = "2026.1"
SCHEMA_VERSION = 1


class Nested:
    """Type of a value in the data: a number, "NaN", "Infinity", "-Infinity", null, or nested lists of these."""


DTYPES = ("fp64", "fp32", "bf16")
UNIT_ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-8}
ACCUMULATOR_ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-24}
LEVELS = ("logits", "logprobs", "weights", "trace")

BUG_TYPES = (
    "BASIC",
    "DEFINITION",
    "GRADIENT_LEAK",
    "REDUCTION",
    "MASKING",
    "TRUNCATION_EDGE",
    "OVERFLOW",
    "PRECISION",
    "METRIC_ONLY",
    "DISTRIBUTION_MISMATCH",
)


@dataclass(frozen=True)
class Expected:
    """One output: its value and how far a correct answer may lie from it, entry by entry.

    tol = m (u err_scale + u_acc acc_scale); `err_scale` has the shape of `data` or is one number, `acc_scale` is one number.
    kind "exact" (masks, counts, number grids) has no tolerance.
    """

    data: Nested
    kind: Literal["real", "exact"] = "real"
    err_scale: Nested = None
    acc_scale: float | None = None


@dataclass(frozen=True)
class Level:
    """A point of entry: what is given in addition to the case's own inputs, and which outputs are judged there."""

    required: list[str]
    optional: list[str] = field(default_factory=list)
    inputs: dict[str, Nested] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """The value under another documented definition: informative, never judged."""

    expected: dict[str, Nested]
    note: str


@dataclass(frozen=True)
class Source:
    """Where the formula or the fault comes from."""

    role: Literal["definition", "regression"]
    cite: str


@dataclass(frozen=True)
class Precision:
    """How the value was obtained: digits of the evaluation it is rounded from, and the largest disagreement of a witness.

    `disagreement` = max over judged entries of |float64 closed form - value|/err_scale.
    """

    method: str
    digits: int
    witness: str
    disagreement: float


@dataclass(frozen=True)
class Case:
    """One vector. `sha256` covers what is computed (function, definition or parameters, inputs, values), never the text."""

    id: str
    slug: str
    title: str
    description: str
    function: str
    inputs: dict[str, Nested]
    expected: dict[str, Expected]
    levels: dict[str, Level]
    derivation: str
    source: list[Source]
    flags: list[str]
    features: list[str]
    dtypes: list[str]
    margin: float | None
    precision: Precision
    kills: list[str]
    status: Literal["active", "withdrawn", "errata"]
    since: str
    sha256: str
    definition: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None
    dialects: dict[str, Dialect] = field(default_factory=dict)
    errata: int = 0
    superseded_by: str | None = None
    withdrawn_because: str | None = None


@dataclass(frozen=True)
class Note:
    """A flag: the class of fault that a case exposes."""

    bug_type: Literal[BUG_TYPES]  # type: ignore[valid-type]
    description: str
    effect: str
    links: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FamilyFile:
    """One file of cases, with the notes that its flags refer to."""

    family: str
    title: str
    schema: int
    set_version: str
    axes: dict[str, str]
    notes: dict[str, Note]
    number_of_cases: int
    cases: list[Case]


@dataclass(frozen=True)
class ManifestFile:
    """Checksum of one file."""

    sha256: str
    bytes: int
    cases: int


@dataclass(frozen=True)
class Manifest:
    """The set: what belongs to it, with a checksum per file and per case."""

    schema: int
    set_version: str
    interpreting: str
    counts: dict[str, int]
    files: dict[str, ManifestFile]
    cases: dict[str, str]
    generator: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What a consumer returns for one case: outputs by name, and optionally where it entered and in which precision."""

    dtype: Literal["fp64", "fp32", "bf16"] = "fp64"
    level: Literal["logits", "logprobs", "weights", "trace"] = "logits"


OMIT_WHEN_EMPTY = {"dialects", "errata", "superseded_by", "withdrawn_because", "optional"}
OMIT_WHEN_NONE = {"err_scale", "acc_scale", "definition", "parameters"}


def plain(record: Any) -> Any:
    """A record as plain JSON values; optional keys without content are left out."""
    if hasattr(record, "__dataclass_fields__"):
        out = {}
        for f in fields(record):
            value = getattr(record, f.name)
            if f.name in OMIT_WHEN_EMPTY and not value or f.name in OMIT_WHEN_NONE and value is None:
                continue
            if f.name == "inputs" and isinstance(record, Level) and not value:
                continue
            out[f.name] = plain(value)
        return out
    if isinstance(record, dict):
        return {key: plain(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [plain(value) for value in record]
    return record


# What the checksum of a case covers: changing any of it would change what a consumer has to compute.
VALUE_KEYS = ("id", "function", "definition", "parameters", "inputs")


def value_part(case: dict[str, Any]) -> dict[str, Any]:
    """The part of a plain case record that is frozen once published: identity, question and answer, without the text.

    Tolerance scales are left out: they may be widened (an erratum), which never fails a consumer that passed.
    """
    out = {key: case[key] for key in VALUE_KEYS if key in case}
    out["expected"] = {name: entry["data"] for name, entry in case["expected"].items()}
    out["levels"] = {
        name: {"inputs": level.get("inputs", {}), "required": level["required"]}
        for name, level in case["levels"].items()
    }
    return out
