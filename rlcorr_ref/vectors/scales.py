"""Error scales: how much rounding a correct answer may show, per output entry, in units of the unit roundoff.

    tol = m (u err_scale + u_acc acc_scale) + eta

err_scale = sum over inputs of |d output / d input| times the input's own error (conditioning, by one-sided differences of the
float64 reference that stay on their side of every threshold) + the size of the terms that are added up. u is the roundoff of
the compute dtype, u_acc that of its accumulator, eta its smallest normal number, m = 2 by default.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mpmath import mp

from ..errors import ContractError
from ..wire import evaluate_case
from .levels import EXACT
from .magnitudes import objective_magnitudes, tail_condition
from .registry import Draft
from .witness import pick

STEP = 2.0**-22
LOG_PROBS = (
    "logp_trainer",
    "logp_sampler",
    "logp_anchor",
    "logp_reference",
    "head_logp_trainer",
    "head_logp_sampler",
    "head_logp_anchor",
    "logp_sampler_full",
    "logp_anchor_full",
)
PLAIN = ("advantages", "rewards", "values")


def as_floats(value: Any) -> np.ndarray:
    """Wire values as a float64 array; null becomes NaN."""
    if isinstance(value, list):
        return np.array([as_floats(item) for item in value], dtype=np.float64)
    return np.array(np.nan if value is None else float(value))


def scales(draft: Draft, judged: tuple[str, ...], value: dict[str, Any]) -> dict[str, tuple[Any, float] | None]:
    """(err_scale, acc_scale) by output name; None for exact outputs. `value` holds the outputs as wire values."""
    real = [name for name in judged if not exact(draft.function, name, value)]
    local = _local(draft, value)
    sensitivity, accumulated = _sensitivity(draft, real)
    out: dict[str, tuple[Any, float] | None] = dict.fromkeys(judged)
    for name in real:
        target = as_floats(pick(value, name))
        own = local.get(name)
        own = 4.0 * np.abs(target) if own is None else as_floats(own)
        err = np.where(np.isfinite(target), own + sensitivity[name], 0.0)
        largest = float(np.max(np.abs(np.where(np.isfinite(target), target, 0.0)), initial=0.0))
        acc = float(np.max(accumulated[name], initial=0.0)) + math.sqrt(_summands(draft)) * largest
        out[name] = (_short(err), _round_up(acc))
    return out


def _summands(draft: Draft) -> int:
    """How many numbers a sum over the batch adds up; sqrt of it multiplies the accumulator's roundoff."""
    mask = draft.inputs.get("mask")
    return 1 if not mask else max(1, len(mask) * len(mask[0]))


def exact(function: str, name: str, value: dict[str, Any]) -> bool:
    """Outputs without tolerance: masks, counts, and number grids whose scale is a power of two."""
    if function == "quantise":
        return name == "values" and bool((np.frexp(as_floats(value["scale"]))[0] == 0.5).all())
    return name.split(".")[-1] in EXACT - {"values"}


def _round_up(x: float) -> float:
    """Two significant digits, upwards."""
    if x <= 0 or not math.isfinite(x):
        return 0.0 if x <= 0 else x
    unit = 10.0 ** (math.floor(math.log10(x)) - 1)
    return float(f"{math.ceil(x / unit - 1e-6) * unit:.1e}")


def _short(err: np.ndarray) -> Any:
    """Entries rounded up; one number where all non-zero entries are equal to within a factor of 2."""
    flat = err[err > 0]
    if err.ndim and flat.size and flat.max() <= 2.0 * flat.min() and flat.size == err.size:
        return _round_up(float(flat.max()))
    if err.ndim == 0:
        return _round_up(float(err))
    return [_short_entry(item) for item in err]


def _short_entry(item: np.ndarray) -> Any:
    return [_short_entry(x) for x in item] if item.ndim else _round_up(float(item))


