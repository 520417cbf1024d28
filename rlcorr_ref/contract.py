"""The definition of an objective as typed records: every key of the contract, its default and its errors.

A definition says *what* is computed (which weight, which truncation, which centering, which reduction) and nothing
about the data. `Objective.from_dict` reads the wire form; `to_dict` writes it back with every default spelled out.
All records are frozen: a definition can be cited, hashed and compared.

Symbols: p trainer (after temperature and support), o anchor (the frozen trainer before the update), q sampler,
n the numerator of the importance ratio (o where an anchor is given, else p).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from .errors import ContractError, check_bool, check_keys, check_number
from .records import KL, Aggregation, Band, Centering, Gate, RejectionRule, Surrogate, WeightRule, build

if TYPE_CHECKING:
    from .batch import Batch
    from .objective import Evaluation

__all__ = ["KL", "Aggregation", "Band", "Centering", "Gate", "Objective", "RejectionRule", "Surrogate", "WeightRule"]

RECORDS = {
    "surrogate": Surrogate,
    "weight": WeightRule,
    "gate": Gate,
    "centering": Centering,
    "kl": KL,
    "aggregation": Aggregation,
}


@dataclass(frozen=True)
class Objective:
    """One objective of rollout correction, complete: `Objective.from_dict(definition).evaluate(batch)`.

    Fields take the records above or their wire form (mappings): `Objective(weight={"high": 2.0, "outside": "clip"})`.
    """

    temperature: float = 1.0
    surrogate: Surrogate = Surrogate()
    weight: WeightRule | None = None
    gate: Gate | None = None
    rejection: tuple[RejectionRule, ...] = ()
    centering: Centering | None = None
    kl: KL | None = None
    entropy: float | None = None
    aggregation: Aggregation = Aggregation()
    allow_double_ratio: bool = False

    def __post_init__(self) -> None:
        self._read_records()
        check_number("temperature", self.temperature, above=0.0)
        check_bool("allow_double_ratio", self.allow_double_ratio)
        if self.centering is not None and self.surrogate.kind == "gspo":
            raise ContractError(
                "centering and surrogate: gspo's row ratio is no function of the token, it cannot be centered"
            )
        if self.centering is not None and self.weight is not None and self.weight.statistic != "ratio":
            if self.centering.tail not in ("exact", "support"):
                raise ContractError(
                    f"weight.statistic and centering.tail: {self.weight.statistic!r} has no constant value on the modelled "
                    f"tail {self.centering.tail!r}; use tail 'exact' or 'support'"
                )

    def _read_records(self) -> None:
        """Turn wire forms into records; anything that is neither is refused by name."""

        def put(key: str, value: Any) -> None:
            object.__setattr__(self, key, value)

        for key, record in RECORDS.items():
            value = getattr(self, key)
            if isinstance(value, record) or (value is None and key not in ("surrogate", "aggregation")):
                continue
            if key == "surrogate":
                put(key, Surrogate.read(value))
                continue
            if key == "kl":
                check_keys(key, value, ("kind", "beta", "weighted"), ("kind", "beta"))
            put(key, build(record, key, value))
        if isinstance(self.entropy, Mapping):
            check_keys("entropy", self.entropy, ("coef",), ("coef",))
            put("entropy", check_number("entropy.coef", self.entropy["coef"]))
        elif self.entropy is not None:
            put("entropy", check_number("entropy", self.entropy))
        if not isinstance(self.rejection, (list, tuple)):
            raise ContractError(f"rejection: expected a list of rules, got {type(self.rejection).__name__}")
        rules = enumerate(self.rejection)
        put(
            "rejection",
            tuple(r if isinstance(r, RejectionRule) else RejectionRule.read(f"rejection[{i}]", r) for i, r in rules),
        )

    @classmethod
    def from_dict(cls, definition: Mapping[str, Any] | None = None) -> Objective:
        """Read the wire form; absent keys take the contract's defaults. Raises `ContractError` naming the key."""
        given = {} if definition is None else definition
        check_keys("definition", given, [f.name for f in fields(cls)])
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """The wire form with every default spelled out; `from_dict(to_dict())` gives the same record."""
        out = asdict(self)
        out["surrogate"] = self.surrogate.to_dict()
        out["rejection"] = [asdict(rule) for rule in self.rejection]
        out["entropy"] = None if self.entropy is None else {"coef": self.entropy}
        return out

    def evaluate(self, batch: Batch) -> Evaluation:
        """Loss, gradient, weights and diagnostics of this objective on `batch`; see `rlcorr_ref.objective`."""
        from .objective import evaluate

        return evaluate(self, batch)
