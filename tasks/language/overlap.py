"""Keeping held-out prompts out of training, both as they stand and nearly so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tasks.errors import UserError, shown
from tasks.language.dialogue import words
from tasks.language.examples import Dropped, Example


class HeldOut:
    """The held-out prompts, and the runs of `length` consecutive words of their texts (a shorter text is one run).

    A run found in more than a twentieth of the texts (and in three at least) is the frame that a data set puts around
    every prompt, not a leak: without this rule one instruction in front of all rows would empty the training data.
    """

    def __init__(self, examples: Sequence[Example], length: int) -> None:
        self._length = length
        self._prompts = {example.said for example in examples}
        each = [self._runs(example.text) for example in examples]
        counts = Counter(run for runs in each for run in runs)
        limit = max(3, len(each) // 20)
        self._seen = {run for run, count in counts.items() if count < limit}

    def shares(self, text: str) -> bool:
        """Whether `text` has a run of words in common with a held-out text."""
        return not self._seen.isdisjoint(self._runs(text))

    def apart(self, found: Iterable[Example], kind: str, dropped: Dropped) -> list[Example]:
        """The examples that may be trained on; the others are counted."""
        kept = []
        for example in found:
            if example.prompt and example.said in self._prompts:
                dropped.add(kind, "prompt is held out", first=_place(example))
            elif self.shares(example.text):
                dropped.add(kind, "overlaps a held-out text", first=_place(example))
            else:
                kept.append(example)
        return kept

    def _runs(self, text: str) -> set[tuple[str, ...]]:
        found = words(text)
        if len(found) <= self._length:
            return {found} if found else set()
        return {found[i : i + self._length] for i in range(len(found) - self._length + 1)}


def _place(example: Example) -> str:
    return f"{example.where}: {shown(example.text)}"


def distinct(found: Iterable[Example]) -> list[Example]:
    """The first example of each prompt."""
    first: dict[str, Example] = {}
    for example in found:
        first.setdefault(example.said, example)
    return list(first.values())


def refuse_leak(held_out: Sequence[Example], training: Iterable[Example]) -> None:
    """Raise UserError that names the rows where a prompt of the user's held-out table is also trained on."""
    trained = {example.said: example.where for example in training if example.prompt}
    both = [example for example in held_out if example.said in trained]
    if both:
        raise UserError(
            f"{both[0].where}: the held-out prompt {both[0].said[:60]!r} occurs in training ({trained[both[0].said]}); "
            f"{len(both)} of {len(held_out)} do: take them out of one of the two"
        )