def _sensitivity(draft: Draft, real: list[str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Sum over inputs of |difference quotient| * input error, by output; and the same for accumulator errors."""
    base = evaluate_case(draft.envelope)
    origin = {name: as_floats(pick(base, name)) for name in real}
    err = {name: np.zeros_like(value) for name, value in origin.items()}
    acc = {name: np.zeros_like(value) for name, value in origin.items()}
    mask = draft.inputs.get("mask")
    for key, place, x, size, accumulator in _perturbable(draft, mask):
        quotients = []
        for h in (STEP, -STEP):
            moved = _moved(draft, key, place, x + h)
            if moved is not None:
                with np.errstate(invalid="ignore"):  # inf - inf: such entries are compared exactly
                    quotients.append({n: np.abs(as_floats(pick(moved, n)) - origin[n]) / STEP for n in real})
        if not quotients:
            raise ContractError(f"{draft.id}: {key}{list(place)} cannot be moved to either side without an error")
        for name in real:
            # the smaller side: at a tie, the one that stays on its side of the threshold
            slope = np.minimum.reduce([np.nan_to_num(q[name], nan=0.0, posinf=0.0) for q in quotients])
            err[name] += slope * size
            acc[name] += slope * accumulator
    return err, acc


def _moved(draft: Draft, key: str, place: tuple[int, ...], x: float) -> dict[str, Any] | None:
    """The outputs with one input replaced, or None where the contract refuses the value."""
    inputs = dict(draft.inputs)
    copy = row = list(inputs[key])
    for index in place[:-1]:
        row[index] = list(row[index])
        row = row[index]
    row[place[-1]] = x
    inputs[key] = copy
    try:
        return evaluate_case({**draft.envelope, "inputs": inputs})
    except ContractError:
        return None


def _perturbable(draft: Draft, mask: Any):
    """(input name, index, value, its error in u, its error in u_acc) for every finite real input that is read."""
    definition = draft.settings.get("definition", draft.settings) if draft.function == "shard" else draft.settings
    temperature = float((definition or {}).get("temperature", 1.0))
    for key, value in draft.inputs.items():
        if key not in (*LOG_PROBS, *PLAIN, "logits"):
            continue
        array = as_floats(value)
        for place in np.ndindex(array.shape):
            if mask is not None and key != "rewards" and not mask[place[0]][place[1]]:
                continue
            x = float(array[place])
            if not math.isfinite(x):
                continue
            if key == "logits":
                row = array[place[:-1]]
                support = draft.inputs.get("support")
                inside = np.ones(row.size, bool) if support is None else as_floats(support)[place[:-1]] != 0
                if not inside[place[-1]]:
                    continue
                row = row[inside] / temperature
                lse = float(row.max() + np.log(np.exp(row - row.max()).sum()))
                yield key, place, x, temperature * (abs(x) / temperature + abs(lse) + 4), temperature * row.size**0.5
            elif key in LOG_PROBS:
                yield key, place, x, 2.0 + _log_prob_error(draft, key, place, x), 0.0
            else:
                yield key, place, x, abs(x), 0.0


def _log_prob_error(draft: Draft, key: str, place: tuple[int, ...], x: float) -> float:
    """A given log-prob is exact; what is rounded is its difference to the others, or a row sum of it."""
    if draft.function not in ("ratio", "weight", "reject", "surrogate"):
        return abs(x)
    others = [draft.inputs[name] for name in LOG_PROBS[:3] if draft.inputs.get(name) is not None]
    gaps = [abs(x - float(values[place[0]][place[1]])) for values in others]
    return max(gap for gap in gaps if math.isfinite(gap))


def _local(draft: Draft, value: dict[str, Any]) -> dict[str, Any]:
    """Size of the terms behind each output, where it is not simply the output's own."""
    if draft.function == "objective":
        return objective_magnitudes(draft.inputs, draft.settings)
    if draft.function == "log_softmax":
        return _log_softmax(draft, value)
    if draft.function == "shard":
        return _shards(draft)
    if draft.function == "head_coefficients":
        return _head(draft, value)
    if draft.function == "diagnostics":
        return _diagnostics(draft, value)
    if draft.function == "aggregate":
        terms = np.abs(
            as_floats(value["coefficients"]) * np.nan_to_num(as_floats(draft.inputs["values"]), posinf=0, neginf=0)
        )
        return {"value": 4.0 * float(terms.sum())}
    if draft.function == "advantages":
        rewards = float(np.abs(as_floats(draft.inputs["rewards"])).max())
        return {"advantages": (4.0 * (np.abs(as_floats(value["advantages"])) + rewards)).tolist()}
    return {}


def _log_softmax(draft: Draft, value: dict[str, Any]) -> dict[str, Any]:
    temperature = float(draft.settings.get("temperature", 1.0))
    logp, z = as_floats(value["logp"]), as_floats(draft.inputs["logits"]) / temperature
    inside = np.isfinite(logp)
    top = np.where(inside, z, -np.inf).max(-1, keepdims=True)
    lse = top + np.log(np.where(inside, np.exp(np.where(inside, z, top) - top), 0.0).sum(-1, keepdims=True))
    error = np.where(inside, np.abs(np.where(inside, logp, 0)) + np.abs(lse) + np.abs(np.where(inside, z, 0)) + 4, 0.0)
    out = {"logp": error.tolist()}
    if "tokens" in draft.inputs:
        tokens = np.array(draft.inputs["tokens"])[..., None]
        p = np.exp(logp)
        hit = np.arange(p.shape[-1]) == tokens
        out["logp_token"] = np.take_along_axis(error, tokens, -1)[..., 0].tolist()
        out["score"] = ((4 * hit + p * (4 + error)) / temperature).tolist()
    return out


def _shards(draft: Draft) -> dict[str, Any]:
    definition = dict(draft.settings.get("definition") or {})
    out = objective_magnitudes(draft.inputs, definition)
    shards, mask = draft.settings["shards"], as_floats(draft.inputs["mask"])
    # a local denominator is smaller than the whole batch's by at most this factor
    factor = 1.0
    if draft.settings.get("denominators") == "local":
        counts = [mask[rows].sum() for rows in shards if mask[rows].sum()]
        factor = float(mask.sum() / min(counts))
    return {
        "loss": factor * out["loss"],
        "losses": [factor * out["loss"]] * len(shards),
        "grad_logits": (factor * as_floats(out["grad_logits"])).tolist(),
    }


def _head(draft: Draft, value: dict[str, Any]) -> dict[str, Any]:
    rule = {"floor_sampler": 1e-6, "floor_trainer": 1e-6, "tail": "rescaled", **draft.settings.get("centering", {})}
    alpha, rho = as_floats(value["alpha"]), as_floats(value["tail_ratio"])
    q, p = as_floats(value["head_mass_sampler"]), as_floats(value["head_mass_trainer"])
    condition = np.zeros(q.shape)
    if rule["tail"] == "rescaled":
        with mp.workdps(30):
            for place in np.ndindex(q.shape):
                floors = rule["floor_sampler"], rule["floor_trainer"]
                condition[place] = 2 * float(tail_condition(mp.mpf(q[place]), mp.mpf(p[place]), *floors))
    logp = np.nan_to_num(as_floats(draft.inputs["head_logp_trainer"]), neginf=-1e3, nan=-1e3)
    shared = (alpha * (8 + condition))[..., None] * np.exp(np.minimum(logp, 0.0)) * (3 + np.abs(logp))
    return {
        "coefficients": (8 * np.abs(as_floats(value["coefficients"])) + shared).tolist(),
        "alpha": (alpha * (8 + condition)).tolist(),
        "tail_ratio": (rho * (8 + condition)).tolist(),
        "head_mass_sampler": (8 * q).tolist(),
        "head_mass_trainer": (8 * p).tolist(),
    }


def _diagnostics(draft: Draft, value: dict[str, Any]) -> dict[str, Any]:
    """Terms of the means: a k3 or a chi-square near 0 is a difference of numbers near 1, expm1 or not."""
    mask = as_floats(draft.inputs["mask"]) != 0
    weight = draft.settings.get("weight") or {}
    trainer = draft.inputs.get("logp_anchor") is None or weight.get("numerator") == "trainer"
    logn = as_floats(draft.inputs["logp_trainer" if trainer else "logp_anchor"])
    logq = as_floats(draft.inputs["logp_sampler"])
    d = logn[mask] - logq[mask]
    rows = [logn[b][m] - logq[b][m] for b, m in enumerate(mask) if m.any()]
    with np.errstate(over="ignore"):
        out = {
            "kl_k1": np.abs(d).mean(),
            "kl_k2": (d * d).mean(),
            "kl_k3": (np.exp(d) + 1 + np.abs(d)).mean(),
            "kl_k3_reverse": (np.exp(-d) + 1 + np.abs(d)).mean(),
            "chi2_token": (np.exp(2 * d) * (1 + np.abs(2 * d)) + 1).mean(),
            "chi2_sequence": np.mean([np.exp(2 * r.sum()) * (1 + 2 * np.abs(r).sum()) + 1 for r in rows]),
        }
    for name in ("ratio", "weight"):
        out[f"{name}_std"] = value[f"{name}_max"] if isinstance(value[f"{name}_max"], float) else 0.0
    for name in ("log_ppl_diff_mean", "log_ppl_diff_abs", "log_ppl_diff_min", "log_ppl_diff_max"):
        out[name] = np.abs(d).max()
    return {name: 4.0 * float(size) for name, size in out.items()}
