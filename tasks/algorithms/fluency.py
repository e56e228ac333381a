"""Is the text still text? Counts over token ids that catch collapse: repetition, one word, the same answer always.

Legend: a token list is one answer, without padding; an n-gram is n neighbouring tokens of one answer. All results are
shares in [0, 1]; nothing to count gives 0. Errors: ValueError for n < 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

Tokens = Sequence[int]


class Said(NamedTuple):
    """An answer as ids, whether end-of-sequence is its last, and the sum of its log-probabilities under SFT in nats."""

    tokens: Tokens
    finished: bool
    log_prob: float

    @property
    def words(self) -> Tokens:
        """The ids without end-of-sequence."""
        return self.tokens[:-1] if self.finished else self.tokens


def fluency(answers: Sequence[Said]) -> dict[str, float]:
    """The figures of a set of answers, one a prompt: compare sets of equal size, since diversity falls with size.

    length: mean tokens; finished: share that ends with end-of-sequence; distinct_1, distinct_2, top_token_share: over
    all answers; repetition_2: mean over answers; perplexity_under_sft: exp(-sum of log-probabilities / tokens).
    Errors: ValueError for no answer.
    """
    if not answers:
        raise ValueError("no answer, expected at least one")
    tokens = [said.tokens for said in answers]
    count = sum(map(len, tokens))
    return {
        "length": count / len(tokens),
        "finished": sum(said.finished for said in answers) / len(tokens),
        "distinct_1": distinct_n(tokens, 1),
        "distinct_2": distinct_n(tokens, 2),
        "repetition_2": sum(repetition(t, 2) for t in tokens) / len(tokens),
        "top_token_share": top_token_share(tokens),
        # Beyond e^50 all is the same, and a metric must be finite.
        "perplexity_under_sft": math.exp(min(-sum(said.log_prob for said in answers) / count, 50.0)),
    }


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


def ngram_set(tokens: Tokens, n: int) -> set[tuple[int, ...]]:
    """The different n-grams of one answer, of every length from 1 to n."""
    return {gram for length in range(1, n + 1) for gram in _ngrams(tokens, length)}


def _ngrams(tokens: Tokens, n: int) -> list[tuple[int, ...]]:
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
