import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.algorithms.pairs import best_against_worst, pair_count


def test_best_and_worst_by_index():
    assert best_against_worst([0.2, 0.9, -0.4, 0.5], margin=0.05) == (1, 2)


def test_of_equal_scores_the_first_is_taken():
    assert best_against_worst([1.0, 3.0, 3.0, 1.0], margin=0.0) == (1, 0)


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_a_tie_makes_no_pair(margin):
    assert best_against_worst([0.5, 0.5, 0.5], margin=margin) is None


def test_the_margin_is_the_smallest_gap_that_counts():
    assert best_against_worst([0.0, 0.5], margin=0.5) == (1, 0)
    assert best_against_worst([0.0, 0.5], margin=0.51) is None


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_the_pair_is_the_widest_there_is(scores):
    pair = best_against_worst(scores, margin=0.0)
    spread = max(a - b for a in scores for b in scores)
    assert (scores[pair[0]] - scores[pair[1]] if pair else 0.0) == spread


@pytest.mark.parametrize(
    ("scores", "margin", "message"),
    [
        ([1.0], 0.0, "at least 2"),
        ([1.0, math.nan], 0.0, "finite"),
        ([1.0, math.inf], 0.0, "finite"),
        ([1.0, 2.0], -1.0, "margin"),
    ],
)
def test_errors(scores, margin, message):
    with pytest.raises(ValueError, match=message):
        best_against_worst(scores, margin=margin)


@pytest.mark.parametrize(("k", "pairs"), [(0, 0), (1, 0), (2, 1), (4, 6), (9, 36)])
def test_pair_count(k, pairs):
    assert pair_count(k) == pairs


def test_pair_count_of_a_negative_number_is_an_error():
    with pytest.raises(ValueError, match="at least 0"):
        pair_count(-1)
