"""Per-token log-probs of the policies on the sampled tokens, packed: what weights, rejection and diagnostics work on.

The names are the contract's: trainer p, sampler q as actually sampled, anchor o.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .errors import ContractError
from .ratios import Segments, level_log_ratio, log_ratio


@dataclass
class TokenLogProbs:
    """Valid tokens in row order. All arrays [N]: row `b`, position `t`, log-probs in nats, advantages.

    logp trainer, logp_sampler q as actually sampled, logp_anchor o or None (two policies). `rows` and `runs` are the
    non-empty rows and the contiguous runs of valid tokens.
    """

    b: np.ndarray
    t: np.ndarray
    logp: np.ndarray
    logp_sampler: np.ndarray
    logp_anchor: np.ndarray | None
    advantages: np.ndarray
    rows: Segments = field(init=False)
    runs: Segments = field(init=False)

    def __post_init__(self) -> None:
        self.rows = Segments.rows(self.b)
        self.runs = Segments.runs(self.b, self.t)

    @property
    def count(self) -> int:
        return self.b.size

    @classmethod
    def from_padded(
        cls,
        logp_trainer: np.ndarray,
        logp_sampler: np.ndarray,
        mask: np.ndarray,
        advantages: np.ndarray | None = None,
        logp_anchor: np.ndarray | None = None,
    ) -> TokenLogProbs:
        """Valid tokens of padded arrays [B, T] float64; `advantages` defaults to 1 (every A >= 0).

        What lies under the mask is never read. Raises `ContractError` for shapes that differ, a mask that is not 0/1, NaN or
        +inf log-probs and non-finite advantages on valid tokens. Log-probs above 0 are let through here: ratios and
        diagnostics are defined for any pair of measures, and published fixtures use such values.
        """
        mask = np.asarray(mask)
        if mask.ndim != 2 or not np.isin(mask, (0, 1)).all():
            raise ContractError(f"mask: expected 0 and 1 in shape [B, T], got shape {list(mask.shape)}")
        b, t = np.nonzero(mask)
        taken: dict[str, np.ndarray | None] = {}
        given = {
            "logp_trainer": logp_trainer,
            "logp_sampler": logp_sampler,
            "logp_anchor": logp_anchor,
            "advantages": advantages,
        }
        for name, value in given.items():
            if value is None:
                taken[name] = None
                continue
            value = np.asarray(value)
            if value.dtype != np.float64:
                raise ContractError(f"{name}: expected float64, got {value.dtype}")
            if value.shape != mask.shape:
                raise ContractError(f"{name}: expected shape [B, T] = {list(mask.shape)}, got {list(value.shape)}")
            flat = value[b, t]
            bad = ~np.isfinite(flat) if name == "advantages" else np.isnan(flat) | (flat == np.inf)
            if bad.any():
                i = int(np.argmax(bad))
                raise ContractError(f"{name}: expected a number at (b={b[i]}, t={t[i]}), got {flat[i]!r}")
            taken[name] = flat
        a = np.ones(b.size) if taken["advantages"] is None else taken["advantages"]
        return cls(b, t, taken["logp_trainer"], taken["logp_sampler"], taken["logp_anchor"], a)

    def numerator(self, name: str | None) -> np.ndarray:
        """log n [N] for a rule's `numerator`: the anchor where one is given (and not overruled), else the trainer."""
        return self.logp if name == "trainer" or self.logp_anchor is None else self.logp_anchor

    def log_ratio(self, name: str | None) -> np.ndarray:
        """d = log n - log q [N] in nats."""
        return log_ratio(self.numerator(name), self.logp_sampler)

    def level(
        self, name: str | None, level: str, log_clamp: float | None = None, clamp_order: str = "aggregate"
    ) -> np.ndarray:
        """Log-ratio at `level` [N] in nats; see `rlcorr_ref.ratios.level_log_ratio`."""
        return level_log_ratio(self.log_ratio(name), level, self.rows, self.runs, log_clamp, clamp_order)

    def padded(self, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Packed values [N] as [B, T], 0 off the mask."""
        out = np.zeros(shape, dtype=np.float64)
        out[self.b, self.t] = values
        return out
