"""SymPy derivations, second half: the tail coefficient under a weight rule, truncation bias, aggregation, KL terms, drift.

See `rlcorr_ref.derive.symbolic` for the list of equations and the record they return.
"""

from __future__ import annotations

from typing import Any

from .symbolic import Derivation, Proof, distribution, scores, softmax


def tail_coefficient(vocabulary: int = 4, head: int = 2) -> Derivation:
    """eq-alpha: on the modelled tail p/q_hat = 1/rho, so the weighted centering needs alpha = rho f(1/rho) only.

    The rules are taken branch by branch: TIS (cap C) gives min(1, C rho), MIS (band [low, high]) gives 1 inside and 0
    outside, IcePop with inside = one gives rho inside and 0 outside, no rule gives rho, the unbounded ratio 1.
    """
    import sympy

    t, rho = sympy.symbols("T rho", positive=True)
    cap, low, high = sympy.symbols("C low high", positive=True)
    f = sympy.Function("f")
    p_free, p = distribution("p", vocabulary)
    q = sympy.symbols(f"q0:{head}", positive=True)
    s = scores(p, t)
    inside, outside, every = range(head), range(head, vocabulary), range(vocabulary)
    proof = Proof(
        "eq-alpha",
        r"E_{\hat q}[f(p/\hat q)\, s] = \sum_H (q_v f(p_v/q_v) - \alpha p_v) s_v,\quad \alpha = \rho f(1/\rho)",
    )
    alpha = rho * f(1 / rho)
    proof.step("alpha", alpha)
    weighted = [
        *(q[v] * f(p[v] / q[v]) for v in inside),
        *(rho * p[v] * f(sympy.cancel(p[v] / (rho * p[v]))) for v in outside),
    ]
    dense = [sum(weighted[v] * s[v][u] for v in every) for u in every]
    short = [sum((q[v] * f(p[v] / q[v]) - alpha * p[v]) * s[v][u] for v in inside) for u in every]
    proof.vanishes("dense minus head-only", *(a - b for a, b in zip(dense, short, strict=True)))

    ratio = 1 / rho
    band = sympy.And(ratio >= low, ratio <= high)
    rules = {
        "none": (sympy.Integer(1), rho),
        "is": (ratio, sympy.Integer(1)),
        "tis": (
            sympy.Piecewise((ratio, ratio <= cap), (cap, True)),
            sympy.Piecewise((1, ratio <= cap), (cap * rho, True)),
        ),
        "mis": (sympy.Piecewise((ratio, band), (0, True)), sympy.Piecewise((1, band), (0, True))),
        "icepop_inside_one": (sympy.Piecewise((1, band), (0, True)), sympy.Piecewise((rho, band), (0, True))),
    }
    result = {}
    for name, (value, claimed) in rules.items():
        proof.step(f"alpha, {name}", claimed)
        branches = zip(_branches(value), _branches(claimed), strict=True)
        proof.vanishes(f"rho f(1/rho) minus it, {name}, every branch", *(rho * a - b for a, b in branches))
        result[name] = claimed
    return proof.done(result, {"rho": rho, "C": cap, "low": low, "high": high, "p": p_free, "q": q, "T": t})


