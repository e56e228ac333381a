import math

import pytest
import torch

from tasks.algorithms.kl import k1, k2, k3
from tasks.algorithms.ppo import clipped_policy_loss, clipped_value_loss, explained_variance, kl_loss, mean_entropy
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


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "cut"),
    [
        (10.0, -1.0, 3.0, 0.0, 1),  # 10 without the second clip
        (2.9, -1.0, 2.9, 2.9, 0),  # below it: as before
        (10.0, -2.0, 6.0, 0.0, 1),
        (10.0, 1.0, -1.2, 0.0, 1),  # a positive advantage never meets it
        (0.5, 1.0, -0.5, -0.5, 0),
        (0.5, -1.0, 0.8, 0.0, 1),  # the first clip still holds
        (10.0, 0.0, 0.0, 0.0, 0),
    ],
)
def test_the_cases_of_the_dual_clip(ratio, advantage, loss, slope, cut):
    log_prob = torch.tensor([[math.log(ratio)]], requires_grad=True)
    found, statistics = clipped_policy_loss(
        log_prob, torch.zeros(1, 1), torch.tensor([[advantage]]), ONE, clip=0.2, dual_clip=3.0
    )
    found.backward()
    assert found.item() == pytest.approx(loss, abs=1e-5)
    assert log_prob.grad.item() == pytest.approx(slope, abs=1e-5)
    assert statistics["clip_fraction"].item() == cut


def test_a_dual_clip_out_of_reach_changes_nothing():
    inputs = [draws(3, 4, seed=seed) / 4 for seed in range(3)]
    plain, _ = clipped_policy_loss(*inputs, MASK, clip=0.2)
    assert torch.equal(clipped_policy_loss(*inputs, MASK, clip=0.2, dual_clip=100.0)[0], plain)


@garbage
def test_masked_slots_do_not_meet_the_dual_clip(garbage):
    inputs = [draws(3, 4, seed=seed) for seed in range(3)]
    assert_ignores_masked(lambda *x: clipped_policy_loss(*x, MASK, clip=0.2, dual_clip=1.5)[0], inputs, MASK, garbage)


def test_a_dual_clip_within_the_band_is_refused():
    with pytest.raises(ValueError, match=r"dual_clip is 1.2, expected above 1 \+ clip"):
        clipped_policy_loss(*torch.zeros(3, 3, 4), MASK, clip=0.2, dual_clip=1.2)


def test_a_value_clip_of_infinity_is_the_plain_squared_error():
    values, old, returns = (draws(3, 4, seed=seed).requires_grad_() for seed in range(3))
    loss, statistics = clipped_value_loss(values, old, returns, MASK, clip=math.inf)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * (values - returns)[MASK].square().mean().item(), rel=1e-6)
    torch.testing.assert_close(values.grad, torch.where(MASK, values - returns, 0).detach() / 8)
    assert statistics["clip_fraction"].item() == 0


def test_a_rounding_within_the_band_is_not_counted_as_clipped():
    # float32: .7 + (.1 - .7) is 5e-8 off .1, and further from the return
    values, old = torch.full((1, 1), 0.1), torch.full((1, 1), 0.7)
    off = old + (values - old)
    assert off != values
    _, statistics = clipped_value_loss(values, old, 2 * values - off, ONE, clip=1.0)
    assert statistics["clip_fraction"].item() == 0


def test_kl_loss_of_one_token():
    # log p - log p_ref = log 2, and a masked token
    mask = torch.tensor([[True, False]])
    for estimator, expected in ((k1, 0.693147), (k2, 0.240227), (k3, 0.193147)):
        found = kl_loss(torch.tensor([[math.log(2), 5.0]]), torch.zeros(1, 2), mask, estimator=estimator)
        assert found.item() == pytest.approx(expected, rel=1e-5)


def test_which_kl_loss_has_the_gradient_of_the_kl():
    """Three tokens, all of them sampled in proportion to p. By hand, for p = softmax(z):
    grad KL(p||q) = p (log p - log q - KL(p||q));  grad KL(q||p) = p - q.
    """
    z, q = torch.tensor([0.3, -0.2, 0.5], dtype=torch.double), torch.tensor([0.2, 0.5, 0.3], dtype=torch.double)
    p = z.softmax(-1)
    forward = p * (p.log() - q.log() - (p * (p.log() - q.log())).sum())
    for estimator, wanted in ((k1, torch.zeros_like(p)), (k2, forward), (k3, p - q)):
        leaf = z.clone().requires_grad_()
        log_p = leaf.log_softmax(-1)
        # The mean over samples: token v stands p_v times in the batch.
        total = sum(
            p[v] * kl_loss(log_p[v].view(1, 1), q.log()[v].view(1, 1), ONE, estimator=estimator) for v in range(3)
        )
        total.backward()
        torch.testing.assert_close(leaf.grad, wanted)


def test_kl_loss_is_zero_with_no_gradient_where_policy_is_reference():
    for estimator in (k2, k3):
        log_probs = draws(3, 4, seed=0).requires_grad_()
        loss = kl_loss(log_probs, log_probs.detach(), MASK, estimator=estimator)
        loss.backward()
        assert loss.item() == 0
        assert (log_probs.grad == 0).all()


def test_the_reference_gets_no_gradient():
    log_probs, reference = draws(3, 4, seed=0).requires_grad_(), draws(3, 4, seed=1).requires_grad_()
    kl_loss(log_probs, reference, MASK, estimator=k3).backward()
    assert reference.grad is None


@garbage
@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_masked_slots_change_no_kl_loss(garbage, estimator):
    inputs = [draws(3, 4, seed=0), draws(3, 4, seed=1)]
    assert_ignores_masked(lambda *x: kl_loss(*x, MASK, estimator=estimator), inputs, MASK, garbage)


def test_mean_entropy_is_over_counted_tokens():
    found = mean_entropy(torch.tensor([[1.0, 3.0, 99.0]]), torch.tensor([[True, True, False]]))
    assert found.item() == 2


@garbage
def test_masked_slots_change_no_entropy(garbage):
    assert_ignores_masked(lambda x: mean_entropy(x, MASK), [draws(3, 4, seed=0)], MASK, garbage)


@pytest.mark.parametrize("parts", [[slice(0, 1), slice(1, 3)], [slice(0, 1), slice(1, 2), slice(2, 3)]])
def test_terms_of_micro_batches_add_up(parts):
    def kl(x, reference, mask, *, count):
        return kl_loss(x, reference, mask, estimator=k3, count=count), {}

    def bonus(x, mask, *, count):
        return mean_entropy(x, mask, count=count), {}

    assert_adds_up(kl, [draws(3, 4, seed=0), draws(3, 4, seed=1), MASK], count=8, parts=parts)
    assert_adds_up(bonus, [draws(3, 4, seed=0), MASK], count=8, parts=parts)
