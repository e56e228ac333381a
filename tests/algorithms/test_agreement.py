"""Against published worked examples, scikit-learn and statsmodels."""

import math

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats import inter_rater

from tasks.algorithms.agreement import (
    cohen_kappa,
    fleiss_kappa,
    krippendorff_alpha,
    majority,
    raw_agreement,
    vote_agreement,
    vote_counts,
)

FLEISS = [
    [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
]  # fmt: skip
"""Ten subjects, 14 raters, five categories: the worked example of Wikipedia's "Fleiss' kappa" (P .378, P_e .213)."""
_ = None
KRIPPENDORFF = [
    [1, 1, _, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4],
    [4, 4, 4, 4], [1, 1, 2, 1], [2, 2, 2, 2], [_, 5, 5, 5], [_, _, 1, 1], [_, _, 3, _],
]  # fmt: skip
"""Twelve units, four observers, missing data: "Computing Krippendorff's alpha-reliability" (2011), section C."""


def counted(labels, categories):
    return np.array([[row.count(c) for c in categories] for row in labels])


def labels(items, raters, *, seed, categories=3):
    """Random labels that agree more than by chance."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(categories, size=(items, 1))
    noise = rng.integers(categories, size=(items, raters))
    return np.where(rng.random((items, raters)) < 0.6, truth, noise)


def table(labels, categories=3):
    return np.stack([(labels == c).sum(1) for c in range(categories)], axis=1)


def test_fleiss_worked_example():
    assert raw_agreement(FLEISS) == pytest.approx(0.378, abs=5e-4)
    assert fleiss_kappa(FLEISS) == pytest.approx(0.210, abs=5e-4)


def test_krippendorff_worked_example():
    assert krippendorff_alpha(counted(KRIPPENDORFF, range(1, 6))) == pytest.approx(0.743, abs=5e-4)


def test_krippendorff_binary_worked_example():
    """Section A of the same paper: two observers, ten units, alpha .095."""
    first, second = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert krippendorff_alpha(counted(list(map(list, zip(first, second, strict=True))), (0, 1))) == pytest.approx(
        0.095, abs=5e-4
    )


def test_cohen_worked_example():
    """20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: p_o .70, p_e .50, kappa .40."""
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.40)


@pytest.mark.parametrize("seed", range(5))
def test_cohen_is_that_of_both_libraries(seed):
    found = labels(60, 2, seed=seed)
    kappa = cohen_kappa(*found.T.tolist())
    assert kappa == pytest.approx(cohen_kappa_score(*found.T))
    square = np.array([[((found[:, 0] == a) & (found[:, 1] == b)).sum() for b in range(3)] for a in range(3)])
    assert kappa == pytest.approx(inter_rater.cohens_kappa(square, return_results=False))


@pytest.mark.parametrize("seed", range(5))
def test_fleiss_is_that_of_statsmodels(seed):
    counts, _ = inter_rater.aggregate_raters(labels(40, 5, seed=seed), n_cat=3)
    assert fleiss_kappa(counts) == pytest.approx(inter_rater.fleiss_kappa(counts))


@pytest.mark.parametrize("seed", range(5))
def test_alpha_is_fleiss_kappa_corrected_for_small_samples(seed):
    """1 - alpha = (1 - kappa) (1 - 1/n), n votes in all: from the two definitions of the expected agreement."""
    counts = table(labels(12, 4, seed=seed))
    assert 1 - krippendorff_alpha(counts) == pytest.approx((1 - fleiss_kappa(counts)) * (1 - 1 / counts.sum()))


@pytest.mark.parametrize("seed", range(5))
def test_alpha_is_one_minus_the_mean_of_distances(seed):
    """By its idea, not its formula: how often two votes on one item differ (items weighed by their votes), over how
    often two votes differ at all."""
    rng = np.random.default_rng(seed)
    found = labels(15, 6, seed=seed).astype(float)
    found[rng.random(found.shape) < 0.3] = np.nan
    items = [row[~np.isnan(row)] for row in found]
    items = [row for row in items if len(row) >= 2]
    within = [np.mean([a != b for i, a in enumerate(row) for j, b in enumerate(row) if i != j]) for row in items]
    every = np.concatenate(items)
    chance = np.mean([a != b for i, a in enumerate(every) for j, b in enumerate(every) if i != j])
    expected = 1 - np.average(within, weights=[len(row) for row in items]) / chance
    assert krippendorff_alpha(table(np.nan_to_num(found, nan=9))) == pytest.approx(expected)


def test_full_agreement_is_one_and_chance_is_nought():
    full = [[3, 0], [0, 3], [3, 0]]
    assert (raw_agreement(full), fleiss_kappa(full), krippendorff_alpha(full)) == (1, 1, 1)
    assert cohen_kappa("aabb", "aabb") == 1
    assert cohen_kappa("aabb", "abab") == 0
    rng = np.random.default_rng(0)
    noise = table(rng.integers(3, size=(20000, 4)))
    assert fleiss_kappa(noise) == pytest.approx(0, abs=0.01)
    assert krippendorff_alpha(noise) == pytest.approx(0, abs=0.01)


def test_names_of_categories_and_order_of_items_decide_nothing():
    counts = table(labels(30, 5, seed=1))
    other = counts[::-1, [2, 0, 1]]
    for figure in (raw_agreement, fleiss_kappa, krippendorff_alpha):
        assert figure(counts) == pytest.approx(figure(other))


def test_an_item_with_one_vote_changes_nothing():
    counts = table(labels(30, 5, seed=1))
    more = np.concatenate([counts, [[1, 0, 0], [0, 0, 0]]])
    for figure in (raw_agreement, fleiss_kappa, krippendorff_alpha):
        assert figure(counts) == figure(more)


def test_one_category_leaves_nothing_to_correct():
    assert math.isnan(fleiss_kappa([[3, 0], [3, 0]]))
    assert math.isnan(krippendorff_alpha([[3, 0], [3, 0]]))
    assert math.isnan(cohen_kappa("aa", "aa"))


@pytest.mark.parametrize("figure", [raw_agreement, fleiss_kappa, krippendorff_alpha])
@pytest.mark.parametrize("counts", [[], [[1, 0], [0, 1]]], ids=["no item", "one annotator"])
def test_without_two_annotators_there_is_no_agreement(figure, counts):
    with pytest.raises(ValueError, match="no item has two annotators"):
        figure(counts)


def test_errors():
    with pytest.raises(ValueError, match="different numbers of annotators"):
        fleiss_kappa([[2, 0], [1, 2]])
    with pytest.raises(ValueError, match="2 and 1 labels"):
        cohen_kappa("ab", "a")
    with pytest.raises(ValueError, match="0 and 0 labels"):
        cohen_kappa("", "")


@pytest.mark.parametrize(
    ("votes", "verdict"), [([1, 1, -1], 1), ([-1, 0, 0], -1), ([1, -1, 0], 0), ([0, 0], 0), ([], 0), ([3, -1, -1], -1)]
)
def test_majority(votes, verdict):
    assert majority(votes) == verdict
    assert majority([-v for v in votes]) == -verdict


def test_votes_are_counted_both_ways_round():
    assert vote_counts([[1, 1, 0], [-1]]).tolist() == [[0, 1, 2], [1, 0, 0], [2, 1, 0], [0, 0, 1]]


def test_votes_by_hand():
    """Nine of ten pairs: all three prefer the chosen; one: two of three. Raw .9 + .1/3. Both ways round each side has
    half of the votes, so P_e = .5 and kappa = (.9333 - .5) / .5. Left as they stand, 29 of 30 votes are for the chosen:
    P_e = .9356 and kappa would be -.03.
    """
    votes = [[1, 1, 1]] * 9 + [[1, 1, -1]]
    found = vote_agreement(votes)
    assert found["raw"] == pytest.approx(0.9 + 0.1 / 3)
    assert found["fleiss"] == pytest.approx(0.8667, abs=5e-5)
    assert found["krippendorff"] == pytest.approx(1 - (1 - 0.86667) * (1 - 1 / 60), abs=5e-5)
    assert (found["pairs"], found["votes_fewest"], found["votes_most"]) == (10, 3, 3)
    assert "cohen" not in found
    assert fleiss_kappa([[0, 3]] * 9 + [[1, 2]]) < 0


def test_which_side_is_called_the_first_decides_nothing():
    votes = [[1, 1, -1], [1, 0], [-1, -1, 1, 1], [0, 1, 1]]
    turned = [[-v for v in votes[0]], votes[1], [-v for v in votes[2]], votes[3]]
    assert vote_agreement(votes) == pytest.approx(vote_agreement(turned))


def test_two_voters_have_cohens_kappa():
    """Of ten pairs they agree on eight; both ways round p_e is one half: (.8 - .5) / .5."""
    votes = [[1, 1]] * 5 + [[-1, -1]] * 3 + [[1, -1]] * 2
    found = vote_agreement(votes)
    assert found["raw"] == pytest.approx(0.8)
    assert found["cohen"] == pytest.approx(0.6)
    assert found["fleiss"] == pytest.approx(0.6)


def test_fleiss_takes_the_first_votes_where_numbers_differ():
    found = vote_agreement([[1, 1, -1], [1, 1]])
    assert (found["votes_fewest"], found["votes_most"]) == (2, 3)
    assert found["fleiss"] == pytest.approx(1)
    assert found["raw"] == pytest.approx((1 / 3 + 1) / 2)
    assert "cohen" not in found


def test_what_is_undefined_is_left_out():
    assert vote_agreement([]) == vote_agreement([[1], []]) == {}
    assert vote_agreement([[0, 0], [0, 0]]) == {"pairs": 2, "votes_fewest": 2, "votes_most": 2, "raw": 1.0}
