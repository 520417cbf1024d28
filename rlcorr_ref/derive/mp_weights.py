"""Multi-precision importance weights: level, band, gate, batch normalisation, rejection.

A weight rule is a function f(n, q) of two probabilities (numerator n, sampler q). At q = 0 the ratio n/q is infinite,
but what the centering term needs is the limit of q f(n/q), so a factor is returned as a `Growth` pair: it behaves
like coefficient * q**(-power) as q -> 0. For q > 0 the power is 0 and the coefficient is the value.
"""

from __future__ import annotations

from typing import NamedTuple

from mpmath import mp, mpf

from .mp_inputs import Case, Token


class Growth(NamedTuple):
    """coefficient * q**(-power); `power` is nonzero only where q = 0 exactly."""

    coefficient: mpf
    power: int

    def times(self, other: Growth) -> Growth:
        """The product of two factors of the same q."""
        return Growth(self.coefficient * other.coefficient, self.power + other.power)

    def mass(self, q: mpf) -> mpf:
        """q times the factor, by its limit where q = 0."""
        if self.coefficient == 0:
            return mpf(0)
        left = 1 - self.power
        if left == 1:
            return q * self.coefficient
        return self.coefficient if left == 0 else mpf("inf") * self.coefficient


ONE = Growth(mpf(1), 0)
ZERO = Growth(mpf(0), 0)


class Band(NamedTuple):
    """An interval on a ratio or a statistic; None = no bound on that side."""

    low: mpf | None
    high: mpf | None
    closed: bool

    @classmethod
    def of(cls, low, high, closed) -> Band:
        """The band from wire numbers, taken over exactly."""
        return cls(None if low is None else mpf(low), None if high is None else mpf(high), bool(closed))

    def below(self, x: mpf) -> bool:
        """Whether x is under the low end; the end itself is under an open band."""
        return self.low is not None and (x < self.low if self.closed else x <= self.low)

    def above(self, x: mpf) -> bool:
        """Whether x is over the high end; the end itself is over an open band."""
        return self.high is not None and (x > self.high if self.closed else x >= self.high)

    def holds(self, x: mpf) -> bool:
        """Whether x is in the band; a closed band keeps its ends."""
        return not self.below(x) and not self.above(x)


def applies(sign: str, advantage: mpf) -> bool:
    """Whether a rule with this `sign` touches a token: positive means A >= 0, negative A < 0."""
    if sign not in ("both", "positive", "negative"):
        raise ValueError(f"sign must be 'both', 'positive' or 'negative'; got {sign!r}")
    return sign == "both" or (sign == "positive") == (advantage >= 0)


def ratio(n: mpf, q: mpf, log_clamp) -> Growth:
    """n/q with its logarithm clamped to [-c, c]; at q = 0 it grows like n/q unless clamped."""
    if n == 0 and q == 0:
        return ZERO
    if q == 0:
        return Growth(n, 1) if log_clamp is None else Growth(mp.exp(mpf(log_clamp)), 0)
    if log_clamp is None:
        return Growth(n / q, 0)
    clamp = mpf(log_clamp)
    log_ratio = mpf("-inf") if n == 0 else mp.log(n / q)
    return Growth(mp.exp(min(max(log_ratio, -clamp), clamp)), 0)


def weight_factor(rule: dict, n: mpf, q: mpf, advantage: mpf) -> Growth:
    """f(n/q) of the weight rule for a token with this advantage; before any batch normalisation."""
    if not applies(rule["sign"], advantage):
        return ONE
    bounds = rule["positive"] if advantage >= 0 else rule["negative"]
    bounds = bounds if bounds is not None else rule
    band = Band.of(bounds.get("low", 0.0), bounds.get("high"), rule["closed"])
    grown = ratio(n, q, rule["log_clamp"])
    inside = grown if rule["inside"] == "ratio" else ONE
    if rule["statistic"] != "ratio":
        gap = n - q if rule["statistic"] == "tv_signed" else abs(n - q)
        return inside if band.holds(gap) else ZERO
    x = mpf("inf") if grown.power else grown.coefficient
    if band.holds(x):
        return inside
    if rule["outside"] == "zero":
        return ZERO
    return Growth(band.low if band.below(x) else band.high, 0)


def gate_factor(rule: dict, n: mpf, q: mpf, advantage: mpf) -> Growth:
    """1 where the gate's band holds n/q (or the sign exempts the token), else 0."""
    if not applies(rule["sign"], advantage):
        return ONE
    grown = ratio(n, q, None)
    x = mpf("inf") if grown.power else grown.coefficient
    return ONE if Band.of(rule["low"], rule["high"], rule["closed"]).holds(x) else ZERO


def clamp(x: mpf, c) -> mpf:
    """x moved into [-c, c] (nats when x is a log-ratio); c None leaves it alone."""
    return x if c is None else min(max(x, -mpf(c)), mpf(c))


