import math
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.special import log_expit, logsumexp

from tasks.algorithms.ranking import (
    bradley_terry_loss,
    centring_penalty,
    graded_margin,
    plackett_luce_loss,
    scaled_margin,
)
from tests.algorithms.checks import MASK, assert_adds_up, assert_ignores_masked, draws, garbage

ALL = torch.ones(1, 3, dtype=torch.bool)
PARTS = [slice(0, 1), slice(1, 6)]


def test_bradley_terry_of_3_2_against_1_5():
    loss, statistics = bradley_terry_loss(torch.tensor([3.2]), torch.tensor([1.5]))
    assert loss.item() == pytest.approx(0.1678, abs=5e-5)
    assert math.exp(-loss.item()) == pytest.approx(0.8455, abs=5e-5)
    assert statistics["margin"].item() == pytest.approx(1.7)


@pytest.mark.parametrize(("margin", "p"), [(2.0, 0.8808), (-2.0, 0.1192)])
def test_bradley_terry_is_the_sigmoid_of_the_difference(margin, p):
    loss, _ = bradley_terry_loss(torch.tensor([margin]), torch.tensor([0.0]))
    assert math.exp(-loss.item()) == pytest.approx(p, abs=5e-5)


def test_a_margin_is_asked_for_on_top():
    """Llama 2, equation 2: 1.7 with a margin of 1 is worth .7, and log(1 + exp(-.7)) = .40319."""
    loss, statistics = bradley_terry_loss(torch.tensor([3.2]), torch.tensor([1.5]), torch.tensor([1.0]))
    assert loss.item() == pytest.approx(0.40319, abs=5e-6)
    assert statistics["margin"].item() == pytest.approx(1.7)
    assert statistics["accuracy"].item() == 1


def test_smoothed_labels_with_a_margin_against_scipy():
    chosen, rejected, margin = (draws(7, seed=seed) * 3 for seed in range(3))
    loss, _ = bradley_terry_loss(chosen, rejected, margin, label_smoothing=0.2)
    d, m = (chosen - rejected).double().numpy(), margin.double().numpy()
    assert loss.item() == pytest.approx((-0.8 * log_expit(d - m) - 0.2 * log_expit(-d - m)).mean(), rel=1e-5)


def test_the_optimum_of_smoothed_labels_is_the_logit_of_their_trust():
    """Label smoothing .1: logit(.9) = 2.197; on either side the gradient points back to it."""
    found = []
    for difference in (2.1, math.log(9), 2.3):
        chosen = torch.tensor([difference], requires_grad=True)
        bradley_terry_loss(chosen, torch.zeros(1), label_smoothing=0.1)[0].backward()
        found.append(chosen.grad.item())
    assert found[0] < 0 < found[2]
    assert found[1] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("dtype", "margin"), [(torch.float32, -89.0), (torch.float32, -1e4), (torch.float16, -12.0)])
def test_bradley_terry_stays_finite_where_the_naive_form_is_infinite(dtype, margin):
    chosen = torch.tensor([margin], dtype=dtype, requires_grad=True)
    assert (1 + (-chosen).exp()).log().isinf().all() or dtype == torch.float16
    loss, _ = bradley_terry_loss(chosen, torch.zeros(1, dtype=dtype))
    loss.backward()
    assert loss.item() == pytest.approx(-margin, rel=1e-3)
    assert chosen.grad.item() == pytest.approx(-1)


def test_accuracy_counts_ties_apart():
    _, statistics = bradley_terry_loss(torch.tensor([2.0, 1.0, 0.0, 3.0]), torch.tensor([1.0, 1.0, 5.0, 3.0]))
    assert statistics["accuracy"].item() == 0.25
    assert statistics["ties"].item() == 0.5


def test_bradley_terry_knows_only_the_difference():
    chosen, rejected = draws(6, seed=0), draws(6, seed=1)
    torch.testing.assert_close(bradley_terry_loss(chosen, rejected)[0], bradley_terry_loss(chosen + 3, rejected + 3)[0])


