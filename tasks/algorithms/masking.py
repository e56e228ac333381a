"""Sums, means and whitening over the positions that count.

Legend: B sequences, T positions. `mask` is True where the position counts. Whatever stands in a masked slot
(garbage, 1e9, NaN) changes neither a value nor a gradient: every function selects with `torch.where` before it does
arithmetic, because NaN * 0 is NaN, forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor


def keep(x: Tensor, mask: Tensor) -> Tensor:
    """x where the mask is True, 0 elsewhere; the gradient is 0 elsewhere too.

    Shapes: x and mask alike. Errors: ValueError if they differ (a broadcast mask would count positions twice).
    """
    if x.shape != mask.shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)}, expected that of the values, {tuple(x.shape)}")
    return torch.where(mask.bool(), x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of x over counted positions: sum_t mask_t x_t.

    Shapes: x, mask [B, T] or any shape, alike. Returns a scalar, or x.shape without `dim`.
    Nothing counted gives 0.
    """
    kept = keep(x, mask)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of x over the counted positions of the whole batch: sum(mask x) / sum(mask).

    This is a token mean, not a mean of row means. Over micro-batches it does not add up; the losses take `count` for
    that. Shapes: x, mask alike; returns a scalar. Errors: ValueError where nothing counts.
    """
    return masked_sum(x, mask) / counted(mask)


def whiten(x: Tensor, mask: Tensor, *, centre: bool) -> Tensor:
    """Counted positions scaled to standard deviation 1: (x - m) / std, plus m again where centre is False.

    m and std are those of the counted positions of the whole batch; std is the biased one (divides by n, from centred
    values). centre=True (advantages) leaves mean 0, centre=False (rewards) keeps the mean.
    Source: Ziegler et al. 2019 (arXiv 1909.08593), code; N+ details (arXiv 2403.17031).
    Shapes: x, mask [B, T]; returns [B, T] with 0 in masked slots. One counted position, or equal ones, give
    x - m = 0, not NaN. Errors: ValueError where nothing counts.
    """
    centred = centre_on_mean(x, mask)
    scaled = centred * torch.rsqrt(masked_mean(centred.square(), mask) + 1e-8)
    return scaled if centre else keep(scaled + masked_mean(x, mask), mask)


def centre_on_mean(x: Tensor, mask: Tensor) -> Tensor:
    """x - mean over the counted positions of the whole batch; 0 in masked slots.

    Twice, because the float32 mean of equal numbers can miss them by a rounding, which a division by their standard
    deviation would blow up: the second pass takes that away. Shapes: x, mask alike, and the result.
    """
    once = x - masked_mean(x, mask)
    return keep(once - masked_mean(once, mask), mask)


def counted(mask: Tensor, count: float | Tensor | None = None) -> float | Tensor:
    """The divisor of a mean: `count` where given (of the whole optimiser batch), else the number of True in mask.

    Errors: ValueError where it is not positive: a stage that did no work fails.
    """
    divisor = mask.sum() if count is None else count
    if not divisor > 0:
        raise ValueError(f"a mean over {divisor} positions: nothing counts")
    return divisor
