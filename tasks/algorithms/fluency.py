"""Is the text still text? Counts over token ids that catch collapse: repetition, one word, the same answer always.

Legend: a token list is one answer, without padding; an n-gram is n neighbouring tokens of one answer. All results are
shares in [0, 1]; nothing to count gives 0. Errors: ValueError for n < 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Tokens = Sequence[int]


def distinct_n(token_lists: Sequence[Tokens], n: int) -> float:
    """Diversity of a set of answers: different n-grams / all n-grams, counted over all answers together.

    High is diverse; 1/N for N answers that are all the same. It falls with the amount of text: compare equal amounts.
    Source: Li et al. 2016 (arXiv 1510.03055), section 5.
    """
    grams = [gram for tokens in token_lists for gram in _ngrams(tokens, n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def repetition(tokens: Tokens, n: int) -> float:
    """How far one answer repeats itself: 1 - different n-grams / all n-grams of it. Low is good.

    Source: seq-rep-n of Welleck et al. 2020 (arXiv 1908.04319), equation 8.
    """
    grams = _ngrams(tokens, n)
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def top_token_share(token_lists: Sequence[Tokens]) -> float:
    """Occurrences of the most frequent token / all tokens, over all answers. Near 1: collapsed to one token."""
    counts = Counter(token for tokens in token_lists for token in tokens)
    return max(counts.values()) / counts.total() if counts else 0.0


def _ngrams(tokens: Tokens, n: int) -> list[tuple[int, ...]]:
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
