import math

import pytest
import torch

from tasks.algorithms.preference import bradley_terry_loss
from tests.algorithms.checks import assert_adds_up, draws


def test_bradley_terry_of_3_2_against_1_5():
    loss, statistics = bradley_terry_loss(torch.tensor([3.2]), torch.tensor([1.5]))
    assert loss.item() == pytest.approx(0.1678, abs=5e-5)
    assert math.exp(-loss.item()) == pytest.approx(0.8455, abs=5e-5)
    assert statistics["margin"].item() == pytest.approx(1.7)


@pytest.mark.parametrize(("margin", "p"), [(2.0, 0.8808), (-2.0, 0.1192)])
def test_bradley_terry_is_the_sigmoid_of_the_margin(margin, p):
    loss, _ = bradley_terry_loss(torch.tensor([margin]), torch.tensor([0.0]))
    assert math.exp(-loss.item()) == pytest.approx(p, abs=5e-5)


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


def test_micro_batches_add_up():
    parts = [slice(0, 1), slice(1, 6)]
    assert_adds_up(bradley_terry_loss, [draws(6, seed=4), draws(6, seed=5)], count=6, parts=parts)


def test_no_pairs_are_an_error():
    with pytest.raises(ValueError, match="0 pairs"):
        bradley_terry_loss(torch.zeros(0), torch.zeros(0))


def test_shapes_that_would_broadcast_are_an_error():
    with pytest.raises(ValueError, match="expected the same"):
        bradley_terry_loss(torch.zeros(3, 1), torch.zeros(3))
