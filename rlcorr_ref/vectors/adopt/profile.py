"""A profile: what the consumer supports and where it means something else by the same name.

    {"verl": {"algorithm": {"rollout_correction": {"rollout_is": "token"}}}}    a dialect, as `rlcorr dialects` reads it

    {"profile": "my trainer", "features": ["weight.*"], "levels": ["logprobs"], "dtypes": ["fp32"], "dialects": ["verl"],
     "overrides": {"weight": {"log_clamp": 20.0}}, "options": {"tis": {"weight": {"high": 2, "outside": "clip"}}}}

`features`, `levels` and `dtypes` restrict the cases; `dialects` names the published dialect values that hold for this consumer;
`overrides` are always-on settings: a case that has the block is judged against the value that the reference gives under it.
`options` (name -> definition) are reported when no vector covers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ... import dialects
from ...contract import Objective
from ...dialects.config import read_fragment, split
from ...dialects.pieces import THREE
from ...errors import ContractError, check_choice, check_keys
from .. import store
from ..features import features
from ..model import DTYPES, LEVELS
from .selection import DTYPE_NAMES, LEVEL_NAMES, expand, known_features

KEYS = ("profile", "features", "levels", "dtypes", "dialects", "overrides", "options")
BLOCKS = ("weight", "gate", "rejection", "centering")
# A framework's dialect speaks of rollout correction and losses; these parts of the set are outside its options.
OUTSIDE = ("advantages", "quantise", "shard", "fp32-logprobs", "temperature", "input", "support")


@dataclass(frozen=True)
class Profile:
    """A consumer's profile. `options`: name -> features that a vector for it must have, or the reason why none can."""

    name: str
    features: frozenset[str] | None = None
    levels: tuple[str, ...] = LEVELS
    dtypes: tuple[str, ...] = DTYPES
    dialects: tuple[str, ...] = ()
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, frozenset[str] | str] = field(default_factory=dict)


def read_profile(path: str) -> Profile:
    """Read a profile from JSON or YAML. Raises `ContractError` naming the file and key."""
    content = read_fragment(path)
    try:
        return of_content(content)
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from None


def of_content(content: Any) -> Profile:
    """A profile from the content of its file. Raises `ContractError` naming the key."""
    if isinstance(content, Mapping) and "profile" in content:
        return _own(content)
    if not isinstance(content, Mapping) or len(content) != 1 or next(iter(content)) not in dialects.names():
        found = ", ".join(map(repr, content)) if isinstance(content, Mapping) else type(content).__name__
        raise ContractError(
            f"expected a key 'profile', or one framework at the top ({', '.join(dialects.names())}); found {found}"
        )
    dialect, options = split(content, None)
    return of_dialect(dialect.name, options)


def _own(content: Mapping[str, Any]) -> Profile:
    check_keys("profile", content, KEYS)
    given = content.get("features")
    overrides = content.get("overrides") or {}
    check_keys("overrides", overrides, BLOCKS)
    for block, keys in overrides.items():
        if not isinstance(keys, Mapping):
            raise ContractError(f"overrides.{block}: expected an object of keys, got {type(keys).__name__}")
    known = {name for case in store.load() for name in case.get("dialects", {})}
    for name in content.get("dialects") or ():
        check_choice("dialects", name, sorted(known))
    return Profile(
        name=str(content["profile"]),
        features=None if given is None else expand("features", given),
        levels=tuple(check_choice("levels", LEVEL_NAMES.get(n, n), LEVELS) for n in content.get("levels") or LEVELS),
        dtypes=tuple(check_choice("dtypes", DTYPE_NAMES.get(n, n), DTYPES) for n in content.get("dtypes") or DTYPES),
        dialects=tuple(content.get("dialects") or ()),
        overrides=overrides,
        options={name: _features(definition) for name, definition in (content.get("options") or {}).items()},
    )


def of_dialect(name: str, configured: Mapping[str, Any]) -> Profile:
    """The profile of a framework: every feature that one of its documented settings or the configured one has.

    A log-clamp that all its weights carry becomes an override. Settings that no definition expresses are listed as options
    without a vector, with the reason.
    """
    dialect = dialects.get(name)
    settings = {entry.label: dict(entry.options) for entry in dialect.entries}
    if configured:
        settings["configured"] = dict(configured)
    for option in dialect.options:
        for value in (*option.choices, *option.refused):
            settings.setdefault(f"{option.name}={value}", {**configured, option.name: value})
    supported, clamps, options = set(), set(), {}
    for label, chosen in settings.items():
        try:
            meaning = dialects.translate(name, chosen)
        except ContractError as error:
            options[label] = str(error)
            continue
        found = _features(meaning.definition)
        clamp = (meaning.definition.get("weight") or {}).get("log_clamp")
        if meaning.definition.get("weight") is not None:
            clamps.add(clamp)
        supported |= found
        options[label] = _asked(found, meaning.policies)
    supported |= {f for f in known_features() if f.split(".")[0].split(":")[0] in OUTSIDE}
    overrides = {"weight": {"log_clamp": clamps.pop()}} if len(clamps) == 1 and None not in clamps else {}
    published = {label for case in store.load() for label in case.get("dialects", {})}
    return Profile(
        name=name,
        features=frozenset(supported),
        dialects=(name,) if name in published else (),
        overrides=overrides,
        options=options,
    )


def _asked(found: frozenset[str], policies: str) -> frozenset[str]:
    """The features that a vector for a setting must have: what the contract takes by default is not asked for by name.

    A framework's safety clamp is not its option either: the override judges it.
    """
    default = "anchor" if policies == THREE else "trainer"
    unasked = {"surrogate.kind:reinforce", "aggregation.kind:token-mean", "weight.log_clamp", "rejection.log_clamp"}
    unasked |= {f"{block}.numerator:{default}" for block in BLOCKS}
    return found - unasked


def _features(definition: Mapping[str, Any]) -> frozenset[str]:
    Objective.from_dict(definition)  # an option that the contract refuses is an error of the profile
    return frozenset(features("objective", {}, dict(definition)))
