"""Dialects: what each framework means by its own option names, as definitions of the contract.

    from rlcorr_ref import dialects
    definition, notes = dialects.definition("verl", {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"})

A setting that no definition can express raises `NotExpressible` with the reason. Versions and dates say what was read; a
framework may have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..contract import Objective
from ..errors import ContractError
from . import (
    areal,
    authors,
    marin,
    nemo,
    open_instruct,
    openrlhf,
    prime_rl,
    roll,
    skyrl,
    slime_miles,
    swift,
    trl,
    unirl,
    verl,
)
from .formula import formula
from .records import COLUMNS, Dialect, Draft, Entry, NotExpressible, Option, Translation
from .settings import complete

MODULES = (
    verl,
    trl,
    swift,
    slime_miles,
    skyrl,
    openrlhf,
    nemo,
    areal,
    prime_rl,
    roll,
    unirl,
    open_instruct,
    marin,
    authors,
)
REGISTRY: dict[str, Dialect] = {dialect.name: dialect for module in MODULES for dialect in module.DIALECTS}

__all__ = [
    "COLUMNS",
    "Dialect",
    "Draft",
    "Entry",
    "NotExpressible",
    "Option",
    "Translation",
    "definition",
    "get",
    "names",
    "translate",
]


def names() -> list[str]:
    """The known frameworks, in the order of the comparison table."""
    return list(REGISTRY)


def get(framework: str) -> Dialect:
    """The record of a framework. Raises `ContractError` listing the known names."""
    if framework not in REGISTRY:
        raise ContractError(f"framework: unknown name {framework!r}; known: {', '.join(REGISTRY)}")
    return REGISTRY[framework]


def translate(framework: str, options: Mapping[str, Any] | None = None) -> Translation:
    """What `options` (the framework's own names; absent ones take its defaults) mean, with formula and notes.

    Raises `ContractError` for an unknown framework, option or value (the known ones are listed) and `NotExpressible` for a
    setting that no definition has.
    """
    dialect = get(framework)
    o = complete(dialect, options or {})
    draft = dialect.build(o)
    Objective.from_dict(draft.definition)  # a definition that the contract refuses never leaves this function
    return Translation(
        framework=dialect.name,
        options=o,
        definition=draft.definition,
        formula=formula(draft.definition, draft.policies),
        policies=draft.policies,
        notes=tuple(draft.notes),
    )


def definition(framework: str, options: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[str]]:
    """The definition of a setting and the notes to it; see `translate`."""
    result = translate(framework, options)
    return result.definition, list(result.notes)
