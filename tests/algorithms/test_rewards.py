import pytest
import torch

from tasks.algorithms.advantages import gae
from tasks.algorithms.kl import k1, k2, k3, no_penalty
from tasks.algorithms.rewards import (
    accept_missing_eos,
    place_score,
    replace_missing_eos,
    shaped_rewards,
    spread_score,
    subtract_missing_eos,
)
from tests.algorithms.checks import MASK, assert_ignores_masked, draws, garbage


def row(*values):
    return torch.tensor([values])


def shaped(score, log_ratio, mask, *, coefficient, penalty=k1, place=place_score):
    return shaped_rewards(score, log_ratio, mask, coefficient=coefficient, penalty=penalty, place=place)


def test_the_score_stands_on_the_last_real_token():
    # ids t, t, EOS, PAD, PAD: index 2, and neither 1 nor 3.
    mask = torch.tensor([[True, True, True, False, False]])
    assert place_score(torch.tensor([5.0]), mask).tolist() == [[0, 0, 5, 0, 0]]


def test_the_eos_gets_the_whole_score_as_its_advantage():
    # One place too late it would be .95 of it.
    mask = torch.tensor([[True, True, True, False, False]])
    rewards = place_score(torch.tensor([1.0]), mask)
    advantages, _ = gae(rewards, torch.zeros(1, 5), mask, discount=1.0, trace=0.95)
    torch.testing.assert_close(advantages, row(0.9025, 0.95, 1.0, 0.0, 0.0))


def test_scores_of_answers_of_different_length():
    assert place_score(torch.tensor([1.0, 2.0, 3.0]), MASK).tolist() == [[0, 0, 1, 0], [2, 0, 0, 0], [0, 0, 0, 3]]


@pytest.mark.parametrize("place", [place_score, spread_score])
def test_an_answer_without_tokens_has_no_place_for_a_score(place):
    with pytest.raises(ValueError, match="without a counted token"):
        place(torch.tensor([1.0]), torch.zeros(1, 3, dtype=torch.bool))


def test_a_spread_score_stands_in_equal_parts_on_the_counted_tokens():
    found = spread_score(torch.tensor([1.5, 2.0, -4.0]), MASK)
    assert found.tolist() == [[0.5, 0.5, 0.5, 0], [2, 0, 0, 0], [-1, -1, -1, -1]]


@pytest.mark.parametrize("place", [place_score, spread_score])
def test_an_answer_s_rewards_add_up_to_its_score(place):
    score = draws(3, seed=8)
    torch.testing.assert_close(place(score, MASK).sum(1), score)


def test_the_first_token_s_return_is_the_score_wherever_it_stands():
    """Undiscounted and without a critic, the answer as a whole is paid the same."""
    score = draws(3, seed=9)
    for place in (place_score, spread_score):
        returns, _ = gae(place(score, MASK), torch.zeros(3, 4), MASK, discount=1.0, trace=1.0)
        torch.testing.assert_close(returns[:, 0], score)


def test_a_cut_answer_gets_the_constant():
    found = replace_missing_eos(torch.tensor([2.0, 3.0, -4.0]), torch.tensor([True, False, False]), value=-1.0)
    assert found.tolist() == [2, -1, -1]


def test_a_cut_answer_loses_the_constant():
    found = subtract_missing_eos(torch.tensor([2.0, 3.0, -4.0]), torch.tensor([True, False, False]), value=1.0)
    assert found.tolist() == [2, 2, -5]


def test_a_cut_answer_can_keep_its_score():
    assert accept_missing_eos(torch.tensor([2.0, 3.0]), torch.tensor([True, False])).tolist() == [2, 3]


def test_rewards_are_the_score_less_the_kl_penalty():
    mask = torch.tensor([[True, True, False]])
    found = shaped(torch.tensor([1.0]), row(0.5, -0.25, 99.0), mask, coefficient=0.2)
    torch.testing.assert_close(found, row(-0.1, 1.05, 0.0))


def test_rewards_add_up_to_the_score_less_the_kl_of_the_answer():
    score, log_ratio = draws(3, seed=3), draws(3, 4, seed=4)
    found = shaped(score, log_ratio, MASK, coefficient=0.3).sum(1)
    torch.testing.assert_close(found, score - 0.3 * torch.where(MASK, log_ratio, 0).sum(1))


def test_without_a_penalty_the_reward_is_the_score():
    score = draws(3, seed=5)
    assert torch.equal(shaped(score, draws(3, 4, seed=6), MASK, coefficient=0.0), place_score(score, MASK))


@pytest.mark.parametrize(
    ("penalty", "taken"),
    # log ratio log 2: log 2; (log 2)^2 / 2; 1/2 - 1 + log 2
    [(k1, 0.693147), (k2, 0.240227), (k3, 0.193147), (no_penalty, 0.0)],
)
def test_the_penalty_is_the_estimator_s(penalty, taken):
    found = shaped(torch.zeros(1), row(0.693147, 99.0), torch.tensor([[True, False]]), coefficient=2.0, penalty=penalty)
    torch.testing.assert_close(found, row(-2 * taken, 0.0))


@garbage
@pytest.mark.parametrize("place", [place_score, spread_score])
@pytest.mark.parametrize("penalty", [k1, k2, k3])
def test_masked_slots_change_no_reward(garbage, place, penalty):
    def rewards(log_ratio):
        return shaped(torch.ones(3), log_ratio, MASK, coefficient=0.3, place=place, penalty=penalty)

    assert_ignores_masked(rewards, [draws(3, 4, seed=7)], MASK, garbage)
