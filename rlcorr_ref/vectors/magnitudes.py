"""Size of the terms behind every output of an objective, from the multi-precision witness: what rounding errors scale with.

A log-prob computed from logits carries an error of u E_v, E_v = |log p_v| + |lse| + |z_v|/T + 4 (form of Blanchard, Higham &
Higham, IMA J. Numer. Anal. 41(4), 2021). Every product adds a few u of its own size, every sum u times the sum of absolute
terms, never of the sum itself: cancellation is the implementation's business only where the definition is well conditioned.
"""

from __future__ import annotations

from typing import Any

from mpmath import mp, mpf

from ..derive.mp_centering import uses_head
from ..derive.mp_defaults import complete
from ..derive.mp_inputs import Case, Token
from ..derive.mp_witness import prepare
from .witness import TOKEN_MEAN

PRODUCT = 4  # roundings of a short product or quotient
SCALE_DIGITS = 30


def logp_error(token: Token, temperature: mpf) -> list:
    """E_v [V] in units of u; 0 where p_v = 0, an exact -inf."""
    inside = [z / temperature for z, keep in zip(token.logits, token.inside, strict=True) if keep]
    top = max(inside)
    lse = top + mp.log(mp.fsum(mp.exp(z - top) for z in inside))
    return [
        mpf(0) if mp.isinf(lp) else abs(lp) + abs(lse) + abs(z / temperature) + 4
        for lp, z in zip(token.logp, token.logits, strict=True)
    ]


def objective_magnitudes(inputs: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """err_scale contributions by output name, nested lists of float in the output's shape."""
    definition = complete({"aggregation": TOKEN_MEAN, **settings}, inputs)
    with mp.workdps(SCALE_DIGITS):
        case = prepare(inputs, definition)
        rule = definition["centering"]
        head = rule is not None and uses_head(rule["tail"], case.sampler_rows)
        v, k = case.vocabulary, case.head_width or 0
        out: dict[str, Any] = {
            "loss": mpf(0),
            "loss_dense": mpf(0),
            "grad_logits": _cells(case, v),
            "grad_logp": _cells(case),
            "grad_head_logp": _cells(case, k),
            "grad_logp_full": _cells(case, v),
            "weights": _cells(case),
            "token_loss": _cells(case),
        }
        for token in case.tokens:
            one = _token(case, definition, token, head)
            i, j = token.b, token.t
            out["weights"][i][j] = float(one["weight"])
            if not token.kept:
                continue
            coef = token.extra["coefficient"]
            out["loss"] += coef * one["value"]
            out["loss_dense"] += coef * one["value_dense"]
            out["token_loss"][i][j] = float(one["value"])
            out["grad_logp"][i][j] = float(coef * one["slope"])
            for name, width in (("grad_logits", v), ("grad_logp_full", v), ("grad_head_logp", k)):
                out[name][i][j] = [float(coef * x) for x in one[name]] if width else []
        out["loss"], out["loss_dense"] = float(out["loss"]), float(out["loss_dense"])
    return out


def _cells(case: Case, width: int | None = None) -> list:
    return [[0.0 if width is None else [0.0] * width for _ in range(case.length)] for _ in range(case.batch)]


def _finite(x: mpf) -> mpf:
    """A size; an infinite term (log p = -inf under a coefficient) is compared exactly and needs none."""
    return mpf(0) if mp.isinf(x) or mp.isnan(x) else abs(x)


def _token(case: Case, definition: dict, token: Token, head: bool) -> dict[str, Any]:
    """Sizes for one token, without the aggregation coefficient."""
    extra, temperature = token.extra, case.temperature
    error = logp_error(token, temperature)
    y, own = token.y, PRODUCT + error[token.y]
    weight = definition["weight"]
    if weight is not None and weight["level"] != "token":  # the errors of a row's log-probs add up in its ratio
        own += mp.fsum(logp_error(other, temperature)[other.y] for other in case.rows[token.b])
    slope = abs(extra["weight"] * extra["slope"]) * own
    value = _finite(extra["weight"] * extra["value"]) * own + abs(extra["weight"] * token.advantage) * error[y]
    kl = definition["kl"]
    if kl is not None:
        x = token.logref - token.logp[y]
        size = 1 + mp.exp(abs(x)) if kl["kind"] in ("k3", "k3+") else 1 + abs(x)
        term = abs(extra["kl_scale"]) * size * (own + abs(token.logref))
        slope, value = slope + term, value + term * (1 + abs(x))
    dense, head_sizes, spread = [mpf(0)] * len(error), [mpf(0)] * (case.head_width or 0), mpf(0)
    value_dense = value
    if extra["center"] is not None:
        outer = abs(token.advantage * extra["whole"]) * (own if extra["whole"] != 1 else 1)
        dense = [outer * abs(c) * (PRODUCT + e) for c, e in zip(extra["center"].dense, error, strict=True)]
        spread = mp.fsum(dense)
        value_dense += mp.fsum(d * _finite(lp) + d for d, lp in zip(dense, token.logp, strict=True))
        if head:
            head_sizes, more = _head(definition, token, outer, error, dense)
            value += more
        else:
            value = value_dense
    entropy = [mpf(0)] * len(error)
    if definition["entropy"] is not None:
        h = -mp.fsum(p * lp for p, lp in zip(token.p, token.logp, strict=True) if p > 0)
        coef = abs(mpf(definition["entropy"]["coef"]))
        entropy = [
            coef * p * (_finite(lp) + h + 1) * (PRODUCT + e)
            for p, lp, e in zip(token.p, token.logp, error, strict=True)
        ]
        value, value_dense = value + mp.fsum(entropy), value_dense + mp.fsum(entropy)
    total = slope + spread
    logits = [
        ((slope if v == y else 0) + dense[v] + p * (total + (slope / own if own else 0) * error[v]) + entropy[v])
        / temperature
        for v, p in enumerate(token.p)
    ]
    full = [d + e for d, e in zip(dense, entropy, strict=True)]
    if head:
        full = list(entropy)
        for slot in token.head:
            full[slot.token] += head_sizes[slot.slot]
    return {
        "weight": abs(extra["weight"]) * own,
        "slope": slope,
        "value": value,
        "value_dense": value_dense,
        "grad_logits": logits,
        "grad_head_logp": head_sizes,
        "grad_logp_full": full,
    }


def tail_condition(q: mpf, p: mpf, floor_sampler, floor_trainer) -> mpf:
    """1/max(1 - Q, floor) + 1/max(1 - P, floor): how the complement of a head mass amplifies rounding, in units of u."""
    tails = ((1 - q, floor_sampler), (1 - p, floor_trainer))
    return mp.fsum(1 / max(abs(tail), mpf(floor or 0), mpf("1e-300")) for tail, floor in tails)


def _head(definition: dict, token: Token, outer: mpf, error: list, dense: list) -> tuple[list, mpf]:
    """Sizes of the head coefficients [K] (q g and alpha p apart: they cancel) and of the head-only value."""
    center, rule = token.extra["center"], definition["centering"]
    condition = mpf(0)
    if rule["tail"] == "rescaled":
        condition = 2 * tail_condition(
            center.head_mass_sampler, center.head_mass_trainer, rule["floor_sampler"], rule["floor_trainer"]
        )
    sizes, value = [mpf(0)] * len(center.head), mpf(0)
    for slot in token.head:
        v = slot.token
        size = dense[v] + outer * abs(center.alpha) * token.p[v] * (PRODUCT + error[v] + condition)
        sizes[slot.slot] = size
        value += size * _finite(token.logp[v]) + outer * abs(center.head[slot.slot]) * error[v]
    return sizes, value
