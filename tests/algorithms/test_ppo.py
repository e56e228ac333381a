import math

import pytest
import torch

from tasks.algorithms.ppo import clipped_policy_loss, clipped_value_loss, explained_variance
from tests.algorithms.checks import MASK, assert_adds_up, assert_ignores_masked, draws, garbage

ONE = torch.ones(1, 1, dtype=torch.bool)


def one_token(ratio, advantage):
    """Loss, gradient with respect to the log-probability, and statistics of a single token; clip .2."""
    log_prob = torch.tensor([[math.log(ratio)]], requires_grad=True)
    loss, statistics = clipped_policy_loss(log_prob, torch.zeros(1, 1), torch.tensor([[advantage]]), ONE, clip=0.2)
    loss.backward()
    return loss.item(), log_prob.grad.item(), {name: x.item() for name, x in statistics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.1, 1.0, 1.1, 1.1),
        (0.9, -1.0, -0.9, -0.9),
        (1.5, 1.0, 1.2, 0.0),  # clipped: moving on would gain nothing
        (0.5, -1.0, -0.8, 0.0),  # clipped ("case 4"), where a tutorial has r A = -.5
        (0.5, 1.0, 0.5, 0.5),  # outside the band on the wrong side: not clipped
        (1.5, -1.0, -1.5, -1.5),
        (10.0, -1.0, -10.0, -10.0),  # nor bounded
    ],
)
def test_the_cases_of_the_clip(ratio, advantage, objective, slope):
    loss, gradient, statistics = one_token(ratio, advantage)
    assert loss == pytest.approx(-objective, rel=1e-6)
    assert gradient == pytest.approx(-slope, rel=1e-6)
    assert statistics["clip_fraction"] == (slope == 0)


def test_at_ratio_1_the_loss_is_minus_the_mean_advantage_with_its_gradient():
    log_probs, advantages = draws(3, 4, seed=0).requires_grad_(), draws(3, 4, seed=1)
    loss, statistics = clipped_policy_loss(log_probs, log_probs.detach(), advantages, MASK, clip=0.2)
    loss.backward()
    assert loss.item() == pytest.approx(-advantages[MASK].mean().item(), rel=1e-6)
    torch.testing.assert_close(log_probs.grad, torch.where(MASK, -advantages / 8, 0))
    found = {name: x.item() for name, x in statistics.items()}
    assert found == {"clip_fraction": 0, "approx_kl": 0, "ratio_max": 1, "ratio_min": 1}


def test_statistics_of_two_ratios_and_a_masked_one():
    log_probs = torch.tensor([[2.0, 0.25, 1e6]]).log()
    mask = torch.tensor([[True, True, False]])
    _, statistics = clipped_policy_loss(log_probs, torch.zeros(1, 3), torch.ones(1, 3), mask, clip=0.2)
    # k3 with r = new / old: (r - 1 - log r), mean of .306853 and .636294
    assert statistics["approx_kl"].item() == pytest.approx((1 - math.log(2) - 0.75 + math.log(4)) / 2, rel=1e-5)
    assert statistics["clip_fraction"].item() == 0.5
    assert statistics["ratio_max"].item() == pytest.approx(2)
    assert statistics["ratio_min"].item() == pytest.approx(0.25)


@pytest.mark.parametrize(("ratios", "low", "high"), [((2.0, 4.0), 2, 4), ((0.5, 0.25), 0.25, 0.5)])
def test_the_extreme_ratios_are_those_of_counted_tokens(ratios, low, high):
    # A masked token stands at ratio 1, outside both ranges.
    log_probs = torch.tensor([[*ratios, 3.0]]).log()
    mask = torch.tensor([[True, True, False]])
    _, statistics = clipped_policy_loss(log_probs, torch.zeros(1, 3), torch.ones(1, 3), mask, clip=0.2)
    assert statistics["ratio_min"].item() == pytest.approx(low)
    assert statistics["ratio_max"].item() == pytest.approx(high)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [1e4, -1e4])
def test_a_runaway_ratio_gives_no_nan(advantage, log_ratio):
    log_prob = torch.tensor([[log_ratio]], requires_grad=True)
    loss, statistics = clipped_policy_loss(log_prob, torch.zeros(1, 1), torch.tensor([[advantage]]), ONE, clip=0.2)
    loss.backward()
    assert loss.isfinite()
    assert log_prob.grad.isfinite().all()
    assert all(x.isfinite() for x in statistics.values())


def test_the_guard_against_overflow_changes_no_gradient_in_range():
    # exp(60): far out, finite in float32, and not clipped for a negative advantage.
    log_prob = torch.tensor([[60.0]], requires_grad=True)
    clipped_policy_loss(log_prob, torch.zeros(1, 1), -torch.ones(1, 1), ONE, clip=0.2)[0].backward()
    assert log_prob.grad.item() == pytest.approx(math.exp(60), rel=1e-4)


