import math

import pytest

from tasks.algorithms.fluency import Said, distinct_n, fluency, ngram_set, repetition, top_token_share


def test_distinct_n_counts_over_all_answers_together():
    # Bigrams 12 23, 12 24: three different of four.
    assert distinct_n([[1, 2, 3], [1, 2, 4]], 2) == 0.75
    assert distinct_n([[1, 2, 3], [1, 2, 4]], 1) == pytest.approx(4 / 6)


def test_the_same_answer_n_times_is_one_nth_distinct():
    assert distinct_n([[1, 2, 3, 4]] * 5, 2) == pytest.approx(0.2)


def test_no_ngram_crosses_two_answers():
    assert distinct_n([[1], [2], [1], [2]], 2) == 0.0


def test_repetition_of_one_answer():
    # 7 7 7 7: three bigrams, one different.
    assert repetition([7, 7, 7, 7], 2) == pytest.approx(2 / 3)
    assert repetition([1, 2, 1, 2, 1], 2) == pytest.approx(0.5)
    assert repetition([1, 2, 3, 4], 2) == 0.0


def test_an_answer_shorter_than_n_repeats_nothing():
    assert repetition([1, 2], 3) == 0.0


def test_top_token_share():
    assert top_token_share([[5, 5, 1], [5, 2]]) == 0.6
    assert top_token_share([[5, 5], [5]]) == 1.0
    assert top_token_share([[], []]) == 0.0


@pytest.mark.parametrize("call", [lambda: distinct_n([[1]], 0), lambda: repetition([1], 0)])
def test_n_below_1_is_an_error(call):
    with pytest.raises(ValueError, match="at least 1"):
        call()


def test_the_figures_of_a_set_by_hand():
    """Five tokens in two answers, one ended; log-probabilities -6 and -4: perplexity exp(10 / 5)."""
    found = fluency([Said([5, 5, 9], True, -6.0), Said([5, 6], False, -4.0)])
    assert found == pytest.approx(
        {
            "length": 2.5,
            "finished": 0.5,
            "distinct_1": 3 / 5,
            "distinct_2": 1.0,
            "repetition_2": 0.0,
            "top_token_share": 3 / 5,
            "perplexity_under_sft": math.exp(2),
        }
    )
    assert fluency([Said([1], False, -1e9)])["perplexity_under_sft"] == math.exp(50)
    with pytest.raises(ValueError, match="no answer"):
        fluency([])


def test_words_are_the_answer_without_its_end():
    assert Said([4, 5, 0], True, 0.0).words == [4, 5]
    assert Said([4, 5], False, 0.0).words == [4, 5]


def test_ngrams_of_every_length():
    assert ngram_set([1, 2, 1], 2) == {(1,), (2,), (1, 2), (2, 1)}
    assert ngram_set([], 2) == set()
