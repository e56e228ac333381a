import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.algorithms.pairs import (
    adjacent_ranks,
    best_against_random,
    best_against_worst,
    every_pair,
    ngram_overlap,
    pair_count,
    ranks,
    top_against_bottom,
)

SCORES = [0.2, 0.9, -0.4, 0.5]
"""By hand: best to worst the answers 1, 3, 0, 2."""

STRATEGIES = {
    "best_worst": best_against_worst,
    "top_bottom": lambda scores: top_against_bottom(scores, k=len(scores) // 2),
    "all": every_pair,
    "best_random": lambda scores: best_against_random(scores, rng=np.random.default_rng(0)),
    "adjacent": adjacent_ranks,
}
strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
lists = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


def test_by_hand():
    assert ranks(SCORES) == [1, 3, 0, 2]
    assert best_against_worst(SCORES) == [(1, 2)]
    assert top_against_bottom(SCORES, k=2) == [(1, 2), (1, 0), (3, 2), (3, 0)]
    assert every_pair(SCORES) == [(1, 3), (1, 0), (1, 2), (3, 0), (3, 2), (0, 2)]
    assert adjacent_ranks(SCORES) == [(1, 3), (3, 0), (0, 2)]


def test_of_equal_scores_the_first_is_taken():
    assert best_against_worst([1.0, 3.0, 3.0, 1.0]) == [(1, 0)]
    assert ranks([1.0, 3.0, 3.0, 1.0]) == [1, 2, 0, 3]


@strategy
@settings(deadline=None, derandomize=True, max_examples=50)
@given(lists)
def test_the_better_comes_first_and_no_answer_meets_itself(strategy, scores):
    found = strategy(scores)
    assert found
    assert len(set(found)) == len(found)
    assert all(scores[a] >= scores[b] for a, b in found)
    if len(set(scores)) > 1:
        assert all(a != b for a, b in found)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(lists)
def test_the_pair_is_the_widest_there_is(scores):
    ((best, worst),) = best_against_worst(scores)
    assert scores[best] - scores[worst] == max(a - b for a in scores for b in scores)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(lists)
def test_how_many_pairs(scores):
    k = len(scores)
    assert len(every_pair(scores)) == pair_count(k) == math.comb(k, 2)
    assert {frozenset(pair) for pair in every_pair(scores)} == {frozenset((i, j)) for i in range(k) for j in range(i)}
    assert len(adjacent_ranks(scores)) == k - 1
    assert len(top_against_bottom(scores, k=k // 2)) == (k // 2) ** 2


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_the_answers_decides_nothing(scores, shuffler):
    """Also for the random opponent: the draw is a rank."""
    order = list(range(len(scores)))
    shuffler.shuffle(order)
    for strategy in STRATEGIES.values():
        there = [(scores[a], scores[b]) for a, b in strategy(scores)]
        shuffled = [scores[i] for i in order]
        assert [(shuffled[a], shuffled[b]) for a, b in strategy(shuffled)] == there


def test_special_cases_meet():
    two = [0.1, 0.7]
    assert [strategy(two) for strategy in STRATEGIES.values()] == [[(1, 0)]] * 5
    assert top_against_bottom(SCORES, k=1) == best_against_worst(SCORES)


def test_the_random_opponent_is_each_of_the_others_alike():
    """30000 draws of 5 opponents: chi-square below its 99.9 % point with 4 degrees of freedom, 18.47 (tables)."""
    scores = [0.0, 1.0, 5.0, 2.0, 4.0, 3.0]
    rng = np.random.default_rng(3)
    found = [best_against_random(scores, rng=rng)[0] for _ in range(30000)]
    assert {best for best, _ in found} == {2}
    counts = np.bincount([other for _, other in found], minlength=6)
    assert counts[2] == 0
    others = np.delete(counts, 2)
    assert ((others - 6000) ** 2 / 6000).sum() < 18.47


@strategy
@pytest.mark.parametrize(
    ("scores", "message"), [([1.0], "at least 2"), ([1.0, math.nan], "finite"), ([1.0, math.inf], "finite")]
)
def test_errors(strategy, scores, message):
    with pytest.raises(ValueError, match=message):
        strategy(scores)


@pytest.mark.parametrize("k", [0, 2])
def test_an_answer_on_both_sides_is_an_error(k):
    with pytest.raises(ValueError, match=f"k is {k}, expected 1 to 1, half of 3 answers"):
        top_against_bottom([1.0, 2.0, 3.0], k=k)


@pytest.mark.parametrize(("k", "pairs"), [(0, 0), (1, 0), (2, 1), (4, 6), (9, 36)])
def test_pair_count(k, pairs):
    assert pair_count(k) == pairs


def test_pair_count_of_a_negative_number_is_an_error():
    with pytest.raises(ValueError, match="at least 0"):
        pair_count(-1)


@pytest.mark.parametrize(
    ("first", "second", "n", "overlap"),
    [
        ("a rose is a rose is a rose", "a rose is a flower which is a rose", 4, 1 / 8),  # three and six grams
        ("the film is good", "the film is bad", 2, 2 / 4),  # the film, film is; is good, is bad
        ("one two three", "one two three", 2, 1.0),
        ("one two three", "three two one", 2, 0.0),
        ("one", "one", 2, 1.0),  # shorter than a gram
        ("one", "one two", 2, 0.0),
        ("", "", 2, 1.0),
        ("", "one", 2, 0.0),
    ],
)
def test_ngram_overlap_by_hand(first, second, n, overlap):
    assert ngram_overlap(first.split(), second.split(), n=n) == pytest.approx(overlap)
    assert ngram_overlap(second.split(), first.split(), n=n) == pytest.approx(overlap)


def test_a_gram_of_no_word_is_an_error():
    with pytest.raises(ValueError, match="n is 0"):
        ngram_overlap("a", "b", n=0)
