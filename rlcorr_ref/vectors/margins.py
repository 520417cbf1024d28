"""Distance of a case to its nearest threshold, and whether a dtype's rounding could carry it across.

A mask, a band or a clip is a step: an answer that is right to the last bit but one may fall on the other side of it. So no
case sits nearer to a threshold than GUARD times the tolerance of any dtype that it claims, unless it tests the tie itself.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from mpmath import mp, mpf

from ..derive.mp_defaults import BLOCKS, complete, fill
from ..derive.mp_inputs import Case, Token
from ..derive.mp_surrogates import bounds, log_prob_ratio
from ..derive.mp_weights import applies, level_log_ratio, rejection_statistic
from ..derive.mp_witness import prepare
from .magnitudes import logp_error, tail_condition
from .model import DTYPES, UNIT_ROUNDOFF
from .witness import TOKEN_MEAN, _surrogate, token_case
from .witness_arrays import grid_values

GUARD = 16
MULTIPLE = 2  # m of the tolerance rule


class Gap(NamedTuple):
    """`distance` to a threshold (nats for ratios, relative for other statistics) and the error there in units of u."""

    distance: float
    error: float


def gaps(function: str, inputs: dict[str, Any], settings: dict[str, Any]) -> list[Gap]:
    """All finite distances to thresholds."""
    with mp.workdps(40):
        if function == "quantise":
            return _grid_gaps(inputs, settings)
        if function in ("objective", "shard"):
            given = (settings.get("definition") or {}) if function == "shard" else settings
            definition = complete({"aggregation": TOKEN_MEAN, **given}, inputs)
            case = prepare(inputs, definition)
            return _case_gaps(case, definition, from_logits=True)
        if function in ("weight", "reject", "surrogate", "diagnostics"):
            return _case_gaps(token_case(inputs), _definition(function, settings), from_logits=False)
        return []


def nearest(found: list[Gap]) -> float | None:
    """The smallest distance, exact ties (0) apart; None without a threshold."""
    distances = [gap.distance for gap in found if gap.distance > 0]
    return min(distances) if distances else None


def guarded(found: list[Gap], ties: bool) -> list[str]:
    """The dtypes whose rounding cannot carry the case across a threshold. `ties`: distance 0 is what the case tests."""
    out = []
    for dtype in DTYPES:
        need = GUARD * MULTIPLE * UNIT_ROUNDOFF[dtype]
        if all(gap.distance >= need * gap.error or (ties and gap.distance == 0) for gap in found):
            out.append(dtype)
    return out


def _definition(function: str, settings: dict[str, Any]) -> dict[str, Any]:
    blocks: dict[str, Any] = {
        "weight": None,
        "gate": None,
        "surrogate": _surrogate({}),
        "centering": None,
        "rejection": [],
    }
    given = dict(settings)
    if function == "weight":
        blocks["gate"], blocks["weight"] = given.pop("gate", None), given
    elif function == "surrogate":
        blocks["surrogate"] = _surrogate(given)
    elif function == "reject":
        blocks["rejection"] = given.get("rejection", [given])
    else:
        blocks.update({key: given[key] for key in ("weight", "gate", "rejection") if given.get(key)})
        blocks["surrogate"] = _surrogate(given.get("surrogate", {}))
    for key in ("weight", "gate"):
        if blocks[key] is not None:
            blocks[key] = fill(key, blocks[key], BLOCKS[key])
    blocks["rejection"] = [fill("rejection", rule, BLOCKS["rejection"]) for rule in blocks["rejection"]]
    return blocks


class Errors:
    """Rounding errors of log-probs and log-ratios in units of u."""

    def __init__(self, case: Case, from_logits: bool) -> None:
        self.case, self.from_logits = case, from_logits

    def trainer(self, token: Token, v: int | None = None) -> mpf:
        return logp_error(token, self.case.temperature)[token.y if v is None else v]

    def ratio(self, token: Token, numerator: str) -> mpf:
        """Given log-probs are exact on the claimed grid: only their difference is rounded, and its exponential."""
        exact = 2 + _size(token.d(numerator))
        return exact + self.trainer(token) if self.from_logits and numerator == "trainer" else exact


def _size(x: mpf) -> mpf:
    return mpf(0) if mp.isinf(x) else abs(x)


def _case_gaps(case: Case, definition: dict, from_logits: bool) -> list[Gap]:
    errors, found = Errors(case, from_logits), []
    for token in case.tokens:
        for key in ("weight", "gate"):
            if definition[key] is not None:
                found += _rule_gaps(case, token, definition[key], errors)
        found += _surrogate_gaps(case, token, definition["surrogate"], errors)
        for rule in definition["rejection"]:
            found += _rejection_gaps(case, token, rule, errors)
        if definition["centering"] is not None:
            found += _centering_gaps(case, token, definition, errors)
    return [gap for gap in found if math.isfinite(gap.distance)]


def _rule_gaps(case: Case, token: Token, rule: dict, errors: Errors) -> list[Gap]:
    if not applies(rule["sign"], token.advantage):
        return []
    numerator = case.numerator(rule["numerator"])
    row = case.rows[token.b]
    d = level_log_ratio(
        row, token, rule["level"], numerator, rule.get("log_clamp"), rule.get("clamp_order", "aggregate")
    )
    each = [token] if rule["level"] == "token" else row
    error = mp.fsum(errors.ratio(t, numerator) for t in each) / (len(each) if rule["level"] == "geometric" else 1)
    if rule.get("statistic", "ratio") != "ratio":
        n = mp.exp(token.logo if numerator == "anchor" else token.logp[token.y])
        return _tv_gaps(rule, n, mp.exp(token.logq), token.advantage, error)
    return [_log_gap(d, bound, error) for bound in _sides(rule, token.advantage)]


def _sides(rule: dict, advantage: mpf) -> list[mpf]:
    """The finite, positive bounds that hold for this advantage."""
    own = rule.get("positive") if advantage >= 0 else rule.get("negative")
    own = rule if own is None else own
    return [mpf(x) for x in (own.get("low", 0.0), own.get("high")) if x is not None and x > 0]


def _log_gap(d: mpf, bound: mpf, error: mpf) -> Gap:
    # a bound of exactly 1 against a log-ratio of exactly 0 is an exact tie
    return Gap(float(abs(d - mp.log(bound))), float(error + 2))


def _tv_gaps(rule: dict, n: mpf, q: mpf, advantage: mpf, error: mpf) -> list[Gap]:
    x = n - q if rule["statistic"] == "tv_signed" else abs(n - q)
    own = rule["positive"] if advantage >= 0 else rule["negative"]
    own = rule if own is None else own
    limits = [
        mpf(b)
        for b in (own.get("low", 0.0), own.get("high"))
        if b is not None and (b or rule["statistic"] == "tv_signed")
    ]
    return [Gap(float(abs(x - b) / max(n, q)), float(error + 2)) for b in limits]


def _surrogate_gaps(case: Case, token: Token, rule: dict, errors: Errors) -> list[Gap]:
    if rule["kind"] == "reinforce":
        return []
    each = case.rows[token.b] if rule["kind"] == "gspo" else [token]
    logs = [log_prob_ratio(t, case.three_policies) for t in each]
    error = mp.fsum(errors.ratio(t, "trainer") for t in each) / len(each)
    limits = [b for b in (*bounds(rule), rule.get("dual")) if b is not None and b > 0]
    return [_log_gap(mp.fsum(logs) / len(logs), mpf(b), error) for b in limits]


def _rejection_gaps(case: Case, token: Token, rule: dict, errors: Errors) -> list[Gap]:
    if not applies(rule["sign"], token.advantage):
        return []
    numerator = case.numerator(rule["numerator"])
    each = [token] if rule["reduce"] == "token" else case.rows[token.b]
    values = [rejection_statistic(t, rule, numerator) for t in each]
    value = {"sum": mp.fsum(values), "mean": mp.fsum(values) / len(values), "max": max(values), "token": values[0]}[
        rule["reduce"]
    ]
    slopes = []
    for t, v in zip(each, values, strict=True):
        d, q = t.d(numerator), mp.exp(t.logq)
        n = min(q * mp.exp(d), 1 - mpf(10) ** -20)
        slope = {
            "ratio": mpf(1),
            "k1": mpf(1),
            "k2": abs(d),
            "k3": mp.exp(d) + 1,
            "tv": q + n,
            "binary_kl": q + n * (1 - q) / (1 - n),
        }[rule["statistic"]]
        slopes.append(slope * errors.ratio(t, numerator) + 4 * _size(v))
    error = mp.fsum(slopes) / (len(each) if rule["reduce"] == "mean" else 1)
    limits = [mpf(b) for b in (rule["low"], rule["high"]) if b is not None]
    if rule["statistic"] == "ratio":
        return [_log_gap(value, b, error) for b in limits if b > 0]
    return [Gap(float(abs(value - b)), float(error)) for b in limits]


def _centering_gaps(case: Case, token: Token, definition: dict, errors: Errors) -> list[Gap]:
    """Thresholds met by the tokens of the centering sum, the modelled tail included."""
    center, slots = token.extra["center"], []
    if token.q_full is not None and center.head is None:
        for v, q in enumerate(token.q_full):
            if token.inside[v]:
                slots.append(
                    (q, token.p[v], None if token.o_full is None else token.o_full[v], errors.trainer(token, v))
                )
    elif token.head is not None:
        scale = 1 / center.head_mass_sampler if definition["centering"]["tail"] == "renormalised" else mpf(1)
        for slot in token.head:
            o = slot.o if slot.o is not None or token.o_full is None else token.o_full[slot.token]
            slots.append((slot.q * scale, token.p[slot.token], o, errors.trainer(token, slot.token)))
        if definition["centering"]["tail"] == "rescaled":
            rule = definition["centering"]
            q, p = center.head_mass_sampler, center.head_mass_trainer
            condition = 2 * tail_condition(q, p, rule["floor_sampler"], rule["floor_trainer"])
            # only the tail *ratio* matters: rho over 1
            anchors = [slot.o for slot in token.head]
            tail_o = None if None in anchors else max(1 - mp.fsum(anchors), mpf(rule["floor_trainer"] or 0))
            tail_p = max(1 - p, mpf(rule["floor_trainer"] or 0))
            slots.append((center.tail_ratio * tail_p, tail_p, tail_o, condition + 6))
    found = []
    for q, p, o, error in slots:
        for key in ("weight", "gate"):
            rule = definition[key]
            if rule is None or rule["level"] != "token" or not applies(rule["sign"], token.advantage):
                continue
            n = o if case.numerator(rule["numerator"]) == "anchor" else p
            if rule.get("statistic", "ratio") != "ratio":
                found += _tv_gaps(rule, n, q, token.advantage, error + 6)
            elif n > 0 and q > 0:
                found += [
                    _log_gap(mp.log(n / q), b, error + 6 + _size(mp.log(q))) for b in _sides(rule, token.advantage)
                ]
        surrogate = definition["surrogate"]
        base = o if case.three_policies else q
        if surrogate["kind"] != "reinforce" and p > 0 and base is not None and base > 0:
            limits = [b for b in (*bounds(surrogate), surrogate.get("dual")) if b is not None and b > 0]
            found += [_log_gap(mp.log(p / base), mpf(b), error + 6 + _size(mp.log(base))) for b in limits]
    return found


def _grid_gaps(inputs: dict[str, Any], settings: dict[str, Any]) -> list[Gap]:
    """Relative distance of x/s to the midpoints of the grid; dividing by 1 (scale "unit") is exact."""
    if settings.get("scale", "unit") == "unit":
        return []
    grid = [float(x) for x in grid_values(settings["format"])]
    middles = [(a + b) / 2 for a, b in zip(grid, grid[1:], strict=False)]
    top = max(abs(x) for row in inputs["values"] for x in row)
    found = []
    for row in inputs["values"]:
        largest = top if settings["scale"] == "tensor" else max(map(abs, row))
        scale = largest / grid[-1]
        if math.frexp(scale)[0] == 0.5:
            continue  # dividing by a power of two is exact as well
        for x in row:
            if x and largest:
                y = abs(x) / scale
                found += [Gap(abs(y - m) / y, 3.0) for m in middles]
    return found
