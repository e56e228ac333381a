"""Simulated annotators whose ratings scatter around a mean as people's do.

Legend: G groups of texts with about the same mean rating, R levels of the rating scale. The spread of real ratings is a
table: `means` [G], ascending, and `shares` [G, R], how the ratings of a group's texts distribute over `levels` [R].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rating_spread(ratings: Sequence[Sequence[int]], *, groups: int) -> tuple[list[int], list[float], list[list[float]]]:
    """Levels, means and shares of real ratings: texts sorted by their mean rating, cut into `groups` of equal size.

    ratings[i]: the individual ratings of text i. Each text weighs alike, however many people rated it, and a group's
    mean is the mean of its shares. Conditioning on the mean keeps what a pooled deviation would lose: people agree more
    on extreme texts, and ratings end where the scale ends.
    Errors: ValueError for fewer texts than groups, or for no group.
    """
    if not 1 <= groups <= len(ratings):
        raise ValueError(f"{len(ratings)} rated texts for {groups} groups, expected at least one text for each")
    levels = sorted({rating for text in ratings for rating in text})
    shares = np.array([[text.count(level) / len(text) for level in levels] for text in map(list, ratings)])
    order = np.argsort(shares @ levels, kind="stable")
    table = np.stack([shares[part].mean(0) for part in np.array_split(order, groups)])
    return levels, (table @ levels).tolist(), table.tolist()


def simulated_rating(
    mean: float,
    uniform: float,
    *,
    levels: Sequence[int],
    means: Sequence[float],
    shares: Sequence[Sequence[float]],
) -> int:
    """One annotator's rating of a text that people rate `mean` on average.

    P(r | mean) is interpolated linearly between the two groups whose means enclose it, so that its expectation is
    `mean` (a mean beyond the outermost groups counts as theirs); the rating is the quantile of it at `uniform`.
    Shapes: see the legend; mean and uniform scalars. Errors: ValueError for a uniform outside [0, 1).
    """
    if not 0 <= uniform < 1:
        raise ValueError(f"uniform is {uniform}, expected a number in [0, 1)")
    chances = np.array([np.interp(mean, means, column) for column in np.transpose(shares)])
    total = chances.cumsum()
    point = min(uniform * total[-1], np.nextafter(total[-1], 0))  # a uniform near 1 must not round up to the total
    return levels[int(np.searchsorted(total, point, side="right"))]
