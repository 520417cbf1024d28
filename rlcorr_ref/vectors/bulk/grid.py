"""Inputs of the bulk tier from raw 64-bit integers: logits like a language model's, a drifted sampler, drifting log-probs.

Only the raw stream of PCG64 is used, which NumPy guarantees bit for bit; everything after it is integer arithmetic, except that
a sampler row is normalised by an integer number of 1/64 nats taken from its log-sum-exp at 50 digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpmath import mp

from .exact import Counted

VOCABULARY = 151_936  # Qwen2.5's padded vocabulary, 2^7 * 1187
LOGITS_PER = 16  # logits are k/16 with |k| <= 255: exact in bf16 and in float16
SAMPLER_PER = 64  # sampler log-probs are k/64


def integers(seed: int, low: int, high: int, *shape: int) -> np.ndarray:
    """Integers in [low, high] as int64, from the raw stream; the modulo's bias (< 2^-50) is of no concern here."""
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return ((raw >> np.uint64(11)) % np.uint64(high - low + 1)).astype(np.int64).reshape(shape) + low


def ranks(multiplier: int, shift: int) -> np.ndarray:
    """A permutation of 1..V: the frequency rank [V] of every token id, (multiplier id + shift) mod V + 1."""
    return (multiplier * np.arange(VOCABULARY, dtype=np.int64) + shift) % VOCABULARY + 1


def zipf(seed: int, slope: int, multiplier: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits k [V] in units of 1/16, falling by `slope` per doubling of the rank, with noise of +-4; and the ranks."""
    rank = ranks(multiplier, 7)
    doublings = np.zeros(VOCABULARY, dtype=np.int64)
    for power in range(1, 18):
        doublings += rank >= 2**power
    return 112 - slope * doublings + integers(seed, -4, 4, VOCABULARY), rank


@dataclass
class Pair:
    """One token's trainer and sampler rows. `logits` k [V] in 1/16; `sampler` k [V] in 1/64 of log q; both as Counted rows.

    `lse` is the trainer's log-sum-exp at 50 digits, in nats.
    """

    logits: np.ndarray
    sampler: np.ndarray
    row: Counted
    lse: mp.mpf


def pair(seed: int, slope: int, multiplier: int, tail_shift: int = 0, width: int = 128) -> Pair:
    """A trainer row and a sampler that departs from it by +-1 nat per token, and by tail_shift/16 beyond rank `width`.

    The sampler's row sums to 1 within a factor exp(-1/64): its normaliser is rounded up to the grid.
    """
    k, rank = zipf(seed, slope, multiplier)
    sampler = k + integers(seed + 1, -16, 16, VOCABULARY) - tail_shift * (rank > width)
    drawn = Counted(sampler, LOGITS_PER)
    normaliser = int(mp.ceil(SAMPLER_PER * mp.log(drawn.sum(mp.exp))))
    row = Counted(k, LOGITS_PER)
    return Pair(k, sampler * (SAMPLER_PER // LOGITS_PER) - normaliser, row, mp.log(row.sum(mp.exp)))


def mask_with_gaps(seed: int, lengths: list[int], width: int) -> np.ndarray:
    """0/1 mask [B, T] as uint8: rows end at `lengths`; stretches of 8 positions fall out, one in six, as tool output does."""
    out = np.zeros((len(lengths), width), dtype=np.uint8)
    holes = np.repeat(integers(seed, 0, 5, len(lengths), -(-width // 8)) == 0, 8, axis=1)[:, :width]
    for b, n in enumerate(lengths):
        out[b, :n] = 1
        out[b, 1:n] &= ~holes[b, 1:n]
    return out


def drifting(seed: int, mask: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-ratios d and sampler log-probs [B, T] in units of 1/1024 nat, for the valid tokens; 0 elsewhere.

    Neighbours nearly cancel, so that sums over thousands of tokens stay small beside the sum of absolute terms; one token in 16
    adds its row's `bias` [B]. log q lies in [-6, -1].
    """
    b, t = mask.shape
    half = integers(seed, -256, 256, b, t // 2)
    d = np.stack([half, -half], axis=-1).reshape(b, t) + integers(seed + 1, -16, 16, b, t)
    d += bias[:, None] * (integers(seed + 2, 0, 15, b, t) == 0)
    return d * mask, integers(seed + 3, -6144, -1024, b, t) * mask
