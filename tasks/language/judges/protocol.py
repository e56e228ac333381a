"""What a judge can do, and the file that says which one a folder holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks.language.dialogue import Prompt


class Pointwise(Protocol):
    """Scores one answer at a time, so it has a gold reward; of two answers it prefers the one that scores higher."""

    name: str

    def score(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[float]:
        """One finite number per answer, higher is better."""
        ...


class Pairwise(Protocol):
    """Compares two answers to one prompt and has no scale, so no gold reward."""

    name: str

    def prefer(self, prompts: Sequence[Prompt], first: Sequence[str], second: Sequence[str]) -> list[float | None]:
        """Per prompt the share of the answer shown first: 1 preferred, 1/2 tie, 0 not. None: no verdict is known."""
        ...

    def counts(self) -> dict[str, int]:
        """What the verdicts so far were like, by name. The same for the same questions: it goes into metrics."""
        ...


Judge = Pointwise | Pairwise


def write(folder: Path, settings: dict[str, Any]) -> None:
    """Write `judge.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(settings, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n"
    (folder / "judge.json").write_text(text, encoding="utf-8", newline="\n")
