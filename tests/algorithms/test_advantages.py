import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.algorithms.advantages import (
    gae,
    grpo,
    mean_of_the_others,
    no_baseline,
    population_std,
    reinforce,
    returns_to_go,
    rloo,
    sample_std,
    unscaled,
)
from tests.algorithms.checks import MASK, draws, garbage


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


# Two prompts with four answers each, of 1, 2, 3 and 4 tokens; the rewards of an answer add up to its entry in TOTALS.
LENGTHS = torch.arange(4) < torch.tensor([[1], [2], [3], [4]])
GROUPS = torch.cat([LENGTHS, LENGTHS])
TOTALS = torch.tensor([1.0, 0, 0, 3, 7, 7, 7, 7])


def split_over_tokens(totals, mask):
    """Rewards that add up to `totals`: all but 1 on the first token, -1 on the last (they may be one token)."""
    rewards = torch.zeros(mask.shape)
    rewards[:, 0] = totals + 1
    rewards[torch.arange(len(mask)), mask.sum(1) - 1] -= 1
    return rewards


def scaled_grpo(rewards, mask, *, group):
    return grpo(rewards, mask, group=group, scale=population_std)


grouped = pytest.mark.parametrize("estimator", [rloo, scaled_grpo])


def test_rloo_of_1_0_0_3():
    found = rloo(split_over_tokens(TOTALS, GROUPS), GROUPS, group=4)
    expected = torch.tensor([0, -4 / 3, -4 / 3, 8 / 3, 0, 0, 0, 0])
    torch.testing.assert_close(found, torch.where(GROUPS, expected.unsqueeze(1), 0))


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (population_std, [0, -0.816, -0.816, 1.633]),
        (sample_std, [0, -0.707, -0.707, 1.414]),
        (unscaled, [0.0, -1.0, -1.0, 2.0]),
    ],
)
def test_grpo_of_1_0_0_3(scale, expected):
    found = grpo(split_over_tokens(TOTALS, GROUPS), GROUPS, group=4, scale=scale)
    wanted = torch.tensor([*expected, 0, 0, 0, 0])
    torch.testing.assert_close(found, torch.where(GROUPS, wanted.unsqueeze(1), 0), atol=5e-4, rtol=0)


@grouped
@pytest.mark.parametrize("value", [0.1, 1e6, -3.3])
@pytest.mark.parametrize("group", [2, 3, 7])
def test_a_flat_group_gives_exactly_zero(estimator, value, group):
    mask = torch.ones(2 * group, 1, dtype=torch.bool)
    assert (estimator(torch.full((2 * group, 1), value), mask, group=group) == 0).all()


def test_roundings_within_a_group_are_not_blown_up():
    # The smallest step of float32 at 1 is 1.2e-7; divided by its own deviation it would be an advantage of 1.
    rewards = torch.tensor([[1.0], [1.0 + 1.2e-7]])
    assert scaled_grpo(rewards, torch.ones(2, 1, dtype=torch.bool), group=2).abs().max() < 0.1


@grouped
def test_a_group_of_one_and_a_part_of_a_group_are_errors(estimator):
    mask = torch.ones(4, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="group of 1 has nothing to compare"):
        estimator(torch.ones(4, 1), mask, group=1)
    with pytest.raises(ValueError, match="4 answers are not whole groups of 3"):
        estimator(torch.ones(4, 1), mask, group=3)


@grouped
def test_groups_do_not_see_each_other(estimator):
    rewards, mask = draws(6, 4, seed=3), torch.ones(6, 4, dtype=torch.bool)
    together = estimator(rewards, mask, group=3)
    apart = torch.cat([estimator(rewards[:3], mask[:3], group=3), estimator(rewards[3:], mask[3:], group=3)])
    assert torch.equal(together, apart)


@grouped
def test_a_constant_added_to_a_group_changes_nothing(estimator):
    rewards, mask = draws(6, 1, seed=4), torch.ones(6, 1, dtype=torch.bool)
    shift = torch.tensor([[2.0]] * 3 + [[-5.0]] * 3)
    torch.testing.assert_close(estimator(rewards + shift, mask, group=3), estimator(rewards, mask, group=3))


def test_rloo_against_its_definition():
    totals = np.random.default_rng(0).normal(size=8)
    others = [np.delete(totals[i // 4 * 4 : i // 4 * 4 + 4], i % 4).mean() for i in range(8)]
    found = rloo(torch.from_numpy(totals).unsqueeze(1), torch.ones(8, 1, dtype=torch.bool), group=4)
    np.testing.assert_allclose(found[:, 0].numpy(), totals - others, atol=1e-12)


def test_returns_to_go_by_hand():
    found = returns_to_go(row(1.0, 2.0, 3.0), ALL, discount=0.5)
    torch.testing.assert_close(found, row(1 + 1 + 0.75, 2 + 1.5, 3.0))


def test_reinforce_without_a_baseline_is_the_return():
    rewards = draws(3, 4, seed=5)
    found = reinforce(rewards, MASK, discount=0.9, baseline=no_baseline)
    torch.testing.assert_close(found, returns_to_go(rewards, MASK, discount=0.9))


def test_reinforce_less_the_mean_of_the_others():
    """Whole returns 6, 1 and 2 (of one, one and two tokens); the others' means are 1.5, 4 and 3.5."""
    rewards = torch.tensor([[6.0, 9.0], [1.0, 9.0], [-1.0, 3.0]])
    mask = torch.tensor([[True, False], [True, False], [True, True]])
    found = reinforce(rewards, mask, discount=1.0, baseline=mean_of_the_others)
    torch.testing.assert_close(found, torch.tensor([[4.5, 0.0], [-3.0, 0.0], [-1.5, -0.5]]))


def test_reinforce_with_the_whole_rollout_as_its_group_is_rloo_at_the_first_token():
    rewards, mask = draws(6, 4, seed=6), torch.ones(6, 4, dtype=torch.bool)
    found = reinforce(rewards, mask, discount=1.0, baseline=mean_of_the_others)
    torch.testing.assert_close(found[:, 0], rloo(rewards, mask, group=6)[:, 0])


def test_one_answer_has_no_others():
    with pytest.raises(ValueError, match="no others"):
        mean_of_the_others(torch.ones(1))


@garbage
@pytest.mark.parametrize(
    "estimator",
    [
        lambda r, m: rloo(r, m, group=3),
        lambda r, m: scaled_grpo(r, m, group=3),
        lambda r, m: reinforce(r, m, discount=0.9, baseline=mean_of_the_others),
        lambda r, m: returns_to_go(r, m, discount=0.9),
    ],
    ids=["rloo", "grpo", "reinforce", "returns_to_go"],
)
def test_masked_slots_change_no_advantage_without_a_critic(garbage, estimator):
    clean = draws(3, 4, seed=7)
    found = estimator(torch.where(MASK, clean, garbage), MASK)
    assert torch.equal(found, estimator(clean, MASK))
    assert (found[~MASK] == 0).all()
    assert not estimator(clean.clone().requires_grad_(), MASK).requires_grad
