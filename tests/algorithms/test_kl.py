import math

import numpy as np
import pytest
import torch

from tasks.algorithms.kl import KLCoefficient, best_of_n_kl, k1, k2, k3


def log_ratios(mean):
    """log N(x; 0, 1) - log N(x; mean, 1) at two million draws from the first: KL = mean^2 / 2."""
    x = np.random.default_rng(0).standard_normal(2_000_000)
    return torch.from_numpy(-mean * x + mean**2 / 2)


def test_estimators_near_the_reference():
    ratios = log_ratios(0.1)  # KL .005
    for estimator, spread in ((k1, 20.0), (k2, 1.42), (k3, 1.42)):
        assert estimator(ratios).mean().item() == pytest.approx(0.005, rel=0.05)
        assert estimator(ratios).std().item() / 0.005 == pytest.approx(spread, rel=0.01)
    assert (k1(ratios) < 0).double().mean().item() == pytest.approx(0.48, abs=0.002)
    assert (k2(ratios) >= 0).all()
    assert (k3(ratios) >= 0).all()


def test_k2_is_biased_far_from_the_reference_and_the_others_are_not():
    ratios = log_ratios(1.0)  # KL .5
    assert k1(ratios).mean().item() == pytest.approx(0.5, rel=0.01)
    assert k2(ratios).mean().item() == pytest.approx(0.625, rel=0.01)
    assert k3(ratios).mean().item() == pytest.approx(0.5, rel=0.01)


def test_estimators_of_one_ratio():
    # p twice as likely as the reference: log 2, (log 2)^2 / 2, 1/2 - 1 + log 2
    ratio = torch.tensor([math.log(2)])
    assert k1(ratio).item() == pytest.approx(0.693147)
    assert k2(ratio).item() == pytest.approx(0.2402265)
    assert k3(ratio).item() == pytest.approx(0.193147)


def test_equal_policies_have_no_kl():
    zero = torch.zeros(3)
    assert k1(zero).tolist() == k2(zero).tolist() == k3(zero).tolist() == [0, 0, 0]


def test_k3_keeps_its_digits_near_one():
    assert k3(torch.tensor([1e-4])).item() == pytest.approx(5e-9, rel=0.01)


def test_k3_is_clamped():
    # Unclamped, 20 nats below the reference would be exp(20) = 4.9e8.
    far = torch.tensor([-20.0, 50.0], requires_grad=True)
    found = k3(far)
    found.sum().backward()
    assert found.tolist() == pytest.approx([math.exp(10) - 11, 9 + math.exp(-10)], rel=1e-5)
    assert far.grad.tolist() == [0, 0]


def test_k2_has_the_gradient_of_the_kl_and_k1_has_none_in_the_mean():
    # Mean over p of the gradient of k2 with respect to log p's parameters; KL gradient for a softmax, by hand:
    # dKL/dz = p * (log p - log q - KL).
    z, q = torch.tensor([0.3, -0.2, 0.5], dtype=torch.double), torch.tensor([0.2, 0.5, 0.3], dtype=torch.double)
    p = z.softmax(-1)
    expected = p * (p.log() - q.log() - (p * (p.log() - q.log())).sum())
    for estimator, wanted in ((k2, expected), (k1, torch.zeros(3, dtype=torch.double))):
        leaf = z.clone().requires_grad_()
        (p * estimator(leaf.log_softmax(-1) - q.log())).sum().backward()
        torch.testing.assert_close(leaf.grad, wanted)


@pytest.mark.parametrize(("kl", "factor"), [(12, 1.00512), (3, 0.99488), (6, 1.0), (6.6, 1.00256), (0, 0.99488)])
def test_the_adaptive_coefficient_is_zieglers(kl, factor):
    stepped = KLCoefficient(0.1, target=6.0, horizon=10_000).step(kl, 256)
    assert stepped.value == pytest.approx(0.1 * factor, rel=1e-9)
    assert (stepped.target, stepped.horizon) == (6.0, 10_000)


def test_a_fixed_coefficient_stays():
    fixed = KLCoefficient(0.1, target=None, horizon=None)
    assert fixed.step(1e6, 10_000) is fixed


@pytest.mark.parametrize(
    ("value", "target", "horizon"),
    [(0.1, 0.0, 1e4), (0.1, -6.0, 1e4), (0.1, 6.0, 0.0), (0.1, 6.0, -1.0), (-0.1, None, None), (math.nan, None, None),
     (0.1, 6.0, None), (0.1, None, 1e4), (0.1, math.inf, 1e4)],
)  # fmt: skip
def test_coefficients_without_a_meaning_are_refused(value, target, horizon):
    with pytest.raises(ValueError, match="KL"):
        KLCoefficient(value, target, horizon)


def test_a_step_that_could_turn_the_coefficient_negative_is_refused():
    with pytest.raises(ValueError, match="below 5"):
        KLCoefficient(0.1, 6.0, 100).step(6.0, 500)
    assert KLCoefficient(0.1, 6.0, 100).step(0.0, 499).value > 0


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_a_kl_that_is_not_finite_is_refused(kl):
    with pytest.raises(ValueError, match="measured KL"):
        KLCoefficient(0.1, 6.0, 100).step(kl, 64)


@pytest.mark.parametrize(("n", "kl"), [(1, 0.0), (2, 0.193), (4, 0.636), (16, 1.835), (64, 3.175)])
def test_best_of_n(n, kl):
    assert best_of_n_kl(n) == pytest.approx(kl, abs=5e-4)


def test_best_of_none_is_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        best_of_n_kl(0)
