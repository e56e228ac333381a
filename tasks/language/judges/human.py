"""Verdicts of people, from a file: prompt, two answers, and which of them is better."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tasks.errors import UserError, shown
from tasks.language.dialogue import Prompt, spoken
from tasks.language.examples import prompt_of, text_of
from tasks.language.judges.protocol import write
from tasks.language.readers import Row

SHARES = {"first": 1.0, "second": 0.0, "tie": 0.5}
"""What may stand in the verdict column -> the first answer's share."""
FILE = "verdicts.jsonl"


class Human:
    """Looks a pair up by its texts, spacing aside, in either order. Several verdicts on a pair count by their mean."""

    name = "human"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._shares: dict[tuple[str, str, str], list[float]] = {}
        for line in (folder / FILE).read_bytes().decode("utf-8").split("\n"):
            if not line:
                continue
            row = json.loads(line)
            self._add(row["prompt"], row["first"], row["second"], SHARES[row["verdict"]])
        self._unjudged: dict[tuple[str, str, str], None] = {}

    def prefer(self, prompts: Sequence[Prompt], first: Sequence[str], second: Sequence[str]) -> list[float | None]:
        """The people's share of the first answer; None for a pair that nobody has judged."""
        found: list[float | None] = []
        for prompt, one, other in zip(prompts, first, second, strict=True):
            shares = self._shares.get(_key(prompt, one, other))
            found.append(sum(shares) / len(shares) if shares else None)
            if not shares and _key(prompt, other, one) not in self._unjudged:
                self._unjudged[_key(prompt, one, other)] = None
        return found

    def counts(self) -> dict[str, int]:
        """How many different pairs nobody has judged."""
        return {"unjudged": len(self._unjudged)}

    def unjudged(self) -> list[dict[str, str]]:
        """The pairs that nobody has judged, as rows that lack their verdict only."""
        return [dict(zip(("prompt", "first", "second"), key, strict=True)) for key in self._unjudged]

    def _add(self, prompt: Prompt, first: str, second: str, share: float) -> None:
        self._shares.setdefault(_key(prompt, first, second), []).append(share)
        self._shares.setdefault(_key(prompt, second, first), []).append(1 - share)


def keep(rows: Iterable[Row], folder: Path) -> int:
    """Write a human judge to `folder`; returns the number of verdicts.

    Raises UserError that names the row for an empty cell or another verdict than first, second or tie, and where there
    is no verdict at all.
    """
    lines = []
    for row in rows:
        kept: dict[str, Any] = {
            "prompt": prompt_of(row),
            "first": text_of(row, "first"),
            "second": text_of(row, "second"),
        }
        for column, value in kept.items():
            if not value:
                raise UserError(f"{row.where}: {column} is {shown(row.values[column])}, expected text")
        kept["verdict"] = text_of(row, "verdict")
        if kept["verdict"] not in SHARES:
            given = shown(row.values["verdict"])
            raise UserError(f"{row.where}: verdict is {given}, expected one of {', '.join(SHARES)}")
        lines.append(json.dumps(kept, ensure_ascii=False) + "\n")
    if not lines:
        raise UserError("corpus.judge.verdicts: holds no row, expected prompt, first, second and verdict")
    write(folder, {"kind": "human"})
    (folder / FILE).write_text("".join(lines), encoding="utf-8", newline="\n")
    return len(lines)


def _key(prompt: Prompt, first: str, second: str) -> tuple[str, str, str]:
    one, other, third = (" ".join(text.split()) for text in (spoken(prompt), first, second))
    return one, other, third
