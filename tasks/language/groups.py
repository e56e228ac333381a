"""What a reward model learns from: rankings of answers, all those of a prompt together, each answer encoded once.

A preference pair is a ranking of two answers. Legend: A answers of a micro-batch, R rankings of them, K answers of the
longest ranking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tasks.errors import UserError
from tasks.language.batches import Completion


@dataclass(frozen=True)
class Ranking:
    """Answers to one prompt with what puts them in order."""

    answers: list[Completion]
    gold: list[float]
    """Higher is better; equal numbers: not known which."""
    gap: float | None
    """How far apart the judge or the raters put a pair's answers, where that is known."""
    origin: str


@dataclass(frozen=True)
class Group:
    """The rankings of one prompt and their answers, each once."""

    answers: list[Completion]
    rankings: list[Ranking]
    places: list[list[int]]
    """For each ranking, where its answers stand in `answers`."""

    def __len__(self) -> int:
        return max(map(len, self.answers))


class Table(NamedTuple):
    """Rankings of a micro-batch, padded."""

    scores: Tensor
    """[R, K]"""
    gold: Tensor
    """[R, K]"""
    mask: Tensor
    """[R, K], True where an answer stands."""
    gap: Tensor
    """[R], NaN where it is not known."""


def pair_rankings(rows: Iterable[Mapping[str, Any]]) -> list[Ranking]:
    """Rows of `pairs.jsonl` as rankings of two, the chosen answer first."""
    return [
        Ranking(
            [Completion(row["prompt_tokens"], row[f"{side}_tokens"]) for side in ("chosen", "rejected")],
            [1.0, 0.0],
            row["margin"],
            row["origin"],
        )
        for row in rows
    ]


def answer_rankings(rows: Iterable[Mapping[str, Any]]) -> list[Ranking]:
    """Rows of `ranked.jsonl`, each answer that was sampled twice taken once; what then has no order is left out."""
    found = []
    for row in rows:
        scores = {tuple(answer["tokens"]): float(answer["score"]) for answer in row["answers"]}
        if len(set(scores.values())) > 1:
            answers = [Completion(row["prompt_tokens"], list(tokens)) for tokens in scores]
            found.append(Ranking(answers, list(scores.values()), None, row["origin"]))
    return found


def grouped(rankings: Sequence[Ranking]) -> list[Group]:
    """All rankings of a prompt in one group, in order of first appearance. Without a prompt each stands for itself."""
    members: dict[Any, list[Ranking]] = {}
    for number, ranking in enumerate(rankings):
        members.setdefault(tuple(ranking.answers[0].prompt) or number, []).append(ranking)
    groups = []
    for found in members.values():
        place: dict[tuple[int, ...], int] = {}
        places = [[place.setdefault(tuple(a.answer), len(place)) for a in ranking.answers] for ranking in found]
        answers = [Completion(found[0].answers[0].prompt, list(tokens)) for tokens in place]
        groups.append(Group(answers, found, places))
    return groups


def unseen(groups: Sequence[Group], training: Sequence[Group]) -> list[Group]:
    """The groups whose prompt occurs in no training group; without a prompt, whose answers occur in none."""
    seen = {key for group in training for key in _keys(group)}
    return [group for group in groups if seen.isdisjoint(_keys(group))]


def packed(groups: Sequence[Group], size: int) -> Iterator[list[int]]:
    """Indices of groups whose answers fit together into one forward pass of `size` sequences, longest groups first.

    A group stays whole, as its rankings need all its scores at once. Raises UserError for a group larger than `size`.
    """
    order = sorted(range(len(groups)), key=lambda i: (-len(groups[i]), i))
    part: list[int] = []
    for i in order:
        answers = len(groups[i].answers)
        if answers > size:
            raise UserError(
                f"a prompt has {answers} answers in its pairs and rankings, which are scored together:"
                f" reward.optimiser.micro_batch is {size}, expected at least {answers}"
            )
        if sum(len(groups[j].answers) for j in part) + answers > size:
            yield part
            part = []
        part.append(i)
    if part:
        yield part


def table(groups: Sequence[Group], scores: Tensor) -> Table:
    """The scores [A] of the groups' answers, group after group, spread over their rankings; gradients flow back."""
    places, gold, gaps, start = [], [], [], 0
    for group in groups:
        for ranking, own in zip(group.rankings, group.places, strict=True):
            places.append([start + place for place in own])
            gold.append(ranking.gold)
            gaps.append(torch.nan if ranking.gap is None else ranking.gap)
        start += len(group.answers)
    longest = max(map(len, places))
    index = torch.tensor([own + [0] * (longest - len(own)) for own in places], device=scores.device)
    mask = torch.tensor([[n < len(own) for n in range(longest)] for own in places], device=scores.device)
    level = scores.new_tensor([own + [0.0] * (longest - len(own)) for own in gold])
    return Table(scores[index], level, mask, scores.new_tensor(gaps))


def _keys(group: Group) -> list[tuple[int, ...]]:
    prompt = tuple(group.answers[0].prompt)
    # The leading number keeps a prompt apart from an answer of the same ids.
    return [(0, *prompt)] if prompt else [(1, *a.answer) for a in group.answers]
