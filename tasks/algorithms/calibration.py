"""How much a reward model's probabilities are worth: reliability, calibration error, temperature.

Legend: N pairs; `margins[i]` = r_chosen - r_rejected of pair i, raw. The model says that the answer with the higher
score wins with probability sigmoid(|margin|), its confidence, in [.5, 1]; it is right where the margin is positive.
A margin of 0 says nothing: confidence .5, half right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
COLDEST, HOTTEST = 0.01, 100.0
"""Bounds of a fitted temperature: margins that order no better than chance have their optimum at infinity."""


class Bin(NamedTuple):
    """Pairs of like confidence."""

    confidence: float
    """Their mean confidence."""
    accuracy: float
    """The share in which the model was right."""
    pairs: int


def reliability(margins: Sequence[float], *, bins: int) -> list[Bin]:
    """What was promised and what was kept, by confidence: the diagram's points, bins of equal width over [.5, 1].

    A bin holds its upper end (the last one does; the first holds both ends); empty bins are left out.
    Source: Guo et al. 2017 (arXiv 1706.04599), section 2. Errors: ValueError for no margin, one not finite, bins < 1.
    """
    values = _finite(margins)
    if bins < 1:
        raise ValueError(f"bins is {bins}, expected at least 1")
    confidence = 1 / (1 + np.exp(-np.abs(values)))
    right = np.where(values == 0, 0.5, values > 0)
    place = np.clip(np.ceil((confidence - 0.5) * 2 * bins) - 1, 0, bins - 1)
    found = [place == n for n in range(bins)]
    return [Bin(float(confidence[b].mean()), float(right[b].mean()), int(b.sum())) for b in found if b.any()]


def expected_calibration_error(margins: Sequence[float], *, bins: int) -> float:
    """Mean distance of accuracy from confidence: sum over bins of pairs_b / N * |accuracy_b - confidence_b|.

    Source: Naeini et al. 2015; Guo et al. 2017 (arXiv 1706.04599), equation 3. Errors: those of `reliability`.
    """
    found = reliability(margins, bins=bins)
    return sum(b.pairs * abs(b.accuracy - b.confidence) for b in found) / len(margins)


def log_loss(margins: Sequence[float]) -> float:
    """Mean of -log sigmoid(margin), in nats per pair. Errors: ValueError for no margin or one not finite."""
    return float(np.logaddexp(0, -_finite(margins)).mean())


def temperature(margins: Sequence[float]) -> float:
    """T that makes margin / T most likely: the minimum of the mean of -t log sigmoid(m/T) - (1 - t) log sigmoid(-m/T).

    t = (N + 1) / (N + 2) in place of 1, so that a few pairs that are all ordered rightly do not ask for T = 0.
    In a = 1/T that mean is convex, so the sign of its slope, mean(m (sigmoid(a m) - t)), is bisected.
    T lies in [COLDEST, HOTTEST]. Source: Guo et al. 2017 (arXiv 1706.04599), section 4.2; t: Platt 1999, section 2.2.
    Errors: ValueError for no margin or one not finite.
    """
    values = _finite(margins)
    target = (len(values) + 1) / (len(values) + 2)
    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(64):
        middle = (low + high) / 2
        scaled = np.clip(values / math.exp(middle), -700, 700)
        if (values * (1 / (1 + np.exp(-scaled)) - target)).sum() < 0:  # a larger a, a smaller T, is better still
            high = middle
        else:
            low = middle
    return math.exp((low + high) / 2)


def cross_fitted_temperatures(margins: Sequence[float], folds: Sequence[int]) -> Array:
    """For each pair the temperature fitted on the pairs of all other folds: no pair is measured with one that saw it.

    One fold alone has nothing to be fitted on: temperature 1. Put all pairs of a prompt into one fold.
    Shapes: N margins and N folds; returns [N]. Errors: ValueError for lengths that differ, no margin, one not finite.
    """
    values, place = _finite(margins), np.asarray(folds)
    if place.shape != values.shape:
        raise ValueError(f"{len(folds)} folds for {len(values)} margins")
    found = np.ones(len(values))
    for fold in sorted(set(folds)):
        rest = values[place != fold]
        if len(rest):
            found[place == fold] = temperature(rest.tolist())
    return found


def _finite(margins: Sequence[float]) -> Array:
    values = np.asarray(margins, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"margins of {len(values)} pairs, expected at least one and finite numbers")
    return values
