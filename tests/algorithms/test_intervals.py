import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.algorithms.intervals import (
    bootstrap,
    mean_interval,
    mean_with_interval,
    paired_bootstrap,
    pearson,
    wilson,
    win_rate,
)

CONFIDENCE = pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])


def test_a_tie_counts_one_half():
    assert win_rate([3.0, 1.0, 2.0, 0.0], [1.0, 1.0, 5.0, -1.0]) == (2, 1, 1, 0.625)


def test_a_policy_against_itself_gets_one_half():
    scores = list(np.random.default_rng(0).normal(size=20))
    assert win_rate(scores, scores) == (0, 20, 0, 0.5)


def test_the_tolerance_makes_near_equal_scores_a_tie():
    assert win_rate([1.0, 1.0, 1.5], [1.05, 0.95, 1.0], tolerance=0.1) == (1, 2, 0, 2 / 3)


def test_swapped_sides_turn_the_rate_round():
    a, b = np.random.default_rng(1).normal(size=(2, 30)).round(1)
    forward, back = win_rate(a, b), win_rate(b, a)
    assert forward.rate + back.rate == pytest.approx(1)
    assert (forward.wins, forward.ties) == (back.losses, back.ties)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"), [(61, 100, 0.512, 0.700), (154, 256, 0.541, 0.660), (0, 20, 0.0, 0.161)]
)
def test_wilson_of_known_proportions(successes, n, low, high):
    assert wilson(successes, n, confidence=0.95) == pytest.approx((low, high), abs=5e-4)


def test_five_points_at_one_half_need_384_prompts():
    low, high = wilson(192, 384, confidence=0.95)
    assert (high - low) / 2 == pytest.approx(0.05, abs=5e-4)


@CONFIDENCE
@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(1, 400), st.data())
def test_wilson_is_scipys(confidence, n, data):
    k = data.draw(st.integers(0, n))
    expected = stats.binomtest(k, n).proportion_ci(confidence, method="wilson")
    assert wilson(k, n, confidence=confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_wilson_takes_halves():
    low, middle, high = (wilson(successes, 100, confidence=0.95)[0] for successes in (60, 60.5, 61))
    assert low < middle < high


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (5, 4), (-1, 4), (math.nan, 4)])
def test_wilson_refuses_counts_without_a_meaning(successes, n):
    with pytest.raises(ValueError, match="successes"):
        wilson(successes, n, confidence=0.95)


def test_the_bootstrap_agrees_with_scipys():
    x = np.random.default_rng(2).choice([0.0, 0.5, 1.0], size=200, p=[0.3, 0.1, 0.6])
    found = paired_bootstrap(x, confidence=0.95, resamples=4000, generator=np.random.default_rng(3))
    expected = stats.bootstrap(
        (x,), np.mean, confidence_level=0.95, n_resamples=4000, method="percentile", rng=np.random.default_rng(4)
    ).confidence_interval
    assert found == pytest.approx((expected.low, expected.high), abs=0.01)


def test_the_generator_decides_the_draws():
    x = np.random.default_rng(5).normal(size=50)

    def interval(seed):
        return paired_bootstrap(x, confidence=0.9, resamples=100, generator=np.random.default_rng(seed))

    assert interval(0) == interval(0)
    assert interval(0) != interval(1)


def test_the_bootstrap_of_equal_outcomes_has_no_width():
    assert paired_bootstrap([0.5] * 9, confidence=0.95, resamples=50, generator=np.random.default_rng(0)) == (0.5, 0.5)


def test_a_wider_confidence_gives_a_wider_interval():
    x = np.random.default_rng(6).normal(size=80)
    narrow, wide = (
        paired_bootstrap(x, confidence=c, resamples=500, generator=np.random.default_rng(0)) for c in (0.5, 0.99)
    )
    assert wide[0] < narrow[0] < x.mean() < narrow[1] < wide[1]


