"""Clipped losses of proximal policy optimisation.

Legend: B answers, T positions. Index t: token t of the answer; `old` is what the sampling policy or the critic of the
rollout said. Reduction, everywhere: mean over the counted tokens of the whole optimiser batch. `count` is the number of
those tokens; with it losses and mean statistics of micro-batches add up to the batch's. None: this batch's own.
Masked slots change neither values nor gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tasks.algorithms.kl import k3
from tasks.algorithms.masking import centre_on_mean, counted, keep, masked_mean, masked_sum

Statistics = dict[str, Tensor]

_EXP_LIMIT = 80.0
"""float32 exp is inf from 88.7. With an infinite ratio even the token that clipping cuts has gradient 0 * inf = NaN."""


def clipped_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: float,
    dual_clip: float | None = None,
    count: float | Tensor | None = None,
) -> tuple[Tensor, Statistics]:
    """PPO's pessimistic surrogate: mean of max(-A r, -A clamp(r, 1-clip, 1+clip)), r = exp(log p - log p_old).

    The gradient is zero only where a further step would improve the objective beyond the band: A>0 with r > 1+clip, and
    A<0 with r < 1-clip. A>0 with r < 1-clip and A<0 with r > 1+clip are not clipped, and not bounded either, unless by
    `dual_clip` c: for A<0 the loss is at most -c A, without gradient beyond (A=-1, r=10, c=3: 3, not 10).
    The log-ratio is clamped to +-80, outside which float32 has no finite loss; inside nothing changes.
    Source: Schulman et al. 2017 (arXiv 1707.06347), equation 7; dual clip: Ye et al. 2020 (arXiv 1912.09729),
    equation 5. Shapes: all [B, T]; returns a scalar and detached scalars: `clip_fraction` (share of tokens whose
    gradient is cut), `approx_kl` (k3 estimate of KL(old || new), nats per token), `ratio_max`, `ratio_min` (over
    counted tokens; these two do not add up over micro-batches).
    Errors: ValueError where nothing counts, or shapes differ, or clip is not positive, or dual_clip is within the band.
    """
    _positive(clip)
    divisor = counted(mask, count)
    old, advantages = keep(old_log_probs, mask).detach(), keep(advantages, mask).detach()
    log_ratio = keep(log_probs, mask) - old
    ratio = log_ratio.clamp(-_EXP_LIMIT, _EXP_LIMIT).exp()
    free = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip, 1 + clip)
    surrogate = torch.maximum(free, bounded)
    cut = bounded > free
    if dual_clip is not None:
        ceiling = _above_the_band(dual_clip, clip) * advantages.clamp(max=0).neg()
        beyond = surrogate > ceiling  # never where A >= 0: the surrogate is not positive there
        surrogate, cut = torch.where(beyond, ceiling, surrogate), cut | beyond
    loss = masked_sum(surrogate, mask) / divisor
    with torch.no_grad():
        counts = mask.bool()
        statistics = {
            "clip_fraction": masked_sum(cut.float(), mask) / divisor,
            "approx_kl": masked_sum(k3(-log_ratio), mask) / divisor,
            "ratio_max": ratio.masked_fill(~counts, -torch.inf).max(),
            "ratio_min": ratio.masked_fill(~counts, torch.inf).min(),
        }
    return loss, statistics


def clipped_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip: float,
    count: float | Tensor | None = None,
) -> tuple[Tensor, Statistics]:
    """Squared error of the critic, kept near its rollout: mean of max((V - R)^2, (V_clipped - R)^2) / 2.

    V_clipped = V_old + clamp(V - V_old, -clip, clip). The gradient is zero where V left the band towards the return.
    clip = inf is the plain squared error.
    Source: Ziegler et al. 2019, code; implementation detail 9 of "The 37 implementation details of PPO" (2022).
    Shapes: all [B, T]; returns a scalar (squared reward units) and the detached `clip_fraction`.
    Errors: ValueError where nothing counts, or shapes differ, or clip is not positive.
    """
    _positive(clip)
    divisor = counted(mask, count)
    old, returns = keep(old_values, mask).detach(), keep(returns, mask).detach()
    values = keep(values, mask)
    free = (values - returns).square()
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    loss = 0.5 * masked_sum(torch.maximum(free, bounded), mask) / divisor
    with torch.no_grad():
        # In the band the two differ by a rounding at most, which cuts nothing.
        cut = (bounded > free) & ((values - old).abs() > clip)
        fraction = masked_sum(cut.float(), mask) / divisor
    return loss, {"clip_fraction": fraction}


def kl_loss(
    log_probs: Tensor,
    reference: Tensor,
    mask: Tensor,
    *,
    estimator: Callable[[Tensor], Tensor],
    count: float | Tensor | None = None,
) -> Tensor:
    """The KL to the reference as a term of the loss: mean over the counted tokens of estimator(log p - log p_ref).

    On fresh samples the gradient of k2 is the KL's: E[(log p - log p_ref) grad log p]. That of k3 is not: in the mean
    it is grad KL(p_ref || p), the other direction, which agrees near the reference only. That of k1 is 0 in the mean.
    After the first step of a rollout its samples are those of an older policy, and none of them is exact.
    Source: Schulman 2020; k3 in the loss: Shao et al. 2024 (arXiv 2402.03300), equation 4.
    Shapes: all [B, T]; returns a scalar, nats per token. Errors: ValueError where nothing counts, or shapes differ.
    """
    log_ratio = keep(log_probs, mask) - keep(reference, mask).detach()
    return masked_sum(estimator(log_ratio), mask) / counted(mask, count)


def mean_entropy(entropies: Tensor, mask: Tensor, *, count: float | Tensor | None = None) -> Tensor:
    """Mean entropy of the next-token distributions at the counted tokens. The bonus subtracts a multiple of it.

    Source: Mnih et al. 2016 (arXiv 1602.01783), section 4; Schulman et al. 2017, equation 9.
    Shapes: all [B, T]; returns a scalar, nats per token. Errors: ValueError where nothing counts, or shapes differ.
    """
    return masked_sum(entropies, mask) / counted(mask, count)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """How much of the returns the critic predicts: 1 - Var(R - V) / Var(R); 1 is perfect, 0 is a constant guess.

    Variances are biased and over the counted tokens of the whole batch. Returns that are all equal (to a rounding) give
    0, though it is undefined there: a metric must be finite.
    Shapes: all [B, T]; returns a detached scalar. Errors: ValueError where nothing counts, or shapes differ.
    """
    returns, values = keep(returns, mask).detach(), keep(values, mask).detach()
    total = masked_mean(centre_on_mean(returns, mask).square(), mask)
    residual = masked_mean(centre_on_mean(returns - values, mask).square(), mask)
    rounding = torch.finfo(returns.dtype).eps ** 2 * masked_mean(returns.square(), mask)
    return torch.where(total > rounding, 1 - residual / total, torch.zeros_like(total))


def _above_the_band(dual_clip: float, clip: float) -> float:
    if not dual_clip > 1 + clip:
        raise ValueError(f"dual_clip is {dual_clip}, expected above 1 + clip ({1 + clip})")
    return dual_clip


def _positive(clip: float) -> None:
    if not clip > 0:
        raise ValueError(f"clip is {clip}, expected a positive number")