def truncation_bias(vocabulary: int = 3) -> Derivation:
    """eq-tis-bias: what a cap C on the token ratio costs, E_q[min(r, C) R s] - E_p[R s] = -sum_v (p_v - C q_v)_+ R_v s_v.

    With a constant reward E_p[R s] = 0 and the whole expectation is that residue: truncation re-introduces a drift, on
    exactly the tokens that the sampler under-represents. Without a cap (C to infinity) it is 0.
    """
    import sympy

    t, cap = sympy.symbols("T C", positive=True)
    p_free, p = distribution("p", vocabulary)
    q_free, q = distribution("q", vocabulary)
    reward = sympy.symbols(f"R0:{vocabulary}", real=True)
    s, every = scores(p, t), range(vocabulary)
    proof = Proof("eq-tis-bias", r"E_q[\min(r, C) R s] = E_p[R s] - \sum_v (p_v - C q_v)_+ R_v s_v")
    one_p, one_q = sympy.symbols("p q", positive=True)
    proof.step("mass of one token", sympy.Min(one_p / one_q, cap) * one_q)
    proof.vanishes("q (p/q) - p, where p/q <= C", one_q * (one_p / one_q) - one_p)
    proof.vanishes("q C - (p - (p - C q)), where p/q > C", one_q * cap - (one_p - (one_p - cap * one_q)))
    bias = [-sum(sympy.Max(p[v] - cap * q[v], 0) * reward[v] * s[v][u] for v in every) for u in every]
    # The choice of branch is a 0/1 symbol per token: the identity is then polynomial and covers all 2^V cases at once.
    over = sympy.symbols(f"b0:{vocabulary}")
    mass = [over[v] * cap * q[v] + (1 - over[v]) * p[v] for v in every]
    left = [sum((mass[v] - p[v]) * reward[v] * s[v][u] for v in every) for u in every]
    right = [-sum(over[v] * (p[v] - cap * q[v]) * reward[v] * s[v][u] for v in every) for u in every]
    proof.vanishes("E_q[w R s] - E_p[R s] minus the bias", *(a - b for a, b in zip(left, right, strict=True)))
    proof.vanishes("E_p[s], the constant reward's gradient", *(sum(p[v] * s[v][u] for v in every) for u in every))
    proof.step("bias on z_0", bias[0])
    return proof.done({"bias": bias}, {"p": p_free, "q": q_free, "R": reward, "C": cap, "T": t})


def mean_of_means() -> Derivation:
    """eq-aggregation: two micro-batches with n_1, n_2 tokens and token sums S_1, S_2.

    Averaging their token means weighs a token of micro-batch i by 1/(2 n_i) in place of 1/(n_1 + n_2): another objective,
    unless n_1 = n_2. With the global denominator given to both, the sums add up to the token mean of the whole batch.
    """
    import sympy

    n1, n2 = sympy.symbols("n1 n2", positive=True)
    s1, s2 = sympy.symbols("S1 S2", real=True)
    proof = Proof(
        "eq-aggregation",
        r"\tfrac12(S_1/n_1 + S_2/n_2) - (S_1 + S_2)/(n_1 + n_2)"
        r" = (n_2 - n_1)(n_2 S_1 - n_1 S_2)/(2 n_1 n_2 (n_1 + n_2))",
    )
    token_mean = proof.step("token mean", (s1 + s2) / (n1 + n2))
    means = proof.step("mean of means", (s1 / n1 + s2 / n2) / 2)
    gap = proof.step("their difference", (n2 - n1) * (n2 * s1 - n1 * s2) / (2 * n1 * n2 * (n1 + n2)))
    proof.vanishes("mean of means - token mean - difference", means - token_mean - gap)
    proof.vanishes("difference at n_1 = n_2", gap.subs(n2, n1))
    proof.vanishes("explicit denominators", s1 / (n1 + n2) + s2 / (n1 + n2) - token_mean)
    weight = sympy.simplify(sympy.diff(means, s1) / sympy.diff(token_mean, s1))
    proof.step("weight of a token of the first, relative to the token mean", weight)
    symbols = {"S1": s1, "S2": s2, "n1": n1, "n2": n2}
    return proof.done(
        {"token_mean": token_mean, "mean_of_means": means, "difference": gap, "relative_weight": weight}, symbols
    )


