"""Plain implementation: the functions of the wire format that ask for one stage alone, and shards of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..contract import Aggregation, Objective, Surrogate, WeightRule
from .arrays import State

Array = np.ndarray
Settings = Mapping[str, Any]

# mantissa bits, exponent of the smallest normal number, largest value; None = integers
GRIDS = {
    "fp8_e4m3": (3, -6, 448.0),
    "fp8_e5m2": (2, -14, 57344.0),
    "fp4_e2m1": (1, 0, 6.0),
    "int8": (None, 0, 127.0),
    "int4": (None, 0, 7.0),
}


class Stages:
    """One method per function name, inputs as arrays, settings as in the wire format."""

    dtype: type

    def tokens_only(self, x: dict[str, Array], objective: Objective | None = None) -> State:
        """A batch that starts at log-probs."""
        mask = x["mask"] != 0
        ones = np.ones(mask.shape, dtype=self.dtype)
        return State(
            objective=objective or Objective(),
            mask=mask,
            advantages=self.clean(x.get("advantages", ones), mask),
            logp=self.clean(x["logp_trainer"], mask),
            logq=self.clean(x["logp_sampler"], mask),
            logo=self.clean(x["logp_anchor"], mask) if "logp_anchor" in x else None,
        )

    def log_softmax_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        z, temperature = x["logits"], float(settings.get("temperature", 1.0))
        inside = x["support"] != 0 if "support" in x else np.ones(z.shape, dtype=bool)
        rows = self.log_softmax_rows(z, temperature, inside)
        out = {"logp": rows}
        if "tokens" in x:
            out["logp_token"] = self.sampled(rows, x["tokens"])
            hit = np.arange(z.shape[-1]) == x["tokens"][..., None]
            out["score"] = self.score(hit.astype(self.dtype), np.exp(rows)) / self.score_temperature(temperature)
        return out

    def score(self, hit: Array, p: Array) -> Array:
        return hit - p

    def score_temperature(self, temperature: float) -> Any:
        return self.dtype(temperature)

    def ratio_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        s = self.tokens_only(x)
        return self.ratio_outputs(self.leveled(s, WeightRule(**settings)), s.mask)

    def ratio_outputs(self, d: Array, mask: Array) -> dict[str, Any]:
        return {"log_ratio": self.select(d, mask), "ratio": self.select(self.ratio(d), mask)}

    def weight_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        given = dict(settings)
        gate = given.pop("gate", None)
        rule = Objective.from_dict({"weight": given, "gate": gate})
        w, _, divisor = self.weigh(self.tokens_only(x), rule.weight, rule.gate)
        return {"weights": w, "divisor": float(divisor)}

    def reject_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        rules = settings["rejection"] if "rejection" in settings else [settings]
        o = Objective.from_dict({"rejection": rules})
        return {"mask": self.reject(self.tokens_only(x), o.rejection).astype(np.float64)}

    def surrogate_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        s = self.tokens_only(x)
        value, slope, clipped = self.surrogate_terms(s, Surrogate.read({"kind": "reinforce", **settings}))
        named = {"value": value, "slope": slope, "clipped": clipped.astype(np.float64)}
        return {name: self.select(v, s.mask) for name, v in named.items()}

    def head_coefficients_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        """c_v on the head from head log-probs alone; the vocabulary is the head and one token that holds the rest."""
        o = Objective.from_dict({"centering": {}, **settings})
        mask = x["mask"] != 0
        s = State(o, mask, self.clean(x.get("advantages", np.ones(mask.shape, dtype=self.dtype)), mask), *[None] * 3)
        s.head_q, s.head_p = (
            np.where(mask[..., None], x[f"head_logp_{name}"], -np.inf) for name in ("sampler", "trainer")
        )
        if "head_logp_anchor" in x:
            s.head_o = np.where(mask[..., None], x["head_logp_anchor"], -np.inf)
        k = s.head_q.shape[-1]
        s.log_tail = np.log(np.maximum(1 - np.exp(s.head_p).sum(-1), 0))
        s.head_ids = np.broadcast_to(np.arange(k), s.head_q.shape)
        s.rows_p = np.concatenate([s.head_p, s.log_tail[..., None]], axis=-1)
        term = self.center(s, o, self.dtype(1))
        return {
            "coefficients": self.clean(term.head, mask),
            "alpha": self.select(term.alpha, mask),
            "tail_ratio": self.select(term.ratio, mask),
            "head_mass_sampler": self.select(np.exp(s.head_q).sum(-1), mask),
            "head_mass_trainer": self.select(np.exp(s.head_p).sum(-1), mask),
        }

    def aggregate_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        mask = x["mask"] != 0
        rule = Objective.from_dict({"aggregation": dict(settings)}).aggregation
        coef = self.select(self.coefficients(rule, mask), mask)
        return {"value": (coef * self.select(x["values"], mask)).sum(), "coefficients": coef}

    def diagnostics_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        o = Objective.from_dict(settings)
        s = self.tokens_only(x, o)
        w, _, _ = self.weigh(s, o.weight, o.gate)
        return self.diagnostics_of(s, o, w, self.reject(s, o.rejection), self.surrogate_terms(s, o.surrogate)[2])

    # advantages

    def advantages_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        """Advantages [B] by group: reward minus the group's mean, optionally over its deviation, or leave-one-out."""
        kind, eps, ddof = settings.get("kind", "mean"), settings.get("eps", 1e-6), settings.get("ddof", 1)
        rewards, groups = x["rewards"], self.groups(x["groups"])
        out = np.zeros_like(rewards)
        for group in np.unique(groups):
            members = groups == group
            out[members] = self.of_group(rewards[members], rewards, kind, eps, ddof)
        return {"advantages": out}

    def groups(self, groups: Array) -> Array:
        return groups

    def of_group(self, r: Array, everything: Array, kind: str, eps: float, ddof: int) -> Array:
        n = r.size
        offset = r - r[0]  # equal rewards give exactly 0
        centered = offset - offset.mean()
        if kind == "leave_one_out":
            return self.leave_one_out(r, centered, n)
        if kind == "mean":
            return centered
        return self.standardised(centered, self.variance(centered, everything, ddof), eps)

    def leave_one_out(self, r: Array, centered: Array, n: int) -> Array:
        return centered * (n / (n - 1)) if n > 1 else r

    def variance(self, centered: Array, everything: Array, ddof: int) -> Any:
        return (centered**2).sum() / max(centered.size - ddof, 1)

    def standardised(self, centered: Array, variance: Any, eps: float) -> Array:
        scale = np.sqrt(variance) + self.dtype(eps)
        return np.where(centered == 0, 0, centered / scale)

    # quantised samplers

    def quantise_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        values, name = self.before_quantiser(x["values"].astype(np.float64)), settings["format"]
        scale = self.grid_scale(values, settings.get("scale", "unit"), self.grid(name)[2])
        return {"values": self.to_grid(values / scale, *self.grid(name)) * scale, "scale": scale}

    def before_quantiser(self, values: Array) -> Array:
        return values

    def grid(self, name: str) -> tuple[int | None, int, float]:
        return GRIDS[name]

    def grid_scale(self, values: Array, mode: str, largest: float) -> Array:
        if mode == "unit":
            return np.ones(())
        top = np.abs(values).max(axis=-1, keepdims=True) if mode == "row" else np.abs(values).max(initial=0.0)
        return np.where(top > 0, top / largest, 1.0)

    def nearest(self, x: Array) -> Array:
        """Nearest integer, ties to even."""
        return np.round(x)

    def to_grid(self, x: Array, mantissa: int | None, lowest: int, largest: float) -> Array:
        step = np.ones_like(x)
        if mantissa is not None:
            exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**lowest)))
            step = 2.0 ** (np.minimum(exponent, 1023) - mantissa)
        return np.clip(np.where(np.isinf(x), x, self.nearest(x / step) * step), -largest, largest)

    # shards

    def shard_case(self, x: dict[str, Array], settings: Settings) -> dict[str, Any]:
        """Each shard through the objective with the whole batch's counts ("global") or its own ("local")."""
        o = Objective.from_dict(settings.get("definition"))
        shards = [np.asarray(rows, dtype=np.int64) for rows in settings["shards"]]
        local = settings.get("denominators", "global") == "local"
        mask = x["mask"] != 0
        losses, grad = [], np.zeros_like(x["logits"])
        share = self.share(mask, shards, local)
        for rows in shards:
            rule = self.shard_rule(o.aggregation, mask, shards, rows, local)
            part = self.objective_case(
                {name: value[rows] for name, value in x.items()}, {**o.to_dict(), "aggregation": rule}
            )
            losses.append(part["loss"])
            grad[rows] = share * part["grad_logits"]
        return {"losses": np.array(losses), "loss": self.combined(losses, share), "grad_logits": grad}

    def share(self, mask: Array, shards: list[Array], local: bool) -> Any:
        """What each shard's loss is multiplied by."""
        return self.dtype(1 / len(shards)) if local else self.dtype(1)

    def combined(self, losses: list, share: Any) -> Any:
        return share * np.sum(losses)

    def shard_counts(self, mask: Array, shards: list[Array], rows: Array) -> Array:
        """The mask whose tokens and rows a shard divides by under global denominators."""
        return mask

    def shard_rule(self, rule: Aggregation, mask: Array, shards: list[Array], rows: Array, local: bool) -> dict:
        """The shard's aggregation, with explicit denominators where they are global."""
        if local:
            return {"kind": "token-sum"} if not mask[rows].any() else wire_rule(rule)
        counts = self.shard_counts(mask, shards, rows)
        if rule.kind == "token-mean" and rule.tokens is None:
            rule = replace(rule, tokens=float(counts.sum()) or None)
        elif rule.kind.startswith("seq-mean") and rule.sequences is None:
            rule = replace(rule, sequences=float(counts.any(axis=1).sum()) or None)
        return wire_rule(rule)


def wire_rule(rule: Aggregation) -> dict[str, Any]:
    """An aggregation record as wire keys, without the absent ones."""
    named = {"kind": rule.kind, "length": rule.length, "tokens": rule.tokens, "sequences": rule.sequences}
    return {key: value for key, value in named.items() if value is not None}
