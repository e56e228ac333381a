"""Best of n samples by a reward model: the baseline without training that every policy must beat.

Its KL is analytic: `best_of_n_kl` in tasks/algorithms/kl.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def best_of_n_weights(scores: Sequence[float], *, n: int) -> list[float]:
    """Probability [N] that each of N samples is the best of a random subset of n: the unbiased estimator over n <= N.

    In ascending order of the score, the sample of rank r (from 1) is the best of C(r-1, n-1) of the C(N, n) subsets.
    sum of weight * x is the expected x of best-of-n, for any x (gold reward, length, a win). Samples of equal score
    share their weight equally, so the order of the list decides nothing. n = 1 gives the mean, n = N the maximum.
    Source: Nakano et al. 2021 (arXiv 2112.09332), appendix I; Gao et al. 2022 (arXiv 2210.10760), section 2.
    Errors: ValueError for n outside [1, N], a score that is not finite.
    """
    total = len(scores)
    if not 1 <= n <= total:
        raise ValueError(f"n is {n}, expected between 1 and the number of samples ({total})")
    if not all(math.isfinite(score) for score in scores):
        raise ValueError(f"scores {list(scores)}, expected finite numbers")
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    weights = np.empty(total)
    weights[order] = [math.comb(rank, n - 1) / math.comb(total, n) for rank in range(total)]
    for value in np.unique(values):
        weights[values == value] = weights[values == value].mean()
    found: list[float] = weights.tolist()
    return found


def first_best_weights(scores: Sequence[float], *, n: int) -> list[float]:
    """The plain estimator: weight 1 on the best of the first n samples, 0 elsewhere; of equal scores the first.

    Unbiased too, but noisier: for judges that must be asked about each answer. Errors: as `best_of_n_weights`.
    """
    best_of_n_weights(scores, n=n)
    best = max(range(n), key=scores.__getitem__)
    return [float(i == best) for i in range(len(scores))]
