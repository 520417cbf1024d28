"""Trace cases: ten SGD steps of a small problem whose sampler is a noisy copy of the trainer, refreshed every few steps.

    sampler     log q_k = log softmax((z_s(k) + offset)/T),  s(k) = the last multiple of `resync_every` at or before step k
    gradient    of the case's definition at logits z_k, with the sampler's log-probs of step k (head: the ids given)
    update      z_(k+1) = z_k - learning_rate * grad_logits

Everything random (tokens, advantages, offset) is given per step, so the trajectory is a function. What one step hides, ten
show: a sign, a 1/T, a denominator, a sampler of the wrong age.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpmath import mp, mpf

from ..derive.mp_inputs import log_softmax
from ..derive.mp_witness import evaluate as evaluate_objective
from ..errors import ContractError
from ..wire import evaluate_case
from .magnitudes import objective_magnitudes
from .margins import Gap, gaps
from .model import Level
from .registry import Draft
from .witness import DIGITS, TOKEN_MEAN, rounded

PROGRAM = ("steps", "learning_rate", "resync_every", "offset", "tokens", "advantages", "head_ids")
STEP = 2.0**-20


def sampler_inputs(program: dict[str, Any], step: int, logq: list, mask: list) -> dict[str, Any]:
    """tokens, advantages, mask and the sampler's log-probs of one step from its rows `logq` [B, T, V]."""
    tokens, ids = program["tokens"][step], program["head_ids"]
    out = {
        "tokens": tokens,
        "mask": mask,
        "advantages": program["advantages"][step],
        "logp_sampler": [[logq[b][t][y] for t, y in enumerate(row)] for b, row in enumerate(tokens)],
    }
    if ids is None:
        out["logp_sampler_full"] = logq
        return out
    out["head_ids"] = ids
    out["head_logp_sampler"] = [
        [[logq[b][t][v] for v in slots] for t, slots in enumerate(row)] for b, row in enumerate(ids)
    ]
    return out


def first_step(draft_inputs: dict[str, Any], program: dict[str, Any], temperature: float) -> dict[str, Any]:
    """Inputs of step 0 as an ordinary objective case, so that the case also stands without its trace.

    Sampler log-probs are rounded to float32: the case claims that grid.
    """
    z = np.array(draft_inputs["logits"]) + np.array(program["offset"])
    s = z / temperature
    s = s - s.max(-1, keepdims=True)
    logq = (s - np.log(np.exp(s).sum(-1, keepdims=True))).astype(np.float32).astype(np.float64).tolist()
    return {**draft_inputs, **sampler_inputs(program, 0, logq, draft_inputs["mask"])}


def run_high(draft: Draft) -> dict[str, Any]:
    """The trajectory at 50 digits: final logits [B, T, V] and the loss of every step."""
    program, definition = draft.trace, {"aggregation": TOKEN_MEAN, **draft.settings}
    with mp.workdps(DIGITS + 15):
        temperature = mpf(definition.get("temperature", 1.0))
        z = [[[mpf(x) for x in token] for token in row] for row in draft.inputs["logits"]]
        offset = [[[mpf(x) for x in token] for token in row] for row in program["offset"]]
        losses, logq = [], []
        for step in range(program["steps"]):
            if step % program["resync_every"] == 0:
                logq = [
                    [
                        log_softmax([a + d for a, d in zip(za, da, strict=True)], [True] * len(za), temperature)
                        for za, da in zip(zr, dr, strict=True)
                    ]
                    for zr, dr in zip(z, offset, strict=True)
                ]
            inputs = {"logits": z, **sampler_inputs(program, step, logq, draft.inputs["mask"])}
            out = evaluate_objective(inputs, definition, dps=DIGITS)
            losses.append(out["loss"])
            rate = mpf(program["learning_rate"])
            z = [
                [[x - rate * g for x, g in zip(zt, gt, strict=True)] for zt, gt in zip(zr, gr, strict=True)]
                for zr, gr in zip(z, out["grad_logits"], strict=True)
            ]
        return {"trace_logits": z, "trace_losses": losses}


