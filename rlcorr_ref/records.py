"""The parts of a definition as typed records: every key of the contract with its default, and what is refused.

One record per key of a definition; `rlcorr_ref.contract` puts them together. Symbols: p trainer (after temperature and support),
o anchor (the frozen trainer before the update), q sampler, n the numerator of the importance ratio (o where given, else p).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors import ContractError, check_bool, check_choice, check_keys, check_number

LEVELS = ("token", "sequence", "geometric", "segment")
SIGNS = ("both", "positive", "negative")
NUMERATORS = (None, "anchor", "trainer")
TAILS = ("rescaled", "exact", "support", "dropped", "renormalised", "uniform")
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
SURROGATE_KEYS = {
    "reinforce": {},
    "ppo_clip": {"eps_low": 0.2, "eps_high": 0.2, "dual": None},
    "cispo": {"eps_low": None, "eps_high": 0.2},
    "gspo": {"eps_low": 3e-4, "eps_high": 4e-4},
}


def build(cls, where: str, given: Mapping[str, Any]):
    """Construct a record from wire keys, refusing keys that it does not have."""
    check_keys(where, given, [f.name for f in fields(cls)])
    return cls(**given)


@dataclass(frozen=True)
class Band:
    """Bounds [low, high] on a ratio (or on a tv statistic); None means no bound on that side."""

    low: float | None = 0.0
    high: float | None = None

    @classmethod
    def read(cls, where: str, given: Any) -> Band:
        check_keys(where, given, ("low", "high"))
        band = cls(
            check_number(f"{where}.low", given.get("low", 0.0), optional=True),
            check_number(f"{where}.high", given.get("high"), optional=True),
        )
        if band.low is not None and band.high is not None and band.low > band.high:
            raise ContractError(f"{where}: low {band.low:g} is above high {band.high:g}")
        return band

    def bounded(self, signed: bool) -> bool:
        """Whether a side is really bounded: a ratio or |p - q| is never below 0, a signed difference can be."""
        return self.high is not None or (self.low is not None and (signed or self.low > 0))


@dataclass(frozen=True)
class Surrogate:
    """Policy-gradient surrogate: value s and slope ds/d log p per token. See `rlcorr_ref.surrogates`."""

    kind: str = "reinforce"
    eps_low: float | None = None
    eps_high: float | None = None
    dual: float | None = None

    @classmethod
    def read(cls, given: Any) -> Surrogate:
        where = "surrogate"
        check_keys(where, given, ("kind", "eps_low", "eps_high", "dual"), ("kind",))
        kind = check_choice(f"{where}.kind", given["kind"], SURROGATE_KEYS)
        defaults = SURROGATE_KEYS[kind]
        check_keys(f"{where} of kind {kind!r}", given, ("kind", *defaults))
        value = {**defaults, **{k: v for k, v in given.items() if k != "kind"}}
        for key in ("eps_low", "eps_high"):
            if key in value:
                value[key] = check_number(f"{where}.{key}", value[key], optional=kind == "cispo", at_least=0.0)
        if "dual" in value:
            value["dual"] = check_number(f"{where}.dual", value["dual"], optional=True, above=1.0)
        return cls(kind, **value)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **{key: getattr(self, key) for key in SURROGATE_KEYS[self.kind]}}


@dataclass(frozen=True)
class WeightRule:
    """Detached importance weight w = f(rho): inside the band rho (or 1), outside the nearest bound or 0."""

    level: str = "token"
    low: float | None = 0.0
    high: float | None = None
    positive: Band | None = None
    negative: Band | None = None
    outside: str | None = None
    inside: str = "ratio"
    sign: str = "both"
    statistic: str = "ratio"
    numerator: str | None = None
    log_clamp: float | None = None
    clamp_order: str = "aggregate"
    closed: bool = True
    normalise: str | None = None

    def __post_init__(self) -> None:
        where = "weight"
        check_choice(f"{where}.level", self.level, LEVELS)
        check_choice(f"{where}.inside", self.inside, ("ratio", "one"))
        check_choice(f"{where}.sign", self.sign, SIGNS)
        check_choice(f"{where}.statistic", self.statistic, ("ratio", "tv", "tv_signed"))
        check_choice(f"{where}.numerator", self.numerator, NUMERATORS)
        check_choice(f"{where}.clamp_order", self.clamp_order, ("aggregate", "token"))
        check_choice(f"{where}.normalise", self.normalise, (None, "tokens", "rows"))
        check_choice(f"{where}.outside", self.outside, (None, "clip", "zero"))
        check_bool(f"{where}.closed", self.closed)
        check_number(f"{where}.log_clamp", self.log_clamp, optional=True, above=0.0)
        bands = {where: Band.read(where, {"low": self.low, "high": self.high})}
        for key in ("positive", "negative"):
            value = getattr(self, key)
            if isinstance(value, Mapping):
                object.__setattr__(self, key, Band.read(f"{where}.{key}", value))
            elif value is not None and not isinstance(value, Band):
                raise ContractError(f"{where}.{key}: expected null or an object with low and high, got {value!r}")
            if getattr(self, key) is not None:
                bands[f"{where}.{key}"] = getattr(self, key)
        signed = self.statistic == "tv_signed"
        for name, band in bands.items():
            if not signed and band.low is not None and band.low < 0:
                raise ContractError(
                    f"{name}.low: expected a number >= 0 for statistic {self.statistic!r}, got {band.low}"
                )
            if band.bounded(signed) and self.outside is None:
                raise ContractError(f"{where}.outside: required ('clip' or 'zero') because {name} has a finite bound")
        if self.statistic != "ratio":
            if self.outside == "clip":
                raise ContractError("weight.statistic and weight.outside: tv statistics go with outside 'zero' only")
            if self.level != "token":
                raise ContractError("weight.statistic and weight.level: tv statistics exist at level 'token' only")
        if self.clamp_order == "token" and self.log_clamp is None:
            raise ContractError("weight.clamp_order and weight.log_clamp: an order needs a clamp; log_clamp is null")

    def band(self, positive: bool) -> Band:
        """The band that holds for A >= 0 (`positive`) or A < 0."""
        own = self.positive if positive else self.negative
        return own if own is not None else Band(self.low, self.high)


@dataclass(frozen=True)
class Gate:
    """A 0/1 factor on the weight: 1 where the ratio at `level` lies in the band."""

    level: str = "token"
    low: float | None = 0.0
    high: float | None = None
    closed: bool = True
    sign: str = "both"
    numerator: str | None = None

    def __post_init__(self) -> None:
        check_choice("gate.level", self.level, LEVELS)
        check_choice("gate.sign", self.sign, SIGNS)
        check_choice("gate.numerator", self.numerator, NUMERATORS)
        check_bool("gate.closed", self.closed)
        Band.read("gate", {"low": self.low, "high": self.high})
        check_number("gate.low", self.low, optional=True, at_least=0.0)


@dataclass(frozen=True)
class RejectionRule:
    """A rule that edits the mask: keep a token or a row where its statistic lies in the band."""

    statistic: str = "ratio"
    reduce: str = "token"
    low: float | None = None
    high: float | None = None
    closed: bool = True
    sign: str = "both"
    log_clamp: float | None = None
    numerator: str | None = None
    denominator: str = "kept"

    @classmethod
    def read(cls, where: str, given: Any) -> RejectionRule:
        check_keys(where, given, [f.name for f in fields(cls)], ("statistic", "reduce"))
        check_choice(f"{where}.statistic", given["statistic"], ("ratio", "k1", "k2", "k3", "tv", "binary_kl"))
        check_choice(f"{where}.reduce", given["reduce"], ("token", "sum", "mean", "max"))
        rule = cls(**given)
        check_choice(f"{where}.sign", rule.sign, SIGNS)
        check_choice(f"{where}.numerator", rule.numerator, NUMERATORS)
        check_choice(f"{where}.denominator", rule.denominator, ("kept", "shrunk"))
        check_bool(f"{where}.closed", rule.closed)
        check_number(f"{where}.log_clamp", rule.log_clamp, optional=True, above=0.0)
        Band.read(where, {"low": rule.low, "high": rule.high})
        if rule.low is None and rule.high is None:
            raise ContractError(f"{where}: a rule needs low or high; both are null, so it would keep everything")
        return rule


@dataclass(frozen=True)
class Centering:
    """Score centering: subtract the modelled sampler's expectation of the effective score."""

    tail: str = "rescaled"
    floor_sampler: float | None = 1e-6
    floor_trainer: float | None = 1e-6

    def __post_init__(self) -> None:
        check_choice("centering.tail", self.tail, TAILS)
        check_number("centering.floor_sampler", self.floor_sampler, optional=True, above=0.0)
        check_number("centering.floor_trainer", self.floor_trainer, optional=True, above=0.0)


