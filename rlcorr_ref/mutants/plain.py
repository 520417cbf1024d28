"""A plain second implementation of the whole contract, in float64 or float32, that shares no mathematics with the reference.

It works on padded [B, T, V] arrays in one go (no packing, no chunks), the way most trainers do, and takes from the contract
only the typed records and their defaults. Each step is a method; a mutant replaces one. Unmodified, it must pass every case of
the vectors, in both precisions: a case that fails it is a wrong case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..contract import Objective
from .arrays import State, read, scatter, times
from .plain_centering import Centering, Term
from .plain_losses import Losses
from .plain_metrics import Metrics
from .plain_ratios import Ratios
from .plain_stages import Stages

Array = np.ndarray


class Plain(Stages, Metrics, Centering, Losses, Ratios):
    """`answer(case)` in the wire format, like `rlcorr_ref.evaluate_case`."""

    def __init__(self, dtype: type = np.float64, metrics: bool = True) -> None:
        """`metrics` False leaves the diagnostics out of the objective's answer, which halves its cost."""
        self.dtype, self.metrics = dtype, metrics

    def answer(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs of one case as plain JSON values (without the `name@framework` diagnostics)."""
        name = case.get("function", "objective")
        settings = case.get("definition" if name == "objective" else "parameters") or {}
        return wire(self.outputs(name, case["inputs"], settings))

    def outputs(self, function: str, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs of one case as arrays of the computation's dtype."""
        with np.errstate(all="ignore"):
            return getattr(self, f"{function}_case")(self.reads(inputs), settings)

    def reads(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Wire inputs as arrays."""
        return read(inputs, self.dtype)

    # the trainer's row

    def log_softmax_rows(self, z: Array, temperature: float, inside: Array) -> Array:
        """log p [.., V] of softmax(z/T) on the support; -inf outside."""
        z = np.where(inside, z, -np.inf)
        shifted = (z - z.max(axis=-1, keepdims=True)) / self.dtype(temperature)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

    def support(self, x: dict[str, Array], o: Objective) -> Array:
        """Where the trainer may have mass [B, T, V]: the recorded support, or the head taken as one."""
        if x.get("support") is not None:
            return x["support"] != 0
        if o.centering is not None and o.centering.tail == "support" and "logp_sampler_full" not in x:
            return scatter(np.ones(x["head_ids"].shape), x["head_ids"], x["logits"].shape[-1]) > 0
        return np.ones(x["logits"].shape, dtype=bool)

    def sampled(self, rows: Array, tokens: Array) -> Array:
        """rows [B, T, V] at the sampled ids [B, T]."""
        return np.take_along_axis(rows, tokens[..., None], axis=-1)[..., 0]

    def prepare(self, x: dict[str, Array], o: Objective) -> State:
        """The batch with its forward pass; everything off the mask is 0 before anything is computed."""
        mask = x["mask"] != 0
        v = x["logits"].shape[-1]
        inside = self.support(x, o)
        inside = np.where(mask[..., None], inside, True)
        logits = self.clean(x["logits"], mask)
        rows = self.log_softmax_rows(logits, o.temperature, inside)
        tokens = np.clip(self.clean(x["tokens"], mask), 0, v - 1)
        s = State(
            objective=o,
            mask=mask,
            advantages=self.clean(x["advantages"], mask),
            logp=self.clean(self.sampled(rows, tokens), mask),
            logq=self.clean(x["logp_sampler"], mask),
            logo=self.clean(x["logp_anchor"], mask) if "logp_anchor" in x else None,
            logr=self.clean(x["logp_reference"], mask) if "logp_reference" in x else None,
            temperature=o.temperature,
            tokens=tokens,
            logits=logits,
            inside=inside,
            rows_p=rows,
        )
        if "logp_sampler_full" in x:
            s.rows_q = self.clean(x["logp_sampler_full"], mask)
        if "logp_anchor_full" in x:
            s.rows_o = self.clean(x["logp_anchor_full"], mask)
        if "head_ids" in x:
            ids = np.where(mask[..., None], x["head_ids"], -1)
            s.head_ids = np.where(ids < v, ids, -1)
            s.head_q = np.where(mask[..., None], x["head_logp_sampler"], -np.inf)
            s.head_p = self.head_gather(rows, s.head_ids)
            s.log_tail = self.log_tail(s)
            if "head_logp_anchor" in x:
                s.head_o = np.where(mask[..., None], x["head_logp_anchor"], -np.inf)
            elif s.rows_o is not None:
                s.head_o = self.head_gather(s.rows_o, s.head_ids)
        return s

    def log_tail(self, s: State) -> Array:
        """Log of the trainer's mass off the head [B, T], summed over the tail itself."""
        on_head = scatter(np.ones(s.head_ids.shape), s.head_ids, s.rows_p.shape[-1]) > 0
        tail = np.where(on_head, -np.inf, s.rows_p)
        top = tail.max(axis=-1)
        top = np.where(np.isfinite(top), top, 0)
        return top + np.log(np.exp(tail - top[..., None]).sum(axis=-1))

    # the objective

    def objective_case(self, x: dict[str, Array], definition: Mapping[str, Any]) -> dict[str, Any]:
        """Loss, gradient and everything that goes with it."""
        o = Objective.from_dict(definition)
        s = self.prepare(x, o)
        w, row, divisor = self.weigh(s, o.weight, o.gate)
        keep = self.reject(s, o.rejection)
        coef = self.select(self.coefficients(o.aggregation, self.counted(s, o.rejection, keep)), keep)
        value, slope, clipped = self.surrogate_terms(s, o.surrogate)
        token_loss = self.weighted(value, self.loss_weights(w))
        grad_logp = self.weighted(slope, self.loss_weights(w))
        if o.kl is not None:
            ratio, factor = s.logr - s.logp, self.kl_factor(o.kl, w)
            token_loss = token_loss + times(factor, self.kl_value(o.kl.kind, ratio))
            grad_logp = grad_logp + times(factor, self.kl_slope(o.kl.kind, ratio))
        grad_logp = self.switched(coef, grad_logp)
        rows = np.zeros_like(s.rows_p)
        full, head, term = None, None, None
        centered = dense = np.zeros_like(token_loss)
        if o.centering is not None:
            term = self.center(s, o, divisor)
            scale = self.center_scale(s, w, row)
            rows = times(times(coef, scale)[..., None], term.mass)
            only_head, everywhere = self.center_value(s, term)
            centered, dense = times(scale, only_head), times(scale, everywhere)
            if term.wide:
                full = rows
            else:
                head = times(times(coef, scale)[..., None], self.reported_head(s, term))
        grad = self.to_logits(s, grad_logp, rows)
        if o.entropy is not None:
            h, slope_z, slope_logp = self.entropy_rows(s)
            factor = self.entropy_factor(o.entropy, w)
            token_loss = token_loss - factor * h
            e = times(coef, factor)[..., None]
            grad = grad + times(e, slope_z) / self.gradient_temperature(s)
            full = times(e, slope_logp) + (0 if full is None else full)
            if head is not None:
                full = full + scatter(head, s.head_ids, full.shape[-1])
                head = None
        out = {
            "loss": self.switched(coef, token_loss + centered).sum(),
            "loss_dense": self.switched(coef, token_loss + dense).sum(),
            "grad_logits": np.where(s.mask[..., None], grad, 0),
            "grad_logp": grad_logp,
            "grad_head_logp": head,
            "grad_logp_full": full,
            "weights": w,
            "mask": keep.astype(np.float64),
            "token_loss": self.select(token_loss + centered, keep),
        }
        if self.metrics:
            out["diagnostics"] = self.diagnostics_of(s, o, w, keep, clipped, term, coef)
        return out

    def switched(self, coef: Array, values: Array) -> Array:
        """Reduction coefficient times value; a coefficient of 0 removes the token, whatever its value."""
        return times(coef, values)

    def loss_weights(self, w: Array) -> Array:
        """The weights that multiply the surrogate."""
        return w

    def weighted(self, a: Array, w: Array) -> Array:
        """a w, 0 where either is 0."""
        return np.where((a == 0) | (w == 0), 0, a * w)

    def reported_head(self, s: State, term: Term) -> Array:
        """Head coefficients c_v as derivatives by log p_v."""
        return term.head

    def gradient_temperature(self, s: State) -> Any:
        """The 1/T of the chain rule."""
        return self.dtype(s.temperature)

    def to_logits(self, s: State, grad_logp: Array, rows: Array) -> Array:
        """(c - (sum c) p)/T [B, T, V] for coefficients on the sampled token and on the whole row."""
        c = rows.copy()
        here = np.take_along_axis(c, s.tokens[..., None], axis=-1)[..., 0]
        np.put_along_axis(c, s.tokens[..., None], (here + grad_logp)[..., None], axis=-1)
        return (c - times(c.sum(axis=-1, keepdims=True), np.exp(s.rows_p))) / self.gradient_temperature(s)


def wire(value: Any) -> Any:
    """Plain JSON values; non-finite numbers as strings."""
    if isinstance(value, dict):
        return {key: wire(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [wire(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return wire(value.tolist())
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
    return value
