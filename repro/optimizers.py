"""One optimizer step on the tiny policy's weights: plain SGD, or AdamW by torch, with a state that can be saved."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from repro.policies import State

BETAS = (0.9, 0.95)
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Optimizer:
    """``step(policy, gradients)`` returns the new weights; ``state()`` and ``restore()`` are for resuming bit for bit.

    "sgd": w - lr g, no momentum, no decay. "adamw": ``torch.optim.AdamW`` with betas (0.9, 0.95), eps 1e-8, no decay.
    """

    def __init__(self, kind: str, lr: float) -> None:
        self.kind, self.lr = kind, lr
        self._moments: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, policy: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> State:
        """The weights after one update; ``policy`` itself is not changed."""
        if self.kind == "sgd":
            return {name: value.detach() - self.lr * gradients[name] for name, value in policy.items()}
        updated = {name: value.detach().clone() for name, value in policy.items()}
        adam = torch.optim.AdamW(list(updated.values()), lr=self.lr, betas=BETAS, weight_decay=0.0)
        for name, value in updated.items():
            value.grad = gradients[name]
            if name in self._moments:
                adam.state[value] = self._moments[name]
        adam.step()
        self._moments = {name: dict(adam.state[value]) for name, value in updated.items()}
        for value in updated.values():
            value.grad = None
        return updated

    def state(self) -> State:
        """Moments as flat tensors, ``<moment>.<weight>``; empty for SGD."""
        return {f"{m}.{name}": moments[m].clone() for name, moments in self._moments.items() for m in MOMENTS}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned."""
        self._moments = {}
        for key, value in state.items():
            moment, _, name = key.partition(".")
            self._moments.setdefault(name, {})[moment] = value.clone()
