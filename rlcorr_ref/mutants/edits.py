"""Kinds of replacement that several mutants share: of the batch, of the raw inputs, of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from .arrays import State
from .plain import Plain

Array = np.ndarray


class EditedState(Plain):
    """Changes the batch after the forward pass, whichever way it came in."""

    def edit(self, s: State) -> State:
        raise AssertionError(f"{type(self).__name__} does not say what it edits")

    def prepare(self, x: dict[str, Array], o: Any) -> State:
        return self.edit(super().prepare(x, o))

    def tokens_only(self, x: dict[str, Array], objective: Any = None) -> State:
        return self.edit(super().tokens_only(x, objective))


class EditedInputs(Plain):
    """Changes the arrays before anything is computed."""

    def edit(self, x: dict[str, Array]) -> None:
        raise AssertionError(f"{type(self).__name__} does not say what it edits")

    def reads(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        x = {name: value.copy() for name, value in super().reads(inputs).items()}
        self.edit(x)
        return x


class EditedSettings(Plain):
    """Changes what the definition says: an option that never arrives, or arrives as another."""

    def edit(self, settings: dict[str, Any], function: str) -> None:
        raise AssertionError(f"{type(self).__name__} does not say what it edits")

    def outputs(self, function: str, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        given = deepcopy(dict(settings))
        target = given.setdefault("definition", {}) if function == "shard" else given
        self.edit(target, "objective" if function == "shard" else function)
        return super().outputs(function, inputs, given)


class Uncleaned(Plain):
    """What lies under the mask enters the arithmetic: values per token [B, T] are not selected first."""

    def clean(self, values: Array, mask: Array) -> Array:
        return values if values.ndim == 2 and values.dtype == self.dtype else super().clean(values, mask)


def last_valid(mask: Array) -> Array:
    """Marks the last valid token of each row [B, T]."""
    after = np.zeros_like(mask)
    after[:, :-1] = np.cumsum(mask[:, ::-1], axis=1)[:, ::-1][:, 1:] > 0
    return mask & ~after


def earlier(values: Array) -> Array:
    """values[:, t + 1] at t; the last position keeps its own."""
    return np.concatenate([values[:, 1:], values[:, -1:]], axis=1)


def later(values: Array) -> Array:
    """values[:, t - 1] at t; the first position keeps its own."""
    return np.concatenate([values[:, :1], values[:, :-1]], axis=1)
