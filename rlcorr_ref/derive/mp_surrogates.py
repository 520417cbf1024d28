"""Multi-precision surrogates: value, slope in log p(y), and the factor of each vocabulary entry inside centering."""

from __future__ import annotations

from mpmath import mp, mpf

from .mp_inputs import Case, Token
from .mp_weights import ONE, ZERO, Growth


def bounds(surrogate: dict) -> tuple:
    """[1 - eps_low, 1 + eps_high]; None = no bound on that side (cispo only)."""
    low, high = surrogate["eps_low"], surrogate["eps_high"]
    return None if low is None else 1 - mpf(low), None if high is None else 1 + mpf(high)


def clip(r: mpf, low: mpf | None, high: mpf | None) -> mpf:
    """r moved to the nearest bound; None = no bound on that side."""
    if low is not None and r < low:
        return low
    return high if high is not None and r > high else r


def ppo_branch(r: mpf, advantage: mpf, low: mpf, high: mpf, dual) -> str:
    """Which branch of max(min(rA, clip(r)A), dual A [A < 0 only]) is taken; ties take "free", the unclipped one."""
    free = r * advantage
    objective, branch = free, "free"
    clipped = clip(r, low, high) * advantage
    if clipped < objective:
        objective, branch = clipped, "clipped"
    if dual is not None and advantage < 0 and mpf(dual) * advantage > objective:
        branch = "dual"
    return branch


def surrogate_factor(surrogate: dict, p: mpf, base: mpf, advantage: mpf, base_is_sampler: bool) -> Growth:
    """What multiplies f(n/q) for one vocabulary entry: 1, r * 1[r not clipped for this A], or clip(r); r = p/base."""
    kind = surrogate["kind"]
    if kind == "reinforce":
        return ONE
    low, high = bounds(surrogate)
    if base == 0:
        if not base_is_sampler:
            raise ValueError("an anchor probability of 0 has no ratio p/o; the anchor must be positive on the head")
        if kind == "cispo":
            return (Growth(p, 1) if high is None else Growth(high, 0)) if p > 0 else ZERO
        stopped = advantage > 0 or (advantage < 0 and surrogate["dual"] is not None)
        return ZERO if stopped or p == 0 else Growth(p, 1)
    r = p / base
    if kind == "cispo":
        return Growth(clip(r, low, high), 0)
    if kind == "ppo_clip":
        free = ppo_branch(r, advantage, low, high, surrogate["dual"]) == "free"
        return Growth(r, 0) if free else ZERO
    raise ValueError(f"centering has no per-token factor for surrogate {kind!r}; use reinforce, ppo_clip or cispo")


def log_prob_ratio(token: Token, three_policies: bool) -> mpf:
    """log r = log p(y) - log o(y), or - log q(y) without an anchor; nats."""
    return token.logp[token.y] - (token.logo if three_policies else token.logq)


def times(factor: mpf, value: mpf) -> mpf:
    """factor * value with 0 * inf = 0: a coefficient that is exactly 0 removes its term, log p = -inf included."""
    return mpf(0) if factor == 0 else factor * value


def apply_surrogate(case: Case, surrogate: dict) -> None:
    """Stores on every token the surrogate's `value`, `slope` (d value / d log p(y)), `clipped`, and what a
    function of the logits needs to rebuild it: `score_scale` (detached factor of log p) or `ratio_scale` (of exp)."""
    kind = surrogate["kind"]
    for row in case.rows:
        logs = [log_prob_ratio(token, case.three_policies) for token in row]
        for token, log_r in zip(row, logs, strict=True):
            advantage, logp = token.advantage, token.logp[token.y]
            extra = token.extra
            extra.update(clipped=False, score_scale=None, ratio_base=None, constant=None)
            if kind == "reinforce":
                extra["score_scale"] = -advantage
            elif kind == "cispo":
                low, high = bounds(surrogate)
                r = mp.exp(log_r)
                extra["clipped"] = clip(r, low, high) != r
                extra["score_scale"] = -clip(r, low, high) * advantage
            elif kind in ("ppo_clip", "gspo"):
                low, high = bounds(surrogate)
                log_s = mp.fsum(logs) / len(logs) if kind == "gspo" else log_r
                s = mp.exp(log_s)
                branch = ppo_branch(s, advantage, low, high, surrogate.get("dual"))
                extra["clipped"] = branch != "free"
                if branch == "free" and s == 0:
                    # p(y) = 0: value and slope are 0, and log p - log s would be inf - inf
                    extra["constant"] = mpf(0)
                elif branch == "free":
                    # s as a function of the own log-prob: exp(log p - base), whose value at the present logits is s
                    extra["ratio_base"] = logp - log_s
                else:
                    limit = clip(s, low, high) if branch == "clipped" else mpf(surrogate["dual"])
                    extra["constant"] = -limit * advantage
            else:
                raise ValueError(f"surrogate kind must be reinforce, ppo_clip, cispo or gspo; got {kind!r}")
            extra["value"] = surrogate_value(token, logp)
            extra["slope"] = (
                mpf(0)
                if extra["constant"] is not None
                else (extra["score_scale"] if extra["score_scale"] is not None else extra["value"])
            )


def surrogate_value(token: Token, logp: mpf) -> mpf:
    """s at log p(y) = `logp` with everything detached frozen at the present logits."""
    extra = token.extra
    if extra["constant"] is not None:
        return extra["constant"]
    if extra["score_scale"] is not None:
        return times(extra["score_scale"], logp)
    return times(-token.advantage, mp.exp(logp - extra["ratio_base"]))


def kl_value(kind: str, logref: mpf, logp: mpf) -> mpf:
    """k1 = -x, k2 = x^2/2, k3 = exp(x) - 1 - x (also "k3+"), x = log ref - log p; nats."""
    x = logref - logp
    if kind == "k1":
        return -x
    if kind == "k2":
        return x * x / 2
    if kind in ("k3", "k3+"):
        return mp.exp(x) - 1 - x
    raise ValueError(f"kl kind must be k1, k2, k3 or k3+; got {kind!r}")


def kl_slope(kind: str, logref: mpf, logp: mpf) -> mpf:
    """d kl / d log p(y); "k3+" carries k2's slope."""
    x = logref - logp
    return {"k1": mpf(1), "k2": -x, "k3": 1 - mp.exp(x), "k3+": -x}[kind]