def level_log_ratio(row: list, token: Token, level: str, numerator: str, log_clamp, order: str) -> mpf:
    """The level's log-ratio in nats: d_t, the row's sum, its mean, or the mean over the contiguous run that holds t."""
    each = {other.t: other.d(numerator) for other in row}
    if order == "token":
        each = {t: clamp(d, log_clamp) for t, d in each.items()}
    if level == "token":
        value = each[token.t]
    elif level == "sequence":
        value = mp.fsum(each.values())
    elif level == "geometric":
        value = mp.fsum(each.values()) / len(each)
    elif level == "segment":
        run = [token.t]
        while run[0] - 1 in each:
            run.insert(0, run[0] - 1)
        while run[-1] + 1 in each:
            run.append(run[-1] + 1)
        value = mp.fsum(each[t] for t in run) / len(run)
    else:
        raise ValueError(f"level must be 'token', 'sequence', 'geometric' or 'segment'; got {level!r}")
    return clamp(value, log_clamp)


def _sampled_factor(case: Case, token: Token, rule: dict, factor) -> mpf:
    """A rule's factor at the token's level ratio. tv statistics look at the sampled token's two probabilities."""
    numerator = case.numerator(rule["numerator"])
    if rule.get("statistic", "ratio") != "ratio":
        log_n = token.logo if numerator == "anchor" else token.logp[token.y]
        return factor(rule, mp.exp(log_n), mp.exp(token.logq), token.advantage).coefficient
    log_ratio = level_log_ratio(
        case.rows[token.b], token, rule["level"], numerator, rule.get("log_clamp"), rule.get("clamp_order", "aggregate")
    )
    return factor(rule, mp.exp(log_ratio), mpf(1), token.advantage).coefficient


def apply_weights(case: Case, weight: dict | None, gate: dict | None) -> None:
    """Stores on every token `weight` (all applied), `whole` (its row-level part) and `divisor`, what batch
    normalisation divides f by for every vocabulary entry (1 where it divides a row-level weight, inside `whole`)."""
    for token in case.tokens:
        w = mpf(1) if weight is None else _sampled_factor(case, token, weight, weight_factor)
        g = mpf(1) if gate is None else _sampled_factor(case, token, gate, gate_factor)
        token.extra["weight"] = w * g
        token.extra["whole"] = (w if weight and weight["level"] != "token" else mpf(1)) * (
            g if gate and gate["level"] != "token" else mpf(1)
        )
    divisor = mpf(1)
    mode = weight["normalise"] if weight else None
    if mode is not None and case.tokens:
        if mode == "tokens":
            means = [token.extra["weight"] for token in case.tokens]
        elif mode == "rows":
            means = [mp.fsum(token.extra["weight"] for token in row) / len(row) for row in case.rows if row]
        else:
            raise ValueError(f"weight normalise must be null, 'tokens' or 'rows'; got {mode!r}")
        divisor = mp.fsum(means) / len(means)
        if divisor == 0:
            raise ValueError("weight normalise divides by the mean weight, which is 0 here; widen the band")
    for token in case.tokens:
        token.extra["weight"] /= divisor
        per_token = weight is not None and weight["level"] == "token"
        token.extra["divisor"] = divisor if per_token else mpf(1)
        token.extra["whole"] /= mpf(1) if per_token else divisor


def token_factor(case: Case, weight: dict | None, gate: dict | None, advantage: mpf, q: mpf, p, o) -> Growth:
    """f for one vocabulary entry: the token-level weight times the token-level gate (p, o, q are probabilities)."""
    total = ONE
    for rule, factor in ((weight, weight_factor), (gate, gate_factor)):
        if rule is not None and rule["level"] == "token":
            n = o if case.numerator(rule["numerator"]) == "anchor" else p
            total = total.times(factor(rule, n, q, advantage))
    return total


def rejection_statistic(token: Token, rule: dict, numerator: str) -> mpf:
    """The per-token statistic of a rejection rule; "ratio" stays a log-ratio here so that rows can sum it."""
    d = clamp(token.d(numerator), rule["log_clamp"])
    q = mp.exp(token.logq)
    n = mp.exp(token.d(numerator) + token.logq)
    kind = rule["statistic"]
    if kind == "ratio":
        return d
    if kind == "k1":
        return -d
    if kind == "k2":
        return d * d / 2
    if kind == "k3":
        return mp.exp(d) - 1 - d
    if kind == "tv":
        return abs(n - q)
    if kind == "binary_kl":
        if q == 1:
            return -mp.log(n)
        return q * mp.log(q / n) + (1 - q) * mp.log((1 - q) / (1 - n)) if n < 1 else mpf("inf")
    raise ValueError(f"rejection statistic must be ratio, k1, k2, k3, tv or binary_kl; got {kind!r}")


def apply_rejection(case: Case, rules: list) -> None:
    """Clears `kept` on every token that some rule drops. Row statistics run over the row's original valid tokens."""
    for rule in rules:
        numerator = case.numerator(rule["numerator"])
        band = Band.of(rule["low"], rule["high"], rule["closed"])
        for row in case.rows:
            values = [rejection_statistic(token, rule, numerator) for token in row]
            for token, own in zip(row, values, strict=True):
                reduce = rule["reduce"]
                if reduce == "token":
                    value = own
                elif reduce == "sum":
                    value = mp.fsum(values)
                elif reduce == "mean":
                    value = mp.fsum(values) / len(values)
                elif reduce == "max":
                    value = max(values)
                else:
                    raise ValueError(f"rejection reduce must be token, sum, mean or max; got {reduce!r}")
                if rule["statistic"] == "ratio":
                    value = mp.exp(value)
                if applies(rule["sign"], token.advantage) and not band.holds(value):
                    token.kept = False
