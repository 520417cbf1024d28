"""Multi-precision centering: the modelled sampler q_hat and its coefficients, summed DENSELY over the vocabulary.

Score centering subtracts E_q_hat[g s] from the effective score g(y) s_y. Production code sums over the sampler's head
only and folds the tail into coefficients q_v g(v) - alpha p_v, which relies on sum_v p_v s_v = 0. Here the tail is
written out instead (rescaled: q_hat_v g = alpha p_v on every tail token), so agreement of the two tests that identity.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpmath import mp, mpf

from .mp_inputs import Case, Token
from .mp_surrogates import surrogate_factor, times
from .mp_weights import Growth, token_factor

TAILS = ("rescaled", "exact", "support", "dropped", "renormalised", "uniform")


def uses_head(tail: str, sampler_rows: bool) -> bool:
    """Whether the centering term is a sum over head slots: the modelled tails, and "support" without whole rows."""
    return tail in ("rescaled", "dropped", "renormalised") or (tail == "support" and not sampler_rows)


@dataclass
class Centering:
    """One token's coefficients: `dense` [V] = q_hat_v g(v); `head` [K] the head-only ones; alpha and the tail model."""

    dense: list
    head: list | None
    alpha: mpf
    head_mass_sampler: mpf | None
    head_mass_trainer: mpf | None
    tail_ratio: mpf | None


def _effective_factor(case: Case, definition: dict, token: Token, q: mpf, p: mpf, o: mpf | None) -> Growth:
    """g: token-level weight and gate times the surrogate's factor, at probabilities (q, p, o)."""
    f = token_factor(case, definition["weight"], definition["gate"], token.advantage, q, p, o)
    f = Growth(f.coefficient / token.extra["divisor"], f.power)
    base = o if case.three_policies else q
    return f.times(surrogate_factor(definition["surrogate"], p, base, token.advantage, not case.three_policies))


def tail_masses(token: Token, floor_sampler, floor_trainer) -> tuple:
    """(q_t, p_t, o_t): tail masses outside the head, cut at 0 and floored. o_t is None without the anchor's head."""
    head = {slot.token for slot in token.head}
    q_t = max(1 - mp.fsum(slot.q for slot in token.head), mpf(0))
    # the trainer's tail is summed over the tail itself, so a head that covers the support leaves exactly 0
    p_t = mp.fsum(p for v, p in enumerate(token.p) if v not in head)
    o_t = None
    if all(slot.o is not None for slot in token.head):
        o_t = max(1 - mp.fsum(slot.o for slot in token.head), mpf(0))
    if floor_sampler is not None:
        q_t = max(q_t, mpf(floor_sampler))
    if floor_trainer is not None:
        p_t = max(p_t, mpf(floor_trainer))
        o_t = None if o_t is None else max(o_t, mpf(floor_trainer))
    return q_t, p_t, o_t


def _alpha(case: Case, definition: dict, token: Token, q_t: mpf, p_t: mpf, o_t: mpf | None) -> mpf:
    """rho_t g(tail) = q_t g(q_t, p_t, o_t) / p_t; with p_t = 0, 1 for the unbounded ratio and 0 for a bounded rule."""
    if p_t == 0:
        growth = _effective_factor(case, definition, token, mpf(0), mpf(1), None if o_t is None else mpf(1))
        return growth.coefficient if growth.power > 0 else mpf(0)
    return _effective_factor(case, definition, token, q_t, p_t, o_t).mass(q_t) / p_t


def _anchor(token: Token, v: int, slot_o: mpf | None) -> mpf | None:
    if slot_o is not None:
        return slot_o
    return None if token.o_full is None else token.o_full[v]


def center(case: Case, definition: dict, token: Token) -> Centering:
    """Coefficients of one token. Raises ValueError when the tail model lacks its inputs or makes no sense."""
    tail = definition["centering"]["tail"]
    floors = definition["centering"]["floor_sampler"], definition["centering"]["floor_trainer"]
    if tail not in TAILS:
        raise ValueError(f"centering tail must be one of {TAILS}; got {tail!r}")
    slots = token.head
    masses = (None, None, None)
    if slots is not None:
        q_t, p_t, _ = tail_masses(token, *floors)
        ratio = q_t / p_t if p_t > 0 else mpf("inf") if q_t > 0 else mpf(1)
        masses = mp.fsum(s.q for s in slots), mp.fsum(token.p[s.token] for s in slots), ratio
    dense = [mpf(0)] * len(token.p)
    if not uses_head(tail, case.sampler_rows) and tail != "uniform":
        if token.q_full is None:
            raise ValueError("centering tail 'exact' needs logp_sampler_full; give it or use tail 'rescaled'")
        for v, (q, p) in enumerate(zip(token.q_full, token.p, strict=True)):
            if token.inside[v]:
                o = _anchor(token, v, None)
                dense[v] = _effective_factor(case, definition, token, q, p, o).mass(q)
        return Centering(dense, None, mpf(0), *masses)
    if slots is None:
        raise ValueError(f"centering tail {tail!r} needs head_ids and head_logp_sampler; give them or use 'exact'")
    scale = 1 / mp.fsum(slot.q for slot in slots) if tail == "renormalised" else mpf(1)
    for slot in slots:
        q = slot.q * scale
        o = _anchor(token, slot.token, slot.o)
        dense[slot.token] = _effective_factor(case, definition, token, q, token.p[slot.token], o).mass(q)
    alpha = mpf(0)
    members = {slot.token for slot in slots}
    outside = [v for v, keep in enumerate(token.inside) if keep and v not in members]
    if tail == "rescaled":
        alpha = _alpha(case, definition, token, *tail_masses(token, *floors))
        for v in outside:
            dense[v] = alpha * token.p[v]
    elif tail == "uniform" and outside:
        q = max(1 - mp.fsum(slot.q for slot in slots), mpf(0)) / len(outside)
        for v in outside:
            dense[v] = _effective_factor(case, definition, token, q, token.p[v], _anchor(token, v, None)).mass(q)
    head = None
    if tail != "uniform":
        width = case.head_width
        head = [mpf(0)] * width
        for slot in slots:
            head[slot.slot] = dense[slot.token] - times(alpha, token.p[slot.token])
    return Centering(dense, head, alpha, *masses)


def dot_logp(coefficients: list, logp: list) -> mpf:
    """sum_v c_v log p_v, nats; a zero coefficient removes its term even at log p = -inf."""
    return mp.fsum(times(c, value) for c, value in zip(coefficients, logp, strict=True))