def test_bradley_terry_gradient_is_one_minus_the_probability():
    chosen, rejected = torch.tensor([1.7], requires_grad=True), torch.tensor([0.0], requires_grad=True)
    bradley_terry_loss(chosen, rejected)[0].backward()
    assert chosen.grad.item() == pytest.approx(-(1 - 0.8455), abs=5e-5)
    assert rejected.grad.item() == pytest.approx(1 - 0.8455, abs=5e-5)


def test_plackett_luce_of_2_1_0_by_hand():
    """log(e^2 + e + 1) - 2 = .407606 for the first place, log(e + 1) - 1 = .313262 for the second."""
    loss, statistics = plackett_luce_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[9.0, 8.0, -3.0]]), ALL)
    assert loss.item() == pytest.approx(0.720868, abs=2e-6)
    # Differences 1, 2 and 1 of the three pairs.
    assert statistics["margin"].item() == pytest.approx(4 / 3)
    assert (statistics["accuracy"].item(), statistics["ties"].item()) == (1, 0)


def test_plackett_luce_against_scipy_place_by_place():
    scores, gold = draws(5, 6, seed=1) * 2, draws(5, 6, seed=2)
    loss, _ = plackett_luce_loss(scores, gold, torch.ones(5, 6, dtype=torch.bool))
    expected = []
    for r, g in zip(scores.double().numpy(), gold.numpy(), strict=True):
        best_first = r[np.argsort(-g)]
        expected.append(sum(logsumexp(best_first[n:]) - best_first[n] for n in range(5)))
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_plackett_luce_of_two_is_bradley_terry():
    chosen, rejected = draws(6, seed=0), draws(6, seed=1)
    gold = torch.tensor([[1.0, 0.0]]).expand(6, 2)
    found = plackett_luce_loss(torch.stack([chosen, rejected], 1), gold, torch.ones(6, 2, dtype=torch.bool))
    expected = bradley_terry_loss(chosen, rejected)
    torch.testing.assert_close(found, expected)


def test_the_probabilities_of_all_rankings_add_up_to_one():
    scores = draws(1, 4, seed=3)
    total = sum(
        math.exp(-plackett_luce_loss(scores, torch.tensor([order]).float(), torch.ones(1, 4, dtype=torch.bool))[0])
        for order in permutations(range(4))
    )
    assert total == pytest.approx(1)


def test_answers_of_equal_gold_do_not_compete():
    """Two that are equally good, both better than a third: the two pairs that are known, by Bradley-Terry."""
    loss, statistics = plackett_luce_loss(torch.tensor([[1.5, 0.2, 0.2]]), torch.tensor([[1.0, 1.0, 0.0]]), ALL)
    expected = sum(bradley_terry_loss(torch.tensor([r]), torch.tensor([0.2]))[0] for r in (1.5, 0.2))
    torch.testing.assert_close(loss, expected)
    assert (statistics["accuracy"].item(), statistics["ties"].item()) == (0.5, 0.5)


def test_a_ranking_does_not_depend_on_where_its_answers_stand():
    scores, gold, order = draws(2, 5, seed=4), draws(2, 5, seed=5), torch.tensor([3, 0, 4, 1, 2])
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    found = plackett_luce_loss(scores, gold, mask)
    torch.testing.assert_close(plackett_luce_loss(scores[:, order], gold[:, order], mask[:, order]), found)
    torch.testing.assert_close(plackett_luce_loss(scores + 7, gold * 9, mask)[0], found[0])


def test_plackett_luce_gradient_lifts_the_best_and_sums_to_zero():
    scores = torch.zeros(1, 3, requires_grad=True)
    plackett_luce_loss(scores, torch.tensor([[2.0, 1.0, 0.0]]), ALL)[0].backward()
    # Of equal scores: 1/3 - 1, then 1/3 + 1/2 - 1, then 1/3 + 1/2.
    torch.testing.assert_close(scores.grad, torch.tensor([[-2 / 3, -1 / 6, 5 / 6]]))


@garbage
@pytest.mark.parametrize("name", ["plackett_luce", "centring"])
def test_masked_places_say_nothing(name, garbage):
    mask = MASK.clone()
    mask[1, 1] = True  # one answer alone is no ranking

    def value(scores, gold):
        if name == "centring":
            return centring_penalty(scores, mask)
        return plackett_luce_loss(scores, gold, mask)[0]

    assert_ignores_masked(value, [draws(3, 4, seed=6), draws(3, 4, seed=7)], mask, garbage)


