"""rlcorr_ref: float64 reference gradients for rollout correction in LLM reinforcement learning.

from rlcorr_ref import Batch, Objective
Objective.from_dict({"weight": {"level": "token", "high": 2.0, "outside": "clip"}}).evaluate(batch).grad_logits
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import Batch
    from .contract import Objective
    from .errors import ContractError
    from .objective import Evaluation
    from .wire import evaluate_case

__version__ = "0.1.0"
__all__ = ["Batch", "ContractError", "Evaluation", "Objective", "evaluate_case"]

# Name -> module: NumPy and SciPy are imported with the first name that is used, so that the pytest plugin costs others nothing.
_HOMES = {
    "Batch": "batch",
    "ContractError": "errors",
    "Evaluation": "objective",
    "Objective": "contract",
    "evaluate_case": "wire",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
