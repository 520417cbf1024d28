"""The data of one case: trainer logits, sampled tokens and what the sampler (and the anchor) recorded.

`Batch` holds padded arrays; `Batch.packed()` gives the valid tokens only, in row order, and checks them. Everything
downstream works on that packed form, which is why junk under the mask cannot change a single bit and why a packed
batch gives exactly what the padded batch gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .errors import ContractError, check_keys

FLOATS_BT = ("advantages", "logp_sampler", "logp_anchor", "logp_reference")
FLOATS_BTK = ("head_logp_sampler", "head_logp_anchor")
FLOATS_BTV = ("logits", "logp_sampler_full", "logp_anchor_full")
REQUIRED = ("logits", "tokens", "mask", "advantages", "logp_sampler")
LOGP_SLACK = 1e-6
MASS_SLACK = 1e-4
ROW_CHECK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Batch:
    """Padded arrays of the contract (axes B rows, T response positions, V vocabulary, K head; log-probs in nats).

    logits [B, T, V] float64, on the row that predicts the token, before temperature; tokens [B, T] int; mask [B, T] 0/1;
    advantages, logp_sampler and optional logp_anchor, logp_reference [B, T] float64; optional head_ids [B, T, K] int with
    head_logp_sampler, head_logp_anchor [B, T, K] float64 (id -1 with log-prob -inf is an absent slot); optional
    logp_sampler_full, logp_anchor_full [B, T, V] float64; optional support [B, T, V] 0/1.
    """

    logits: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray
    advantages: np.ndarray
    logp_sampler: np.ndarray
    logp_anchor: np.ndarray | None = None
    head_ids: np.ndarray | None = None
    head_logp_sampler: np.ndarray | None = None
    head_logp_anchor: np.ndarray | None = None
    logp_sampler_full: np.ndarray | None = None
    logp_anchor_full: np.ndarray | None = None
    support: np.ndarray | None = None
    logp_reference: np.ndarray | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                if field.name in REQUIRED:
                    raise ContractError(f"{field.name}: required, got null")
                continue
            object.__setattr__(self, field.name, as_array(field.name, value))
        self._check_shapes()

    def _check_shapes(self) -> None:
        if self.logits.ndim != 3:
            raise ContractError(f"logits: expected shape [B, T, V], got {list(self.logits.shape)}")
        b, t, v = self.logits.shape
        if v < 1:
            raise ContractError("logits: expected a vocabulary of at least one token, got V = 0")
        k = None
        if self.head_ids is not None:
            k = self.head_ids.shape[-1] if self.head_ids.ndim == 3 else -1
            if k > v:
                raise ContractError(f"head_ids: head width K = {k} is larger than the vocabulary V = {v}")
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            name = field.name
            if name in ("head_ids", *FLOATS_BTK):
                if self.head_ids is None:
                    raise ContractError(f"{name} and head_ids: head log-probs need the ids they belong to")
                expected: tuple[int | None, ...] = (b, t, k)
                if k == -1:
                    raise ContractError(
                        f"head_ids: expected shape [B, T, K] with B={b}, T={t}, got {list(value.shape)}"
                    )
            elif name in FLOATS_BTV or name == "support":
                expected = (b, t, v)
            else:
                expected = (b, t)
            if value.shape != expected:
                raise ContractError(f"{name}: expected shape {list(expected)}, got {list(value.shape)}")
        if self.head_ids is not None and self.head_logp_sampler is None:
            raise ContractError("head_ids and head_logp_sampler: a head needs the sampler's log-probs on its ids")
        if not np.isin(self.mask, (0, 1)).all():
            raise ContractError("mask: expected only 0 and 1")

    @classmethod
    def from_dict(cls, inputs: Mapping[str, Any]) -> Batch:
        """Read the wire form: nested lists, non-finite numbers as "NaN", "Infinity", "-Infinity"."""
        check_keys("inputs", inputs, [f.name for f in fields(cls)], REQUIRED)
        return cls(**inputs)

    @classmethod
    def from_packed(cls, *, cu_seqlens: Any, **arrays: Any) -> Batch:
        """Build a batch from packed arrays: axis 0 runs over all tokens, row b owns cu_seqlens[b] : cu_seqlens[b + 1].

        `mask` may be left out (all tokens valid). Evaluating it gives bit for bit what the padded batch gives.
        """
        check_keys("packed inputs", arrays, [f.name for f in fields(cls)], [n for n in REQUIRED if n != "mask"])
        cu = np.asarray(cu_seqlens)
        logits = as_array("logits", arrays["logits"])
        total = logits.shape[0]
        if cu.ndim != 1 or cu.size < 1 or cu.dtype.kind not in "iu" or cu[0] != 0 or cu[-1] != total:
            raise ContractError(f"cu_seqlens: expected integers from 0 to the token count {total}, got {cu.tolist()}")
        lengths = np.diff(cu.astype(np.int64))
        if (lengths < 0).any():
            raise ContractError("cu_seqlens: expected a non-decreasing sequence")
        rows, width = lengths.size, int(lengths.max(initial=0))
        b = np.repeat(np.arange(rows), lengths)
        t = np.arange(total) - np.repeat(cu[:-1], lengths)
        arrays.setdefault("mask", np.ones(total, dtype=np.int64))
        padded = {}
        for name, value in arrays.items():
            if value is None:
                continue
            value = as_array(name, value)
            if value.shape[:1] != (total,):
                raise ContractError(f"{name}: expected {total} packed tokens on axis 0, got shape {list(value.shape)}")
            out = np.zeros((rows, width, *value.shape[1:]), dtype=value.dtype)
            out[b, t] = value
            padded[name] = out
        return cls(**padded)

    def packed(self) -> Packed:
        """The valid tokens in row order, checked; errors name (b, t)."""
        b, t = np.nonzero(self.mask)
        take = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in FLOATS_BTV and field.name not in ("mask", "support"):
                take[field.name] = value[b, t]
        packed = Packed(self, b, t, **take)
        packed.check()
        return packed


@dataclass
class Packed:
    """Valid tokens in row order: [N] and [N, K] arrays, with the padded `batch` kept for what is [B, T, V]."""

    batch: Batch
    b: np.ndarray
    t: np.ndarray
    tokens: np.ndarray
    advantages: np.ndarray
    logp_sampler: np.ndarray
    logp_anchor: np.ndarray | None = None
    head_ids: np.ndarray | None = None
    head_logp_sampler: np.ndarray | None = None
    head_logp_anchor: np.ndarray | None = None
    logp_reference: np.ndarray | None = None

    @property
    def count(self) -> int:
        return self.b.size

    def fail(self, name: str, bad: np.ndarray, what: str, value: np.ndarray | None = None) -> None:
        """Raise for the first True of `bad` [N] or [N, K], naming (b, t) and the value found."""
        if not bad.any():
            return
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        got = "" if value is None else f", got {value[index]!r}"
        raise ContractError(f"{name}: {what} at (b={self.b[index[0]]}, t={self.t[index[0]]}){got}")

    def check(self) -> None:
        v = self.batch.logits.shape[2]
        tokens = self.tokens
        if tokens.dtype.kind == "f":
            self.fail("tokens", tokens != np.floor(tokens), "expected an integer id", tokens)
            self.tokens = tokens = np.nan_to_num(tokens, nan=-1.0).astype(np.int64)
        self.fail("tokens", (tokens < 0) | (tokens >= v), f"expected an id in [0, {v})", tokens)
        self.fail("advantages", ~np.isfinite(self.advantages), "expected a finite number", self.advantages)
        for name in ("logp_sampler", "logp_anchor", "logp_reference", "head_logp_sampler", "head_logp_anchor"):
            value = getattr(self, name)
            if value is not None:
                self.fail(name, np.isnan(value) | (value == np.inf), "expected a log-prob", value)
                self.fail(name, value > LOGP_SLACK, "expected a log-prob <= 0 (+1e-6)", value)
        if self.batch.support is not None:
            support = self.batch.support[self.b, self.t]
            self.fail("support", ~np.isin(support, (0, 1)).all(-1), "expected only 0 and 1")
            outside = support[np.arange(self.count), tokens] == 0
            self.fail("tokens", outside, "the sampled token lies outside the support", tokens)
        if self.batch.logp_sampler_full is not None:
            self._check_rows("logp_sampler_full", sums_to_one=True)
        if self.batch.logp_anchor_full is not None:
            self._check_rows("logp_anchor_full", sums_to_one=False)
        if self.head_ids is not None:
            self._check_head(v)

    def _check_rows(self, name: str, sums_to_one: bool) -> None:
        """Whole rows [N, V] of log-probs, some megabytes at a time: a copy of all of them would double the memory."""
        step = max(1, ROW_CHECK_ELEMENTS // self.batch.logits.shape[2])
        top, mass = np.empty(self.count), np.ones(self.count)
        for start in range(0, self.count, step):
            piece = slice(start, start + step)
            rows = getattr(self.batch, name)[self.b[piece], self.t[piece]]
            top[piece] = rows.max(-1)
            if sums_to_one:
                with np.errstate(over="ignore", invalid="ignore"):
                    mass[piece] = np.exp(rows).sum(-1)
        self.fail(name, np.isnan(top) | (top == np.inf), "expected log-probs", top)
        self.fail(name, top > LOGP_SLACK, "expected log-probs <= 0 (+1e-6)", top)
        self.fail(name, np.abs(mass - 1.0) > 1e-6, "expected probabilities that sum to 1 within 1e-6", mass)

    def _check_head(self, v: int) -> None:
        ids, logq = self.head_ids, self.head_logp_sampler
        if ids.dtype.kind == "f":
            self.fail("head_ids", ids != np.floor(ids), "expected integer ids", ids)
            self.head_ids = ids = np.nan_to_num(ids, nan=-2.0).astype(np.int64)
        self.fail("head_ids", (ids < -1) | (ids >= v), f"expected ids in [0, {v}) or -1 for an absent slot", ids)
        absent = ids == -1
        for name in FLOATS_BTK:
            value = getattr(self, name)
            if value is not None:
                self.fail(name, absent & (value != -np.inf), "an absent slot (id -1) takes log-prob -Infinity", value)
                mass = np.exp(value).sum(-1)
                self.fail(name, mass > 1.0 + MASS_SLACK, "head mass above 1 + 1e-4", mass)
        if ids.shape[1] > 1:
            order = np.sort(ids, axis=1)
            twice = (order[:, 1:] == order[:, :-1]) & (order[:, 1:] >= 0)
            self.fail("head_ids", twice, "duplicate id in the head", order[:, 1:])
        hit = ids == self.tokens[:, None]
        with np.errstate(invalid="ignore"):
            gap = np.abs(np.where(hit, logq, 0.0) - np.where(hit, self.logp_sampler[:, None], 0.0))
        gap = np.where(np.isnan(gap), 0.0, gap)  # both -inf: they agree
        self.fail(
            "logp_sampler and head_logp_sampler",
            gap > 1e-4,
            "disagree on the sampled token by more than 1e-4 nats",
            gap,
        )


def as_array(name: str, value: Any) -> np.ndarray:
    """An array of the kind that `name` asks for; lists are read as wire values, arrays must already be float64."""
    wants_int = name in ("tokens", "head_ids", "mask", "support")
    if isinstance(value, (list, tuple)):
        plain = _wire(name, value)
        try:
            array = np.array(plain, dtype=np.float64)
        except ValueError:
            raise ContractError(f"{name}: expected a rectangular nested list of numbers, got ragged lengths") from None
        finite_ints = wants_int and np.isfinite(array).all() and (array == np.floor(array)).all()
        return array.astype(np.int64) if finite_ints else array
    array = np.asarray(value)
    if array.dtype == np.bool_:
        array = array.astype(np.int64)
    if wants_int:
        if array.dtype.kind not in "iuf":
            raise ContractError(f"{name}: expected integers, got dtype {array.dtype}")
        return array.astype(np.int64) if array.dtype.kind in "iu" else array
    if array.dtype != np.float64:
        raise ContractError(
            f"{name}: expected float64, got {array.dtype}; cast it yourself if the values are meant as they are"
        )
    return array


def _wire(name: str, value: Any) -> Any:
    """Nested lists of numbers and the strings "NaN", "Infinity", "-Infinity"; anything else is refused by name."""
    if isinstance(value, (list, tuple)):
        return [_wire(name, item) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, (bool, np.bool_)) and name in ("mask", "support"):
        return int(value)
    if isinstance(value, (np.floating, np.integer)):
        return value
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise ContractError(f"{name}: expected a number, 'NaN', 'Infinity' or '-Infinity', got {value!r}")
