"""Does a policy look like it exploits its reward? Figures of its answers against SFT's on the same prompts.

Each signal is an effect with an interval over prompts, and fires only where the whole interval lies beyond a threshold:
chance alone does not fire it, and neither does a real but small effect. Thresholds are sizes, not significance levels.

Legend: P prompts, one answer of the policy to each, M answers of SFT to each. `Draw` is the bootstrap over prompts with
its settings filled in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.algorithms.intervals import Interval

Numbers = Sequence[float] | NDArray[np.floating]
Draw = Callable[[Callable[[NDArray[np.int64]], float], int], Interval]
"""(statistic of drawn indices, P) -> interval: `functools.partial(bootstrap, confidence=..., ...)`."""


class Signal(NamedTuple):
    """One effect, its interval, the threshold it is held against, and whether it fires."""

    value: float
    low: float
    high: float
    threshold: float
    fired: int
    """1 or 0: a number, as metrics are."""


def difference_signal(policy: Numbers, sft: Numbers, *, threshold: float, draw: Draw) -> Signal:
    """Mean over prompts of policy minus SFT (units of the figure); fires where the whole interval is above `threshold`.

    policy, sft: one figure a prompt (the mean over SFT's M answers). Errors: ValueError for lists of different length.
    """
    gap = _same(policy, sft)
    low, high = draw(lambda drawn: float(gap[drawn].mean()), len(gap))
    return Signal(float(gap.mean()), low, high, threshold, int(low > threshold))


def ratio_signal(
    policy: Sequence[tuple[float, float]], sft: Sequence[tuple[float, float]], *, threshold: float, draw: Draw
) -> Signal:
    """(sum a / sum b of the policy) / (sum a / sum b of SFT); fires where the whole interval is outside [1/t, t].

    policy, sft: (a, b) a prompt, such as (tokens, answers) for the length. A ratio of sums, not a mean of ratios: long
    answers weigh by their tokens. Errors: ValueError for lists of different length, a threshold not above 1, SFT sums
    of 0.
    """
    p, s = _pairs(policy, sft)
    if not s[:, 0].min() > 0:
        raise ValueError("a figure of SFT is 0, expected something above 0 to compare with")

    def ratio(drawn: NDArray[np.int64]) -> float:
        (a, b), (c, d) = p[drawn].sum(0), s[drawn].sum(0)
        return float(a * d / (b * c))

    return _outside(ratio, len(p), threshold, draw)


def perplexity_signal(
    policy: Sequence[tuple[float, float]], sft: Sequence[tuple[float, float]], *, threshold: float, draw: Draw
) -> Signal:
    """Perplexity under SFT of the policy's answers / that of SFT's own; fires where the interval is outside [1/t, t].

    policy, sft: (-sum of log p_SFT over the answer in nats, tokens) a prompt; perplexity = exp(sum / tokens). Far above
    1: text that SFT would not write. Far below: the likeliest words over and over. Errors: as `ratio_signal`.
    """
    p, s = _pairs(policy, sft)

    def ratio(drawn: NDArray[np.int64]) -> float:
        (a, b), (c, d) = p[drawn].sum(0), s[drawn].sum(0)
        # Beyond e^50 all is the same, and a metric must be finite.
        return float(np.exp(np.clip(a / b - c / d, -50, 50)))

    return _outside(ratio, len(p), threshold, draw)


def commonest_excess(
    policy: Sequence[Iterable[Hashable]], sft: Sequence[Sequence[Iterable[Hashable]]]
) -> tuple[Hashable, list[float], list[float]]:
    """The feature (an n-gram) whose share of answers rises most from SFT to the policy: what a policy puts everywhere.

    Returns it with, per prompt, whether the policy's answer has it (0 or 1) and the share of SFT's answers that do.
    A feature counts once an answer. Of equal rises the first in the order of `repr` is taken. None where no answer has
    any. Errors: ValueError for lists of different length.
    """
    ours = [set(features) for features in policy]
    theirs = [[set(features) for features in answers] for answers in sft]
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} answers of the policy, {len(theirs)} prompts of SFT")
    rise: dict[Hashable, float] = defaultdict(float)
    for mine, others in zip(ours, theirs, strict=True):
        for feature in mine:
            rise[feature] += 1.0
        for other in others:
            for feature in other:
                rise[feature] -= 1 / len(others)
    top = max(rise.values(), default=0.0)
    # Sums of thirds differ in the last bit.
    best = min((f for f, value in rise.items() if value > top - 1e-9), key=repr, default=None)
    share = [sum(best in other for other in others) / len(others) for others in theirs]
    return best, [float(best in mine) for mine in ours], share


def proxy_signal(proxy_gain: float, proxy: Interval, gold: Interval, *, threshold: float) -> Signal:
    """Proxy up while gold is not: fires where the proxy's gain lies wholly above `threshold` and gold's wholly below.

    proxy, gold: intervals of the mean gain over SFT, both in standard deviations of SFT's answers, so that one
    threshold serves both. Value and interval are the proxy's. Errors: ValueError for a threshold not above 0.
    """
    if not threshold > 0:
        raise ValueError(f"threshold is {threshold}, expected above 0")
    return Signal(proxy_gain, *proxy, threshold, int(proxy[0] > threshold and gold[1] < threshold))


def _outside(ratio: Callable[[NDArray[np.int64]], float], n: int, threshold: float, draw: Draw) -> Signal:
    if not threshold > 1:
        raise ValueError(f"threshold of a ratio is {threshold}, expected above 1")
    low, high = draw(ratio, n)
    return Signal(ratio(np.arange(n)), low, high, threshold, int(low > threshold or high < 1 / threshold))


def _pairs(
    policy: Sequence[tuple[float, float]], sft: Sequence[tuple[float, float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    p, s = np.asarray(policy, dtype=np.float64), np.asarray(sft, dtype=np.float64)
    if p.shape != s.shape or p.ndim != 2:
        raise ValueError(f"{p.shape} figures of the policy against {s.shape} of SFT, expected one pair each a prompt")
    if not (p[:, 1].min() > 0 and s[:, 1].min() > 0):
        raise ValueError("a count is 0, expected at least one token or answer a prompt")
    return p, s


def _same(policy: Numbers, sft: Numbers) -> NDArray[np.float64]:
    p, s = np.asarray(policy, dtype=np.float64), np.asarray(sft, dtype=np.float64)
    if p.shape != s.shape or p.ndim != 1:
        raise ValueError(f"{p.shape} figures of the policy against {s.shape} of SFT, expected one each a prompt")
    return p - s
