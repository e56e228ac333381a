"""Who says which of two answers is the better: the judge, a simulated panel, or the votes that a pair brings.

A pair here is a row of the `preferences` artefact; its `votes` are 1 for the chosen answer, -1 for the rejected, 0 for
neither, or None where no one voted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.algorithms.agreement import majority
from tasks.algorithms.pairs import ngram_overlap
from tasks.algorithms.panel import simulated_rating
from tasks.language.dialogue import draw, words

Row = dict[str, Any]
Vote = Callable[[int, int], list[int] | None]
"""Indices of two answers -> the votes on them, positive for the first."""
Annotators = Callable[[str, Sequence[Sequence[int]], Sequence[float]], Vote]
"""(id of a prompt, its answers as token ids, the judge's scores) -> who compares them."""


@dataclass
class Tally:
    """What happens to the pairs on the way."""

    dropped: Counter[str] = field(default_factory=Counter)
    votes: dict[str, list[list[int]]] = field(default_factory=dict)
    """By origin, before ties are dropped: without those people would seem to agree more than they do."""
    turned: Counter[str] = field(default_factory=Counter)
    """Pairs whose majority prefers the side that the judge, or the file, had called rejected."""


def judge_alone(prompt: str, answers: Sequence[Sequence[int]], scores: Sequence[float]) -> Vote:
    """Annotators: no votes."""
    return lambda better, worse: None


def panel(spread: dict[str, Any], size: int, *, seed: int) -> Annotators:
    """Annotators: `size` simulated people, who rate each answer and prefer the one that they rate higher.

    spread: levels, means and shares as `rating_spread` makes them. A person rates an answer once, however many pairs it
    takes part in; the draw depends on seed, prompt, answer and person alone, not on the order of anything.
    """

    def annotators(prompt: str, answers: Sequence[Sequence[int]], scores: Sequence[float]) -> Vote:
        ratings = np.array(
            [
                [
                    simulated_rating(score, draw(seed, "panel", prompt, list(answer), person), **spread)
                    for person in range(size)
                ]
                for answer, score in zip(answers, scores, strict=True)
            ]
        )
        return lambda better, worse: np.sign(ratings[better] - ratings[worse]).tolist()

    return annotators


def labelled(pair: Row, near_duplicate: float, tally: Tally) -> list[Row]:
    """The pair with the majority's choice first; none where its votes tie or its answers are nearly the same.

    near_duplicate: the Jaccard index of the answers' word pairs from which on they are (of characters in an answer
    without a word).
    """
    origin, votes = pair["origin"], pair["votes"]
    if ngram_overlap(*(words(pair[side]) or pair[side] for side in ("chosen", "rejected")), n=2) >= near_duplicate:
        tally.dropped[f"{origin} pairs: near duplicates"] += 1
        return []
    if not votes:
        return [pair]
    tally.votes.setdefault(origin, []).append(votes)
    verdict = majority(votes)
    if verdict == 0:
        tally.dropped[f"{origin} pairs: the votes tie"] += 1
        return []
    if verdict > 0:
        return [pair]
    tally.turned[origin] += 1
    swap = {"chosen": "rejected", "rejected": "chosen"}
    sides = {a + part: pair[b + part] for a, b in swap.items() for part in ("", "_tokens")}
    margin = None if pair["margin"] is None else 0.0  # a margin loss must not ask for the overruled order
    return [pair | sides | {"margin": margin, "votes": [-vote for vote in votes]}]
