"""Preference pairs from the scores of the K answers to one prompt: who meets whom.

Higher scores are better. A pair is two indices (better, worse); a strategy proposes pairs of answers of equal score
too, so that whoever takes them can count ties. Ranks: highest score first, of equal scores the first answer first.
Errors everywhere: ValueError for fewer than two scores and for a score that is not finite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np

Pairs = list[tuple[int, int]]


def best_against_worst(scores: Sequence[float]) -> Pairs:
    """The answer with the highest score against the one with the lowest; of equal scores the first answer is taken."""
    _check(scores)
    best = max(range(len(scores)), key=scores.__getitem__)
    worst = min(range(len(scores)), key=scores.__getitem__)
    return [(best, worst)]


def top_against_bottom(scores: Sequence[float], *, k: int) -> Pairs:
    """Each of the k best answers against each of the k worst: k^2 pairs, the widest ranks first.

    Errors: ValueError unless 1 <= k <= K/2, where an answer would be on both sides.
    """
    order = ranks(scores)
    if not 1 <= k <= len(order) // 2:
        raise ValueError(f"k is {k}, expected 1 to {len(order) // 2}, half of {len(order)} answers")
    return [(better, worse) for better in order[:k] for worse in reversed(order[-k:])]


def every_pair(scores: Sequence[float]) -> Pairs:
    """All K (K-1) / 2 pairs, by the rank of the better answer, then of the worse.

    Source: Ouyang et al. 2022 (arXiv 2203.02155), section 3.5.
    """
    order = ranks(scores)
    return [(better, worse) for place, better in enumerate(order) for worse in order[place + 1 :]]


def best_against_random(scores: Sequence[float], *, rng: np.random.Generator) -> Pairs:
    """The best answer against one of the others, each with probability 1 / (K-1).

    The draw is a rank, so that the order in which the answers stand decides nothing but ties.
    """
    order = ranks(scores)
    return [(order[0], order[1 + int(rng.integers(len(order) - 1))])]


def adjacent_ranks(scores: Sequence[float]) -> Pairs:
    """Each answer against the next in rank: K-1 pairs, the hardest there are."""
    order = ranks(scores)
    return list(itertools.pairwise(order))


def ranks(scores: Sequence[float]) -> list[int]:
    """Indices of the answers, highest score first; of equal scores the first answer first."""
    _check(scores)
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def pair_count(k: int) -> int:
    """Pairs that k answers make: k (k-1) / 2. Source: Ouyang et al. 2022 (arXiv 2203.02155), section 3.5.

    Errors: ValueError for a negative k.
    """
    if k < 0:
        raise ValueError(f"k is {k}, expected at least 0")
    return k * (k - 1) // 2


def ngram_overlap(first: Sequence[Hashable], second: Sequence[Hashable], *, n: int) -> float:
    """How near two texts are to each other: the Jaccard index |A and B| / |A or B| of their sets of n-grams, in [0, 1].

    A text of fewer than n words is one gram. Two empty texts are the same: 1.
    Source: the measure that near-duplicate search estimates, Broder 1997, "On the resemblance and containment of
    documents", section 2. Errors: ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    a, b = (
        {tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))} if words else set()
        for words in (first, second)
    )
    return len(a & b) / len(a | b) if a or b else 1.0


def _check(scores: Sequence[float]) -> None:
    if len(scores) < 2:
        raise ValueError(f"{len(scores)} answer(s) make no pair, expected at least 2")
    if not all(math.isfinite(score) for score in scores):
        raise ValueError(f"scores {list(scores)}, expected finite numbers")
