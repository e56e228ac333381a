import itertools
import math

import numpy as np
import pytest

from tasks.algorithms.best_of_n import best_of_n_weights, first_best_weights
from tasks.algorithms.kl import best_of_n_kl


def test_weights_by_hand():
    # Of the 6 pairs of 4 samples, the lowest is the best of none, the next of 1, then 2, then 3.
    assert best_of_n_weights([0.1, 0.4, 0.2, 0.3], n=2) == pytest.approx([0, 3 / 6, 1 / 6, 2 / 6])


def test_one_is_the_mean_and_all_is_the_maximum():
    assert best_of_n_weights([3.0, 1.0, 2.0, 5.0], n=1) == pytest.approx([0.25] * 4)
    assert best_of_n_weights([3.0, 1.0, 2.0, 5.0], n=4) == pytest.approx([0, 0, 0, 1])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_the_estimate_is_the_mean_over_all_subsets(n):
    """By brute force over every subset, for the gold reward of the sample that the proxy chooses."""
    proxy, gold = np.random.default_rng(n).normal(size=(2, 7))
    chosen = [gold[max(subset, key=lambda i: proxy[i])] for subset in itertools.combinations(range(7), n)]
    assert np.dot(best_of_n_weights(proxy, n=n), gold) == pytest.approx(np.mean(chosen))


def test_equal_scores_share_whatever_their_order():
    assert best_of_n_weights([1.0, 2.0, 2.0], n=2) == pytest.approx([0, 0.5, 0.5])
    assert best_of_n_weights([2.0, 1.0, 2.0], n=2) == pytest.approx([0.5, 0, 0.5])
    assert best_of_n_weights([4.0] * 5, n=3) == pytest.approx([0.2] * 5)


@pytest.mark.parametrize("n", [2, 4, 16])
def test_the_weights_have_the_analytic_kl(n):
    """sum w ln(w N), the KL of the chosen sample to a uniform one, comes to ln n - (n-1)/n for many samples."""
    w = np.array(best_of_n_weights(np.random.default_rng(0).normal(size=5000), n=n))
    positive = w[w > 0]
    assert (positive * np.log(positive * len(w))).sum() == pytest.approx(best_of_n_kl(n), abs=0.01)


def test_the_plain_estimator_takes_the_best_of_the_first():
    assert first_best_weights([0.1, 0.4, 0.9, 0.4], n=2) == [0, 1, 0, 0]
    assert first_best_weights([0.4, 0.4], n=2) == [1, 0]
    draws = np.random.default_rng(1).normal(size=(4000, 2, 6))
    plain, mean = (
        np.mean([np.dot(weigh(proxy, n=3), gold + proxy) for proxy, gold in draws])
        for weigh in (first_best_weights, best_of_n_weights)
    )
    # The expected maximum of three standard normal draws is 3 / (2 sqrt(pi)).
    assert mean == pytest.approx(1.5 / math.sqrt(math.pi), abs=0.04)
    assert plain == pytest.approx(1.5 / math.sqrt(math.pi), abs=0.06)


@pytest.mark.parametrize("weigh", [best_of_n_weights, first_best_weights])
@pytest.mark.parametrize(
    ("scores", "n", "message"),
    [([], 1, "samples"), ([1.0], 2, "n is 2"), ([1.0], 0, "n is 0"), ([1.0, math.nan], 1, "finite")],
)
def test_errors(weigh, scores, n, message):
    with pytest.raises(ValueError, match=message):
        weigh(scores, n=n)
