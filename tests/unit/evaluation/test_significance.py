"""Intervals and tests, against all sign flips counted and the normal distribution."""

import itertools

import numpy as np
import pytest

from tfde.errors import ConfigError
from tfde.evaluation.significance import compare, correct, mean_interval


def test_the_p_value_is_the_share_of_sign_flips_that_are_as_far_from_zero():
    rng = np.random.default_rng(3)
    one, other = rng.random(9), rng.random(9) - 0.15
    differences = one - other
    flips = np.array(list(itertools.product([1, -1], repeat=9))) @ differences
    share = np.mean(np.abs(flips) >= abs(differences.sum()) - 1e-12)
    found = compare(one, other)
    assert found.p_value == pytest.approx(share, abs=0.01)
    assert found.difference.mean == pytest.approx(differences.mean())
    assert (found.gains, found.losses) == ((differences > 0).sum(), (differences < 0).sum())
    mirrored = compare(other, one)
    assert mirrored.p_value == pytest.approx(found.p_value, abs=0.01)
    assert mirrored.difference.mean == pytest.approx(-found.difference.mean)


def test_many_queries_are_as_the_normal_distribution_says():
    rng = np.random.default_rng(5)
    values = rng.random(2000)
    found = mean_interval(values, confidence=0.9)
    error = 1.6449 * values.std() / np.sqrt(2000)
    assert found.low == pytest.approx(values.mean() - error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + error, abs=0.1 * error)
    assert mean_interval(values, confidence=0.5).low > found.low
    assert mean_interval(values, confidence=0.9) == found  # seeded


def test_no_difference_and_a_sure_one():
    values = np.arange(20) / 20
    same = compare(values, values)
    assert (same.p_value, same.difference) == (1.0, (0.0, 0.0, 0.0))
    assert compare(values + 0.1, values).p_value < 0.001
    assert mean_interval([0.25]) == (0.25, 0.25, 0.25)


def test_correction_by_hand():
    # Benjamini and Hochberg: p * number / rank, made monotone from the largest down.
    assert correct([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert correct([]) == []


def test_what_is_refused():
    with pytest.raises(ConfigError, match="`values` must be not empty"):
        mean_interval([])
    with pytest.raises(ConfigError, match=r"`confidence` must be in \(0, 1\)\. Received: 1"):
        mean_interval([1.0], confidence=1)
    with pytest.raises(ConfigError, match="`others` must be 2 values, as `values`"):
        compare([1.0, 2.0], [1.0, 2.0, 3.0])
