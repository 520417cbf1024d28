"""Draws valid wire-format cases over the whole grid of definitions, for witness-against-implementation tests.

Every draw stays away from thresholds (relative 1e-9, more where a tail mass is small) because a comparison that float64
rounding decides is no test. Each option restricts one choice: a single value, or a list to draw from.
"""

from __future__ import annotations

import numpy as np
from random_definitions import random_definition
from witness_torch import evaluate

OPTIONS = {
    "batch": [1, 2, 3, 4],
    "length": [1, 2, 3, 4, 5],
    "square": [True, False, False],
    "vocabulary": [2, 3, 4, 5, 6, 8, 10, 12],
    "head_width": [1, 2, 3, 4, 6, 8, 12],
    "top_k": [True, True, False],
    "scale": [0.3, 1.0, 1.0, 2.0, 4.0],
    "noise": [0.0, 1e-3, 0.1, 0.4, 0.4, 1.0],
    "temperature": [1.0, 0.7, 1.3, 2.0],
    "anchor": [True, False],
    "support": [True, False, False, False],
    "zero_sampler": [True, False, False, False],
    "zero_trainer": [False],
    "jitter": [0.0, 0.0, 1e-5],
    "advantages": ["token", "row", "sign", "zeros"],
    "surrogate": ["reinforce", "reinforce", "ppo_clip", "cispo", "gspo"],
    "weight": [None, "token", "token", "sequence", "geometric", "segment"],
    "statistic": ["ratio", "ratio", "ratio", "tv", "tv_signed"],
    "gate": [None, None, None, "token", "sequence", "geometric", "segment"],
    "normalise": [None, None, None, "tokens", "rows"],
    "log_clamp": [None, None, 0.3, 1.0, 20.0],
    "sign": ["both", "both", "positive", "negative"],
    "rejections": [0, 0, 0, 1, 2],
    "centering": [None, "rescaled", "rescaled", "exact", "support", "dropped", "renormalised", "uniform"],
    "floor_sampler": [1e-6, 1e-6, 1e-3, None],
    "floor_trainer": [1e-6, 1e-6, 1e-3, None],
    "kl": [None, None, None, "k1", "k2", "k3", "k3+"],
    "entropy": [False, False, False, True],
    "aggregation": [
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm",
    ],
    "explicit": [False, False, True],
    "double_ratio": [True, False],
    "junk": [False],
}  # fmt: skip
ATTEMPTS = 400
NEGATIVE_INFINITY = "-Infinity"


def wire(array):
    """Nested lists of plain numbers, non-finite ones as strings."""
    if isinstance(array, np.ndarray):
        return [wire(item) for item in array]
    if isinstance(array, (int, np.integer)):
        return int(array)
    special = {"nan": "NaN", "inf": "Infinity", "-inf": NEGATIVE_INFINITY}
    return special.get(str(float(array)), float(array))


def log_softmax(z):
    top = z.max(-1, keepdims=True)
    return z - top - np.log(np.exp(z - top).sum(-1, keepdims=True))


def choose(rng, options):
    """One value per option; an unknown option name is a TypeError."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"random_case has no option {unknown[0]!r}; options are {sorted(OPTIONS)}")
    drawn = {}
    for name, default in OPTIONS.items():
        values = options.get(name, default)
        values = values if isinstance(values, list) else [values]
        drawn[name] = values[rng.integers(len(values))]
    return drawn


def random_mask(rng, batch, length):
    """Ragged, with holes and sometimes an empty row, but at least one valid token."""
    mask = (np.arange(length) < rng.integers(0, length + 1, size=(batch, 1))).astype(int)
    mask *= rng.random((batch, length)) > 0.15
    if not mask.any():
        mask[rng.integers(batch), rng.integers(length)] = 1
    return mask


def random_support(rng, size, wanted):
    """0/1 [B, T, V] with at least one member per row, about one row in six a singleton; all ones unless wanted."""
    if not wanted:
        return np.ones(size, dtype=int)
    chosen = (rng.random(size) < 0.6).astype(int)
    chosen[rng.random(size[:2]) < 1 / 6] = 0
    np.put_along_axis(chosen, rng.integers(size[2], size=size[:2] + (1,)), 1, axis=2)
    return chosen


def random_advantages(rng, kind, shape):
    if kind == "token":
        return rng.normal(size=shape)
    if kind == "zeros":
        return rng.normal(size=shape) * (rng.random(shape) < 0.5)
    rows = rng.normal(size=(shape[0], 1)) if kind == "row" else rng.choice([-1.0, 1.0], size=(shape[0], 1))
    return np.repeat(rows, shape[1], axis=1)


def drop_entry(rng, z, support, protected):
    """Sets one logit per (b, t) to -inf with probability 1/2, never the protected id and never the last member."""
    for b, t in np.ndindex(z.shape[:2]):
        free = [v for v in np.flatnonzero(support[b, t]) if v != protected[b, t] and np.isfinite(z[b, t, v])]
        if free and rng.random() < 0.5:
            z[b, t, rng.choice(free)] = -np.inf


def random_head(rng, log_q, support, width, top_k, whole_support):
    """(ids, log q) [B, T, K]: the sampler's top ids or any ids of the support, shuffled, -1 / -inf in absent slots."""
    ids = np.full(log_q.shape[:2] + (width,), -1)
    logp = np.full(ids.shape, -np.inf)
    for b, t in np.ndindex(ids.shape[:2]):
        members = rng.permutation(np.flatnonzero(support[b, t]))
        if top_k:
            members = members[np.argsort(-log_q[b, t, members], kind="stable")]
        members = members[:width]
        if not whole_support and len(members) > 1 and rng.random() < 0.2:
            members = members[:-1]
        slots = rng.permutation(width)[: len(members)]
        ids[b, t, slots] = members
        logp[b, t, slots] = log_q[b, t, members]
    return ids, logp


