import math

import pytest
import torch

from tasks.algorithms.supervised import negative_log_likelihood
from tests.algorithms.checks import MASK, assert_adds_up, assert_ignores_masked, draws, garbage


def test_it_is_the_mean_over_counted_tokens():
    # p = 1/2, 1/4 and a masked one: (ln 2 + 2 ln 2) / 2
    log_probs = torch.tensor([[0.5, 0.25, 0.1]]).log()
    found = negative_log_likelihood(log_probs, torch.tensor([[True, True, False]]))
    assert found.item() == pytest.approx(1.5 * math.log(2))


def test_the_count_makes_a_token_mean_of_micro_batches():
    # facts.md: losses [4] (one token) and [1] * 9: 1.3, not 2.5, the mean of means.
    first = negative_log_likelihood(torch.tensor([[-4.0]]), torch.ones(1, 1), count=10)
    second = negative_log_likelihood(torch.full((1, 9), -1.0), torch.ones(1, 9), count=10)
    assert (first + second).item() == pytest.approx(1.3)


def test_gradient_raises_every_counted_token_alike():
    log_probs = draws(3, 4, seed=0).requires_grad_()
    negative_log_likelihood(log_probs, MASK).backward()
    torch.testing.assert_close(log_probs.grad, -MASK.float() / 8)


@garbage
def test_masked_slots_change_nothing(garbage):
    assert_ignores_masked(lambda x: negative_log_likelihood(x, MASK), [draws(3, 4, seed=1)], MASK, garbage)


@pytest.mark.parametrize("parts", [[slice(0, 1), slice(1, 3)], [slice(0, 2), slice(2, 3)]])
def test_micro_batches_add_up(parts):
    def loss(log_probs, mask, *, count):
        return negative_log_likelihood(log_probs, mask, count=count), {}

    assert_adds_up(loss, [draws(3, 4, seed=2), MASK], count=8, parts=parts)


def test_a_batch_without_a_counted_token_is_an_error():
    with pytest.raises(ValueError, match="nothing counts"):
        negative_log_likelihood(torch.zeros(1, 2), torch.zeros(1, 2))
