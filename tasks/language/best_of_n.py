"""Best-of-n of the SFT policy from its sampled candidates: chosen by the reward model, judged by the judge."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.algorithms.best_of_n import best_of_n_weights, first_best_weights
from tasks.language import judge

_Row = Mapping[str, Any]


@dataclass(frozen=True)
class BestOfN:
    """What choosing the best of n gives, over the prompts that have candidates."""

    figures: dict[str, float]
    """Means over prompts: proxy, length in tokens, and gold where the judge has scores."""
    wins: list[float | None]
    """By prompt the mean share against the prompt's baseline answers; None without a verdict."""


def best_of_n(gold: judge.Judge, rows: Sequence[_Row], n: int) -> BestOfN:
    """rows: of the baseline, every answer with its `proxy`, and with `gold` where the judge has scores.

    With scores: the mean over all subsets of n candidates, the unbiased estimator. Else only the best of the first n is
    judged, since every question counts.
    """
    chosen = [row for row in rows if row["candidates"]]
    weigh = best_of_n_weights if judge.has_scores(gold) else first_best_weights
    weights = [weigh([c["proxy"] for c in row["candidates"]], n=n) for row in chosen]

    def expected(figure: Callable[[_Row, _Row], float]) -> list[float]:
        return [
            sum(w * figure(row, c) for w, c in zip(ws, row["candidates"], strict=True) if w)
            for ws, row in zip(weights, chosen, strict=True)
        ]

    found = {"proxy": expected(lambda _, c: c["proxy"]), "length": expected(lambda _, c: len(c["tokens"]))}
    if judge.has_scores(gold):
        found["gold"] = expected(lambda _, c: c["gold"])
        wins: list[float | None] = [*expected(_share)]
    else:
        wins = _asked(gold, weights, chosen)
    return BestOfN({name: sum(values) / len(values) for name, values in found.items()}, wins)


def _share(row: _Row, candidate: _Row) -> float:
    """Mean share of a candidate against the prompt's baseline answers, by gold reward."""
    return sum(judge.by_score(candidate["gold"], a["gold"]) for a in row["answers"]) / len(row["answers"])


def _asked(gold: judge.Judge, weights: list[list[float]], chosen: Sequence[_Row]) -> list[float | None]:
    """The same for the candidate of weight 1, by asking."""
    pairs = [
        (row["prompt"], row["candidates"][ws.index(1.0)]["text"], a["text"])
        for ws, row in zip(weights, chosen, strict=True)
        for a in row["answers"]
    ]
    prompts, best, others = (list(side) for side in zip(*pairs, strict=True))
    outcomes = iter(judge.compare(gold, prompts, best, others).outcomes)
    known = [[o for o in itertools.islice(outcomes, len(row["answers"])) if o is not None] for row in chosen]
    return [sum(found) / len(found) if found else None for found in known]
