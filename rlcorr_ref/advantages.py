"""Group-relative advantages.

mean            A_i = R_i - mean(R)                       (the paper's and Dr. GRPO's choice)
mean_std        A_i = (R_i - mean(R)) / (std(R) + eps)    (GRPO, arXiv 2402.03300; std over the group)
leave_one_out   A_i = R_i - mean of the others            (RLOO, arXiv 2402.14740) = n/(n - 1) (R_i - mean(R))
"""

from __future__ import annotations

import numpy as np

from .errors import ContractError, check_choice, check_number


def group_advantages(
    rewards: np.ndarray,
    groups: np.ndarray,
    kind: str = "mean",
    *,
    eps: float = 1e-6,
    ddof: int = 1,
) -> np.ndarray:
    """Advantages [B] from rewards [B] float64 and group ids [B].

    A one-element group has advantage 0 under "mean" and "mean_std" (no deviation exists) and keeps its reward under
    "leave_one_out" (there is nobody to compare with, the baseline is 0). Equal rewards give 0 everywhere, whatever eps:
    0/(0 + eps). `ddof` 1 divides the variance by n - 1 (torch.std, used by verl and TRL), 0 by n.
    Raises `ContractError` for wrong shapes, non-finite rewards, unknown kinds.
    """
    rewards, groups = np.asarray(rewards), np.asarray(groups)
    check_choice("kind", kind, ("mean", "mean_std", "leave_one_out"))
    check_number("eps", eps, at_least=0.0)
    if ddof not in (0, 1):
        raise ContractError(f"ddof: expected 0 or 1, got {ddof!r}")
    if rewards.dtype != np.float64:
        raise ContractError(f"rewards: expected float64, got {rewards.dtype}")
    if rewards.ndim != 1 or groups.shape != rewards.shape:
        raise ContractError(f"groups: expected shape [B] like rewards {list(rewards.shape)}, got {list(groups.shape)}")
    if not np.isfinite(rewards).all():
        raise ContractError("rewards: expected finite numbers")
    _, index = np.unique(groups, return_inverse=True)
    count = np.bincount(index).astype(np.float64)
    first = np.zeros(count.size)
    first[index] = rewards  # any member: shifting by it keeps equal rewards exactly equal to their mean
    deviation = rewards - first[index]
    mean = np.bincount(index, weights=deviation) / count
    centered = deviation - mean[index]
    if kind == "mean":
        return centered
    if kind == "leave_one_out":
        n = count[index]
        return np.where(n > 1, centered * n / np.maximum(n - 1, 1), rewards)
    variance = np.bincount(index, weights=centered**2) / np.maximum(count - ddof, 1)
    scale = np.sqrt(variance)[index] + eps
    return np.where(centered == 0.0, 0.0, centered / np.where(scale == 0.0, 1.0, scale))
