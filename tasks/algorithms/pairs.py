"""Preference pairs from the scores of K answers to one prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence


def best_against_worst(scores: Sequence[float], *, margin: float) -> tuple[int, int] | None:
    """Indices (best, worst) of the answers with the highest and the lowest score, higher is better.

    Of equal scores the first answer is taken, so the result depends on nothing but the scores. None for a tie, and
    where the two differ by less than `margin` (units of the scores).
    Errors: ValueError for fewer than two scores, a score that is not finite, or a negative margin.
    """
    if len(scores) < 2:
        raise ValueError(f"{len(scores)} answer(s) make no pair, expected at least 2")
    if not all(math.isfinite(score) for score in scores):
        raise ValueError(f"scores {list(scores)}, expected finite numbers")
    if not margin >= 0:
        raise ValueError(f"margin is {margin}, expected at least 0")
    best = max(range(len(scores)), key=scores.__getitem__)
    worst = min(range(len(scores)), key=scores.__getitem__)
    gap = scores[best] - scores[worst]
    return (best, worst) if gap > 0 and gap >= margin else None


def pair_count(k: int) -> int:
    """Pairs that k answers make: k (k-1) / 2. Source: Ouyang et al. 2022 (arXiv 2203.02155), section 3.5.

    Errors: ValueError for a negative k.
    """
    if k < 0:
        raise ValueError(f"k is {k}, expected at least 0")
    return k * (k - 1) // 2
