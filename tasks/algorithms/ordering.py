"""How well scores order pairs of answers.

Legend: N pairs; `margins[i]` = score of the preferred answer less that of the other, so that positive is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ordered(NamedTuple):
    """Shares of the pairs; what is neither right nor a tie is wrong."""

    accuracy: float
    ties: float
    pairs: int


def ordered(margins: Sequence[float]) -> Ordered:
    """Share of pairs ordered as preferred, ties apart. Errors: ValueError for no pairs."""
    values = np.asarray(margins, dtype=np.float64)
    if not len(values):
        raise ValueError("no pairs: nothing was ordered")
    return Ordered(float((values > 0).mean()), float((values == 0).mean()), len(values))


def ordered_by_gap(margins: Sequence[float], gaps: Sequence[float], *, parts: int) -> dict[int, Ordered]:
    """`ordered` of the pairs whose answers lie close together, and of those further apart: `parts` quantiles of `gaps`.

    A gap at a boundary belongs to the upper part, so that equal gaps stay together. Returns part (0 holds the
    smallest gaps) -> its pairs; an empty part is left out, so of no pairs there is none.
    gaps: how far apart the judge or the raters put a pair's answers.
    Errors: ValueError for lengths that differ or parts < 1.
    """
    if len(margins) != len(gaps) or parts < 1:
        raise ValueError(f"{len(margins)} margins, {len(gaps)} gaps, {parts} parts: expected as many gaps, and a part")
    values, apart = np.asarray(margins, dtype=np.float64), np.asarray(gaps, dtype=np.float64)
    if not len(apart):
        return {}
    place = np.digitize(apart, np.quantile(apart, [n / parts for n in range(1, parts)]))
    return {n: ordered(values[place == n].tolist()) for n in range(parts) if (place == n).any()}
