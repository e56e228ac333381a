"""Would the policy still win if its answers were as long as the baseline's? A judge that likes length cannot answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[np.floating]
_STEPS = 100
"""Newton steps; a handful serve, a step that does not lower the loss is halved."""


class LengthControlled(NamedTuple):
    """The win rate at equal length, and how strongly length decides."""

    rate: float
    slope: float
    """Change of the log-odds from equal length to a far longer answer of the policy; above 0: the longer one wins."""


def length_controlled_win_rate(outcomes: Numbers, length_differences: Numbers, *, penalty: float) -> LengthControlled:
    """sigmoid(a), where the logistic regression P(win) = sigmoid(a + b tanh(d / std(d))) is fitted to the outcomes.

    Minimises the sum over comparisons of the cross-entropy, plus penalty / 2 b^2: a weak penalty keeps b finite where
    length alone separates wins from losses. d: the policy's length minus the baseline's, in any unit (std with divisor
    n; not centred, so that 0 stays equal length). An outcome in [0, 1] may be fractional: a tie counts one half.
    Source: Dubois et al. 2024 (arXiv 2404.04475), section 3, the metric of AlpacaEval 2. Simplified: one policy is
    fitted by itself, so there is no instruction-difficulty term, which needs many policies.
    Where all differences are equal, length cannot be told from quality: the plain win rate and slope 0. The same where
    all outcomes are 0, or all 1.
    Errors: ValueError for no comparisons, lengths that differ, an outcome outside [0, 1], a penalty not above 0.
    """
    y, d = np.asarray(outcomes, dtype=np.float64), np.asarray(length_differences, dtype=np.float64)
    if y.ndim != 1 or not len(y) or y.shape != d.shape:
        raise ValueError(f"{y.shape} outcomes and {d.shape} differences, expected one each of at least one comparison")
    if not ((y >= 0) & (y <= 1)).all() or not np.isfinite(d).all():
        raise ValueError("expected outcomes between 0 and 1 and finite length differences")
    if not penalty > 0:
        raise ValueError(f"penalty is {penalty}, expected above 0")
    if np.ptp(d) == 0 or y.min() == y.max() in (0.0, 1.0):
        return LengthControlled(float(y.mean()), 0.0)
    # Lengths are whole numbers: few differences are different, and outcomes of equal ones add up.
    values, place = np.unique(d, return_inverse=True)
    wins = np.bincount(place, y).astype(np.float64)
    a, b = _logistic(wins, np.bincount(place), np.tanh(values / d.std()), penalty)
    return LengthControlled(float(_sigmoid(np.array(a))), b)


def _logistic(
    wins: NDArray[np.float64], counts: NDArray[np.intp], x: NDArray[np.float64], penalty: float
) -> tuple[float, float]:
    """Intercept and penalised slope by Newton's method with step halving; wins of so many comparisons at each x."""
    features = np.stack([np.ones_like(x), x], axis=1)
    ridge = np.array([0.0, penalty])

    def loss(w: NDArray[np.float64]) -> float:
        z = features @ w
        return float((counts * np.logaddexp(0, z) - wins * z).sum() + 0.5 * ridge @ w**2)

    w, best = np.zeros(2), loss(np.zeros(2))
    for _ in range(_STEPS):
        p = _sigmoid(features @ w)
        gradient = features.T @ (counts * p - wins) + ridge * w
        # A whisper on the diagonal: saturated probabilities would make the matrix singular.
        curvature = (features * (counts * p * (1 - p))[:, None]).T @ features + np.diag(ridge + 1e-12)
        step = np.linalg.solve(curvature, gradient)
        while (tried := loss(w - step)) > best and np.abs(step).max() > 1e-12:
            step = step / 2
        if tried > best:
            break
        w, best = w - step, tried
        if np.abs(step).max() < 1e-10:
            break
    return float(w[0]), float(w[1])


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.exp(-np.logaddexp(0, -z))
    return found
