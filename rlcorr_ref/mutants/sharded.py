"""A second correct implementation, float32, vocabulary-parallel in two halves and chunked over tokens.

Each half holds its own columns of the logits; what crosses between them are maxima, sums of exponentials, gathered log-probs
(0 from the half that does not own the id) and sums of coefficients, as in a tensor-parallel trainer. It covers token-level
weights and gates, reinforce, ppo_clip and cispo, and every tail of score centering; `claims` says which cases that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .plain import wire
from .sharded_rules import Rules
from .sharded_vocabulary import Array, F, Half

CHUNK = 3
Definition = Mapping[str, Any]


def claims(case: Mapping[str, Any]) -> bool:
    """Whether this implementation answers a case: token-level objectives without rejection, KL and entropy."""
    if case["function"] != "objective" or any(name.startswith("diagnostics.") for name in case["expected"]):
        return False
    d = case.get("definition") or {}
    levels = {(d.get(key) or {}).get("level", "token") for key in ("weight", "gate")}
    kind = (d.get("surrogate") or {}).get("kind", "reinforce")
    other = d.get("rejection") or d.get("kl") or d.get("entropy") or (d.get("weight") or {}).get("normalise") == "rows"
    return levels == {"token"} and kind != "gspo" and not other


def _array(value: Any) -> Array:
    if isinstance(value, (list, tuple)):
        return np.array([_array(item) for item in value], dtype=np.float64)
    return np.array(float(value))


class Sharded(Rules):
    """`answer(case)` for the cases it `claims`."""

    def answer(self, case: Mapping[str, Any]) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            return wire(self.outputs(case["inputs"], case.get("definition") or {}))

    def outputs(self, inputs: Mapping[str, Any], definition: Definition) -> dict[str, Any]:
        """Outputs by name, float32 arrays; without diagnostics."""
        raw = {name: _array(value) for name, value in inputs.items() if value is not None}
        self.d, mask = definition, raw["mask"] != 0
        b, t = np.nonzero(mask)
        x = {name: value[b, t] for name, value in raw.items()}
        n, v = b.size, raw["logits"].shape[2]
        self.a = x["advantages"].astype(F)
        self.coef = self.reduction(b, mask)
        chunks = [slice(i, min(i + CHUNK, n)) for i in range(0, n, CHUNK)]
        ranks = [self.forward(x, piece, v) for piece in chunks]
        logp = np.zeros(n, dtype=F)
        for c, halves in zip(chunks, ranks, strict=True):
            logp[c] = sum(half.gather(x["tokens"][c].astype(int)) for half in halves)
        logq = x["logp_sampler"].astype(F)
        logo = x["logp_anchor"].astype(F) if "logp_anchor" in x else None
        w = self.factor(logp, logq, logo, self.a)[0]
        rule = definition.get("weight") or {}
        mean = w.mean() if rule.get("normalise") == "tokens" and n else F(0)
        self.divisor = F(mean) if mean else F(1)
        w = w / self.divisor
        value, slope = self.surrogate(logp, logq if logo is None else logo)
        dead = (w == 0) | (self.a == 0)
        token_loss = np.where(dead, 0, w * value)
        grad_logp = self.coef * np.where(dead, 0, w * slope)
        centered, dense = np.zeros(n, dtype=F), np.zeros(n, dtype=F)
        grad, full = np.zeros((n, v), dtype=F), np.zeros((n, v), dtype=F)
        head = np.zeros((n, x["head_ids"].shape[1]), dtype=F) if "head_ids" in x else None
        for c, halves in zip(chunks, ranks, strict=True):
            self.backward(c, halves, x, grad_logp, grad, full, head, centered, dense)
        centering = definition.get("centering")
        wide = centering is not None and self.wide(x)
        token_loss, dense_loss = token_loss + centered, token_loss + dense
        packed = {
            "grad_logits": grad,
            "grad_logp": grad_logp,
            "grad_head_logp": head if centering is not None and not wide else None,
            "grad_logp_full": full if wide else None,
            "weights": w,
            "mask": np.ones(n),
            "token_loss": token_loss,
        }
        out: dict[str, Any] = {"loss": (self.coef * token_loss).sum(), "loss_dense": (self.coef * dense_loss).sum()}
        for name, values in packed.items():
            out[name] = None
            if values is not None:
                out[name] = np.zeros((*mask.shape, *values.shape[1:]))
                out[name][b, t] = values
        return out

    def reduction(self, b: Array, mask: Array) -> Array:
        """Coefficient per token."""
        rule = {"kind": "token-mean", **(self.d.get("aggregation") or {})}
        lengths = mask.sum(axis=1)
        rows = rule.get("sequences") or max((lengths > 0).sum(), 1)
        per_token = {
            "token-mean": lambda: np.full(b.size, 1 / (rule.get("tokens") or max(mask.sum(), 1))),
            "token-sum": lambda: np.ones(b.size),
            "seq-mean-token-sum": lambda: np.full(b.size, 1 / rows),
            "seq-mean-token-mean": lambda: 1 / (rows * lengths[b]),
            "seq-mean-token-sum-norm": lambda: np.full(b.size, 1 / (rows * rule["length"])),
        }[rule["kind"]]()
        return per_token.astype(F)

    def forward(self, x: dict[str, Array], piece: slice, v: int) -> tuple[Half, Half]:
        """Both ranks with log p of a chunk of tokens."""
        inside = np.ones(x["logits"][piece].shape, dtype=bool)
        if "support" in x:
            inside = x["support"][piece] != 0
        elif (self.d.get("centering") or {}).get("tail") == "support" and "logp_sampler_full" not in x:
            inside[:] = False
            for row, ids in enumerate(x["head_ids"][piece].astype(int)):
                inside[row, ids[ids >= 0]] = True
        cut, temperature = v // 2, self.d.get("temperature", 1.0)
        z = x["logits"][piece]
        halves = (
            Half(z[:, :cut], inside[:, :cut], 0, temperature),
            Half(z[:, cut:], inside[:, cut:], cut, temperature),
        )
        top = np.maximum(halves[0].top, halves[1].top)
        log_total = np.log(halves[0].normalise(top) + halves[1].normalise(top))
        for half in halves:
            half.normalise(top, log_total)
        return halves

    def wide(self, x: dict[str, Array]) -> bool:
        tail = self.d["centering"].get("tail", "rescaled")
        return tail in ("exact", "uniform") or (tail == "support" and "logp_sampler_full" in x)

    def backward(
        self, c: slice, halves: tuple[Half, Half], x: dict[str, Array], grad_logp: Array, grad: Array, full: Array,
        head: Array | None, centered: Array, dense: Array,
    ) -> None:  # fmt: skip
        """Gradient and centering of one chunk: every half builds its own columns, sums are exchanged."""
        tokens, a = x["tokens"][c].astype(int), self.a[c]
        masses = [np.zeros_like(half.logp) for half in halves]
        if self.d.get("centering") is not None:
            masses, on_head = self.masses(c, halves, x, a[:, None])
            value = sum(
                np.where(m == 0, 0, m * half.logp).sum(axis=1, dtype=F) for m, half in zip(masses, halves, strict=True)
            )
            dense[c] = np.where(a == 0, 0, a * value)
            centered[c] = dense[c]
            if on_head is not None:
                logp_head = sum(half.gather(x["head_ids"][c].astype(int)) for half in halves)
                centered[c] = np.where(
                    a == 0, 0, a * np.where(on_head == 0, 0, on_head * logp_head).sum(axis=1, dtype=F)
                )
                head[c] = (self.coef[c] * a)[:, None] * on_head
        scale = (self.coef[c] * a)[:, None]
        columns = []
        for m, half in zip(masses, halves, strict=True):
            own = np.where(scale == 0, 0, scale * m) + half.place(tokens[:, None], grad_logp[c, None])
            columns.append(own)
            full[c, half.start : half.start + m.shape[1]] = np.where(scale == 0, 0, scale * m)
        total = sum(own.sum(axis=1, dtype=F) for own in columns)[:, None]
        for own, half in zip(columns, halves, strict=True):
            grad[c, half.start : half.start + own.shape[1]] = (own - total * half.p) / half.temperature

    def masses(self, c: slice, halves: tuple[Half, Half], x: dict[str, Array], a: Array) -> tuple[list[Array], Any]:
        """q_hat g(v) per half over its columns, and c_v on the head (None where the vocabulary is the head)."""
        rule = {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6, **self.d["centering"]}
        tail = rule["tail"]
        if self.wide(x):
            rows = self.uniform(c, halves, x) if tail == "uniform" else self.columns(c, halves, x, "logp_sampler_full")
            anchors = self.columns(c, halves, x, "logp_anchor_full")
            return [self.mass(q, half.logp, o, a) for q, half, o in zip(rows, halves, anchors, strict=True)], None
        ids = x["head_ids"][c].astype(int)
        logq = x["head_logp_sampler"][c].astype(F)
        logp = np.where(ids >= 0, sum(half.gather(ids) for half in halves), -np.inf).astype(F)
        logo = self.anchor_on_head(c, ids, x)
        q_head = np.exp(logq).sum(axis=1, dtype=F)
        if tail == "renormalised":
            logq = logq - np.log(q_head)[:, None]
        on_head = self.mass(logq, logp, logo, a)
        spread = [half.place(ids, on_head) for half in halves]
        if tail != "rescaled":
            return spread, on_head
        held = self.held(ids, halves)
        p_tail = sum(np.where(h, 0, half.p).sum(axis=1, dtype=F) for h, half in zip(held, halves, strict=True))
        floors = F(rule["floor_sampler"] or 0), F(rule["floor_trainer"] or 0)
        q_t, p_t = np.maximum(np.maximum(1 - q_head, 0), floors[0]), np.maximum(p_tail, floors[1])
        log_o = None
        if logo is not None:
            rest = 1 - np.exp(logo).sum(axis=1, dtype=F)
            log_o = np.log(np.maximum(np.maximum(rest, 0), floors[1]))[:, None]
        slot = self.mass(np.log(q_t)[:, None], np.log(p_t)[:, None], log_o, a)[:, 0]
        alpha = np.where(slot == 0, 0, slot / p_t)[:, None]
        off = [np.where(h | (half.p == 0), 0, alpha * half.p) for h, half in zip(held, halves, strict=True)]
        p_head = np.exp(logp)
        return [s + o for s, o in zip(spread, off, strict=True)], on_head - np.where(p_head == 0, 0, alpha * p_head)

    @staticmethod
    def columns(c: slice, halves: tuple[Half, Half], x: dict[str, Array], name: str) -> list[Any]:
        """Each half's columns of whole rows, or None where they are not given."""
        if name not in x:
            return [None, None]
        return [x[name][c, half.start : half.start + half.logp.shape[1]].astype(F) for half in halves]

    @staticmethod
    def held(ids: Array, halves: tuple[Half, Half]) -> list[Array]:
        """Columns that are on the head, per half."""
        return [half.place(ids, np.ones(ids.shape, dtype=F)) > 0 for half in halves]

    def uniform(self, c: slice, halves: tuple[Half, Half], x: dict[str, Array]) -> list[Array]:
        """log q_hat per half: the head's own, an even share of the rest elsewhere on the support."""
        ids, logq = x["head_ids"][c].astype(int), x["head_logp_sampler"][c].astype(F)
        held = self.held(ids, halves)
        inside = [np.isfinite(half.logp) | ("support" not in x) for half in halves]
        free = [i & ~h for i, h in zip(inside, held, strict=True)]
        count = np.maximum(sum(f.sum(axis=1) for f in free), 1)
        share = np.log(np.maximum(1 - np.exp(logq).sum(axis=1, dtype=F), 0) / count).astype(F)[:, None]
        placed = [half.place(ids, np.where(ids >= 0, logq, 0)) for half in halves]
        return [
            np.where(f, share, np.where(h, p, -np.inf)).astype(F) for f, h, p in zip(free, held, placed, strict=True)
        ]

    def anchor_on_head(self, c: slice, ids: Array, x: dict[str, Array]) -> Array | None:
        """log o on the head ids, or None under two policies."""
        if "head_logp_anchor" in x:
            return x["head_logp_anchor"][c].astype(F)
        if "logp_anchor_full" not in x:
            return None
        taken = np.take_along_axis(x["logp_anchor_full"][c], np.maximum(ids, 0), axis=1)
        return np.where(ids >= 0, taken, -np.inf).astype(F)
