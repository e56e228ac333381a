import math

import numpy as np
import pytest
from scipy import stats

from tasks.algorithms.intervals import wilson
from tasks.algorithms.win_rates import (
    both_orders,
    effective_count,
    order_agreement,
    probit_gain,
    win_rate_interval,
    win_share,
)


def interval(outcomes, seed=0):
    return win_rate_interval(outcomes, confidence=0.95, resamples=400, generator=np.random.default_rng(seed))


def test_one_baseline_answer_gives_wilson_as_it_is():
    found = interval([[1.0]] * 61 + [[0.0]] * 39)
    assert (found.rate, found.prompts, found.ties) == (0.61, 100, 0)
    assert found.effective == pytest.approx(100)
    assert (found.low, found.high) == pytest.approx((0.512, 0.700), abs=5e-4)


def test_the_effective_count_by_hand():
    # Means 1, 0, 1/2, 1/2: p = 1/2, variance 1/8, so 4 * 1/4 / (1/8) = 8: as if all 8 comparisons were independent.
    assert effective_count([[1, 1], [0, 0], [1, 0], [0, 1]]) == pytest.approx(8)
    # Each prompt always agrees with itself: 4 comparisons' worth, although there are 8.
    assert effective_count([[1, 1], [1, 1], [0, 0], [0, 0]]) == pytest.approx(4)
    # p = 1/2 in every prompt: no spread at all, but no more than the 10 comparisons.
    assert effective_count([[1, 0]] * 5) == 10
    assert effective_count([[1, 1]] * 5) == effective_count([[0, 0]] * 5) == 5


def test_the_rate_is_the_mean_over_prompts_and_a_tie_is_one_half():
    found = interval([[1, 0.5], [0.5, 0.5], [0, 0], [1, 1]])
    assert found.rate == pytest.approx((0.75 + 0.5 + 0 + 1) / 4)
    assert found.ties == 3


def test_wilson_on_the_effective_count_covers_and_on_all_comparisons_does_not():
    """Prompts differ in how easily they are won; 95 % intervals must hold the true rate about 95 times of 100."""
    rng = np.random.default_rng(0)
    covered = naive = 0
    for _ in range(1000):
        chance = rng.beta(1.2, 0.8, size=(80, 1))  # mean 0.6
        table = (rng.random((80, 4)) < chance).astype(float)
        rate = table.mean()
        low, high = wilson(rate * (n := effective_count(table)), n, confidence=0.95)
        covered += low <= 0.6 <= high
        low, high = wilson(rate * table.size, table.size, confidence=0.95)
        naive += low <= 0.6 <= high
    assert 0.93 < covered / 1000 < 0.97
    assert naive / 1000 < 0.9


def test_both_intervals_agree_where_prompts_are_many():
    rng = np.random.default_rng(1)
    found = interval((rng.random((400, 4)) < rng.beta(2, 1, size=(400, 1))).astype(float))
    assert (found.low, found.high) == pytest.approx((found.bootstrap_low, found.bootstrap_high), abs=0.01)


def test_the_order_of_prompts_and_of_baseline_answers_decides_nothing_of_wilson():
    table = np.random.default_rng(2).choice([0.0, 0.5, 1.0], size=(30, 3))
    shuffled = table[np.random.default_rng(3).permutation(30)][:, [2, 0, 1]]
    assert interval(table)[:3] == pytest.approx(interval(shuffled)[:3])


def test_a_judge_that_always_prefers_the_first_gives_one_half():
    assert both_orders(1.0, 1.0) == 0.5
    assert both_orders(0.0, 0.0) == 0.5
    assert (both_orders(1.0, 0.0), both_orders(0.0, 1.0)) == (1.0, 0.0)
    assert both_orders(1.0, 0.5) == 0.75


def test_order_agreement():
    # (a first: 1, b first: 0) agree; (1, 1) the place decides; (1/2, 1/2) agree; (1, 1/2) do not.
    assert order_agreement([1, 1, 0.5, 1], [0, 1, 0.5, 0.5]) == 0.5


def test_the_share_of_wins_by_hand():
    # A beats B and ties with C; B loses to A and to C.
    assert win_share([[9, 1, 0.5], [0, 9, 0], [0.5, 1, 9]]) == [0.75, 0.0, 0.75]
    table = np.triu(np.random.default_rng(4).random((5, 5)), 1)
    shares = win_share(table + np.tril(1 - table.T, -1))
    assert sum(shares) / 5 == pytest.approx(0.5)


@pytest.mark.parametrize("gain", [-1.5, 0.0, 0.25, 2.0])
def test_the_gain_behind_a_win_rate(gain):
    """P(N(gain, 1) > N(0, 1)) = Phi(gain / sqrt 2), by scipy."""
    assert probit_gain(stats.norm.cdf(gain / math.sqrt(2))) == pytest.approx(gain)


def test_a_gain_is_finite_at_both_ends():
    assert probit_gain(0.0) == pytest.approx(-probit_gain(1.0))
    assert math.isfinite(probit_gain(1.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interval([]), "0 prompts"),
        (lambda: interval([[1], [1, 0]]), "same number"),
        (lambda: interval([[1.5]]), "outside"),
        (lambda: interval([[math.nan]]), "outside"),
        (lambda: both_orders(2, 0), "share is 2"),
        (lambda: order_agreement([], []), "no comparison"),
        (lambda: win_share([[1]]), "at least 2"),
        (lambda: win_share([[0, 1], [1, 0]]), "add up"),
        (lambda: probit_gain(1.2), "win rate is 1.2"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