@CONFIDENCE
@pytest.mark.parametrize("n", [2, 3, 4, 5, 12, 101, 102, 257, 5000])
def test_the_interval_of_a_mean_is_scipys(n, confidence):
    x = np.random.default_rng(n).normal(3, 2, size=n)
    expected = stats.t.interval(confidence, n - 1, loc=x.mean(), scale=stats.sem(x))
    assert mean_interval(x, confidence=confidence) == pytest.approx(expected, rel=1e-6)


def test_pearson_is_scipys():
    x, y = np.random.default_rng(7).normal(size=(2, 40))
    y = y + 0.5 * x
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert pearson(list(x), list(-y)) == pytest.approx(-stats.pearsonr(x, y).statistic)


def test_pearson_of_a_line_is_one_and_never_more():
    x = np.random.default_rng(8).normal(size=9) * 1e8
    assert pearson(x, 3 * x + 1) == pytest.approx(1)
    assert pearson(x, 3 * x) <= 1


@pytest.mark.parametrize("constant", [0.1, 1.0])
def test_pearson_with_a_constant_side_is_0_and_finite(constant):
    assert pearson([constant] * 7, [1, 2, 3, 4, 5, 6, 7]) == 0
    assert pearson([1, 2, 3, 4, 5, 6, 7], [constant] * 7) == 0


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, math.nan])
def test_a_confidence_outside_0_and_1_is_an_error(confidence):
    for interval in (
        lambda: wilson(1, 2, confidence=confidence),
        lambda: mean_interval([1.0, 2.0], confidence=confidence),
        lambda: paired_bootstrap([1.0, 2.0], confidence=confidence, resamples=9, generator=np.random.default_rng(0)),
    ):
        with pytest.raises(ValueError, match="confidence"):
            interval()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: win_rate([], []), "at least one"),
        (lambda: win_rate([1.0, 2.0], [1.0]), "1 values against 2"),
        (lambda: win_rate([1.0, math.nan], [1.0, 2.0]), "1 of 2 values are not finite"),
        (lambda: pearson([1.0, 2.0], [1.0]), "1 values against 2"),
        (lambda: pearson([1.0], [1.0]), "at least 2"),
        (lambda: mean_interval([1.0], confidence=0.9), "at least 2"),
        (lambda: paired_bootstrap([1.0], confidence=0.9, resamples=0, generator=np.random.default_rng(0)), "resamples"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bootstrap_of_any_figure_agrees_with_scipys():
    """A ratio of sums, whose two parts are drawn together."""
    a, b = np.random.default_rng(9).gamma(3, size=(2, 120))
    found = bootstrap(
        lambda i: float(a[i].sum() / b[i].sum()),
        120,
        confidence=0.9,
        resamples=3000,
        generator=np.random.default_rng(0),
    )
    expected = stats.bootstrap(
        (a, b), lambda x, y: x.sum() / y.sum(), confidence_level=0.9, n_resamples=3000, method="percentile",
        paired=True, vectorized=False, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert found == pytest.approx((expected.low, expected.high), abs=0.01)


def test_the_bootstrap_of_the_mean_is_the_paired_one():
    x = np.random.default_rng(10).normal(size=40)
    options = {"confidence": 0.95, "resamples": 50}
    general = bootstrap(lambda i: float(x[i].mean()), 40, **options, generator=np.random.default_rng(2))
    assert general == paired_bootstrap(x, **options, generator=np.random.default_rng(2))


def test_the_bootstrap_needs_prompts():
    with pytest.raises(ValueError, match="n is 0"):
        bootstrap(lambda i: 0.0, 0, confidence=0.9, resamples=5, generator=np.random.default_rng(0))


def test_a_mean_with_its_interval_by_hand():
    """1, 2, 3: mean 2, s = 1, and t with 2 degrees of freedom is 4.3027: half of 2 * 4.3027 / sqrt(3)."""
    found = mean_with_interval([1.0, 2.0, 3.0], confidence=0.95)
    assert found == pytest.approx((2.0, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)
