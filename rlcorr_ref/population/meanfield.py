"""A learning iteration without sampling noise: decided tokens under a mismatched sampler lower the accuracy.

Each of n prompts has one live decision (V tokens, one of them right), then T further tokens whose reward is already decided
(retries, a closing phrase): they lie in one of C "success" or C "failure" contexts, drawn uniformly. All share one log-linear
policy z = x W with m random features; failure contexts lack the first third of the features, success contexts the last.

    a_i = q(right | prompt i)      reward +-1, baseline E_q[R] = 2 a_i - 1:   A = 2 (1 - a_i) or -2 a_i
    live    G  = (1/n) sum_i x_i (x) E_q[A w s]                                  s_v = e_v - p,  w = f(p/q)
    sealed  G += b T (mean over success c of x_c (x) d_c - mean over failure c of x_c (x) d_c),
            b = (1/n) sum_i 2 a_i (1 - a_i),   d_c = E_q[w s]                    (the drift of the decided tokens)
    W <- W + rate G,  then the sampler is made anew from W

Centering subtracts E_q[w s] times A: at the live token E_q[A] = 0, so nothing changes there, and the sealed term is 0. The
unbounded ratio has d_c = sum_v p_v s_v = 0 as well; a cap leaves a residue. Warm-up steps are on-policy. Samplers: "frozen"
(W plus a Gaussian error drawn once), "int3" (symmetric, levels -3..3) and "fp4" (e2m1), both with a scale per output token.
Three things are needed for a loss of accuracy: shared features, decided tokens that keep their entropy, and an accuracy that
stays away from 1; `tests/test_population_tree.py` shows that a free tabular policy is not hurt.

Final live accuracy of p, mean of seeds 0-2, defaults (200 warm-up and 800 further steps at rate 0.3 from 0.52; the rows
T = 320 at rate 0.1 from 0.21), KL(q || p) after warm-up in brackets:

    sampler         T     on_policy   pg     is     tis    mis    sc     tis_sc   mis_sc
    frozen (0.15)   5     .875        .797   .875   .860   .842   .828   .863     .846
    frozen          20    .875        .566   .875   .836   .807   .828   .863     .846
    frozen          80    .875        .327   .875   .695   .645   .828   .863     .846
    frozen          320   .680        .139   .680   .305   .290   .620   .648     .639
    int3 (0.011)    80    .875        .816   .875   .866          .865   .873
    fp4 (0.002)     80    .875        .830   .875   .875          .874   .875

Accuracy falls below its start with the frozen error from T = 80 on; rounding samplers give a deficit, not a collapse. Under
"pg" they end with a larger KL on failure contexts than on success contexts (int3, T = 80: 0.100 and 0.034; with "sc" 0.072
and 0.073): a negative advantage pushes p away from q, a positive one pulls it in.
Source of the decomposition: arXiv 2609.20807 (score centering); the model is this project's own illustration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..categorical import log_softmax
from ..errors import ContractError, check_choice, check_number
from ..quantise import quantise
from ..weights import preset, weight_factor

# arm: (weight preset or None, whether the score is centered); "on_policy" samples from p itself
ARMS: dict[str, tuple[str | None, bool]] = {
    "on_policy": (None, False),
    "pg": (None, False),
    "is": ("vanilla_is", False),
    "tis": ("tis", False),
    "mis": ("mis", False),
    "sc": (None, True),
    "tis_sc": ("tis", True),
    "mis_sc": ("mis", True),
}
SAMPLERS = ("frozen", "int3", "fp4")


@dataclass(frozen=True)
class Population:
    """Features of prompts [n, m], success and failure contexts [C, m]; the right token of each prompt [n]; V."""

    prompts: np.ndarray
    success: np.ndarray
    failure: np.ndarray
    right: np.ndarray
    vocabulary: int

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        prompts: int = 64,
        vocabulary: int = 8,
        features: int = 48,
        contexts: int = 400,
        scale: float = 0.37,
    ) -> Population:
        """Gaussian features of standard deviation `scale`; each kind of context lacks its own third of them."""
        x, s, f = (rng.normal(size=(rows, features)) * scale for rows in (prompts, contexts, contexts))
        third = features // 3
        f[:, :third] = 0.0
        s[:, features - third :] = 0.0
        return cls(x, s, f, rng.integers(vocabulary, size=prompts), vocabulary)


@dataclass(frozen=True)
class Curves:
    """One value per recorded step, the first after warm-up, the last after the last step.

    step; accuracy_trainer, accuracy_sampler (mean over prompts of p(right), q(right)); kl_success, kl_failure: KL(q || p) in
    nats per decided token; entropy of p on decided tokens in nats.
    """

    step: np.ndarray
    accuracy_trainer: np.ndarray
    accuracy_sampler: np.ndarray
    kl_success: np.ndarray
    kl_failure: np.ndarray
    entropy: np.ndarray


def expected_update(logp: np.ndarray, logq: np.ndarray, advantages: np.ndarray, rule: str | None) -> np.ndarray:
    """E_q[A w s] on the logits [N, V]: c - (sum_v c_v) p with c_v = q_v f(p_v/q_v) A_v; `advantages` broadcasts to [N, V]."""
    c = np.exp(logq) * advantages
    if rule is not None:
        c = c * weight_factor(preset(rule), logp - logq, np.ones(())).value
    return c - c.sum(-1, keepdims=True) * np.exp(logp)


def make_sampler(kind: str, weights: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Sampler weights [m, V] from the trainer's; the scale of a rounding belongs to one output token (a column)."""
    check_choice("sampler", kind, SAMPLERS)
    if kind == "frozen":
        return weights + error
    if kind == "fp4":
        return quantise(np.ascontiguousarray(weights.T), "fp4_e2m1", "row")[0].T
    top = np.abs(weights).max(axis=0, keepdims=True)
    scale = np.where(top > 0, top / 3.0, 1.0)
    return np.rint(weights / scale) * scale


