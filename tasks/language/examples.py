"""Rows under our column names as examples: what is unusable is counted by reason, what is wrong is an error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tasks.errors import UserError
from tasks.language.dialogue import Message, Prompt, key, messages, parted, shown, spoken, words
from tasks.language.readers import Row


@dataclass(frozen=True)
class Example:
    """A prompt with what belongs to it; fields that its kind does not have are None."""

    where: str
    prompt: Prompt
    answer: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    margin: float | None = None
    votes: tuple[int, ...] | None = None
    """What several people said of chosen against rejected: 1 for chosen, -1 for rejected, 0 for neither."""

    @property
    def text(self) -> str:
        """All of it, for the search for overlaps."""
        parts = (self.answer, self.chosen, self.rejected)
        return "\n".join(spoken(self.prompt) + part for part in parts if part is not None) or spoken(self.prompt)

    @property
    def said(self) -> str:
        """The prompt for comparisons: case, punctuation and spacing make no difference."""
        return " ".join(words(spoken(self.prompt))) or spoken(self.prompt)

    @property
    def id(self) -> str:
        """Depends on the content alone, so that it survives reordering."""
        return key(self.prompt, self.answer, self.chosen, self.rejected)[:12]


@dataclass(frozen=True)
class Rated:
    """A text with a rating; `importance` weighs it in the judge's fit."""

    text: str
    rating: float
    importance: float = 1.0


@dataclass
class Dropped:
    """Rows left out, counted by kind and reason."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, reason: str, count: int = 1) -> None:
        if count:
            self.counts[f"{kind}: {reason}"] += count


def demonstrations(rows: Iterable[Row], dropped: Dropped) -> list[Example]:
    """Columns prompt and answer, or messages, whose last assistant turn is the answer."""
    found = []
    for row in rows:
        if "messages" in row.values:
            chat = _chat(row, "messages")
            prompt, answer = parted(chat) if chat else ([], None)
        else:
            prompt, answer = _prompt(row), _text(row, "answer")
        if not _said(prompt) or not answer:
            dropped.add("demonstrations", "no prompt" if not _said(prompt) else "no answer")
        else:
            found.append(Example(row.where, prompt, answer))
    return _once(found, "demonstrations", dropped)


def prompts(rows: Iterable[Row], kind: str, dropped: Dropped) -> list[Example]:
    """Column prompt, or messages, of which a final assistant turn is left out."""
    found = []
    for row in rows:
        prompt = _prompt(row) if "prompt" in row.values else _chat(row, "messages")
        if isinstance(prompt, list) and prompt and prompt[-1]["role"] == "assistant":
            prompt = prompt[:-1]
        if _said(prompt):
            found.append(Example(row.where, prompt))
        else:
            dropped.add(kind, "no prompt")
    return _once(found, kind, dropped)


def preferences(rows: Iterable[Row], dropped: Dropped) -> list[Example]:
    """Columns prompt, chosen and rejected: texts, or chats whose last assistant turns are the answers; and votes."""
    found = []
    for row in rows:
        prompt: Prompt | None = _prompt(row) if "prompt" in row.values else ""
        first, chosen = _answer(row, "chosen")
        second, rejected = _answer(row, "rejected")
        if first and first == second and not prompt:
            prompt = first
        if chosen is None or rejected is None or (prompt is None):
            dropped.add("preferences", "no prompt" if chosen and rejected else "no chosen or rejected")
        elif first != second:
            dropped.add("preferences", "chosen and rejected answer different prompts")
        elif chosen == rejected:
            dropped.add("preferences", "chosen equals rejected")
        else:
            found.append(Example(row.where, prompt, chosen=chosen, rejected=rejected, votes=_votes(row)))
    return _once(found, "preferences", dropped)


def rated(rows: Iterable[Row], dropped: Dropped) -> list[Rated]:
    """Columns text and rating."""
    found: dict[str, Rated] = {}
    for row in rows:
        text, rating = _text(row, "text"), row.values["rating"]
        if rating is not None and (isinstance(rating, bool) or not isinstance(rating, int | float)):
            raise UserError(f"{row.where}: rating is {shown(rating)}, expected a number")
        if not text or rating is None:
            dropped.add("rated", "no text" if not text else "no rating")
        elif not math.isfinite(rating):
            raise UserError(f"{row.where}: rating is {rating}, expected a finite number")
        elif text in found:
            dropped.add("rated", "duplicate")
        else:
            found[text] = Rated(text, float(rating))
    return list(found.values())


_VOTES = {"chosen": 1, "rejected": -1, "tie": 0}


def _votes(row: Row) -> tuple[int, ...] | None:
    """Column votes: a list of chosen, rejected and tie, one per person; null is a person who did not vote."""
    given = row.values.get("votes")
    if given is None:
        return None
    if not isinstance(given, list):
        raise UserError(f"{row.where}: votes is {shown(given)}, expected a list of {', '.join(_VOTES)} or null")
    for vote in given:
        if vote is not None and (not isinstance(vote, str) or vote not in _VOTES):
            raise UserError(f"{row.where}: votes holds {shown(vote)}, expected {', '.join(_VOTES)} or null")
    return tuple(_VOTES[vote] for vote in given if vote is not None) or None


def _prompt(row: Row) -> Prompt | None:
    value = row.values["prompt"]
    return _chat(row, "prompt") if isinstance(value, list) else _text(row, "prompt")


def _chat(row: Row, column: str) -> list[Message] | None:
    value = row.values[column]
    if value is None or value == []:
        return None
    chat = messages(value, f"{row.where}: {column}")
    for message in chat:
        _encodable(message["content"], row, column)
    return chat


def _answer(row: Row, column: str) -> tuple[list[Message], str | None]:
    """The chat before the answer (empty where the column is a text), and the answer."""
    if not isinstance(row.values[column], list):
        return [], _text(row, column)
    before, answer = parted(_chat(row, column) or [])
    return before, answer if answer and answer.strip() else None


def _text(row: Row, column: str) -> str | None:
    """The text as it stands, spaces included; None where it is missing or blank."""
    value = row.values[column]
    if value is None:
        return None
    if not isinstance(value, str):
        raise UserError(f"{row.where}: {column} is {shown(value)}, expected text")
    _encodable(value, row, column)
    return value if value.strip() else None


def _encodable(value: str, row: Row, column: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{row.where}: {column} has half a surrogate pair at character {error.start}") from None


def _said(prompt: Any) -> bool:
    return bool(prompt) and bool(spoken(prompt).strip())


def _once(found: list[Example], kind: str, dropped: Dropped) -> list[Example]:
    unique: dict[str, Example] = {}
    for example in found:
        if unique.setdefault(example.id, example) is not example:
            dropped.add(kind, "duplicate")
    return list(unique.values())
