import math

import numpy as np
import pytest
import torch
from scipy.special import log_expit

from tasks.algorithms.preference import dpo_loss
from tests.algorithms.checks import assert_adds_up, draws

LN2 = math.log(2)


def test_dpo_against_scipy():
    sides = [draws(5, seed=seed) * 3 for seed in range(4)]
    loss, statistics = dpo_loss(*sides, beta=0.3)
    a, b, c, d = (side.double().numpy() for side in sides)
    h = (a - c) - (b - d)
    assert loss.item() == pytest.approx(-log_expit(0.3 * h).mean(), rel=1e-5)
    assert statistics["margin"].item() == pytest.approx(0.3 * h.mean(), rel=1e-4)
    assert statistics["accuracy"].item() == pytest.approx(np.mean(h > 0))
    assert statistics["chosen_reward"].item() == pytest.approx(0.3 * (a - c).mean(), rel=1e-4)
    assert statistics["rejected_reward"].item() == pytest.approx(0.3 * (b - d).mean(), rel=1e-4)


def test_dpo_at_step_0_is_ln_2_with_a_gradient():
    chosen, rejected = torch.tensor([-12.0], requires_grad=True), torch.tensor([-9.0], requires_grad=True)
    loss, statistics = dpo_loss(chosen, rejected, torch.tensor([-12.0]), torch.tensor([-9.0]), beta=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(LN2)
    # d/dh of -log sigmoid(beta h) at 0 is -beta / 2.
    assert chosen.grad.item() == pytest.approx(-0.05)
    assert rejected.grad.item() == pytest.approx(0.05)
    assert (statistics["ties"].item(), statistics["accuracy"].item()) == (1, 0)


def test_dpo_of_identical_answers_is_ln_2_without_a_gradient():
    answer = torch.tensor([-12.0], requires_grad=True)
    loss, _ = dpo_loss(answer, answer, torch.tensor([-10.0]), torch.tensor([-10.0]), beta=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(LN2)
    assert answer.grad.item() == 0


def test_dpo_sends_no_gradient_to_the_reference():
    policy, reference = draws(2, 3, seed=2).requires_grad_(), draws(2, 3, seed=3).requires_grad_()
    dpo_loss(*policy, *reference, beta=0.1)[0].backward()
    assert reference.grad is None
    assert (policy.grad != 0).all()


def test_micro_batches_add_up():
    parts = [slice(0, 1), slice(1, 6)]

    def loss(*sides, count):
        return dpo_loss(*sides, beta=0.2, count=count)

    assert_adds_up(loss, [draws(6, seed=seed) for seed in range(4)], count=6, parts=parts)


def test_no_pairs_are_an_error():
    with pytest.raises(ValueError, match="0 pairs"):
        dpo_loss(*torch.zeros(4, 0), beta=0.1)


def test_shapes_that_would_broadcast_are_an_error():
    with pytest.raises(ValueError, match="expected the same"):
        dpo_loss(torch.zeros(3), torch.zeros(3), torch.zeros(1), torch.zeros(3), beta=0.1)


def test_beta_must_be_positive():
    with pytest.raises(ValueError, match="beta"):
        dpo_loss(*torch.zeros(4, 1), beta=0.0)