def sealed_update(population: Population, weights: np.ndarray, sampler: np.ndarray, rule: str | None) -> np.ndarray:
    """Mean drift of one decided token, success minus failure contexts [m, V], for b T = 1 and no centering."""
    out = np.zeros_like(weights)
    for sign, x in ((1.0, population.success), (-1.0, population.failure)):
        d = expected_update(log_softmax(x @ weights), log_softmax(x @ sampler), np.ones(()), rule)
        out += sign * (x.T @ d) / x.shape[0]
    return out


def run(
    arm: str,
    T: int,
    sampler: str,
    seed: int,
    steps: int = 800,
    warmup: int = 200,
    rate: float = 0.3,
    error: float = 0.3,
    record: int = 40,
    population: Population | None = None,
) -> Curves:
    """The learning iteration of the module for one arm; deterministic in `seed` (features, right tokens, frozen error).

    `T` decided tokens per response (>= 0); `sampler` in SAMPLERS; `error` the frozen error's standard deviation on W;
    `record` steps between recorded values. Features and error depend on the seed alone, so arms are compared on the same
    problem. Raises `ContractError` for an unknown arm or sampler and for numbers out of range.
    """
    check_choice("arm", arm, ARMS)
    check_choice("sampler", sampler, SAMPLERS)
    for name, value, least in (("T", T, 0), ("steps", steps, 1), ("warmup", warmup, 0), ("record", record, 1)):
        if not isinstance(value, (int, np.integer)) or value < least:
            raise ContractError(f"{name}: expected a whole number >= {least}, got {value!r}")
    check_number("rate", rate, above=0.0)
    check_number("error", error, at_least=0.0)
    rng = np.random.default_rng(seed)
    pop = Population.random(rng) if population is None else population
    w = np.zeros((pop.prompts.shape[1], pop.vocabulary))
    frozen = error * rng.normal(size=w.shape)
    for _ in range(warmup):
        w = w + rate * _live(pop, w, w, None)[0]
    rule, centered = ARMS[arm]
    rows = []
    for step in range(steps + 1):
        q = w if arm == "on_policy" else make_sampler(sampler, w, frozen)
        if step % record == 0 or step == steps:
            rows.append((step, *_measure(pop, w, q)))
        if step == steps:
            break
        update, b = _live(pop, w, q, rule)
        if T and not centered and arm != "on_policy":
            update = update + b * T * sealed_update(pop, w, q, rule)
        w = w + rate * update
    return Curves(*map(np.array, zip(*rows, strict=True)))


def _live(pop: Population, w: np.ndarray, sampler: np.ndarray, rule: str | None) -> tuple[np.ndarray, float]:
    """(expected update of the live tokens [m, V], b). Centering leaves it alone: E_q[A] = 0 at each prompt."""
    logp, logq = log_softmax(pop.prompts @ w), log_softmax(pop.prompts @ sampler)
    at = np.arange(pop.right.size)
    a = np.exp(logq[at, pop.right])
    advantages = np.repeat(-2.0 * a[:, None], w.shape[1], axis=1)
    advantages[at, pop.right] = 2.0 * (1.0 - a)
    update = pop.prompts.T @ expected_update(logp, logq, advantages, rule) / a.size
    return update, float((2.0 * a * (1.0 - a)).mean())


def _measure(pop: Population, w: np.ndarray, sampler: np.ndarray) -> tuple[float, ...]:
    at = np.arange(pop.right.size)
    accuracy = [float(np.exp(log_softmax(pop.prompts @ m)[at, pop.right]).mean()) for m in (w, sampler)]
    kl, entropy = [], []
    for x in (pop.success, pop.failure):
        logp, logq = log_softmax(x @ w), log_softmax(x @ sampler)
        kl.append(float((np.exp(logq) * (logq - logp)).sum(-1).mean()))
        entropy.append(float(-(np.exp(logp) * logp).sum(-1).mean()))
    return *accuracy, *kl, float(np.mean(entropy))
