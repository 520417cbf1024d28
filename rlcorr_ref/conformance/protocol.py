"""What an adapter is: a file with functions named after the contract's functions, answering cases with a package's
own code.

    NAME = "my trainer"
    def weight(parameters, logp_trainer, logp_sampler, mask, **_): return {"weights": ...}
    def objective(definition, logp_trainer, logp_sampler, mask, advantages, **_): return {"grad_logp": ...}

Arguments are the case's inputs at log-prob level as arrays of the contract's shapes ([B, T] unless said otherwise)
and the complete settings. Optional names: TITLE, DTYPE ("fp32"), ARRAYS ("torch", "numpy", "lists"), FAMILIES,
FEATURES (supported features, patterns such as "weight.*"; a case that needs another is not supported); and for
packages DISTRIBUTION, VERIFIED (first version, first version no longer covered), DIALECT, ENTRY and `load()`,
which returns the object with the functions.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ContractError, check_choice
from ..vectors.adopt.selection import expand
from ..vectors.model import DTYPES

BUILT_IN = ("verl", "trl", "ms_swift", "openrlhf", "areal", "skyrl", "tinker_cookbook")
FUNCTIONS = (
    "objective",
    "weight",
    "ratio",
    "reject",
    "surrogate",
    "aggregate",
    "advantages",
    "diagnostics",
    "head_coefficients",
    "log_softmax",
    "quantise",
    "shard",
)
LIBRARIES = ("torch", "numpy", "lists")


class NotSupported(Exception):
    """Raised by an adapter where the package has no option with the meaning of the case; the message says which is
    missing.
    """


@dataclass(frozen=True)
class Named:
    """An answer given by an option of the same name that the package documents with another meaning.

    `outputs` are the package's numbers. What they should be under that meaning is `settings` (parameters or
    definition that the reference evaluates), `renamed` (output -> name of the dialect metric that the reference
    reports) or `values` (computed with reference functions); `shift` is added to the value so far, array by array.
    `why` states the documented difference. Numbers that equal the published ones pass as they are.
    """

    outputs: Mapping[str, Any]
    why: str
    settings: Mapping[str, Any] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    shift: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Adapter:
    """An adapter file ready to run. `status` is "ready", or "not run" with the `reason`."""

    name: str
    title: str
    module: ModuleType
    dtype: str = "fp32"
    arrays: str = "torch"
    version: str = ""
    verified: str = ""
    entry: str = "functions given in the file"
    dialect: str = ""
    families: tuple[str, ...] = ()
    features: frozenset[str] | None = None
    status: str = "ready"
    reason: str = ""
    handlers: Any = None

    def handler(self, function: str) -> Any:
        """The adapter's function for a contract function, or None."""
        return getattr(self.handlers, function, None)

    def absent(self, function: str) -> str:
        """Why there is no function for it."""
        return getattr(self.module, "ABSENT", {}).get(function, f"no entry point for {function!r}")


def read_adapter(name: str) -> Adapter:
    """A built-in adapter by name ("verl", "ms-swift"). Raises `ContractError` listing the known names."""
    stem = name.replace("-", "_")
    if stem not in BUILT_IN:
        known = ", ".join(n.replace("_", "-") for n in BUILT_IN)
        raise ContractError(
            f"conformance: unknown package {name!r}; known: {known}; your own functions: --adapter FILE"
        )
    return prepare(importlib.import_module(f"rlcorr_ref.conformance.adapters.{stem}"), stem)


def read_file(path: Path) -> Adapter:
    """A user's adapter file. Raises `ContractError` where it cannot be read, fails to import or answers nothing."""
    if not path.is_file():
        raise ContractError(
            f"--adapter {path}: no such file; give a Python file with functions such as weight or objective"
        )
    specification = importlib.util.spec_from_file_location(f"rlcorr_adapter_{path.stem}", path)
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises on import belongs to the message, not to a traceback
        raise ContractError(f"--adapter {path}: importing it raised {type(error).__name__}: {error}") from None
    return prepare(module, path.stem)


def prepare(module: ModuleType, stem: str) -> Adapter:
    """Check a module's names and load its package; an absent or other version leaves the adapter "not run"."""
    name = str(getattr(module, "NAME", stem.replace("_", "-")))
    adapter = Adapter(
        name=name,
        title=str(getattr(module, "TITLE", name)),
        module=module,
        dtype=check_choice(f"{name}: DTYPE", getattr(module, "DTYPE", "fp32"), DTYPES),
        arrays=check_choice(f"{name}: ARRAYS", getattr(module, "ARRAYS", "torch"), LIBRARIES),
        entry=str(getattr(module, "ENTRY", Adapter.entry)),
        dialect=str(getattr(module, "DIALECT", "")),
        families=tuple(getattr(module, "FAMILIES", ())),
        features=expand(f"{name}: FEATURES", module.FEATURES) if hasattr(module, "FEATURES") else None,
    )
    if not _version_fits(adapter):
        return adapter
    try:
        adapter.handlers = module.load() if hasattr(module, "load") else module
    except ImportError as error:
        return _stopped(adapter, f"cannot be imported here: {error}")
    if not any(adapter.handler(function) for function in FUNCTIONS):
        raise ContractError(f"{name}: the adapter defines none of {', '.join(FUNCTIONS)}")
    return adapter


def _version_fits(adapter: Adapter) -> bool:
    distribution = getattr(adapter.module, "DISTRIBUTION", None)
    if distribution is None:
        return True
    first, beyond = adapter.module.VERIFIED
    adapter.verified = f">={first},<{beyond}"
    try:
        adapter.version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        _stopped(adapter, f"not installed; pip install --no-deps {distribution}=={first}")
        return False
    if not numbers(first) <= numbers(adapter.version) < numbers(beyond):
        _stopped(
            adapter,
            f"version {adapter.version} is outside {adapter.verified}, which this adapter was verified against; "
            f"pip install --no-deps {distribution}=={first}, or extend the adapter",
        )
        return False
    return True


def _stopped(adapter: Adapter, reason: str) -> Adapter:
    adapter.status, adapter.reason = "not run", reason
    return adapter


def numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: "0.9.1.post2+cpu" -> (0, 9, 1)."""
    out = []
    for part in version.split("+")[0].split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        out.append(int(digits[0]))
        if digits[0] != part:
            break
    return tuple(out)
