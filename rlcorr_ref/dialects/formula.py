"""A definition as one line of plain text.

Symbols: p trainer, o anchor, q sampler, n the numerator (o or p), d = log n - log q, A advantage; clamp20(x) is x clamped to
[-20, 20], mean_row and sum_row run over the row's valid tokens, [condition] is 1 or 0; N valid tokens, R rows with one, n the
row's valid tokens.
"""

from __future__ import annotations

import math

from ..contract import Band, Gate, Objective, RejectionRule, WeightRule

RATIOS = {"token": "{d}", "sequence": "sum_row {d}", "geometric": "mean_row {d}", "segment": "mean_run {d}"}
REDUCTIONS = {
    "token-mean": "1/{tokens} sum",
    "token-sum": "sum",
    "seq-mean-token-sum": "1/{rows} sum",
    "seq-mean-token-mean": "1/{rows} sum_rows 1/{row} sum_tokens",
    "seq-mean-token-sum-norm": "1/({rows} {length:g}) sum",
}
SIGNS = {"both": "", "positive": " for A >= 0, else 1", "negative": " for A < 0, else 1"}


def number(x: float) -> str:
    """A number in six significant digits."""
    return f"{x:g}"


def formula(definition: dict, policies: str) -> str:
    """The loss of a definition in one line; `policies` is "two" or "three"."""
    objective = Objective.from_dict(definition)
    three = policies == "three"
    parts = []
    factor = ""
    if objective.weight is not None:
        parts.append(f"w = {_weight(objective.weight, three)}")
        factor += "w "
    if objective.gate is not None:
        parts.append(f"g = {_gate(objective.gate, three)}")
        factor += "g "
    parts.append(f"s = {_surrogate(objective, three)}")
    terms = [f"{factor}s"]
    if objective.centering is not None:
        terms.append("A sum_v sg(c_v) log p_v")
        parts.append(f"c: {_centering(objective)}")
    if objective.kl is not None:
        w = factor if objective.kl.weighted else ""
        terms.append(f"{number(objective.kl.beta)} {w}{objective.kl.kind}(p, ref)")
    if objective.entropy is not None:
        terms.append(f"({number(-objective.entropy)}) H(p)")
    kept = [_rejection(rule, three) for rule in objective.rejection]
    if kept:
        parts.append(f"keep {' and '.join(kept)}")
    body = terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"
    return f"loss = {_reduction(objective)} {body}; " + "; ".join(parts)


def _log_ratio(numerator: str, clamp: float | None = None, *, reciprocal: bool = False) -> str:
    text = f"log q/{numerator}" if reciprocal else f"log {numerator}/q"
    return text if clamp is None else f"clamp{number(clamp)}({text})"


def _numerator(given: str | None, three: bool) -> str:
    return "p" if given == "trainer" or (given is None and not three) else "o"


def _interval(low: float | None, high: float | None, closed: bool, signed: bool = False) -> str:
    left = "-inf" if low is None else number(low)
    if not signed and (low is None or low <= 0):
        left = "0"
    right = "inf" if high is None else number(high)
    return f"[{left}, {right}]" if closed else f"({left}, {right})"


def _weight(rule: WeightRule, three: bool) -> str:
    n = _numerator(rule.numerator, three)
    first = rule.level == "token" or rule.clamp_order == "token"
    rho = RATIOS[rule.level].format(d=_log_ratio(n, rule.log_clamp if first else None))
    if rule.log_clamp is not None and not first:
        rho = f"clamp{number(rule.log_clamp)}({rho})"
    signed = rule.statistic == "tv_signed"
    what = {"ratio": "rho", "tv": f"|{n} - q|", "tv_signed": f"{n} - q"}[rule.statistic]
    positive, negative = rule.band(True), rule.band(False)
    if not (positive.bounded(signed) or negative.bounded(signed)):
        text = "rho" if rule.inside == "ratio" else "1"
    elif positive == negative:
        text = _banded(rule, what, positive)
    else:
        text = f"{_banded(rule, what, positive)} for A >= 0, {_banded(rule, what, negative)} for A < 0"
    text += SIGNS[rule.sign]
    if rule.normalise is not None:
        text = f"({text}) / mean over {'tokens' if rule.normalise == 'tokens' else 'row means'}"
    return f"{text}, rho = exp({rho})"


