"""SymPy derivations of the central results, one function per citable equation (extra: `derive`).

    eq-score        d log p_y / d z_u = (1[u = y] - p_u)/T
    eq-centered     -dL/dz = A (e_y - q)/T                          exact score centering: q takes p's place
    eq-head-only    q_hat on the whole vocabulary and q - rho p on the head have the same gradient
    eq-alpha        alpha = rho f(1/rho), per weight rule
    eq-tis-bias     E_q[min(r, C) R s] = E_p[R s] - sum_v (p_v - C q_v)_+ R_v s_v
    eq-aggregation  a mean of means is another objective; explicit denominators add up
    eq-k1           k1 in the loss has no KL gradient; k2 and k3 have
    eq-drift        E_q[R s] = E_q[R] s_bar + Cov_q(R, s),  s_bar = (q - p)/T

Every function takes the size of the vocabulary, returns a `Derivation` and raises `DerivationError` unless each of its
residuals simplifies to exactly 0. Nothing here calls the numerical modules: the formulas in `result` are what the tests
compare them with. Source of the method: arXiv 2609.20807; of the KL estimators: J. Schulman, "Approximating KL
divergence" (2020); of truncated importance sampling: Ionides, J. Comput. Graph. Stat. 17(2), 2008.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class DerivationError(ArithmeticError):
    """A residual that should vanish does not."""


@dataclass(frozen=True)
class Derivation:
    """anchor (the name to cite), statement (LaTeX), steps (label, SymPy expression or LaTeX string) in order.

    `result` holds the final formulas by name, `symbols` the symbols they are written in by name (a symbol, or a tuple of
    them over the vocabulary), so that a test or a notebook can put numbers in.
    """

    anchor: str
    statement: str
    steps: tuple[tuple[str, Any], ...]
    result: dict[str, Any]
    symbols: dict[str, Any]

    def latex(self) -> list[tuple[str, str]]:
        """The steps with every expression as LaTeX."""
        import sympy

        return [(label, step if isinstance(step, str) else sympy.latex(step)) for label, step in self.steps]


class Proof:
    """Collects steps and checks residuals while a derivation is written down."""

    def __init__(self, anchor: str, statement: str) -> None:
        self.anchor, self.statement = anchor, statement
        self.steps: list[tuple[str, Any]] = []

    def step(self, label: str, expression: Any) -> Any:
        self.steps.append((label, expression))
        return expression

    def vanishes(self, label: str, *residuals: Any) -> None:
        """Record `label` with 0 after checking that every residual simplifies to 0."""
        import sympy

        for residual in residuals:
            left = sympy.simplify(sympy.expand(residual))
            if left != 0:
                raise DerivationError(f"{self.anchor}, {label}: expected 0, {left} is left")
        self.steps.append((label, sympy.Integer(0)))

    def done(self, result: dict[str, Any], symbols: dict[str, Any]) -> Derivation:
        return Derivation(self.anchor, self.statement, tuple(self.steps), result, symbols)


def distribution(name: str, size: int) -> tuple[tuple[Any, ...], list[Any]]:
    """(free symbols [size - 1], probabilities [size]): positive symbols, the last one is what the others leave of 1."""
    import sympy

    free = sympy.symbols(f"{name}0:{size - 1}", positive=True)
    return free, [*free, 1 - sum(free)]


def scores(p: list[Any], temperature: Any) -> list[list[Any]]:
    """s_v on the logits [V][V]: (1[u = v] - p_u)/T, the result of `softmax_score`."""
    return [[(int(u == v) - p[u]) / temperature for u in range(len(p))] for v in range(len(p))]


def softmax(vocabulary: int) -> tuple[tuple[Any, ...], Any, list[Any]]:
    """(logit symbols z, temperature symbol T, p(z)) for a softmax at temperature T."""
    import sympy

    z = sympy.symbols(f"z0:{vocabulary}", real=True)
    t = sympy.Symbol("T", positive=True)
    total = sum(sympy.exp(x / t) for x in z)
    return z, t, [sympy.exp(x / t) / total for x in z]


def softmax_score(vocabulary: int = 3) -> Derivation:
    """eq-score: the score of a token on the logits before temperature, by differentiating log softmax."""
    import sympy

    z, t, p = softmax(vocabulary)
    proof = Proof("eq-score", r"\partial \log p_y / \partial z_u = (1[u = y] - p_u)/T")
    proof.step("softmax", p[0])
    rows = [[sympy.diff(sympy.log(p[v]), z[u]) for u in range(vocabulary)] for v in range(vocabulary)]
    proof.step("derivative of log p_0 by z_1", rows[0][1])
    claimed = scores(p, t)
    proof.vanishes("derivative minus (1[u = v] - p_u)/T, every u and v", *_difference(rows, claimed))
    mean = [sum(p[v] * rows[v][u] for v in range(vocabulary)) for u in range(vocabulary)]
    proof.vanishes("sum_v p_v s_v", *mean)
    return proof.done({"score": claimed}, {"z": z, "T": t})


def centered_gradient(vocabulary: int = 3) -> Derivation:
    """eq-centered: L = -A (log p_y - sum_v sg(q_v) log p_v) moves the logits along A (e_y - q)/T."""
    import sympy

    z, t, p = softmax(vocabulary)
    free, q = distribution("q", vocabulary)
    a = sympy.Symbol("A", real=True)
    proof = Proof("eq-centered", r"-\partial L / \partial z = A (e_y - q)/T")
    claimed = []
    for y in range(vocabulary):
        loss = -a * (sympy.log(p[y]) - sum(q[v] * sympy.log(p[v]) for v in range(vocabulary)))
        if y == 0:
            proof.step("loss for y = 0", loss)
        ascent = [a * (int(u == y) - q[u]) / t for u in range(vocabulary)]
        proof.vanishes(
            f"-dL/dz - A (e_y - q)/T for y = {y}", *(-sympy.diff(loss, z[u]) - ascent[u] for u in range(vocabulary))
        )
        claimed.append(ascent)
    proof.vanishes(
        "E_q of it, constant A", *(sum(q[y] * claimed[y][u] for y in range(vocabulary)) for u in range(vocabulary))
    )
    return proof.done({"ascent": claimed}, {"z": z, "T": t, "q": free, "A": a})


def head_only(vocabulary: int = 5, head: int = 2) -> Derivation:
    """eq-head-only: with q_hat = q on the head H and rho p off it, sum_v q_hat_v s_v = sum_H (q_v - rho p_v) s_v."""
    import sympy

    t = sympy.Symbol("T", positive=True)
    p_free, p = distribution("p", vocabulary)
    q = sympy.symbols(f"q0:{head}", positive=True)
    s = scores(p, t)
    inside, outside, every = range(head), range(head, vocabulary), range(vocabulary)
    proof = Proof("eq-head-only", r"\sum_v \hat q_v s_v = \sum_{v \in H} (q_v - \rho p_v) s_v")
    rho = proof.step("rho = (1 - Q)/(1 - P)", (1 - sum(q)) / (1 - sum(p[v] for v in inside)))
    q_hat = [*q, *(rho * p[v] for v in outside)]
    proof.vanishes("q_hat sums to 1", sum(q_hat) - 1)
    proof.vanishes("sum_v p_v s_v", *(sum(p[v] * s[v][u] for v in every) for u in every))
    dense = [sum(q_hat[v] * s[v][u] for v in every) for u in every]
    coefficients = [proof.step(f"head coefficient {v}", q[v] - rho * p[v]) for v in inside]
    short = [sum(coefficients[v] * s[v][u] for v in inside) for u in every]
    proof.vanishes("dense minus head-only", *_difference([dense], [short]))
    proof.vanishes("head coefficients sum to 1 - rho", sum(coefficients) - (1 - rho))
    logp = [sympy.log(x) for x in p]
    gap = sum(q_hat[v] * logp[v] for v in every) - sum(coefficients[v] * logp[v] for v in inside)
    proof.vanishes("values differ by rho sum p log p", gap - rho * sum(p[v] * logp[v] for v in every))
    result = {"rho": rho, "coefficients": coefficients, "q_hat": q_hat, "centering": dense}
    return proof.done(result, {"p": p_free, "q": q, "T": t})


def _difference(left: list[list[Any]], right: list[list[Any]]) -> list[Any]:
    return [a - b for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]


def derivations() -> dict[str, Callable[[], Derivation]]:
    """Every derivation by its anchor name."""
    from . import symbolic_expectations as more

    return {
        "eq-score": softmax_score,
        "eq-centered": centered_gradient,
        "eq-head-only": head_only,
        "eq-alpha": more.tail_coefficient,
        "eq-tis-bias": more.truncation_bias,
        "eq-aggregation": more.mean_of_means,
        "eq-k1": more.kl_in_the_loss,
        "eq-drift": more.drift_and_signal,
    }
