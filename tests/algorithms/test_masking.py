import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tasks.algorithms.masking import keep, masked_mean, masked_sum, whiten
from tests.algorithms.checks import MASK, assert_ignores_masked, draws, garbage

# facts.md: whitening of 1, 2, 3 and a masked 4.
VALUES = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
THREE = torch.tensor([[True, True, True, False]])


def test_whitening_uses_the_biased_standard_deviation():
    assert whiten(VALUES, THREE, centre=True)[0].tolist() == pytest.approx([-1.2247, 0.0, 1.2247, 0.0], abs=1e-4)


def test_whitening_of_rewards_keeps_the_mean():
    assert whiten(VALUES, THREE, centre=False)[0].tolist() == pytest.approx([0.7753, 2.0, 3.2247, 0.0], abs=1e-4)


def test_whitening_one_token_gives_zero_not_nan():
    assert whiten(VALUES, torch.tensor([[False, True, False, False]]), centre=True).tolist() == [[0, 0, 0, 0]]


def test_whitening_one_token_keeps_the_mean_where_asked():
    assert whiten(VALUES, torch.tensor([[False, True, False, False]]), centre=False).tolist() == [[0, 2, 0, 0]]


def test_whitening_equal_values_gives_zero_not_amplified_rounding():
    flat = torch.full((8, 3), 1000.1)
    assert flat.mean() != flat[0, 0], "this float32 mean should miss by a rounding, or nothing is tested"
    assert whiten(flat, torch.ones_like(flat, dtype=torch.bool), centre=True).abs().max() < 1e-3


def test_masked_sum_by_row_and_in_all():
    assert masked_sum(VALUES, THREE).item() == 6
    assert masked_sum(torch.cat([VALUES, VALUES]), torch.cat([THREE, ~THREE]), dim=1).tolist() == [6, 4]


def test_masked_mean_is_a_token_mean_not_a_mean_of_row_means():
    losses = torch.ones(2, 9)
    losses[0, 0] = 4
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 1:] = False
    assert masked_mean(losses, mask).item() == pytest.approx(1.3)


def test_a_mean_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="nothing counts"):
        masked_mean(VALUES, torch.zeros_like(VALUES, dtype=torch.bool))


def test_a_mask_of_another_shape_is_an_error():
    with pytest.raises(ValueError, match="mask has shape"):
        keep(VALUES, torch.tensor([True, True, True, False]))


@garbage
@pytest.mark.parametrize(
    "function",
    [
        lambda x: masked_sum(x, MASK),
        lambda x: masked_sum(x, MASK, dim=1),
        lambda x: masked_mean(x, MASK),
        lambda x: whiten(x, MASK, centre=True).square() * torch.arange(12.0).reshape(3, 4),
        lambda x: whiten(x, MASK, centre=False),
    ],
    ids=["sum", "sum by row", "mean", "whiten", "whiten, mean kept"],
)
def test_masked_slots_change_nothing(function, garbage):
    assert_ignores_masked(function, [draws(3, 4, seed=0)], MASK, garbage)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    hnp.arrays(np.float64, (3, 5), elements=st.floats(-1e3, 1e3)),
    hnp.arrays(bool, (3, 5)).filter(lambda mask: mask.any()),
)
def test_masked_mean_is_that_of_numpy(x, mask):
    found = masked_mean(torch.from_numpy(x), torch.from_numpy(mask))
    assert found.item() == pytest.approx(x[mask].mean(), rel=1e-9, abs=1e-9)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(hnp.arrays(np.float64, (4, 3), elements=st.floats(-100, 100)).filter(lambda x: x.std() > 0.1))
def test_whitened_values_have_mean_0_and_deviation_1(x):
    found = whiten(torch.from_numpy(x), torch.ones(4, 3, dtype=torch.bool), centre=True).numpy()
    assert found.mean() == pytest.approx(0, abs=1e-9)
    assert found.std() == pytest.approx(1, abs=1e-5)
