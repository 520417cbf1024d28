"""The contract's functions besides "objective": each stage of the pipeline asked for alone, in the wire format.

Consumers that start at log-probs (most production losses do) enter here. Inputs are padded [B, T] arrays under `mask`;
outputs are 0 off the mask. Names: logp_trainer, logp_anchor (optional), logp_sampler, advantages (optional: 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from . import aggregation, categorical, contract, rejection, surrogates
from .advantages import group_advantages
from .batch import as_array
from .centering import head_term
from .diagnostics import diagnostics as all_diagnostics
from .dialect_metrics import dialect_metrics
from .errors import ContractError, check_keys
from .quantise import quantise as quantise_values
from .ratios import log_ratio
from .tokens import TokenLogProbs
from .weights import weigh

Wire = Mapping[str, Any]
POLICIES = ("logp_trainer", "logp_sampler", "mask", "advantages", "logp_anchor")


def _arrays(inputs: Wire, allowed: Iterable[str], required: Iterable[str]) -> dict[str, np.ndarray]:
    """The named inputs as arrays; unknown and missing names are refused."""
    check_keys("inputs", inputs, allowed, required)
    return {name: as_array(name, value) for name, value in inputs.items() if value is not None}


def _tokens(inputs: Wire, more: tuple[str, ...] = ()) -> tuple[TokenLogProbs, dict[str, np.ndarray]]:
    arrays = _arrays(inputs, (*POLICIES, *more), ("logp_trainer", "logp_sampler", "mask"))
    return TokenLogProbs.from_padded(**{k: v for k, v in arrays.items() if k in POLICIES}), arrays


def _record(cls, where: str, given: Wire | None):
    """A contract record from wire keys, or None."""
    if given is None:
        return None
    check_keys(where, given, [f.name for f in fields(cls)])
    return cls(**given)


def log_softmax(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """log p [B, T, V] of `logits`; with `tokens`, also their log-prob and score (e_y - p)/temperature."""
    x = _arrays(inputs, ("logits", "tokens", "support"), ("logits",))
    check_keys("parameters", parameters, ("temperature",))
    temperature = contract.Objective.from_dict(dict(parameters)).temperature
    out = {"logp": categorical.log_softmax(x["logits"], temperature, x.get("support"))}
    if "tokens" in x:
        out["logp_token"] = categorical.token_logp(x["logits"], x["tokens"], temperature, x.get("support"))
        out["score"] = categorical.score(x["logits"], x["tokens"], temperature, x.get("support"))
    return out


def ratio(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """Importance log-ratio and ratio at a level. Parameters: level, log_clamp, clamp_order, numerator."""
    tokens, x = _tokens(inputs)
    check_keys("parameters", parameters, ("level", "log_clamp", "clamp_order", "numerator"))
    rule = contract.WeightRule(**parameters)
    _need_anchor(rule.numerator, tokens, "parameters.numerator")
    d = tokens.level(rule.numerator, rule.level, rule.log_clamp, rule.clamp_order)
    shape = x["mask"].shape
    with np.errstate(over="ignore"):
        return {"log_ratio": tokens.padded(d, shape), "ratio": tokens.padded(np.exp(d), shape)}


def weight(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """Applied importance weights. Parameters: the keys of `weight`, and optionally `gate`."""
    tokens, x = _tokens(inputs)
    given = dict(parameters)
    gate = _record(contract.Gate, "gate", given.pop("gate", None))
    rule = _record(contract.WeightRule, "weight", given)
    for record in (rule, gate):
        _need_anchor(record and record.numerator, tokens, "parameters.numerator")
    weights = weigh(tokens, rule, gate)
    return {"weights": tokens.padded(weights.applied, x["mask"].shape), "divisor": weights.divisor}


def reject(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """The mask after rejection. Parameters: {"rejection": [rules]}, or the keys of one rule."""
    tokens, x = _tokens(inputs)
    rules = parameters["rejection"] if "rejection" in parameters else [parameters]
    objective = contract.Objective.from_dict({"rejection": rules})
    for rule in objective.rejection:
        _need_anchor(rule.numerator, tokens, "parameters.numerator")
    return {"mask": tokens.padded(rejection.reject(tokens, objective.rejection), x["mask"].shape)}


def surrogate(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """Value s and slope ds/d log p per token. Parameters: the keys of `surrogate`; r = p/o, or p/q without an anchor."""
    tokens, x = _tokens(inputs)
    rule = contract.Surrogate.read({"kind": "reinforce", **parameters})
    old = tokens.logp_sampler if tokens.logp_anchor is None else tokens.logp_anchor
    s, slope, clipped = surrogates.surrogate(
        rule, tokens.logp, log_ratio(tokens.logp, old), tokens.advantages, tokens.rows
    )
    named = {"value": s, "slope": slope, "clipped": clipped}
    return {name: tokens.padded(value, x["mask"].shape) for name, value in named.items()}


def head_coefficients(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """Centering coefficients c_v on the head, without A. Parameters: surrogate, weight, gate, centering of a definition.

    Inputs head_logp_sampler, head_logp_trainer, optional head_logp_anchor [B, T, K], advantages and mask [B, T]. The
    trainer's tail mass is 1 - P here, since no logits are given. Weights and gates must be token-level.
    """
    names = ("head_logp_sampler", "head_logp_trainer", "head_logp_anchor", "advantages", "mask")
    x = _arrays(inputs, names, ("head_logp_sampler", "head_logp_trainer", "mask"))
    check_keys("parameters", parameters, ("surrogate", "weight", "gate", "centering", "allow_double_ratio"))
    objective = contract.Objective.from_dict({"centering": {}, **parameters})
    if objective.centering.tail in ("exact", "uniform"):
        raise ContractError(f"centering.tail: {objective.centering.tail!r} has no head form; ask for the objective")
    for name, rule in (("weight", objective.weight), ("gate", objective.gate)):
        if rule is not None and rule.level != "token":
            raise ContractError(f"{name}.level: head coefficients depend on token-level rules only, got {rule.level!r}")
    mask = x["mask"]
    b, t = np.nonzero(mask)
    take = {}
    for name in names[:3]:
        if name not in x:
            continue
        if x[name].ndim != 3 or x[name].shape[:2] != mask.shape:
            raise ContractError(
                f"{name}: expected shape [B, T, K] with mask {list(mask.shape)}, got {list(x[name].shape)}"
            )
        take[name] = x[name][b, t]
        if np.isnan(take[name]).any() or (np.exp(take[name]).sum(-1) > 1 + 1e-4).any():
            raise ContractError(f"{name}: expected log-probs whose mass is at most 1 + 1e-4 on valid tokens")
    a = x["advantages"][b, t] if "advantages" in x else np.ones(b.size)
    p_tail = np.maximum(1.0 - np.exp(take["head_logp_trainer"]).sum(-1), 0.0)
    with np.errstate(divide="ignore"):
        log_tail = np.log(p_tail)
    term = head_term(
        objective, take["head_logp_sampler"], take["head_logp_trainer"], take.get("head_logp_anchor"), a, log_tail
    )

    def padded(values: np.ndarray) -> np.ndarray:
        out = np.zeros((*mask.shape, *values.shape[1:]))
        out[b, t] = values
        return out

    return {
        "coefficients": padded(term.coefficient),
        "alpha": padded(term.alpha),
        "tail_ratio": padded(term.ratio),
        "head_mass_sampler": padded(np.exp(take["head_logp_sampler"]).sum(-1)),
        "head_mass_trainer": padded(np.exp(take["head_logp_trainer"]).sum(-1)),
    }


def aggregate(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """Reduce `values` [B, T] under `mask`. Parameters: the keys of `aggregation`."""
    x = _arrays(inputs, ("values", "mask"), ("values", "mask"))
    rule = contract.Objective.from_dict({"aggregation": dict(parameters)}).aggregation
    b, t = np.nonzero(x["mask"])
    coef = np.zeros(x["mask"].shape)
    coef[b, t] = aggregation.token_coefficients(rule, b, np.ones(b.size, dtype=bool))
    return {"value": aggregation.aggregate(rule, x["values"], x["mask"]), "coefficients": coef}


def advantages(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """Group advantages. Inputs rewards [B], groups [B]; parameters kind, eps, ddof."""
    check_keys("inputs", inputs, ("rewards", "groups"), ("rewards", "groups"))
    check_keys("parameters", parameters, ("kind", "eps", "ddof"))
    return {
        "advantages": group_advantages(
            as_array("rewards", inputs["rewards"]), np.asarray(inputs["groups"]), **parameters
        )
    }


def diagnostics(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """All diagnostics, dialect variants included. Parameters: weight, gate, rejection, surrogate of a definition."""
    tokens, _ = _tokens(inputs)
    check_keys("parameters", parameters, ("weight", "gate", "rejection", "surrogate"))
    objective = contract.Objective.from_dict(parameters)
    weights = weigh(tokens, objective.weight, objective.gate)
    keep = rejection.reject(tokens, objective.rejection)
    old = tokens.logp_sampler if tokens.logp_anchor is None else tokens.logp_anchor
    clipped = surrogates.surrogate(
        objective.surrogate, tokens.logp, log_ratio(tokens.logp, old), tokens.advantages, tokens.rows
    )[2]
    out = all_diagnostics(tokens, objective.weight, weights.applied, keep, clipped, {})
    out.update(dialect_metrics(tokens, objective.weight, weights.applied, int(np.asarray(inputs["mask"]).shape[0])))
    return out


def quantise(inputs: Wire, parameters: Wire) -> dict[str, Any]:
    """Quantise-dequantise `values`. Parameters: format, and scale ("unit", "row" or "tensor")."""
    x = _arrays(inputs, ("values",), ("values",))
    check_keys("parameters", parameters, ("format", "scale"), ("format",))
    values, scale = quantise_values(x["values"], **parameters)
    return {"values": values, "scale": scale}


def _need_anchor(numerator: str | None, tokens: TokenLogProbs, where: str) -> None:
    if numerator == "anchor" and tokens.logp_anchor is None:
        raise ContractError(f"{where} and logp_anchor: the numerator is 'anchor' but logp_anchor is not given")
