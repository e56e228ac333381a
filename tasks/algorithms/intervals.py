"""Win rates, correlation, and how sure they are.

Legend: n prompts, one outcome each. Intervals are two-sided: confidence 0.95 leaves 2.5 % on either side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[np.floating]
Interval = tuple[float, float]


class WinRate(NamedTuple):
    """Counts of prompts, and the share of wins with a tie as one half."""

    wins: int
    ties: int
    losses: int
    rate: float


def win_rate(policy_scores: Numbers, baseline_scores: Numbers, *, tolerance: float = 0.0) -> WinRate:
    """How often the policy's answer scores higher: (wins + ties / 2) / n, pair by pair on the same prompts.

    A difference of at most `tolerance` (units of the scores) is a tie, so a policy against itself gets one half.
    Errors: ValueError for no prompts, lengths that differ, or scores that are not finite.
    """
    difference = _finite(policy_scores) - _same_length(_finite(baseline_scores), len(policy_scores))
    wins, losses = int((difference > tolerance).sum()), int((difference < -tolerance).sum())
    ties = len(difference) - wins - losses
    return WinRate(wins, ties, losses, (wins + ties / 2) / len(difference))


def wilson(successes: float, n: float, *, confidence: float) -> Interval:
    """Wilson's score interval of a proportion p = successes / n; `successes` may hold halves (ties), n be
    an effective number.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z the normal quantile of (1 + confidence) / 2.
    Source: Wilson 1927, JASA 22. Never leaves [0, 1]; has a width at 0 and at n. Counting a tie as one half makes it a
    little too wide. Errors: ValueError for n < 1, successes outside [0, n], confidence outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}, expected n of at least 1 and successes between 0 and n")
    z, p = _normal_quantile(confidence), successes / n
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def paired_bootstrap(
    outcomes: Numbers, *, confidence: float, resamples: int, generator: np.random.Generator
) -> Interval:
    """Percentile interval of the mean outcome, prompts resampled with replacement.

    One number per prompt holds both sides of the pair (win 1, tie 1/2, loss 0; or a difference of scores), so what
    the prompt contributes to both cancels. Source: Efron and Tibshirani 1993, section 13.3.
    The generator decides the draws: same state, same interval. Errors: ValueError for no outcomes, one that is not
    finite, resamples < 1, confidence outside (0, 1).
    """
    values = _finite(outcomes)

    def mean(drawn: NDArray[np.int64]) -> float:
        return float(values[drawn].mean())

    return bootstrap(mean, len(values), confidence=confidence, resamples=resamples, generator=generator)


def bootstrap(
    statistic: Callable[[NDArray[np.int64]], float],
    n: int,
    *,
    confidence: float,
    resamples: int,
    generator: np.random.Generator,
) -> Interval:
    """Percentile interval of any figure of n prompts: `statistic` is called with the indices that each resample drew.

    All that a prompt contributes (several answers, both sides) is drawn together, so what they share cancels or counts
    as it does in the figure. Source: Efron and Tibshirani 1993, section 13.3.
    Errors: ValueError for n < 1, resamples < 1, confidence outside (0, 1).
    """
    _normal_quantile(confidence)
    if n < 1 or resamples < 1:
        raise ValueError(f"n is {n} and resamples is {resamples}, expected at least 1 of both")
    # One resample at a time: memory stays at n.
    drawn = [statistic(generator.integers(n, size=n)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def mean_interval(x: Numbers, *, confidence: float) -> Interval:
    """Student's interval of a mean: m -+ t s / sqrt(n), s unbiased (n - 1), t with n - 1 degrees of freedom.

    Source: Student 1908. Errors: ValueError for fewer than two values, one not finite, confidence outside (0, 1).
    """
    values = _finite(x)
    if len(values) < 2:
        raise ValueError("one value has no spread, expected at least 2")
    half = _t_quantile(len(values) - 1, confidence) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


class Mean(NamedTuple):
    """A mean with its interval."""

    mean: float
    low: float
    high: float


def mean_with_interval(x: Numbers, *, confidence: float) -> Mean:
    """The mean and `mean_interval`. Errors: as there."""
    return Mean(float(np.mean(np.asarray(x))), *mean_interval(x, confidence=confidence))


def pearson(x: Numbers, y: Numbers) -> float:
    """Linear correlation: sum (x - mx)(y - my) / sqrt(sum (x - mx)^2 sum (y - my)^2), in [-1, 1].

    A constant side gives 0 (undefined). Errors: ValueError for fewer than two values, lengths that differ, or values
    that are not finite.
    """
    a = _finite(x)
    b = _same_length(_finite(y), len(a))
    if len(a) < 2:
        raise ValueError("one point has no correlation, expected at least 2")
    # ptp, not the centred sum: the mean of equal numbers can differ from them in the last bit.
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    return float(np.clip((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)), -1, 1))


def _normal_quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}, expected between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _t_quantile(freedom: int, confidence: float) -> float:
    """x with P(|t| < x) = confidence: an exact series up to 100 degrees of freedom, beyond it an expansion."""
    z = _normal_quantile(confidence)
    if freedom > 100:
        # Abramowitz and Stegun 26.7.5; off by less than 1e-6 from here on.
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, third)
        return math.fsum(term / freedom**power for power, term in enumerate(terms))
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, freedom) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _t_inside(theta: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) tan(theta)): Abramowitz and Stegun 26.7.3 (odd) and 26.7.4 (even)."""
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(theta) ** 2
        total += term
    return 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total


def _finite(x: Numbers) -> NDArray[np.float64]:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"shape {values.shape}, expected a list of at least one number")
    if not np.isfinite(values).all():
        raise ValueError(f"{int((~np.isfinite(values)).sum())} of {len(values)} values are not finite")
    return values


def _same_length(values: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    if len(values) != n:
        raise ValueError(f"{len(values)} values against {n}, expected one each for the same prompts")
    return values
