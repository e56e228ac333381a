"""Win rates of a policy that meets several baseline answers per prompt, and of judges that are asked in both orders.

Legend: P prompts, M baseline answers to each. An outcome is the policy's share of one comparison: 1 won, 1/2 tie,
0 lost, and what lies between where a judge's two orders disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.algorithms.intervals import paired_bootstrap, wilson

Outcomes = Sequence[Sequence[float]] | NDArray[np.floating]
"""[P, M]"""


class WinRate(NamedTuple):
    """A win rate with its two intervals and what they rest on."""

    rate: float
    low: float
    """Wilson's, on the effective number of comparisons."""
    high: float
    bootstrap_low: float
    """Paired bootstrap over prompts."""
    bootstrap_high: float
    prompts: int
    effective: float
    """Independent comparisons that would be as sure."""
    ties: int
    """Comparisons that came out at exactly one half."""


def win_rate_interval(
    outcomes: Outcomes, *, confidence: float, resamples: int, generator: np.random.Generator
) -> WinRate:
    """Mean over prompts of the mean over the prompt's M comparisons, with two intervals.

    Comparisons of one prompt are not independent (they share the prompt and the policy's answer), so Wilson's interval
    is computed on `effective_count`, not on P M. With M = 1 and no ties that is P: Wilson's interval as usual.
    Errors: ValueError for no prompts, rows of unequal length, an outcome outside [0, 1].
    """
    table = _table(outcomes)
    means = table.mean(1)
    rate, effective = float(means.mean()), effective_count(table)
    low, high = wilson(min(rate * effective, effective), effective, confidence=confidence)
    bootstrap = paired_bootstrap(means, confidence=confidence, resamples=resamples, generator=generator)
    return WinRate(rate, low, high, *bootstrap, len(means), effective, int((table == 0.5).sum()))


def effective_count(outcomes: Outcomes) -> float:
    """How many independent 0/1 comparisons have a mean as sure as this one's: p (1 - p) / (s^2 / P).

    p is the mean, s^2 the variance (divisor P) of the prompts' means. Between P and P M where outcomes are 0 or 1: P
    where a prompt's comparisons always agree, P M where they are independent; never above P M. P where p is 0 or 1.
    Source: the effective sample size of Kish 1965, Survey Sampling; in score intervals: Korn and Graubard 1998, Survey
    Methodology 24. Errors: as `win_rate_interval`.
    """
    table = _table(outcomes)
    means = table.mean(1)
    p, variance = float(means.mean()), float(means.var())
    if p in (0.0, 1.0):
        return float(len(means))
    most = float(table.size)
    return most if variance == 0 else min(most, len(means) * p * (1 - p) / variance)


def both_orders(forward: float, backward: float) -> float:
    """Outcome of a comparison that was judged as (a, b) and as (b, a): (forward + 1 - backward) / 2.

    forward, backward: share of whoever was shown first, in [0, 1]. Whatever a judge gives to the place cancels: one
    that always prefers the first gives 1/2. Errors: ValueError for a share outside [0, 1].
    """
    for share in (forward, backward):
        if not 0 <= share <= 1:
            raise ValueError(f"a judge's share is {share}, expected between 0 and 1")
    return (forward + 1 - backward) / 2


def order_agreement(forward: Sequence[float], backward: Sequence[float]) -> float:
    """Share of comparisons with the same verdict in both orders, in [0, 1]: 1 means that the place decides nothing.

    Errors: ValueError for none, or for lists of different length.
    """
    pairs = list(zip(forward, backward, strict=True))
    if not pairs:
        raise ValueError("no comparison, expected at least one")
    return sum(f == 1 - b for f, b in pairs) / len(pairs)


def win_share(outcomes: Outcomes) -> list[float]:
    """Mean outcome [K] of each of K answers against the K - 1 others, from outcomes [K, K] (the diagonal is ignored).

    A ranking of answers by pairwise verdicts: Copeland's rule with ties as one half. The shares have mean 1/2.
    Errors: ValueError for fewer than two answers, a table that is not square or whose two triangles do not add to 1.
    """
    table = np.asarray(outcomes, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
        raise ValueError(f"shape {table.shape}, expected [K, K] with K of at least 2")
    off = ~np.eye(len(table), dtype=bool)
    if not np.allclose((table + table.T)[off], 1):
        raise ValueError("outcomes of (i, j) and (j, i) do not add up to 1")
    shares: list[float] = (np.where(off, table, 0).sum(1) / (len(table) - 1)).tolist()
    return shares


def probit_gain(rate: float) -> float:
    """The difference of means, in standard deviations of one answer's quality, that gives this win rate.

    sqrt(2) Phi^-1(rate): Thurstone 1927, case V. A rate of 0 or 1 counts as 1e-6 away from it, so the gain is finite.
    Errors: ValueError for a rate outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"win rate is {rate}, expected between 0 and 1")
    return math.sqrt(2) * NormalDist().inv_cdf(min(max(rate, 1e-6), 1 - 1e-6))


def _table(outcomes: Outcomes) -> NDArray[np.float64]:
    rows = [list(row) for row in outcomes]
    if not rows or not rows[0] or len({len(row) for row in rows}) > 1:
        raise ValueError(f"{len(rows)} prompts, expected at least one, each with the same number of comparisons")
    table = np.asarray(rows, dtype=np.float64)
    if not ((table >= 0) & (table <= 1)).all():
        raise ValueError("an outcome lies outside [0, 1]")
    return table