def _banded(rule: WeightRule, what: str, band: Band) -> str:
    inside = "rho" if rule.inside == "ratio" else "1"
    low = None if band.low is None or (band.low <= 0 and rule.statistic != "tv_signed") else number(band.low)
    high = None if band.high is None else number(band.high)
    if rule.outside == "clip" and inside == "rho":
        if low is None:
            return f"min(rho, {high})"
        return f"max(rho, {low})" if high is None else f"clamp(rho, {low}, {high})"
    outside = "" if rule.outside == "zero" else f" else nearest of {low}, {high}"
    return f"{inside} [{what} in {_interval(band.low, band.high, rule.closed, rule.statistic == 'tv_signed')}]{outside}"


def _gate(rule: Gate, three: bool) -> str:
    rho = RATIOS[rule.level].format(d=_log_ratio(_numerator(rule.numerator, three)))
    return f"[exp({rho}) in {_interval(rule.low, rule.high, rule.closed)}]{SIGNS[rule.sign]}"


def _surrogate(objective: Objective, three: bool) -> str:
    rule = objective.surrogate
    r = "p/o" if three else "p/q"
    if rule.kind == "reinforce":
        return "-A log p"
    low = "0" if rule.eps_low is None else number(1 - rule.eps_low)
    high = "inf" if rule.eps_high is None else number(1 + rule.eps_high)
    if rule.kind == "cispo":
        return f"-A sg(clip({r}, {low}, {high})) log p"
    if rule.kind == "gspo":
        return f"-min(S A, clip(S, {low}, {high}) A), S = exp(mean_row log {r})"
    clipped = f"-min(r A, clip(r, {low}, {high}) A), r = {r}"
    return clipped if rule.dual is None else f"{clipped}, for A < 0 at most {number(rule.dual)} |A|"


def _centering(objective: Objective) -> str:
    rule = objective.centering
    if rule.tail != "rescaled":
        return f"tail {rule.tail}"
    floors = ["none" if f is None else number(f) for f in (rule.floor_sampler, rule.floor_trainer)]
    return f"tail rescaled, floors q {floors[0]}, p {floors[1]}"


def _rejection(rule: RejectionRule, three: bool) -> str:
    n = _numerator(rule.numerator, three)
    d = _log_ratio(n, rule.log_clamp)
    statistic = {
        "ratio": d,
        "k1": _log_ratio(n, rule.log_clamp, reciprocal=True),
        "k2": f"({d})^2/2",
        "k3": f"(exp(d) - 1 - d), d = {d}",
        "tv": f"|{n} - q|",
        "binary_kl": f"KL(Bernoulli q || {n})",
    }[rule.statistic]
    text = statistic if rule.reduce == "token" else f"{rule.reduce}_row {statistic}"
    low, high = rule.low, rule.high
    if rule.statistic in ("ratio", "k1"):
        text = f"exp({text})"
    if rule.statistic == "k1":
        low, high = (None if x is None else math.exp(x) for x in (low, high))
    exempt = {"both": "", "positive": " or A < 0", "negative": " or A >= 0"}[rule.sign]
    return f"[{text} in {_interval(low, high, rule.closed)}{exempt}]"


def _reduction(objective: Objective) -> str:
    """N, R and n are the valid tokens, rows and the row's tokens; "kept" where rejection shrinks them."""
    rule = objective.aggregation
    kept = "_kept" if any(r.denominator == "shrunk" for r in objective.rejection) else ""
    tokens = f"N{kept}" if rule.tokens is None else number(rule.tokens)
    rows = f"R{kept}" if rule.sequences is None else number(rule.sequences)
    return REDUCTIONS[rule.kind].format(tokens=tokens, rows=rows, row=f"n{kept}", length=rule.length or 1.0)
