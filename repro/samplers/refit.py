"""Did the engine really take the new weights? A check after every update that tells a broken refit from quantisation.

Both make the engine depart from the trainer, and a broken refit can be the smaller of the two. So the engine's rows of
log-probs e on fixed probe sequences are held against the trainer's on the new weights (n) and on earlier ones (o):

    distance_new = mean over rows of sum_v n_v |log e_v - log n_v|          (nats; distance_old likewise)
    share        = <log e - log o, log n - log o> / |log n - log o|^2       (inner products weighted by n, rows centred)

An engine with the new weights has share 1 up to its rounding noise, however coarse its format; with the old weights it
has share 0. ``share_error`` is the standard error over rows. The first check, when there are no earlier weights,
measures the level that quantisation alone makes. As long as the weights have moved too little for the noise
(``share_error`` above 0.1) the check passes as "unresolved" and the older weights stay the point of comparison, so
that a stuck engine is found as soon as the movement has added up.

The rows are asked for twice where the engine has a prefix cache: past it and through it. Rows that differ were made
from keys and values of earlier weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config

from repro.errors import LaboratoryError
from repro.policies import State, forward
from repro.tasks import countdown_tiny as task

RESOLUTION = 0.1  # share_error up to which 0 and 1 are five standard errors from the midpoint
GROWTH = 3.0  # times the first level: beyond it the distance needs an explanation
FLOOR = 2e-5  # nats, rounding of two float32 forward passes


class RefitError(LaboratoryError):
    """The engine does not sample from the weights it was given; the message says which fault the numbers show."""


class ProbedSampler(Protocol):
    """What the check needs from an engine."""

    version: int
    prefix_caching: bool

    def next_logp(self, sequences: Tensor, *, read_cache: bool = False) -> Tensor:
        """Log-probs [N, V] of the token after each of ``sequences`` [N, L], at temperature 1."""


@dataclass(frozen=True)
class RefitReport:
    """One check. Distances and ``level`` in nats; ``share`` and ``share_error`` are NaN at the first load or without any
    movement. ``verdict``: "first load", "refitted" or "unresolved" (faults are RefitErrors).
    """

    version: int
    distance_new: float
    distance_old: float
    moved: float
    share: float
    share_error: float
    cache_distance: float
    level: float
    verdict: str

    def __str__(self) -> str:
        return (
            f"version {self.version}: {self.distance_new:.3g} nats from the new weights, {self.distance_old:.3g} from the "
            f"old, which lie {self.moved:.3g} apart; share of the movement followed {self.share:.3g} +- "
            f"{self.share_error:.2g}; quantisation alone made {self.level:.3g} at the first load"
        )


def distance(logp: Tensor, reference: Tensor) -> float:
    """Mean over rows of ``sum_v r_v |logp_v - log r_v|`` for log-probs [N, V] against ``reference`` = log r, in nats."""
    logp, reference = logp.double(), reference.double()
    return float((reference.exp() * (logp - reference).abs()).sum(-1).mean())


def share_of_movement(logp: Tensor, old: Tensor, new: Tensor) -> tuple[float, float]:
    """How far ``logp`` [N, V] went from ``old`` to ``new`` (log-probs), with its standard error over the N rows.

    NaN, NaN when ``old`` and ``new`` are the same.
    """
    logp, old, new = logp.double(), old.double(), new.double()
    weight = new.exp()

    def centred(x: Tensor) -> Tensor:
        return x - (weight * x).sum(-1, keepdim=True)

    movement = centred(new - old)
    along = (weight * centred(logp - old) * movement).sum(-1)
    square = (weight * movement.square()).sum(-1)
    total = float(square.sum())
    if total == 0:
        return math.nan, math.nan
    share = float(along.sum()) / total
    error = float((along - share * square).square().sum().sqrt()) / total
    return share, error


@torch.no_grad()
def check_refit(
    sampler: ProbedSampler,
    state: State,
    config: Qwen3Config,
    probe: Tensor,
    tolerance: float,
    *,
    previous: State | None = None,
    level: float | None = None,
) -> RefitReport:
    """Compare ``sampler`` with the trainer's ``state`` and the ``previous`` weights on ``probe`` [N, L].

    ``tolerance`` is the largest accepted ``distance_new``; ``level`` the one measured at the first load. Raises
    :class:`RefitError`: stale prefix cache, old weights, weights taken over in part, or quantisation beyond the tolerance.
    """
    new = torch.log_softmax(forward(state, config, probe)[:, -1], dim=-1)
    engine = sampler.next_logp(probe)
    if not torch.isfinite(engine).all():
        row = int((~torch.isfinite(engine)).any(-1).nonzero()[0])
        raise RefitError(f"refit: the engine's log-probs are not finite on probe {row} at version {sampler.version}")
    cache = distance(sampler.next_logp(probe, read_cache=True), engine) if sampler.prefix_caching else 0.0
    here = distance(engine, new)
    if previous is None:
        report = RefitReport(sampler.version, here, math.nan, math.nan, math.nan, math.nan, cache, here, "first load")
    else:
        old = torch.log_softmax(forward(previous, config, probe)[:, -1], dim=-1)
        share, error = share_of_movement(engine, old, new)
        # Neither clearly behind nor mostly there says nothing yet: the comparison stays with these older weights, from which
        # the next updates lead further away.
        decided = share >= 0.5 or share + 4 * error < 0.5
        verdict = "refitted" if error <= RESOLUTION and decided else "unresolved"
        known = here if level is None else level
        report = RefitReport(
            sampler.version, here, distance(engine, old), distance(old, new), share, error, cache, known, verdict
        )
    _judge(report, tolerance)
    return report


def _judge(report: RefitReport, tolerance: float) -> None:
    limit = max(GROWTH * report.level, FLOOR)
    if report.cache_distance > max(report.level, FLOOR):
        raise RefitError(
            f"refit: stale prefix cache - rows read through it lie {report.cache_distance:.3g} nats from those computed "
            f"from the weights; it was not emptied after the update. {report}"
        )
    # Four standard errors: the rounding of a quantised engine is the same on every probe row and not in the error. A run in
    # int8 came to a share of 0.44 +- 0.06 with nothing broken; old weights come to 0, and stay below one half.
    followed = report.share + 4 * report.share_error
    if report.verdict == "refitted" and followed < 0.5:
        raise RefitError(f"refit: the engine still answers with the old weights; the update did not reach it. {report}")
    if report.verdict == "refitted" and report.distance_new > limit and followed < 1:
        raise RefitError(
            f"refit: the engine took the new weights over in part only; a tied or packed matrix kept its old values. {report}"
        )
    if report.distance_new > tolerance:
        cause = {
            "first load": "at the first load, where there are no older weights: quantisation, or another model",
            "refitted": "though it follows the weights: quantisation, not a broken refit",
            "unresolved": "and the weights have moved too little to tell quantisation from a broken refit",
        }[report.verdict]
        raise RefitError(
            f"refit: the engine departs from the trainer by more than the tolerance of {tolerance:g} nats {cause}. {report}"
        )


class RefitCheck:
    """:func:`check_refit` after every update of one run, remembering the first level and the weights to compare with.

    ``reports`` holds every report. Callable as ``check(sampler, state)``, which is what ``VllmSampler(refit=...)`` takes.
    """

    def __init__(self, config: Qwen3Config, probe: Tensor, tolerance: float):
        if probe.ndim != 2 or probe.dtype != torch.int64 or len(probe) < 2:
            raise ValueError(f"probe: expected int64 [N >= 2, L], got {probe.dtype} {tuple(probe.shape)}")
        if not tolerance > 0:
            raise ValueError(f"tolerance: expected a positive number of nats, got {tolerance}")
        self.config, self.probe, self.tolerance = config, probe, tolerance
        self.reports: list[RefitReport] = []
        self._previous: State | None = None
        self._level: float | None = None

    def __call__(self, sampler: ProbedSampler, state: State) -> RefitReport:
        report = check_refit(
            sampler, state, self.config, self.probe, self.tolerance, previous=self._previous, level=self._level
        )
        if self._level is None:
            self._level = report.level
        if report.verdict != "unresolved":
            self._previous = {name: value.detach().clone() for name, value in state.items()}
        self.reports.append(report)
        return report


def probe_of_task(rows: int = 64, attempts: int = 4, seed: int = 0) -> Tensor:
    """``rows`` probe sequences [rows, L] of the countdown task: a prompt and ``attempts`` random attempts, each with its
    retry sign. What follows is the first operand of another attempt, which a trained policy leaves open.
    """
    rng = np.random.default_rng(seed)
    sequences = []
    for problem in task.training_problems(rng, rows):
        tokens = task.prompt(problem)
        for _ in range(attempts):
            tokens = tokens + task.random_attempt(rng, problem.numbers) + [task.RETRY]
        sequences.append(tokens)
    return torch.tensor(sequences)
