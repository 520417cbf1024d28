"""Mutants: named wrong implementations. A mutant is a `Plain` with one step replaced, a record, and its smallest input.

    @mutant("clip-not-reduced", [24], "rllm #81", "formula", SURROGATE, smallest=Smallest(case, "value", right=.., wrong=..))
    class ClipNotReduced(Plain):
        '''loss = max(L1, L2) is formed and L1 is reduced: clipping has no effect.'''
        def clipped_objective(...): ...

Names are permanent: they appear in published vectors under "kills".
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ContractError
from .plain import Plain

FAULTS = ("formula", "shape", "mask", "reduction", "numerics", "semantics")
RAISES = "raises"

OBJECTIVE = ("objective", "shard")
RATIO = ("ratio", "weight", "diagnostics", *OBJECTIVE)
WEIGHT = ("weight", "diagnostics", *OBJECTIVE)
REJECT = ("reject", "diagnostics", *OBJECTIVE)
SURROGATE = ("surrogate", "diagnostics", *OBJECTIVE)
LOG_PROBS = ("ratio", "weight", "reject", "surrogate", "diagnostics", *OBJECTIVE)
HEAD = ("head_coefficients", *OBJECTIVE)
LOGITS = ("log_softmax", *OBJECTIVE)
METRIC = ("diagnostics", "objective")
REDUCTION = ("aggregate", *OBJECTIVE)

MODULES = (
    "faults_weights",
    "faults_bands",
    "faults_sequence",
    "faults_clips",
    "faults_masks",
    "faults_rejection",
    "faults_metrics",
    "faults_pooling",
    "faults_overflow",
    "faults_kl",
    "faults_reductions",
    "faults_shards",
    "faults_logprobs",
    "faults_alignment",
    "faults_head",
    "faults_tail",
    "faults_centering",
    "faults_attached",
    "faults_advantages",
    "faults_quantise",
)


@dataclass(frozen=True)
class Smallest:
    """The smallest input that shows a fault: `output` is `right` in the reference and `wrong` in the mutant.

    `wrong` "raises" means that the mutant raises where the reference answers. Numbers as published, to about four digits.
    """

    case: Mapping[str, Any]
    output: str
    right: Any
    wrong: Any


@dataclass(frozen=True)
class Mutant:
    """One wrong implementation: permanent name, upstream threads, fault class, what is wrong, where it can show.

    `entries` number the public reports it retells (see `catalogue`); `dtype` is the precision in which the fault shows.
    """

    name: str
    entries: tuple[int, ...]
    threads: str
    fault: str
    says: str
    functions: tuple[str, ...]
    smallest: Smallest
    build: type[Plain]
    dtype: type = np.float64

    def implementation(self, metrics: bool = True) -> Plain:
        return self.build(self.dtype, metrics)

    def answer(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """The wrong answer to one case, in the wire format of `rlcorr_ref.evaluate_case`."""
        return self.implementation().answer(case)


_FOUND: dict[str, Mutant] = {}


def mutant(
    name: str,
    entries: Iterable[int],
    threads: str,
    fault: str,
    functions: tuple[str, ...],
    smallest: Smallest,
    dtype: type = np.float64,
) -> Callable[[type[Plain]], type[Plain]]:
    """Register a class as the mutant `name`; its docstring says what is wrong, as a formula."""
    if fault not in FAULTS:
        raise ContractError(f"mutant {name}: fault {fault!r} is not one of {', '.join(FAULTS)}")

    def register(build: type[Plain]) -> type[Plain]:
        if name in _FOUND:
            raise ContractError(f"mutant {name}: declared twice; names are permanent")
        says = " ".join((inspect.getdoc(build) or "").split())
        if not says:
            raise ContractError(f"mutant {name}: needs a docstring that says what is wrong")
        _FOUND[name] = Mutant(name, tuple(entries), threads, fault, says, functions, smallest, build, dtype)
        return build

    return register


def mutants() -> dict[str, Mutant]:
    """All mutants by name; the modules that declare them are imported on first use."""
    for module in MODULES:
        importlib.import_module(f".{module}", __package__)
    return dict(sorted(_FOUND.items()))


def get(name: str) -> Mutant:
    """One mutant. Raises `ContractError` for an unknown name."""
    found = mutants()
    if name not in found:
        raise ContractError(f"mutant: unknown name {name!r}; known: {', '.join(found)}")
    return found[name]