def test_a_padded_ranking_is_the_shorter_one():
    scores, gold = draws(1, 3, seed=8), draws(1, 3, seed=9)
    wide = [torch.cat([x, torch.full((1, 2), torch.nan)], 1) for x in (scores, gold)]
    mask = torch.tensor([[True, True, True, False, False]])
    torch.testing.assert_close(plackett_luce_loss(*wide, mask), plackett_luce_loss(scores, gold, ALL))
    torch.testing.assert_close(centring_penalty(wide[0], mask), centring_penalty(scores, ALL))


def test_micro_batches_add_up():
    assert_adds_up(bradley_terry_loss, [draws(6, seed=4), draws(6, seed=5)], count=6, parts=PARTS)

    def smoothed(*inputs, count):
        return bradley_terry_loss(*inputs, label_smoothing=0.1, count=count)

    assert_adds_up(smoothed, [draws(6, seed=seed) for seed in range(3)], count=6, parts=PARTS)
    mask = torch.tensor([[True, True, True, False], [True] * 4]).repeat(3, 1)
    assert_adds_up(plackett_luce_loss, [draws(6, 4, seed=6), draws(6, 4, seed=7), mask], count=6, parts=PARTS)

    def centred(scores, mask, *, count):
        return centring_penalty(scores, mask, count=count), {}

    assert_adds_up(centred, [draws(6, 4, seed=8), mask], count=6, parts=PARTS)


def test_centring_by_hand():
    """Mean 2 of [1, 3], mean 3 of [1, 2, 6]: (4 + 9) / 2; gradient 2 mean / (answers x rankings)."""
    scores = torch.tensor([[1.0, 3.0, 99.0], [1.0, 2.0, 6.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    penalty = centring_penalty(scores, mask)
    penalty.backward()
    assert penalty.item() == pytest.approx(6.5)
    torch.testing.assert_close(scores.grad, torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]))
    assert centring_penalty(torch.tensor([[-2.0, 2.0]]), mask[:1, :2]).item() == 0


def test_margins_by_llama_2_s_grades():
    gap = torch.tensor([-0.5, 0.1, 0.5, 0.9, 1.0, 2.5])
    found = graded_margin(gap, thresholds=[0.5, 1.0, 2.0], margins=[0.0, 1 / 3, 2 / 3, 1.0])
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 1 / 3, 1 / 3, 2 / 3, 1.0]))


def test_margins_in_proportion_to_the_gap():
    found = scaled_margin(torch.tensor([-1.0, 0.0, 0.4, 3.0]), scale=0.5)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.2, 1.5]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bradley_terry_loss(torch.zeros(0), torch.zeros(0)), "a mean over 0"),
        (lambda: bradley_terry_loss(torch.zeros(3, 1), torch.zeros(3)), r"expected the same \[B\]"),
        (lambda: bradley_terry_loss(torch.zeros(3), torch.zeros(3), torch.zeros(1)), r"expected the same \[B\]"),
        (lambda: bradley_terry_loss(torch.zeros(3), torch.zeros(3), label_smoothing=0.5), "below 0.5"),
        (lambda: plackett_luce_loss(torch.zeros(1, 3), torch.zeros(1, 3), ALL), "orders nothing"),
        (lambda: plackett_luce_loss(torch.zeros(1, 3), torch.zeros(1, 2), ALL), r"expected the same \[B, K\]"),
        (lambda: plackett_luce_loss(torch.zeros(0, 3), torch.zeros(0, 3), ALL[:0]), "a mean over 0"),
        (lambda: centring_penalty(torch.zeros(1, 3), ~ALL), "without answers"),
        (lambda: graded_margin(torch.zeros(1), thresholds=[1.0], margins=[0.0]), "expected one more"),
        (lambda: graded_margin(torch.zeros(1), thresholds=[1.0, 1.0], margins=[0.0, 1.0, 2.0]), "expected rising"),
        (lambda: scaled_margin(torch.zeros(1), scale=0.0), "expected a positive"),
    ],
)
def test_what_makes_no_sense_is_an_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
