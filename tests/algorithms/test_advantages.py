import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.algorithms.advantages import gae, place_score, replace_missing_eos, shaped_rewards
from tests.algorithms.checks import MASK, assert_ignores_masked, draws, garbage


def row(*values):
    return torch.tensor([values])


ALL = torch.ones(1, 3, dtype=torch.bool)


def test_gae_and_returns_of_the_worked_example():
    advantages, returns = gae(row(-0.1, -0.2, 1.0), row(0.5, 0.4, 0.3), ALL, discount=1.0, trace=0.95)
    torch.testing.assert_close(advantages, row(0.14675, 0.365, 0.7))
    # Not advantages + the value of the first token, as in a well-known tutorial.
    torch.testing.assert_close(returns, row(0.64675, 0.765, 1.0))


def test_trace_0_is_the_td_error():
    advantages, _ = gae(row(1.0, 2.0, 3.0), row(0.5, 0.25, 0.125), ALL, discount=0.5, trace=0.0)
    torch.testing.assert_close(advantages, row(1 + 0.125 - 0.5, 2 + 0.0625 - 0.25, 3 - 0.125))


def test_trace_1_is_the_return_minus_the_value():
    advantages, returns = gae(row(1.0, 2.0, 3.0), row(0.5, 0.25, 0.125), ALL, discount=0.5, trace=1.0)
    torch.testing.assert_close(returns, row(1 + 1 + 0.75, 2 + 1.5, 3.0))
    torch.testing.assert_close(advantages, returns - row(0.5, 0.25, 0.125))


def test_the_value_after_the_last_token_is_0_and_padding_changes_nothing():
    mask = torch.tensor([[True, True, True, False, False]])
    short, _ = gae(row(-0.1, -0.2, 1.0), row(0.5, 0.4, 0.3), ALL, discount=1.0, trace=0.95)
    padded, returns = gae(row(-0.1, -0.2, 1.0, 7.0, 7.0), row(0.5, 0.4, 0.3, 9.0, 9.0), mask, discount=1.0, trace=0.95)
    assert torch.equal(padded, torch.cat([short, row(0.0, 0.0)], 1))
    assert returns[0, 3:].tolist() == [0, 0]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_gae_is_the_sum_of_discounted_td_errors(lengths, discount, trace, seed):
    generator = np.random.default_rng(seed)
    rewards, values = generator.normal(size=(2, len(lengths), 6))
    mask = np.arange(6) < np.array(lengths)[:, None]
    expected = np.zeros_like(rewards)
    for b, n in enumerate(lengths):
        v = np.append(values[b, :n], 0.0)
        delta = rewards[b, :n] + discount * v[1:] - v[:-1]
        expected[b, :n] = [sum((discount * trace) ** k * delta[t + k] for k in range(n - t)) for t in range(n)]
    found, _ = gae(*map(torch.from_numpy, (rewards, values, mask)), discount=discount, trace=trace)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-10)


@garbage
def test_masked_slots_change_no_advantage_and_no_return(garbage):
    clean = [draws(3, 4, seed=0), draws(3, 4, seed=1)]
    spoiled = [torch.where(MASK, x, garbage) for x in clean]
    for found, expected in zip(
        gae(*spoiled, MASK, discount=0.9, trace=0.8), gae(*clean, MASK, discount=0.9, trace=0.8), strict=True
    ):
        assert torch.equal(found, expected)
        assert (found[~MASK] == 0).all()


def test_returns_carry_no_gradient():
    values = draws(3, 4, seed=2).requires_grad_()
    assert not any(x.requires_grad for x in gae(values, values, MASK, discount=1.0, trace=0.95))


@pytest.mark.parametrize("mask", [[True, False, True], [False, True, True]])
def test_a_gap_or_left_padding_is_an_error(mask):
    with pytest.raises(ValueError, match="mask must be True from the first"):
        gae(torch.zeros(1, 3), torch.zeros(1, 3), torch.tensor([mask]), discount=1.0, trace=1.0)


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


def test_an_answer_without_tokens_has_no_place_for_a_score():
    with pytest.raises(ValueError, match="without a counted token"):
        place_score(torch.tensor([1.0]), torch.zeros(1, 3, dtype=torch.bool))


def test_a_cut_answer_gets_the_constant():
    found = replace_missing_eos(torch.tensor([2.0, 3.0, -4.0]), torch.tensor([True, False, False]), value=-1.0)
    assert found.tolist() == [2, -1, -1]


def test_rewards_are_the_score_less_the_kl_penalty():
    mask = torch.tensor([[True, True, False]])
    found = shaped_rewards(torch.tensor([1.0]), row(0.5, -0.25, 99.0), mask, coefficient=0.2)
    torch.testing.assert_close(found, row(-0.1, 1.05, 0.0))


def test_rewards_add_up_to_the_score_less_the_kl_of_the_answer():
    score, log_ratio = draws(3, seed=3), draws(3, 4, seed=4)
    found = shaped_rewards(score, log_ratio, MASK, coefficient=0.3).sum(1)
    torch.testing.assert_close(found, score - 0.3 * torch.where(MASK, log_ratio, 0).sum(1))


def test_without_a_penalty_the_reward_is_the_score():
    score = draws(3, seed=5)
    assert torch.equal(shaped_rewards(score, draws(3, 4, seed=6), MASK, coefficient=0.0), place_score(score, MASK))


@garbage
def test_masked_slots_change_no_reward(garbage):
    def rewards(log_ratio):
        return shaped_rewards(torch.ones(3), log_ratio, MASK, coefficient=0.3)

    assert_ignores_masked(rewards, [draws(3, 4, seed=7)], MASK, garbage)
