"""Which texts share a run of words with the held-out ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""A run of letters and digits; in Chinese and Japanese, which put no space between words, each character."""


def words(text: str) -> tuple[str, ...]:
    """Lower-case words; punctuation and spacing make no difference."""
    return tuple(_WORD.findall(text.lower()))


class HeldOut:
    """The runs of `length` consecutive words of the held-out texts; a shorter text counts as one run, whole.

    A run found in more than a twentieth of the texts (and in three at least) is the frame that a data set puts around
    every prompt, not a leak: without this rule one instruction in front of all rows would empty the training data.
    """

    def __init__(self, texts: Iterable[str], length: int) -> None:
        self._length = length
        each = [self._runs(text) for text in texts]
        counts = Counter(run for runs in each for run in runs)
        limit = max(3, len(each) // 20)
        self._seen = {run for run, count in counts.items() if count < limit}

    def shares(self, text: str) -> bool:
        """Whether `text` has a run of words in common with a held-out text."""
        return not self._seen.isdisjoint(self._runs(text))

    def _runs(self, text: str) -> set[tuple[str, ...]]:
        found = words(text)
        if len(found) <= self._length:
            return {found} if found else set()
        return {found[i : i + self._length] for i in range(len(found) - self._length + 1)}
