"""Preference pairs as two completions each, from the `preferences` artefact."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import UserError
from tasks.language.batches import Completion


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, the first preferred."""

    chosen: Completion
    rejected: Completion
    origin: str

    def __len__(self) -> int:
        return max(len(self.chosen), len(self.rejected))


def select(rows: Sequence[Mapping[str, Any]], *, split: str, origins: Collection[str]) -> list[Pair]:
    """The pairs of one split that come from `origins`, in file order."""
    return [
        Pair(
            Completion(row["prompt_tokens"], row["chosen_tokens"]),
            Completion(row["prompt_tokens"], row["rejected_tokens"]),
            row["origin"],
        )
        for row in rows
        if row["split"] == split and row["origin"] in origins
    ]


def interleaved(pairs: Sequence[Pair]) -> list[Completion]:
    """Chosen, rejected, chosen, rejected, ..."""
    return [side for pair in pairs for side in (pair.chosen, pair.rejected)]


def mismatched(pairs: Sequence[Pair]) -> list[Completion]:
    """Per pair its prompt with the two answers of the next pair, in a circle, that has another prompt.

    A function of the data alone, not of the batches, so that their reference log-probabilities can be kept.
    Raises UserError where all pairs have one prompt.
    """
    found = []
    for i, pair in enumerate(pairs):
        rest = (pairs[(i + step) % len(pairs)] for step in range(1, len(pairs)))
        other = next((p for p in rest if p.chosen.prompt != pair.chosen.prompt), None)
        if other is None:
            raise UserError("all pairs have one prompt: a loss with a KL baseline (kto) needs answers to other prompts")
        found += [Completion(pair.chosen.prompt, side.answer) for side in (other.chosen, other.rejected)]
    return found
