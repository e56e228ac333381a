"""How gold reward depends on the distance from the initial policy: the two forms of Gao et al.

Legend: d = sqrt(KL) of the optimised policy to the initial one, KL in nats per answer; gold reward counts from 0 at
d = 0. Source: Gao, Schulman and Hilton 2022 (arXiv 2210.10760), the two forms of section 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[np.floating]


class Fit(NamedTuple):
    """gold = d (alpha - beta f(d)), fitted by least squares."""

    alpha: float
    """Gain per unit of distance at the start."""
    beta: float
    """How fast over-optimisation eats it."""
    r2: float
    """1 - residual / total sum of squares, the total about the mean gold reward."""
    peak: float
    """Distance at which the fitted gold reward is highest; infinite where it never falls."""


def fit_best_of_n(distance: Numbers, gold: Numbers) -> Fit:
    """Best-of-n: gold = d (alpha - beta d), highest at alpha / (2 beta).

    Errors: ValueError for fewer than 3 points, fewer than 2 different distances above 0, a negative distance, a number
    that is not finite, or a gold reward that never changes.
    """
    d, r = _points(distance, gold)
    alpha, beta, r2 = _least_squares(d, d, r)
    return Fit(alpha, beta, r2, alpha / (2 * beta) if beta > 0 and alpha > 0 else _end(beta))


def fit_reinforcement(distance: Numbers, gold: Numbers) -> Fit:
    """Reinforcement learning: gold = d (alpha - beta ln d), highest at exp(alpha / beta - 1). Errors: as best-of-n."""
    d, r = _points(distance, gold)
    # d ln d goes to 0 with d.
    alpha, beta, r2 = _least_squares(d, np.log(np.where(d > 0, d, 1.0)), r)
    return Fit(alpha, beta, r2, math.exp(min(alpha / beta - 1, 700.0)) if beta > 0 else math.inf)


def _end(beta: float) -> float:
    """Best-of-n's highest point where the parabola has none above 0: the start if it only falls, else nowhere."""
    return 0.0 if beta > 0 else math.inf


def _least_squares(
    d: NDArray[np.float64], f: NDArray[np.float64], r: NDArray[np.float64]
) -> tuple[float, float, float]:
    features = np.stack([d, -d * f], axis=1)
    found, _, rank, _ = np.linalg.lstsq(features, r, rcond=None)
    if rank < 2:
        raise ValueError("the distances do not tell alpha from beta, expected at least 2 different ones above 0")
    residual = float(((r - features @ found) ** 2).sum())
    return float(found[0]), float(found[1]), 1 - residual / float(((r - r.mean()) ** 2).sum())


def _points(distance: Numbers, gold: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    d, r = np.asarray(distance, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if d.ndim != 1 or d.shape != r.shape or len(d) < 3:
        raise ValueError(f"{d.shape} distances and {r.shape} rewards, expected one each of at least 3 policies")
    if not (np.isfinite(d).all() and np.isfinite(r).all() and (d >= 0).all()):
        raise ValueError("expected finite rewards and finite distances of at least 0")
    if np.ptp(r) == 0:
        raise ValueError("the gold reward never changes: there is nothing to fit")
    return d, r
