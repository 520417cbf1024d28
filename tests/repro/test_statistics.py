"""Closed-form cases of the seed statistics."""

from __future__ import annotations

import numpy as np
import pytest

from repro.statistics import bootstrap_interval, moving_average, paired_differences, sign_test_floor, window_mean


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


def test_bootstrap_is_a_function_of_its_generator():
    values = [0.1, 0.4, 0.35, 0.8]
    first = bootstrap_interval(values, np.random.default_rng(7), resamples=25)
    assert first == bootstrap_interval(values, np.random.default_rng(7), resamples=25)
    assert first != bootstrap_interval(values, np.random.default_rng(8), resamples=25)
    assert first.mean == pytest.approx(np.mean(values)) and first.low < first.mean < first.high and first.count == 4


def test_bootstrap_of_two_seeds_has_known_quantiles():
    # Resampled means of {0, 1} are 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4.
    wide = bootstrap_interval([0.0, 1.0], np.random.default_rng(0), level=0.95)
    assert (wide.low, wide.mean, wide.high) == (0.0, 0.5, 1.0)
    narrow = bootstrap_interval([0.0, 1.0], np.random.default_rng(0), level=0.4)
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_bootstrap_of_a_constant_has_no_width():
    assert bootstrap_interval([0.3, 0.3, 0.3], np.random.default_rng(1))[:3] == pytest.approx((0.3, 0.3, 0.3))


def test_bootstrap_width_agrees_with_the_normal_approximation_for_many_seeds():
    values = np.random.default_rng(3).normal(size=400)
    interval = bootstrap_interval(values, np.random.default_rng(4))
    half = 1.959964 * values.std() / 20
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.05)


def test_bootstrap_refuses_a_seed_in_place_of_a_generator():
    with pytest.raises(TypeError, match="rng: expected a numpy.random.Generator, got int"):
        bootstrap_interval([1.0], 0)
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval([1.0], np.random.default_rng(0), level=1.0)
    with pytest.raises(ValueError, match="resamples"):
        bootstrap_interval([1.0], np.random.default_rng(0), resamples=0)


def test_paired_differences_use_common_seeds_in_order():
    pairs = paired_differences({2: 0.5, 0: 0.4, 9: 1.0}, {0: 0.1, 2: 0.6, 5: 0.0})
    assert pairs.seeds == (0, 2)
    np.testing.assert_allclose(pairs.differences, [0.3, -0.1])
    assert pairs.mean == pytest.approx(0.1)
    assert not pairs.unanimous() and pairs.unanimous(-0.2) and not pairs.unanimous(0.3)


def test_paired_differences_without_a_common_seed():
    with pytest.raises(ValueError, match=r"common seed, got \[1\] and \[2\]"):
        paired_differences({1: 0.0}, {2: 0.0})


def test_three_seeds_cannot_be_significant():
    assert sign_test_floor(3) == 0.25
    assert sign_test_floor(1) == 1.0
    assert sign_test_floor(6) == 0.03125
    with pytest.raises(ValueError, match="at least one"):
        sign_test_floor(0)
