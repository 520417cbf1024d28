"""The state of a training run as one safetensors file: policy, sampler snapshot, random states, metrics so far.

One file means one rename: whoever kills the process at any moment leaves either the old state or the new one. Numbers
that are not tensors travel as JSON in the file's metadata; nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from repro.policies import State, write_bytes

FILE = "state.safetensors"
VERSION = 2
FREE = ("steps", "checkpoint_every")  # settings that change no number of the steps already made


class StateError(RuntimeError):
    """A state that cannot be written, read or continued; the message names the file and what to do."""


@dataclass(frozen=True)
class TrainingState:
    """What a run needs to continue bit for bit after ``step`` steps."""

    config: dict[str, Any]
    step: int
    policy: State
    snapshot: State
    optimizer: State
    problems_rng: dict[str, Any]
    generator: Tensor
    metrics: list[dict[str, Any]]

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise :class:`StateError` naming every setting that differs from the run that wrote this state."""
        names = sorted(set(config) | set(self.config))
        differing = [n for n in names if n not in FREE and self.config.get(n) != config.get(n)]
        if differing:
            listed = "; ".join(f"{n}: saved {self.config.get(n)!r}, asked for {config.get(n)!r}" for n in differing)
            raise StateError(f"the saved state belongs to other settings ({listed}); use another folder for this run")


def save_state(folder: Path, state: TrainingState) -> None:
    """Write the state atomically; an OSError becomes a :class:`StateError` and leaves the previous state in place."""
    tensors = {f"policy.{name}": value.detach().contiguous() for name, value in state.policy.items()}
    # A copy: safetensors refuses two names for one storage, and without staleness policy and snapshot may share it.
    tensors |= {f"snapshot.{name}": value.detach().clone() for name, value in state.snapshot.items()}
    tensors |= {f"optimizer.{name}": value.contiguous() for name, value in state.optimizer.items()}
    tensors["generator"] = state.generator
    plain = {
        "version": VERSION,
        "config": state.config,
        "step": state.step,
        "problems_rng": state.problems_rng,
        "metrics": state.metrics,
    }
    path = Path(folder) / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, save(tensors, metadata={"run": json.dumps(plain, allow_nan=False)}))
    except OSError as error:
        raise StateError(
            f"{path}: could not save the state after step {state.step} ({error.strerror or error}); the previous state is "
            "intact. Free space or choose a writable folder, then run again: it continues from there"
        ) from error


def load_state(folder: Path) -> TrainingState | None:
    """The saved state of a folder, or None when it holds none; a damaged file is a :class:`StateError`."""
    path = Path(folder) / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as stream:
            plain = json.loads(stream.metadata()["run"])
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise StateError(
            f"{path}: not a readable training state ({error}); move the file aside to start this run again"
        ) from error
    if plain["version"] != VERSION:
        raise StateError(f"{path}: written by state version {plain['version']}, this code reads {VERSION}; start again")

    def part(prefix: str) -> State:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return TrainingState(
        plain["config"], plain["step"], part("policy."), part("snapshot."), part("optimizer."), plain["problems_rng"],
        tensors["generator"], plain["metrics"],
    )  # fmt: skip
