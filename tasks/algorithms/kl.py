"""Kullback-Leibler divergence: estimators from samples, the adaptive coefficient, best-of-n.

Legend: any shape; `log_ratio` = log p(x) - log p_ref(x) at tokens x sampled from p, so the estimators' mean is an
estimate of KL(p || p_ref), in nats per token. Estimators: Schulman 2020, "Approximating KL Divergence".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

K3_LIMIT = 10.0
"""k3 clamps the log-ratio to +-10: exp(20) = 4.9e8 in one token would drown a batch."""


def k1(log_ratio: Tensor) -> Tensor:
    """log p - log p_ref: unbiased, of high variance, negative for about half the tokens when p is near p_ref."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """(log p - log p_ref)^2 / 2: never negative, low variance, biased (25 % high for N(0,1) against N(1,1)).

    As a loss on fresh samples it has the KL's gradient, which k1 and k3 do not.
    """
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    """r - 1 - log r with r = p_ref / p: unbiased, never negative, low variance.

    The log-ratio is clamped to +-K3_LIMIT first: equal to the definition inside, a constant with gradient 0 outside.
    Written with expm1, exact also where the ratio is near 1.
    """
    x = log_ratio.clamp(-K3_LIMIT, K3_LIMIT)
    return torch.expm1(-x) + x


def no_penalty(log_ratio: Tensor) -> Tensor:
    """0 for every token: where the KL stands in the loss, it does not stand in the reward too."""
    return torch.zeros_like(log_ratio)


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""By the name that params.yaml calls them."""


@dataclass(frozen=True)
class KLCoefficient:
    """The weight of the KL penalty; fixed when `target` is None, else it follows the measured KL.

    error = clip(kl / target - 1, -0.2, 0.2);  value <- value * (1 + error * episodes / horizon).
    Source: Ziegler et al. 2019 (arXiv 1909.08593), section 2.2. (InstructGPT kept its coefficient fixed.)
    """

    value: float
    target: float | None
    """KL per answer (a sum over its tokens), in nats."""
    horizon: float | None
    """Episodes over which the coefficient can change by a fifth."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise ValueError(f"KL coefficient is {self.value}, expected a finite number of at least 0")
        if (self.target is None) != (self.horizon is None):
            raise ValueError("an adaptive KL coefficient needs both target and horizon, a fixed one neither")
        for name, number in (("target", self.target), ("horizon", self.horizon)):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ValueError(f"KL {name} is {number}, expected a finite positive number")

    def step(self, kl: float, episodes: int) -> KLCoefficient:
        """The coefficient after a rollout of `episodes` answers whose mean KL was `kl`.

        kl: mean over answers of the SUM over tokens of log p - log p_ref (not a per-token mean), in nats.
        Errors: ValueError for a KL that is not finite, and for episodes / horizon >= 5 (the factor could reach 0).
        """
        if self.target is None or self.horizon is None:
            return self
        if not math.isfinite(kl):
            raise ValueError(f"measured KL is {kl}, expected a finite number")
        if not 0 < episodes / self.horizon < 5:
            raise ValueError(f"episodes / horizon is {episodes}/{self.horizon:g}, expected above 0 and below 5")
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return replace(self, value=self.value * (1 + error * episodes / self.horizon))


def best_of_n_kl(n: int) -> float:
    """KL of the best of n samples from the policy they come from: ln n - (n-1)/n, in nats per answer.

    Source: Stiennon et al. 2020 (arXiv 2009.01325), appendix G.3; an upper bound where answers can coincide.
    Errors: ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    return math.log(n) - (n - 1) / n
