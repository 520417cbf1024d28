"""The head of a distribution: the k largest entries of each row of log-probs, and the check of a head that was recorded.

``top_k`` orders by falling value; equal values by rising id, and where they do not all fit the lower ids stay. It is
exact: numbers are compared, never computed with. Heads are [B, T, K], ids int64 and log-probs float32; an absent slot
is id -1 with -inf.

    low = min over g < G of max over i of x[g + i G]     G >= k groups: at least k entries are not below ``low``
    place(v) = #{u : x[u] > x[v]}, one further for each equal entry of a lower id

A row costs one pass for ``low``, one that gathers the entries not below it (about twice k of them), and a comparison of
each of these with all of them, eight at a time.
"""

from __future__ import annotations

import numpy as np

from repro.kernels import kernel
from repro.kernels.lanes import WIDTH, above, hmax, hsum, larger, load, splat

# What `faults` finds wrong with the head of a token, one bit each.
FOREIGN_ID, NOT_A_LOGP, FILLED_ABSENT, DUPLICATE = 1, 2, 4, 8


def top_k(logp: np.ndarray, lengths: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Head ids and log-probs [B, T, k] of logp [B, >= T, V] without NaN, T the largest of ``lengths`` [B] int64.

    Row b has a head at its first lengths[b] tokens and absent slots behind them; 1 <= k <= V.
    """
    rows, longest, vocabulary = logp.shape
    length = int(lengths.max())
    if not 1 <= k <= vocabulary or length > longest:
        raise ValueError(f"k, lengths: expected 1 <= k <= {vocabulary} and lengths <= {longest}, got {k} and {length}")
    groups = -(-k // WIDTH) * WIDTH
    padded = -(-vocabulary // groups) * groups
    ids, values = np.full((rows, length, k), -1), np.full((rows, length, k), -np.inf, np.float32)
    scratch, candidates = np.full(2 * padded, -np.inf, np.float32), np.empty(vocabulary, np.int64)
    _top_k(logp, lengths, groups, padded, scratch, candidates, ids, values)
    return ids, values


@kernel
def _top_k(logp, lengths, groups, padded, scratch, candidates, ids, values):
    """scratch [2 padded]: -inf behind the vocabulary of the row that is copied to its first half."""
    vocabulary, k = logp.shape[2], ids.shape[2]
    kept = scratch[padded:]
    lowest, zero = splat(np.float32(-np.inf)), splat(np.float32(0))
    for b in range(logp.shape[0]):
        for t in range(lengths[b]):
            for v in range(vocabulary):
                scratch[v] = logp[b, t, v]
            negative = lowest  # the largest of minus the groups' maxima
            for g in range(0, groups, WIDTH):
                top = load(scratch, g)
                for v in range(g + groups, padded, groups):
                    top = larger(load(scratch, v), top)
                negative = larger(zero - top, negative)
            low = -hmax(negative)
            count = 0
            for v in range(vocabulary):
                kept[count], candidates[count] = scratch[v], v
                count += scratch[v] >= low
            covered = (count + WIDTH - 1) // WIDTH * WIDTH
            for j in range(count, covered):
                kept[j] = -np.inf
            for j in range(count):
                value, larger_ones = splat(kept[j]), zero
                for i in range(0, covered, WIDTH):
                    larger_ones = larger_ones + above(load(kept, i), value)
                place = int(hsum(larger_ones))
                while place < k and ids[b, t, place] >= 0:  # an equal entry of a lower id
                    place += 1
                if place < k:
                    ids[b, t, place], values[b, t, place] = candidates[j], kept[j]


def faults(ids: np.ndarray, logp: np.ndarray, mask: np.ndarray, vocabulary: int, tolerance: float) -> np.ndarray:
    """What is wrong with each head, bits [B, T] int64, 0 off the mask [B, T].

    FOREIGN_ID: an id outside [-1, vocabulary); NOT_A_LOGP: a NaN or a log-prob above ``tolerance``; FILLED_ABSENT: a
    log-prob other than -inf where the id is -1; DUPLICATE: an id of the vocabulary twice.
    """
    found = np.zeros(mask.shape, np.int64)
    _faults(ids, logp, mask, np.float32(tolerance), np.full(vocabulary, -1), found)
    return found


@kernel
def _faults(ids, logp, mask, tolerance, seen, found):
    """seen [V]: the last token whose head held an id."""
    for b in range(mask.shape[0]):
        for t in range(mask.shape[1]):
            if not mask[b, t]:
                continue
            bits, token = 0, b * mask.shape[1] + t
            for j in range(ids.shape[2]):
                entry, value = ids[b, t, j], logp[b, t, j]
                if not value <= tolerance:
                    bits |= NOT_A_LOGP
                if entry == -1:
                    if value != -np.inf:
                        bits |= FILLED_ABSENT
                elif entry < 0 or entry >= seen.size:
                    bits |= FOREIGN_ID
                else:
                    if seen[entry] == token:
                        bits |= DUPLICATE
                    seen[entry] = token
            found[b, t] = bits
