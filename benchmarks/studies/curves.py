"""Curves of gold reward over the distance d = sqrt(KL) from SFT, and intervals over seeds: numbers in, numbers out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tasks.algorithms.intervals import mean_interval

Points = Sequence[tuple[float, float]]
"""(d, gain)"""


def mean_gain(points: Points, *, limit: float) -> float:
    """Area under the curve of gain over d from 0 to `limit`, divided by `limit`: the mean gain on the way there.

    The curve is the straight lines between the points in the order of d, from (0, 0) on: SFT is at distance 0 and gains
    nothing. Units of the gain. Errors: ValueError for a limit that is not above 0 or beyond the last point, or a
    negative distance.
    """
    d, gain = np.array([(0.0, 0.0), *sorted(points)]).T
    if not 0 < limit <= d[-1] or d[0] < 0 or (d < 0).any():
        raise ValueError(f"distances from {d.min():g} to {d[-1]:g}, expected from 0 on and beyond the limit {limit:g}")
    inside = d < limit
    x, y = np.append(d[inside], limit), np.append(gain[inside], np.interp(limit, d, gain))
    return float(np.trapezoid(y, x)) / limit


def common_range(curves: Sequence[Points]) -> float:
    """The largest d that every curve reaches."""
    return min(max(d for d, _ in points) for points in curves)


def in_order(values: Sequence[float]) -> bool:
    """Whether each value is above the one before."""
    return all(a < b for a, b in itertools.pairwise(values))


def falls_while_rising(gold: Sequence[float], proxy: Sequence[float], *, window: int) -> tuple[int, float, float]:
    """Where the gold reward peaks, how far it has fallen at the end, and how far the proxy has risen since.

    Both are smoothed by the mean of `window` neighbours first, so that the peak is no lucky sample. Returns the index
    of the peak in the smoothed series, gold(peak) - gold(end) and proxy(end) - proxy(peak).
    Errors: ValueError for series of different lengths or shorter than the window.
    """
    if len(gold) != len(proxy) or len(gold) < window:
        raise ValueError(f"{len(gold)} and {len(proxy)} values, expected as many of both and at least {window}")
    kernel = np.ones(window) / window
    smooth_gold, smooth_proxy = (np.convolve(values, kernel, mode="valid") for values in (gold, proxy))
    peak = int(smooth_gold.argmax())
    return peak, float(smooth_gold[peak] - smooth_gold[-1]), float(smooth_proxy[-1] - smooth_proxy[peak])


def shown(values: Sequence[float], *, digits: int = 2, sign: bool = False) -> str:
    """Mean over seeds with Student's 95 % interval, such as "1.20 [0.90, 1.50]"; one value stands alone."""
    form = f"{'+' if sign else ''}.{digits}f"
    text = f"{np.mean(values):{form}}"
    if len(values) < 2:
        return text
    low, high = mean_interval(values, confidence=0.95)
    return f"{text} [{low:{form}}, {high:{form}}]"