def test_old_policy_advantages_and_targets_get_no_gradient():
    inputs = [draws(3, 4, seed=seed).requires_grad_() for seed in range(3)]
    clipped_policy_loss(*inputs, MASK, clip=0.2)[0].backward()
    assert inputs[1].grad is None
    assert inputs[2].grad is None
    inputs = [draws(3, 4, seed=seed).requires_grad_() for seed in range(3)]
    clipped_value_loss(*inputs, MASK, clip=0.2)[0].backward()
    assert inputs[1].grad is None
    assert inputs[2].grad is None


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope", "clipped"),
    [
        (0.1, 1.0, 0.405, -0.9, 0),  # in the band of the old value: plain squared error
        (0.5, 1.0, 0.32, 0.0, 1),  # left it towards the return: (.2 - 1)^2 / 2
        (-0.5, 1.0, 1.125, -1.5, 0),  # left it away from the return: not clipped
        (3.0, 1.0, 2.0, 2.0, 0),  # overshot further than the band is away
        (1.2, 1.0, 0.32, 0.0, 1),  # overshot, nearer than the band: the band counts
    ],
)
@pytest.mark.parametrize("old", [0.0, 7.0])
def test_the_cases_of_the_value_clip(value, target, loss, slope, clipped, old):
    values = torch.tensor([[old + value]], requires_grad=True)
    old_values, returns = torch.tensor([[old]]), torch.tensor([[old + target]])
    found, statistics = clipped_value_loss(values, old_values, returns, ONE, clip=0.2)
    found.backward()
    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert values.grad.item() == pytest.approx(slope, abs=1e-6)
    assert statistics["clip_fraction"].item() == clipped


@garbage
@pytest.mark.parametrize("loss", [clipped_policy_loss, clipped_value_loss])
def test_masked_slots_change_nothing(loss, garbage):
    inputs = [draws(3, 4, seed=seed) / 4 for seed in range(3)]
    assert_ignores_masked(lambda *x: loss(*x, MASK, clip=0.2)[0], inputs, MASK, garbage)
    spoiled = [torch.where(MASK, x, garbage) for x in inputs]
    assert loss(*spoiled, MASK, clip=0.2)[1] == loss(*inputs, MASK, clip=0.2)[1]


@pytest.mark.parametrize("loss", [clipped_policy_loss, clipped_value_loss])
@pytest.mark.parametrize("parts", [[slice(0, 1), slice(1, 3)], [slice(0, 1), slice(1, 2), slice(2, 3)]])
def test_micro_batches_add_up(loss, parts):
    def counted(x, old, target, mask, *, count):
        return loss(x, old, target, mask, clip=0.2, count=count)

    assert_adds_up(counted, [*(draws(3, 4, seed=seed) for seed in range(3)), MASK], count=8, parts=parts)


def test_explained_variance():
    returns = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    assert explained_variance(returns, returns, mask).item() == 1
    assert explained_variance(returns + 5, returns, mask).item() == pytest.approx(1)
    assert explained_variance(torch.full((1, 4), 0.3), returns, mask).item() == pytest.approx(0, abs=1e-6)
    # Residuals 1, -1, 1, -1 have variance 1, the returns 1.25.
    assert explained_variance(torch.tensor([[0.0, 3.0, 2.0, 5.0]]), returns, mask).item() == pytest.approx(0.2)


@garbage
def test_explained_variance_ignores_masked_slots(garbage):
    values, returns = draws(3, 4, seed=0), draws(3, 4, seed=1)
    spoiled = [torch.where(MASK, x, garbage) for x in (values, returns)]
    assert explained_variance(*spoiled, MASK).item() == explained_variance(values, returns, MASK).item()


def test_explained_variance_of_equal_returns_is_0_and_finite():
    flat = torch.full((7, 3), 0.1)
    assert explained_variance(draws(7, 3, seed=0), flat, torch.ones(7, 3, dtype=torch.bool)).item() == 0


@pytest.mark.parametrize("loss", [clipped_policy_loss, clipped_value_loss])
def test_errors(loss):
    with pytest.raises(ValueError, match="clip is 0"):
        loss(*torch.zeros(3, 3, 4), MASK, clip=0)
    with pytest.raises(ValueError, match="nothing counts"):
        loss(*torch.zeros(3, 3, 4), torch.zeros_like(MASK), clip=0.2)
    with pytest.raises(ValueError, match="mask has shape"):
        loss(*torch.zeros(3, 3, 5), MASK, clip=0.2)
