"""Closed-form cases, enumerations and a small simulation of the statistics."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from repro.statistics.inference import (
    Replicate,
    checkpoint_mean,
    hierarchical_interval,
    hierarchical_weights,
    holm,
    moving_average,
    paired_differences,
    sign_flip_floor,
    sign_flip_test,
    wilson_interval,
    window_mean,
)


def grid(values) -> dict[Replicate, float]:
    """[[seed values of checkpoint k], ...] -> replicate values."""
    return {Replicate(f"k{k}", seed): x for k, row in enumerate(values) for seed, x in enumerate(row)}


def test_window_mean_takes_the_last_steps_only():
    assert window_mean([9.0, 1.0, 2.0, 3.0], 3) == 2.0
    assert window_mean([9.0, 1.0, 2.0, 3.0], 2, end=2) == 5.0


@pytest.mark.parametrize(
    ("values", "width", "end", "words"),
    [
        ([1.0, 2.0], 3, None, "window of 3 steps inside a curve of 2"),
        ([1.0, 2.0], 0, None, "at least 1 step"),
        ([1.0, np.nan], 1, None, "nan at position 1"),
        ([[1.0]], 1, None, r"shape \(1, 1\)"),
        ([], 1, None, "non-empty"),
        ([1.0, 2.0, 3.0], 2, 4, "ending before 4"),
    ],
)
def test_window_mean_refuses(values, width, end, words):
    with pytest.raises(ValueError, match=words):
        window_mean(values, width, end)


def test_moving_average_of_a_line_is_the_line_inside_and_shrinks_at_the_ends():
    line = np.arange(7.0)
    smooth = moving_average(line, 3)
    np.testing.assert_allclose(smooth[1:-1], line[1:-1], rtol=1e-15)
    assert smooth[0] == 0.5 and smooth[-1] == 5.5
    np.testing.assert_allclose(moving_average(line, 4), [1.0, 1.5, 2.5, 3.5, 4.5, 5.0, 5.5])


def test_moving_average_of_width_one_is_the_identity_and_of_a_huge_width_the_mean():
    values = np.array([3.0, -1.0, 4.0])
    np.testing.assert_array_equal(moving_average(values, 1), values)
    np.testing.assert_allclose(moving_average(values, 99), [2.0, 2.0, 2.0])


def test_bootstrap_is_a_function_of_its_generator_and_not_of_the_order():
    values = grid([[0.1, 0.4, 0.35], [0.8, 0.6]])
    first = hierarchical_interval(values, np.random.default_rng(7), resamples=25)
    backwards = dict(reversed(values.items()))
    assert first == hierarchical_interval(backwards, np.random.default_rng(7), resamples=25)
    assert first != hierarchical_interval(values, np.random.default_rng(8), resamples=25)
    assert first.low < first.mean < first.high and (first.count, first.checkpoints, first.level) == (5, 2, 0.95)


def test_the_mean_gives_each_checkpoint_one_share():
    assert checkpoint_mean(grid([[0.0, 0.0, 0.0], [1.0]])) == 0.5
    interval = hierarchical_interval(grid([[0.0, 0.0, 0.0], [1.0]]), np.random.default_rng(0))
    assert (interval.low, interval.mean, interval.high) == (0.0, 0.5, 1.0)


def test_weights_follow_the_columns_they_were_given():
    replicates = list(grid([[0, 0], [0]]))
    there = hierarchical_weights(replicates, np.random.default_rng(3), 200)
    back = hierarchical_weights(replicates[::-1], np.random.default_rng(3), 200)
    np.testing.assert_array_equal(there, back[:, ::-1])


def test_ragged_weights_have_the_enumerated_distribution():
    # Checkpoint a has two seeds, b has one. Of the four equally likely pairs of checkpoints bb puts all weight on b; ab
    # and ba leave half for two draws among a's seeds; aa spreads the whole over four draws among them.
    weights = hierarchical_weights(
        [Replicate("a", 0), Replicate("a", 1), Replicate("b", 0)], np.random.default_rng(1), 40_000
    )
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-15)
    seen, count = np.unique(weights, axis=0, return_counts=True)
    enumerated = {(0.0, 0.0, 1.0): 1 / 4}
    for probability, share in ((1 / 4, 0.0), (1 / 2, 0.5), (1 / 4, 1.0)):  # of a's two seeds drawn with replacement
        key = (share / 2, (1 - share) / 2, 0.5)
        enumerated[key] = enumerated.get(key, 0) + probability / 2
    for successes, ways in enumerate((1, 4, 6, 4, 1)):  # four draws from a's two seeds
        key = (successes / 4, 1 - successes / 4, 0.0)
        enumerated[key] = enumerated.get(key, 0) + ways / 16 / 4
    assert {tuple(row) for row in seen} == set(enumerated)
    frequencies = {tuple(row): n / 40_000 for row, n in zip(seen, count, strict=True)}
    for key, probability in enumerated.items():
        assert frequencies[key] == pytest.approx(probability, abs=0.01), key


def test_bootstrap_of_two_seeds_has_known_quantiles():
    # One checkpoint: resampled means of {0, 1} are 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4.
    wide = hierarchical_interval(grid([[0.0, 1.0]]), np.random.default_rng(0))
    assert (wide.low, wide.mean, wide.high) == (0.0, 0.5, 1.0)
    narrow = hierarchical_interval(grid([[0.0, 1.0]]), np.random.default_rng(0), level=0.4)
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_bootstrap_of_a_constant_has_no_width():
    interval = hierarchical_interval(grid([[0.3] * 3] * 2), np.random.default_rng(1))
    assert interval[:3] == pytest.approx((0.3, 0.3, 0.3))


def test_bootstrap_width_agrees_with_the_normal_approximation_for_many_checkpoints():
    values = np.random.default_rng(3).normal(size=100)
    interval = hierarchical_interval(grid(values[:, None]), np.random.default_rng(4))
    half = 1.959964 * values.std() / 10
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.05)


def coverage(replicates, between: float, tables: int = 1000) -> float:
    """Share of simulated 8 x 4 tables whose 95 % interval covers the true mean 0; seeds within a checkpoint have spread 1."""
    rng = np.random.default_rng(11)
    values = (between * rng.normal(size=(8, 1, tables)) + rng.normal(size=(8, 4, tables))).reshape(32, tables)
    means = hierarchical_weights(replicates, np.random.default_rng(5), 1500) @ values
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return float(((low <= 0) & (high >= 0)).mean())


def test_coverage_needs_the_checkpoints_to_be_resampled():
    nested = [Replicate(f"k{k}", seed) for k in range(8) for seed in range(4)]
    flat = [Replicate(f"k{k}-{seed}", 0) for k in range(8) for seed in range(4)]  # as though all were independent
    assert coverage(nested, 0.0) > 0.94
    assert 0.87 < coverage(nested, 2.0) < 0.97
    assert coverage(flat, 2.0) < 0.75


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: hierarchical_interval(grid([[1.0]]), 0), TypeError, "rng: expected a numpy.random.Generator, got int"),
        (lambda: hierarchical_interval(grid([[1.0]]), np.random.default_rng(0), level=1.0), ValueError, "level"),
        (lambda: hierarchical_interval(grid([[1.0]]), np.random.default_rng(0), resamples=0), ValueError, "resamples"),
        (lambda: hierarchical_interval({}, np.random.default_rng(0)), ValueError, "values: expected a non-empty"),
        (lambda: hierarchical_weights([Replicate("a", 1)] * 2, np.random.default_rng(0)), ValueError, "none twice"),
        (lambda: wilson_interval(0.5, 0), ValueError, "count: expected at least one trial, got 0"),
        (lambda: wilson_interval(1.5, 3), ValueError, "fraction: expected numbers from 0 to 1"),
        (lambda: sign_flip_test([0.1] * 41), ValueError, "at most 40 pairs"),
        (lambda: sign_flip_floor(0), ValueError, "at least one"),
        (lambda: holm([0.1, 1.2]), ValueError, "p_values: expected numbers from 0 to 1"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_paired_differences_use_common_replicates_in_order():
    a = {Replicate("x", 2): 0.5, Replicate("w", 3): 0.4, Replicate("x", 0): 0.7, Replicate("x", 9): 1.0}
    b = {Replicate("x", 0): 0.6, Replicate("w", 3): 0.0, Replicate("x", 2): 0.9, Replicate("y", 9): 0.0}
    pairs = paired_differences(a, b)
    assert pairs.replicates == (("w", 3), ("x", 0), ("x", 2))
    np.testing.assert_allclose(pairs.differences, [0.4, 0.1, -0.4])
    assert pairs.by_checkpoint() == pytest.approx({"w": 0.4, "x": -0.15})
    assert pairs.above() == 2 and pairs.above(0.2) == 1
    with pytest.raises(ValueError, match="common replicate"):
        paired_differences({Replicate("x", 1): 0.0}, {Replicate("y", 1): 0.0})


def test_sign_flip_by_hand():
    # 1, 2, 3: |sum| = 6 is reached by two of eight assignments; 3, 1, -2: |sum| = 2 by six (all but +-(3 - 1 - 2)).
    assert sign_flip_test([1.0, 2.0, 3.0]) == 0.25
    assert sign_flip_test([3.0, 1.0, -2.0]) == 0.75
    assert sign_flip_test([0.0, 0.0]) == 1.0 and sign_flip_test([0.2]) == 1.0
    assert sign_flip_test([0.6, 0.7, 0.8], margin=0.5) == 0.25
    assert sign_flip_test([0.4, 0.5, 0.6], margin=0.5) == 1.0


def test_sign_flip_of_all_pairs_alike_gives_its_floor():
    for count in (1, 3, 6, 12, 20):
        assert sign_flip_test(np.full(count, 0.1)) == sign_flip_floor(count) == 2 * 0.5**count


def test_sign_flip_agrees_with_plain_enumeration():
    for count in (2, 5, 8):
        values = np.random.default_rng(count).normal(0.3, 1.0, count).round(1)  # rounded: there are ties
        signs = np.array(list(itertools.product((1, -1), repeat=count)))
        expected = (np.abs(signs @ values) >= abs(values.sum()) - 1e-9).mean()
        assert sign_flip_test(values) == expected


def test_permuted_labels_are_rejected_as_often_as_they_may_be():
    """Over all relabelings of the pairs, the share with p <= alpha is at most alpha, and equals it where p takes alpha."""
    values = np.array([0.9, 0.5, 1.3, 0.2, 0.75, 0.31])
    p = np.array([sign_flip_test(values * signs) for signs in itertools.product((1, -1), repeat=6)])
    assert all((p <= alpha).mean() <= alpha for alpha in (0.03125, 0.05, 0.1, 0.25, 0.5, 0.9))
    assert all((p <= alpha).mean() == alpha for alpha in np.unique(p))


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.5, 0.6, 1.0]), [1.0, 1.0, 1.0])
    np.testing.assert_allclose(holm([0.02]), [0.02])


def test_wilson_by_known_values():
    low, high = wilson_interval([0.0, 0.5, 1.0], 10)  # z = 1.95996: z^2/(n + z^2) = 0.27753
    np.testing.assert_allclose(low, [0.0, 0.23659, 0.72247], atol=2e-5)
    np.testing.assert_allclose(high, [0.27753, 0.76341, 1.0], atol=2e-5)
