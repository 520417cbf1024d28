"""Tiny Countdown with fewer attempts: how long a response is decides how far a drift gets before the reward is known.

The problems, tokens, split and checker are those of `countdown_tiny`; a response holds at most ``attempts`` attempts, and
demonstrations have ``attempts`` - 1 draws of a wrong one before the right one. One attempt makes responses of exactly 11
tokens, three make 26 on average and six (`countdown_tiny` itself) 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repro.tasks import countdown_tiny


class Short:
    """`countdown_tiny` with at most ``attempts`` attempts; everything that does not depend on them is that module's."""

    def __init__(self, attempts: int):
        if not 1 <= attempts <= countdown_tiny.MAX_ATTEMPTS:
            raise ValueError(f"attempts: expected 1..{countdown_tiny.MAX_ATTEMPTS}, got {attempts}")
        self.MAX_ATTEMPTS = attempts
        self.MAX_RESPONSE = attempts * (countdown_tiny.ATTEMPT_LENGTH + 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(countdown_tiny, name)

    def demonstration(self, rng: np.random.Generator) -> tuple[countdown_tiny.Problem, list[int]]:
        return countdown_tiny.demonstration(rng, self.MAX_ATTEMPTS)

    def check(self, problem: countdown_tiny.Problem, response: Sequence[int]) -> countdown_tiny.Verdict:
        return countdown_tiny.check(problem, response, self.MAX_RESPONSE)

    def reward(self, problem: countdown_tiny.Problem, response: Sequence[int]) -> float:
        return countdown_tiny.reward(problem, response, self.MAX_RESPONSE)