def kl_in_the_loss(vocabulary: int = 3) -> Derivation:
    """eq-k1: the expected gradient under p of KL estimates used as a loss on the sampled token, x = log ref - log p.

    k1 = -x has slope 1: E_p[s] = 0, no KL gradient at all. k2 = x^2/2 has slope -x and gives the gradient of KL(p || ref).
    k3 = exp(x) - 1 - x has slope 1 - exp(x) and gives the gradient of KL(ref || p). Under a sampler q, k1 pulls by s_bar.
    """
    import sympy

    z, t, p = softmax(vocabulary)
    r_free, r = distribution("r", vocabulary)
    q_free, q = distribution("q", vocabulary)
    every = range(vocabulary)
    x = [sympy.log(r[v]) - sympy.log(p[v]) for v in every]
    s = [[sympy.diff(sympy.log(p[v]), z[u]) for u in every] for v in every]

    def expected(measure: list[Any], slope: list[Any]) -> list[Any]:
        return [sum(measure[v] * slope[v] * s[v][u] for v in every) for u in every]

    proof = Proof(
        "eq-k1",
        r"E_p[\nabla k_1] = 0,\quad E_p[\nabla k_2] = \nabla KL(p \| ref),\quad E_p[\nabla k_3] = \nabla KL(ref \| p)",
    )
    one = [sympy.Integer(1)] * vocabulary
    forward = sum(p[v] * -x[v] for v in every)
    backward = sum(r[v] * x[v] for v in every)
    proof.step("KL(p || ref)", forward)
    proof.vanishes("E_p[grad k1]", *expected(p, one))
    k2 = expected(p, [-v for v in x])
    proof.vanishes("E_p[grad k2] - grad KL(p || ref)", *(k2[u] - sympy.diff(forward, z[u]) for u in every))
    k3 = expected(p, [1 - sympy.exp(v) for v in x])
    proof.vanishes("E_p[grad k3] - grad KL(ref || p)", *(k3[u] - sympy.diff(backward, z[u]) for u in every))
    pull = [(q[u] - p[u]) / t for u in every]
    proof.vanishes("E_q[grad k1] - (q - p)/T", *(a - b for a, b in zip(expected(q, one), pull, strict=True)))
    result = {
        "k1": [sympy.Integer(0)] * vocabulary,
        "k2": [sympy.diff(forward, z[u]) for u in every],
        "k3": [(p[u] - r[u]) / t for u in every],
        "k1_under_sampler": pull,
    }
    proof.vanishes("grad KL(ref || p) - (p - ref)/T", *(sympy.diff(backward, z[u]) - result["k3"][u] for u in every))
    return proof.done(result, {"z": z, "T": t, "r": r_free, "q": q_free})


def drift_and_signal(vocabulary: int = 4) -> Derivation:
    """eq-drift: E_q[R s] = E_q[R] s_bar + Cov_q(R, s) at one prefix, with s_bar = (q - p)/T = -grad CE(q, p).

    Exact centering leaves the covariance alone, and so does the prefix value E_q[R] as a baseline.
    """
    import sympy

    z, t, softmax_p = softmax(vocabulary)
    p_free, p = distribution("p", vocabulary)
    q_free, q = distribution("q", vocabulary)
    reward = sympy.symbols(f"R0:{vocabulary}", real=True)
    s, every = scores(p, t), range(vocabulary)
    proof = Proof("eq-drift", r"E_q[R s] = E_q[R]\,\bar s + Cov_q(R, s),\quad \bar s = (q - p)/T")
    value = proof.step("E_q[R]", sum(q[v] * reward[v] for v in every))
    bar = [sum(q[v] * s[v][u] for v in every) for u in every]
    proof.vanishes("s_bar - (q - p)/T", *(bar[u] - (q[u] - p[u]) / t for u in every))
    entropy = -sum(q[v] * sympy.log(softmax_p[v]) for v in every)
    slope = [sympy.diff(entropy, z[u]) + (q[u] - softmax_p[u]) / t for u in every]
    proof.vanishes("grad CE(q, p) + (q - p)/T", *slope)
    drift = [value * bar[u] for u in every]
    signal = [q[u] * (reward[u] - value) / t for u in every]
    covariance = [sum(q[v] * (reward[v] - value) * (s[v][u] - bar[u]) for v in every) for u in every]
    proof.vanishes("Cov_q(R, s)_u - q_u (R_u - E_q[R])/T", *(a - b for a, b in zip(covariance, signal, strict=True)))
    total = [sum(q[v] * reward[v] * s[v][u] for v in every) for u in every]
    proof.vanishes("E_q[R s] - drift - signal", *(total[u] - drift[u] - signal[u] for u in every))
    centered = [sum(q[v] * reward[v] * (s[v][u] - bar[u]) for v in every) for u in every]
    proof.vanishes("E_q[R (s - s_bar)] - signal", *(centered[u] - signal[u] for u in every))
    return proof.done(
        {"drift": drift, "signal": signal, "total": total}, {"p": p_free, "q": q_free, "R": reward, "T": t}
    )


def _branches(expression: Any) -> list[Any]:
    """The values of a Piecewise in order, or the expression itself."""
    import sympy

    return [value for value, _ in expression.args] if isinstance(expression, sympy.Piecewise) else [expression]
