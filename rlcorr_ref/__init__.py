"""rlcorr_ref: float64 reference gradients for rollout correction in LLM reinforcement learning.

from rlcorr_ref import Batch, Objective
Objective.from_dict({"weight": {"level": "token", "high": 2.0, "outside": "clip"}}).evaluate(batch).grad_logits
"""

from .batch import Batch
from .contract import Objective
from .errors import ContractError
from .objective import Evaluation
from .wire import evaluate_case

__version__ = "0.1.0"
__all__ = ["Batch", "ContractError", "Evaluation", "Objective", "evaluate_case"]
