"""The head of a row: the k largest, ties by id, only where a row has tokens; and what is found wrong with one."""

from __future__ import annotations

import numpy as np
import pytest

from repro.kernels import head


def plain(row: np.ndarray, k: int) -> np.ndarray:
    """Ids by falling value, then by rising id."""
    return np.lexsort((np.arange(len(row)), -row))[:k]


@pytest.mark.parametrize(("vocabulary", "k"), [(73, 16), (73, 1), (73, 73), (16, 16), (5, 3), (100, 9), (129, 70)])
@pytest.mark.parametrize("levels", [None, 40, 3, 1])
def test_the_largest_in_order_and_ties_by_id(vocabulary, k, levels):
    rng = np.random.default_rng(vocabulary + k)
    logp = rng.normal(-5, 3, (4, 9, vocabulary)).astype(np.float32)
    if levels:  # few different values: ties inside the head and across its edge
        logp = -rng.integers(0, levels, logp.shape).astype(np.float32)
    logp[0, 0] = np.sort(logp[0, 0])
    logp[0, 1] = np.sort(logp[0, 1])[::-1]
    logp[0, 2, vocabulary // 2 :] = -np.inf
    lengths = np.array([7, 1, 3, 6])
    ids, values = head.top_k(logp, lengths, k)
    assert ids.shape == values.shape == (4, 7, k) and ids.dtype == np.int64 and values.dtype == np.float32
    for row in range(4):
        for t in range(7):
            if t < lengths[row]:
                expected = plain(logp[row, t], k)
                assert np.array_equal(ids[row, t], expected)
                assert np.array_equal(values[row, t], logp[row, t, expected])
            else:
                assert (ids[row, t] == -1).all() and (values[row, t] == -np.inf).all()


def test_a_head_that_cannot_be_is_refused():
    logp, lengths = np.zeros((1, 2, 4), np.float32), np.array([2])
    for k in (0, 5):
        with pytest.raises(ValueError, match="k, lengths: expected 1 <= k <= 4"):
            head.top_k(logp, lengths, k)
    with pytest.raises(ValueError, match="lengths <= 2"):
        head.top_k(logp, lengths + 1, 2)


def test_each_fault_is_found_where_it_is_and_nowhere_else():
    ids, logp = np.tile(np.arange(3), (2, 4, 1)), np.full((2, 4, 3), -1.0, np.float32)
    ids[0, 1, 2], logp[0, 1, 2] = -1, -np.inf  # absent slots are no fault, nor duplicates of each other
    ids[0, 1, 0], logp[0, 1, 0] = -1, -np.inf
    logp[1, 0, 0] = 1e-6
    damages = {
        (0, 0): (head.FOREIGN_ID, (0, 6), None),
        (0, 2): (head.FOREIGN_ID, (1, -2), None),
        (0, 3): (head.NOT_A_LOGP, None, (2, np.nan)),
        (1, 1): (head.NOT_A_LOGP, None, (0, 2e-6)),
        (1, 2): (head.FILLED_ABSENT, (1, -1), None),
        (1, 3): (head.DUPLICATE, (2, 0), None),
    }
    expected = np.zeros((2, 4), np.int64)
    for place, (fault, wrong_id, wrong_value) in damages.items():
        expected[place] = fault
        if wrong_id:
            ids[place][wrong_id[0]] = wrong_id[1]
        if wrong_value:
            logp[place][wrong_value[0]] = wrong_value[1]
    assert np.array_equal(head.faults(ids, logp, np.ones((2, 4), bool), 6, 1e-6), expected)
    assert not head.faults(ids, logp, expected == 0, 6, 1e-6).any()  # off the mask nothing counts
