"""What every function of masked tensors promises, as assertions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

garbage = pytest.mark.parametrize("garbage", [1e9, -math.inf, math.nan], ids=str)

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
"""Three right-padded answers of 3, 1 and 4 tokens."""


def draws(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_ignores_masked(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], mask: Tensor, garbage: float
) -> None:
    """`function(*inputs)` and its gradients are those of clean inputs to the bit; masked slots get gradient 0."""
    results = []
    for filler in (0.5, garbage):
        leaves = [torch.where(mask, x, filler).requires_grad_() for x in inputs]
        value = function(*leaves)
        value.sum().backward()
        results.append((value.detach(), [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]))
    (value, gradients), (spoiled, spoiled_gradients) = results
    assert torch.equal(value, spoiled)
    assert value.isfinite().all()
    for gradient, spoiled_gradient in zip(gradients, spoiled_gradients, strict=True):
        assert torch.equal(gradient, spoiled_gradient)
        assert (spoiled_gradient[~mask] == 0).all()
    assert any((gradient != 0).any() for gradient in gradients), "no gradient at all: nothing was tested"


def assert_adds_up(
    loss: Callable[..., tuple[Tensor, dict[str, Tensor]]],
    inputs: Sequence[Tensor],
    *,
    count: float,
    parts: Sequence[slice],
) -> None:
    """Loss, gradients and mean statistics of a batch are the sums of those of its parts, given the batch's count."""
    results = []
    for split in ([slice(None)], parts):
        leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
        total, sums = 0.0, {}
        for part in split:
            value, statistics = loss(*(x[part] for x in leaves), count=count)
            value.backward()
            total += value.item()
            for name, statistic in statistics.items():
                assert not statistic.requires_grad
                sums[name] = sums.get(name, 0.0) + statistic.item()
        results.append((total, sums, [x.grad for x in leaves if x.requires_grad and x.grad is not None]))
    (whole, whole_statistics, whole_gradients), (split_sum, split_statistics, split_gradients) = results
    assert split_sum == pytest.approx(whole, rel=1e-5)
    for name in whole_statistics.keys() - {"ratio_max", "ratio_min"}:
        assert split_statistics[name] == pytest.approx(whole_statistics[name], rel=1e-5, abs=1e-7)
    for gradient, part_gradient in zip(whole_gradients, split_gradients, strict=True):
        torch.testing.assert_close(gradient, part_gradient)