def run_float(
    draft: Draft, start: int = 0, logits: np.ndarray | None = None, synced: np.ndarray | None = None
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray], list[float]]:
    """The trajectory in float64 from step `start`: final logits, logits and synced logits before every step, losses."""
    program = draft.trace
    z = np.array(draft.inputs["logits"] if logits is None else logits, dtype=np.float64)
    base = z if synced is None else synced
    before, bases, losses = [], [], []
    for step in range(start, program["steps"]):
        if step % program["resync_every"] == 0:
            base = z
        before.append(z)
        bases.append(base)
        out = evaluate_case({"inputs": _step_inputs(draft, step, z, base), "definition": draft.settings})
        losses.append(out["loss"])
        z = z - program["learning_rate"] * np.array(out["grad_logits"])
    return z, before, bases, losses


def trace_level(draft: Draft) -> tuple[Level, dict[str, tuple[Any, Any, float]]]:
    """The level "trace" and its outputs: name -> (value, err_scale, acc_scale)."""
    high = rounded(run_high(draft))
    final, before, bases, losses = run_float(draft)
    program, rate = draft.trace, draft.trace["learning_rate"]
    own = np.abs(final)
    err, loss_err = own.copy(), np.zeros(len(losses))
    for step, (z, base) in enumerate(zip(before, bases, strict=True)):
        # rounding of step k: of the logits themselves and of its update, carried on by the rest of the trajectory
        sizes = objective_magnitudes(_step_inputs(draft, step, z, base), draft.settings)
        loss_err[step] += sizes["loss"]
        injected = np.abs(z) + rate * np.array(sizes["grad_logits"])
        for place in np.ndindex(z.shape):
            moved = z.copy()
            moved[place] += STEP
            there, *_, moved_losses = run_float(draft, step, moved, base)
            err += np.abs(there - final) / STEP * injected[place]
            loss_err[step:] += np.abs(np.array(moved_losses) - losses[step:]) / STEP * injected[place]
    level = Level(
        ["trace_logits"], ["trace_losses"], {name: program[name] for name in PROGRAM if program[name] is not None}
    )
    outputs = {
        "trace_logits": (high["trace_logits"], np.vectorize(_two_digits)(err).tolist(), 0.0),
        "trace_losses": (high["trace_losses"], np.vectorize(_two_digits)(loss_err).tolist(), 0.0),
    }
    for name, mine in (("trace_logits", final), ("trace_losses", np.array(losses))):
        gap = np.abs(mine - np.array(outputs[name][0]))
        if (gap > 1e-12 * np.array(outputs[name][1])).any():
            raise ContractError(
                f"{draft.id}: {name}: float64 trajectory differs from {DIGITS} digits by up to {gap.max():.1e}"
            )
    return level, outputs


def trace_gaps(draft: Draft) -> list[Gap]:
    """Distances to thresholds at every step; the logits of a later step carry the rounding of all earlier ones."""
    _, before, bases, _ = run_float(draft)
    found = []
    for step, (z, base) in enumerate(zip(before, bases, strict=True)):
        inputs = _step_inputs(draft, step, z, base)
        found += [Gap(gap.distance, gap.error * (step + 2)) for gap in gaps("objective", inputs, draft.settings)]
    return found


def _step_inputs(draft: Draft, step: int, z: np.ndarray, base: np.ndarray) -> dict[str, Any]:
    """The objective's inputs of one step from the logits and the logits that the sampler was synced to."""
    s = (base + np.array(draft.trace["offset"])) / draft.settings.get("temperature", 1.0)
    s = s - s.max(-1, keepdims=True)
    logq = s - np.log(np.exp(s).sum(-1, keepdims=True))
    return {"logits": z.tolist(), **sampler_inputs(draft.trace, step, logq.tolist(), draft.inputs["mask"])}


def _two_digits(x: float) -> float:
    return float(f"{1.05 * x:.1e}")
