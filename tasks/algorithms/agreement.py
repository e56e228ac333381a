"""How far several annotators of the same items agree, on a nominal scale.

Legend: N items (pairs of answers), C categories. `counts` [N, C]: how many annotators put item i into category c.
Items with fewer than two annotators say nothing of agreement and are left out. All results are at most 1 (perfect
agreement); 0 is what chance alone gives, except for the raw agreement, a share in [0, 1]. Where every vote falls into
one category the chance-corrected ones are 0/0: NaN.
Errors everywhere: ValueError where no item has two annotators.

Written out here, since no light library has them all: scikit-learn has Cohen's kappa only, and statsmodels, which has
the kappas, brings a stack of packages. The tests hold these functions against both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def majority(votes: Sequence[int]) -> int:
    """1 where more votes are positive than negative, -1 where fewer, 0 for a tie; a vote of 0 counts for neither."""
    return int(np.sign(np.sign(np.asarray(votes, dtype=int)).sum()))


def raw_agreement(counts: ArrayLike) -> float:
    """Share of the pairs of annotators who agree, averaged over items: mean_i sum_c n_ic (n_ic - 1) / (n_i (n_i - 1)).

    Source: P of Fleiss 1971 (see `fleiss_kappa`); with two annotators the share of items on which they agree.
    """
    n = _counted(counts)
    raters = n.sum(1)
    return float(((n * (n - 1)).sum(1) / (raters * (raters - 1))).mean())


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Two annotators: (p_o - p_e) / (1 - p_e), p_o the share of items they agree on, p_e = sum_c p_1c p_2c.

    Each annotator's own shares p_1c and p_2c make the chance. `first[i]` and `second[i]` are their labels of item i.
    Source: Cohen 1960, "A coefficient of agreement for nominal scales", equation 1. Errors: ValueError for no item or
    lists of different lengths.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} labels, expected equally many and at least one")
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / len(first)
    chance = sum(first.count(c) * second.count(c) for c in set(first)) / len(first) ** 2
    return (observed - chance) / (1 - chance) if chance < 1 else math.nan


def fleiss_kappa(counts: ArrayLike) -> float:
    """Any fixed number of annotators: (P - P_e) / (1 - P_e), P the raw agreement, P_e = sum_c p_c^2.

    p_c is category c's share of all votes. The annotators need not be the same people for each item.
    Source: Fleiss 1971, "Measuring nominal scale agreement among many raters", Psychological Bulletin 76.
    Errors: ValueError for items with different numbers of annotators: for those Krippendorff's alpha is defined.
    """
    n = _counted(counts)
    if len(set(n.sum(1).tolist())) > 1:
        raise ValueError("items with different numbers of annotators, expected the same number for each")
    chance = float(((n.sum(0) / n.sum()) ** 2).sum())
    return (raw_agreement(n) - chance) / (1 - chance) if chance < 1 else math.nan


def krippendorff_alpha(counts: ArrayLike) -> float:
    """Any numbers of annotators, nominal scale: 1 - D_o / D_e, observed over expected disagreement.

    D_o = sum_i sum_{c != k} n_ic n_ik / (n_i - 1) / n and D_e = sum_{c != k} n_c n_k / (n (n - 1)), n votes in all.
    Source: Krippendorff 2011, "Computing Krippendorff's alpha-reliability", section C. With a fixed number of
    annotators 1 - alpha = (1 - Fleiss' kappa) (1 - 1/n).
    """
    n = _counted(counts)
    raters, total, categories = n.sum(1), n.sum(), n.sum(0)
    observed = ((raters**2 - (n**2).sum(1)) / (raters - 1)).sum() / total
    expected = (total**2 - (categories**2).sum()) / (total * (total - 1))
    return float(1 - observed / expected) if expected > 0 else math.nan


def vote_agreement(votes: Sequence[Sequence[int]]) -> dict[str, float]:
    """How far votes on pairs agree: raw agreement, Krippendorff's alpha, Fleiss' kappa, for two voters Cohen's kappa.

    votes[i]: the votes on pair i, positive for its first side, negative for its second, 0 for neither; pairs with fewer
    than two are left out. Each pair is counted both ways round (`vote_counts`). Fleiss' kappa is that of every pair's
    first m votes, m the fewest. A figure that is 0/0 is left out; without a pair there is none at all.
    """
    used = [list(pair) for pair in votes if len(pair) >= 2]
    if not used:
        return {}
    fewest, most = min(map(len, used)), max(map(len, used))
    counts = vote_counts(used)
    found = {
        "pairs": len(used),
        "votes_fewest": fewest,
        "votes_most": most,
        "raw": raw_agreement(counts),
        "krippendorff": krippendorff_alpha(counts),
        "fleiss": fleiss_kappa(vote_counts([pair[:fewest] for pair in used])),
    }
    if most == 2:
        one, other = ([int(np.sign(pair[k])) for pair in used] for k in (0, 1))
        found["cohen"] = cohen_kappa([*one, *(-v for v in one)], [*other, *(-v for v in other)])
    return {name: figure for name, figure in found.items() if math.isfinite(figure)}


def vote_counts(votes: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Counts [2N, 3] of votes for the second side (negative), neither (0) and the first (positive) of N pairs.

    A pair's sides have no name of their own: each pair stands in the table both ways round, as it is and with its votes
    turned. Else it would matter which side is called the first; and as the sides are called after the majority (chosen,
    rejected), nearly all votes would fall into one category, and chance would explain the agreement away.
    """
    rows = [[sum(v < 0 for v in pair), sum(v == 0 for v in pair), sum(v > 0 for v in pair)] for pair in votes]
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return np.concatenate([table, table[:, ::-1]])


def _counted(counts: ArrayLike) -> NDArray[np.float64]:
    """The items that have at least two annotators."""
    n = np.asarray(counts, dtype=np.float64)
    n = n[n.sum(1) >= 2] if n.ndim == 2 else n[:0]
    if not len(n):
        raise ValueError("no item has two annotators, so there is no agreement to measure")
    return n