@dataclass(frozen=True)
class KL:
    """KL term to the reference policy on the sampled token, times `beta`; `weighted` multiplies it by w."""

    kind: str
    beta: float
    weighted: bool = False

    def __post_init__(self) -> None:
        check_choice("kl.kind", self.kind, ("k1", "k2", "k3", "k3+"))
        check_number("kl.beta", self.beta)
        check_bool("kl.weighted", self.weighted)


@dataclass(frozen=True)
class Aggregation:
    """Reduction of the per-token loss to a scalar, with optional explicit (global) denominators."""

    kind: str = "token-mean"
    length: float | None = None
    tokens: float | None = None
    sequences: float | None = None

    def __post_init__(self) -> None:
        check_choice("aggregation.kind", self.kind, AGGREGATIONS)
        for key in ("length", "tokens", "sequences"):
            check_number(f"aggregation.{key}", getattr(self, key), optional=True, above=0.0)
        norm = self.kind == "seq-mean-token-sum-norm"
        if norm and self.length is None:
            raise ContractError(f"aggregation.length: required (> 0) for kind {self.kind!r}")
        if not norm and self.length is not None:
            raise ContractError(f"aggregation.length and aggregation.kind: {self.kind!r} takes no length")
        if self.tokens is not None and self.kind != "token-mean":
            raise ContractError(f"aggregation.tokens and aggregation.kind: {self.kind!r} does not divide by tokens")
        if self.sequences is not None and not self.kind.startswith("seq-mean"):
            raise ContractError(
                f"aggregation.sequences and aggregation.kind: {self.kind!r} does not divide by sequences"
            )
