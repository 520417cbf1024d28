"""How much drift each tail model leaves, against the head width k and the shape of the sampler's tail.

With a constant advantage A = 1 the expected gradient under the sampler should be 0. What a modelled tail leaves is

    residual = E_q[d loss/d logits] = -((m - m_hat) - (sum_v (m - m_hat)_v) p)/temperature,   m_v = q_v f(p_v/q_v)

with m the mass q_v f(p_v/q_v) (q_v without a rule) and m_hat the tail model's. For a rule with q f(p/q) <= min(p, C q) the
rescaled tail obeys |residual|_1 <= 2 min(1 - P, C (1 - Q))/temperature, and 2 (1 - Q)/temperature without a rule: m and m_hat
agree on the head; off it c = m - m_hat lies between -m_hat and m, the sums of both are at most min(1 - P, C (1 - Q)), and
|c - (sum c) p|_1 <= |c|_1 + |sum c| = 2 max(sum c_+, sum c_-).

    python -m rlcorr_ref.population.tail_bias [FILE.csv]

prints the table (or writes the file): every number is measured by `Objective.evaluate` over all sampled tokens.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Batch
from ..contract import Objective
from ..errors import ContractError, check_choice, check_number
from ..weights import PRESETS

TAILS = ("rescaled", "dropped", "renormalised", "uniform", "exact")
SHAPES = ("proportional", "flat", "reversed")
CAPS = {None: 1.0, "tis": 2.0, "mis": 5.0}
COLUMNS = ("tail_shape", "tail_model", "rule", "k", "head_mass_sampler", "head_mass_trainer", "bias_l1", "bound_l1")


def distributions(shape: str, k: int, vocabulary: int = 64, tail_scale: float = 1.6) -> tuple[np.ndarray, np.ndarray]:
    """Trainer p and sampler q [V] whose k likeliest tokens are the same ids.

    p_v is proportional to (v + 1)^-2; q has the head of p, perturbed by alternating factors 1.25 and 0.8, and a tail of
    `tail_scale` times p's tail mass, spread in proportion to p, flat, or as p in reversed order; the head takes the rest.
    The default 1.6 keeps every ratio off the bounds of the presets: a tie would be decided by rounding.
    """
    check_choice("shape", shape, SHAPES)
    if not 1 <= k <= vocabulary:
        raise ContractError(f"k: expected a head width in [1, {vocabulary}], got {k}")
    check_number("tail_scale", tail_scale, above=0.0)
    p = np.arange(1.0, vocabulary + 1.0) ** -2
    p /= p.sum()
    tail = p[k:].copy()
    mass = tail_scale * tail.sum()
    if mass >= 1.0:
        raise ContractError(
            f"tail_scale and k: {tail_scale:g} times the trainer's tail mass {tail.sum():.3g} is at least 1"
        )
    if shape == "flat" and tail.size:
        tail[:] = tail.mean()
    elif shape == "reversed":
        tail = tail[::-1]
    q = np.empty_like(p)
    q[k:] = tail_scale * tail
    q[:k] = p[:k] * np.where(np.arange(k) % 2 == 0, 1.25, 0.8)
    q[:k] *= (1.0 - mass) / q[:k].sum()
    return p, q


def residual(p: np.ndarray, q: np.ndarray, k: int, tail: str, rule: str | None, temperature: float = 1.0) -> np.ndarray:
    """E_q[d loss/d logits] [V] at A = 1 with the first k ids as the head; `rule` a weight preset or None."""
    v = p.size
    definition: dict[str, Any] = {
        "temperature": temperature,
        "aggregation": {"kind": "token-sum"},
        "centering": {"tail": tail},
    }
    if rule is not None:
        definition["weight"] = PRESETS[rule]
    logq = np.log(q)

    def every(row: np.ndarray) -> np.ndarray:
        return np.broadcast_to(row, (v, 1, row.size)).copy()

    data: dict[str, Any] = {
        "logits": every(temperature * np.log(p)),
        "tokens": np.arange(v)[:, None],
        "mask": np.ones((v, 1), dtype=np.int64),
        "advantages": np.ones((v, 1)),
        "logp_sampler": logq[:, None],
    }
    if tail == "exact":
        data["logp_sampler_full"] = every(logq)
    else:
        data |= {"head_ids": every(np.arange(k)), "head_logp_sampler": every(logq[:k])}
    return q @ Objective.from_dict(definition).evaluate(Batch(**data)).grad_logits[:, 0]


def bound(head_mass_sampler: float, head_mass_trainer: float, rule: str | None, temperature: float = 1.0) -> float:
    """The bound on |residual|_1 for the rescaled tail at |A| = 1 (see the module); `rule` in CAPS."""
    check_choice("rule", rule, CAPS)
    tail_q, tail_p = max(1.0 - head_mass_sampler, 0.0), max(1.0 - head_mass_trainer, 0.0)
    return 2.0 * (tail_q if rule is None else min(tail_p, CAPS[rule] * tail_q)) / temperature


def table(
    widths: Iterable[int] = (4, 8, 16, 32, 48),
    rules: Iterable[str | None] = (None, "tis", "mis"),
    vocabulary: int = 64,
    tail_scale: float = 1.6,
) -> list[dict[str, Any]]:
    """One row per shape, tail, rule and width with the keys of COLUMNS; the bound belongs to the rescaled tail, else None."""
    rows = []
    for shape in SHAPES:
        for k in widths:
            p, q = distributions(shape, k, vocabulary, tail_scale)
            masses = float(q[:k].sum()), float(p[:k].sum())
            for rule in rules:
                for tail in TAILS:
                    bias = float(np.abs(residual(p, q, k, tail, rule)).sum())
                    limit = bound(*masses, rule) if tail == "rescaled" else None
                    rows.append(dict(zip(COLUMNS, (shape, tail, rule or "none", k, *masses, bias, limit), strict=True)))
    return rows


def to_csv(rows: list[dict[str, Any]]) -> str:
    """The table as CSV text, numbers in shortest round-trip form, an absent bound as an empty field."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def main(arguments: list[str]) -> int:
    """Print the table, or write it to the file named: to a temporary file first, then renamed."""
    if len(arguments) > 1:
        print("usage: python -m rlcorr_ref.population.tail_bias [FILE.csv]", file=sys.stderr)
        return 2
    text = to_csv(table())
    if not arguments:
        print(text, end="")
        return 0
    path = Path(arguments[0])
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as handle:
        handle.write(text)
    os.replace(handle.name, path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
