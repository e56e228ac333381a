"""Preference pairs as two completions each, from the `preferences` artefact."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
