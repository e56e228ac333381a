import math

import numpy as np
import pytest

from tasks.algorithms.panel import rating_spread, simulated_rating

RATINGS = [(2, 2, 2, 2), (-1, -1), (0, 2), (-3, -1, -1, 1), (2, 3), (-2, -1)]
"""Means 2, -1, 1, -1, 2.5, -1.5."""


def spread(**changes):
    return {"levels": [-1, 0, 1], "means": [-1.0, 0.5], "shares": [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]} | changes


def test_the_spread_by_hand():
    """Groups of two by mean: (-2 -1 and -1 -1), (-3 -1 -1 1 and 0 2), (2 2 2 2 and 2 3); each text weighs alike."""
    levels, means, shares = rating_spread(RATINGS, groups=3)
    assert levels == [-3, -2, -1, 0, 1, 2, 3]
    assert means == pytest.approx([-1.25, 0.0, 2.25])
    assert shares[0] == pytest.approx([0, 0.25, 0.75, 0, 0, 0, 0])
    assert shares[1] == pytest.approx([0.125, 0, 0.25, 0.25, 0.125, 0.25, 0])
    assert shares[2] == pytest.approx([0, 0, 0, 0, 0, 0.75, 0.25])


def test_groups_are_ordered_and_whole():
    rng = np.random.default_rng(0)
    ratings = [tuple(rng.integers(-4, 5, size=rng.integers(2, 9)).tolist()) for _ in range(103)]
    levels, means, shares = rating_spread(ratings, groups=7)
    assert means == sorted(means)
    assert np.sum(shares, axis=1) == pytest.approx(np.ones(7))
    assert np.asarray(shares) @ levels == pytest.approx(means)


def test_a_rating_by_hand():
    """Halfway between the groups, at -.25: half of (1, 0, 0) and half of (0, .5, .5), cumulated .5, .75, 1."""
    for uniform, rating in [(0, -1), (0.49, -1), (0.5, 0), (0.74, 0), (0.76, 1), (math.nextafter(1, 0), 1)]:
        assert simulated_rating(-0.25, uniform, **spread()) == rating


@pytest.mark.parametrize("mean", [-1.0, -0.6, 0.0, 0.25, 0.5])
def test_the_expectation_is_the_mean(mean):
    """Over an even grid of uniforms, up to the grid's width."""
    grid = [(n + 0.5) / 4000 for n in range(4000)]
    assert np.mean([simulated_rating(mean, u, **spread()) for u in grid]) == pytest.approx(mean, abs=1e-3)


def test_beyond_the_outermost_groups_their_spread_holds():
    for uniform in (0.1, 0.6, 0.9):
        assert simulated_rating(9.0, uniform, **spread()) == simulated_rating(0.5, uniform, **spread())
        assert simulated_rating(-9.0, uniform, **spread()) == -1


def test_a_level_that_no_one_gave_is_never_drawn():
    empty = spread(levels=[-1, 0, 1], means=[0.0], shares=[[0.5, 0.0, 0.5]])
    assert {simulated_rating(0.0, u, **empty) for u in (0, 0.4999, 0.5, math.nextafter(1, 0))} == {-1, 1}
    none_last = spread(levels=[-1, 0, 1], means=[-0.7], shares=[[0.7, 0.3, 0.0]])
    assert simulated_rating(-0.7, math.nextafter(1, 0), **none_last) == 0


def test_errors():
    with pytest.raises(ValueError, match="6 rated texts for 7 groups"):
        rating_spread(RATINGS, groups=7)
    with pytest.raises(ValueError, match="6 rated texts for 0 groups"):
        rating_spread(RATINGS, groups=0)
    for uniform in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="uniform"):
            simulated_rating(0.0, uniform, **spread())