def random_inputs(rng, o):
    """(inputs as arrays, whether the sampler's head equals the support)."""
    batch, length = o["batch"], o["length"]
    length = batch if o["square"] else length
    shape = (batch, length, o["vocabulary"])
    mask, support = random_mask(rng, batch, length), random_support(rng, shape, o["support"])
    logits = rng.normal(size=shape) * o["scale"]
    outside = np.where(support == 1, 0.0, -np.inf)
    z = logits / o["temperature"]
    samplers = z + rng.normal(size=shape) * o["noise"] + outside
    anchors = z + rng.normal(size=shape) * o["noise"] * rng.choice([0.3, 1.0]) + outside
    uniform = rng.random(shape[:2] + (1,)) < 0.2
    gumbel = rng.gumbel(size=shape)
    tokens = np.argmax(np.where(uniform, outside, samplers) + gumbel, axis=2)
    if o["zero_sampler"]:
        drop_entry(rng, samplers, support, tokens)
    if o["zero_trainer"]:
        drop_entry(rng, logits, support, tokens)
    log_q, log_o = log_softmax(samplers), log_softmax(anchors)

    def sampled(rows):
        return np.take_along_axis(rows, tokens[..., None], axis=2)[..., 0]

    inputs = dict(logits=logits, tokens=tokens, mask=mask)
    inputs["advantages"] = random_advantages(rng, o["advantages"], shape[:2])
    inputs["logp_sampler"] = sampled(log_q) - o["jitter"] * rng.random(shape[:2])
    if o["anchor"]:
        inputs["logp_anchor"] = sampled(log_o) - o["jitter"] * rng.random(shape[:2])
    if o["kl"]:
        inputs["logp_reference"] = sampled(log_softmax(z + rng.normal(size=shape) * 0.5 + outside))
    if o["support"]:
        inputs["support"] = support
    tail = o["centering"]
    rows = tail == "exact" or (tail == "support" and rng.random() < 0.5) or tail == "uniform"
    if rows:
        inputs["logp_sampler_full"] = log_q
        if o["anchor"]:
            inputs["logp_anchor_full"] = log_o
    if (
        tail not in ("exact", "support", None)
        or (tail == "support" and not rows)
        or (tail is None and rng.random() < 0.3)
    ):
        whole = tail == "support"
        width = o["vocabulary"] if whole else min(o["head_width"], o["vocabulary"])
        ids, logp = random_head(rng, log_q, support, width, o["top_k"] or whole, whole)
        inputs["head_ids"], inputs["head_logp_sampler"] = ids, logp
        if o["anchor"]:
            picked = np.take_along_axis(log_o, np.maximum(ids, 0), axis=2)
            inputs["head_logp_anchor"] = np.where(ids < 0, -np.inf, picked)
    return inputs


def spoil(rng, inputs):
    """Puts NaN, infinities, sentinels and ids out of range under the mask."""
    hidden = inputs["mask"] == 0
    for name, array in inputs.items():
        if name in ("mask", "support"):
            continue
        junk = [-1, -7, 10**6] if array.dtype.kind == "i" else [np.nan, np.inf, -np.inf, -1e10, 1.0, 0.0]
        array[hidden] = rng.choice(junk, size=array[hidden].shape)


def usable(case):
    """Whether float64 rounding cannot decide a comparison in this case, and nothing is divided by zero."""
    definition = case["definition"]
    out = evaluate(case["inputs"], definition)
    centering = definition.get("centering")
    if out["margin"] < max(1e-9, 1e-14 / max(out["tail_mass"], 1e-12)):
        return False
    tail = centering["tail"] if centering else None
    floors = [centering.get("floor_sampler", 1e-6), centering.get("floor_trainer", 1e-6)] if centering else []
    small = out["tail_mass"] < 1e-3
    if small and (None in floors or tail == "uniform" or (tail == "rescaled" and "allow_double_ratio" in definition)):
        return False
    shrunk = any(rule.get("denominator") == "shrunk" for rule in definition.get("rejection", []))
    if shrunk and not out["mask"].any():
        return False
    return bool(np.isfinite(out["weights"]).all() and np.isfinite(out["grad_logits"]).all())


def random_case(rng, **options):
    """A valid case {"inputs": ..., "definition": ...} in the wire format; `options` restrict the choices in OPTIONS."""
    for _ in range(ATTEMPTS):
        chosen = choose(rng, options)
        definition = random_definition(rng, chosen)
        if definition is None:
            continue
        inputs = random_inputs(rng, chosen)
        case = {"inputs": {name: wire(array) for name, array in inputs.items()}, "definition": definition}
        if usable(case):
            if chosen["junk"]:
                spoil(rng, inputs)
                case["inputs"] = {name: wire(array) for name, array in inputs.items()}
            return case
    raise RuntimeError(f"no usable case in {ATTEMPTS} draws; loosen the options {options}")
