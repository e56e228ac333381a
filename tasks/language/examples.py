"""Rows under our column names as examples: what is unusable is counted by reason, what is wrong is an error.

Wrong is what no reader can make sense of (a number for a text, an unknown role): the file is broken or `columns` names
another column, and more rows would only hide it. Unusable is a sound row that says too little (a blank answer, two
equal sides): large data sets have some, and a run should not end for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tasks.errors import UserError, shown
from tasks.language.dialogue import Message, Prompt, key, messages, parted, spoken, words
from tasks.language.jsonl import LONGEST
from tasks.language.readers import Row

T = TypeVar("T")
_TEXT = "text that is not blank"


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
    first: dict[str, str] = field(default_factory=dict)
    """The first row of each reason: where it stands, and what stands there."""

    def add(self, kind: str, reason: str, count: int = 1, *, first: str = "") -> None:
        if count:
            self.counts[f"{kind}: {reason}"] += count
            if first:
                self.first.setdefault(f"{kind}: {reason}", first)

    def lines(self) -> list[str]:
        """A line for each reason."""
        return [
            f"dropped {count}, {reason}" + (f" (first: {self.first[reason]})" if reason in self.first else "")
            for reason, count in sorted(self.counts.items())
        ]


class _Unusable(Exception):
    """A sound row that says too little."""

    def __init__(self, reason: str, row: Row, column: str, expected: str, value: Any = ...) -> None:
        self.reason = reason
        self.first = f"{row.where}: {column} is {shown(row.values.get(column) if value is ... else value)}"
        self.first += f", expected {expected}"


def demonstrations(rows: Iterable[Row], dropped: Dropped) -> list[Example]:
    """Columns prompt and answer, or messages, whose last assistant turn is the answer."""
    return _once(_made(_demonstration, rows, "demonstrations", dropped), "demonstrations", dropped)


def prompts(rows: Iterable[Row], kind: str, dropped: Dropped) -> list[Example]:
    """Column prompt, or messages, of which a final assistant turn is left out."""
    return _once(_made(_question, rows, kind, dropped), kind, dropped)


def preferences(rows: Iterable[Row], dropped: Dropped) -> list[Example]:
    """Columns prompt, chosen and rejected: texts, or chats whose last assistant turns are the answers; and votes."""
    return _once(_made(_pair, rows, "preferences", dropped), "preferences", dropped)


def rated(rows: Iterable[Row], dropped: Dropped) -> list[Rated]:
    """Columns text and rating."""
    found: dict[str, Rated] = {}
    for where, one in _made(lambda row: (row.where, _rating(row)), rows, "rated", dropped):
        if found.setdefault(one.text, one) is not one:
            dropped.add("rated", "duplicate", first=f"{where}: text is {shown(one.text)}, which an earlier row has")
    return list(found.values())


def _made(make: Callable[[Row], T], rows: Iterable[Row], kind: str, dropped: Dropped) -> list[T]:
    found = []
    for row in rows:
        try:
            found.append(make(row))
        except _Unusable as unusable:
            dropped.add(kind, unusable.reason, first=unusable.first)
    return found


def _demonstration(row: Row) -> Example:
    if "messages" in row.values:
        chat = _chat(row, "messages")
        prompt, answer = parted(chat)
        _usable_prompt(row, "messages", prompt)
        return Example(row.where, prompt, _usable(row, "messages", answer, "no answer", "a last assistant turn"))
    prompt, answer = prompt_of(row), text_of(row, "answer")
    _usable_prompt(row, "prompt", prompt)
    return Example(row.where, prompt, _usable(row, "answer", answer, "no answer"))


def _question(row: Row) -> Example:
    column = "prompt" if "prompt" in row.values else "messages"
    prompt = prompt_of(row) if column == "prompt" else _chat(row, column)
    if isinstance(prompt, list) and prompt and prompt[-1]["role"] == "assistant":
        prompt = prompt[:-1]
    _usable_prompt(row, column, prompt)
    return Example(row.where, prompt)


def _pair(row: Row) -> Example:
    prompt: Prompt = prompt_of(row) if "prompt" in row.values else ""
    votes = _votes(row)
    (first, chosen), (second, rejected) = _answer(row, "chosen"), _answer(row, "rejected")
    chosen = _usable(row, "chosen", chosen, "no chosen or rejected")
    rejected = _usable(row, "rejected", rejected, "no chosen or rejected")
    if first != second:
        reason = "chosen and rejected answer different prompts"
        raise _Unusable(reason, row, "rejected", "the turns before the answer to be those of chosen")
    if "prompt" in row.values:
        _usable_prompt(row, "prompt", prompt)
        if first and first != prompt and spoken(first) != prompt:
            reason = "the chats begin with another prompt"
            raise _Unusable(reason, row, "prompt", f"what stands before the answers, {shown(spoken(first))}")
    elif first:
        prompt = first
        _usable_prompt(row, "chosen", prompt)
    if chosen.strip() == rejected.strip():
        raise _Unusable("chosen equals rejected", row, "rejected", "another text than chosen")
    return Example(row.where, prompt, chosen=chosen, rejected=rejected, votes=votes)


def _rating(row: Row) -> Rated:
    text, rating = text_of(row, "text"), row.values["rating"]
    if rating is not None and (isinstance(rating, bool) or not isinstance(rating, int | float)):
        raise UserError(f"{row.where}: rating is {shown(rating)}, expected a number")
    if rating is not None and not -1e300 < rating < 1e300:
        raise UserError(f"{row.where}: rating is {shown(rating)}, expected a finite number")
    text = _usable(row, "text", text, "no text")
    if rating is None:
        raise _Unusable("no rating", row, "rating", "a number")
    return Rated(text, float(rating))


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


def prompt_of(row: Row) -> Prompt:
    """Column prompt: a text, or the messages of a chat; "" where it is missing. Raises UserError for anything else."""
    value = row.values["prompt"]
    return _chat(row, "prompt") if isinstance(value, list) else text_of(row, "prompt")


def _chat(row: Row, column: str) -> list[Message]:
    """The messages; none where the column is missing or empty."""
    value = row.values[column]
    if value is None or value == []:
        return []
    chat = messages(value, f"{row.where}: {column}")
    for message in chat:
        _checked(message["content"], row, column)
    return chat


def _answer(row: Row, column: str) -> tuple[list[Message], str]:
    """The chat before the answer (empty where the column is a text), and the answer."""
    if not isinstance(row.values[column], list):
        return [], text_of(row, column)
    before, answer = parted(_chat(row, column))
    return before, answer or ""


def text_of(row: Row, column: str) -> str:
    """The text as it stands, spaces included; "" where it is missing. Raises UserError for anything else."""
    value = row.values[column]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{row.where}: {column} is {shown(value)}, expected text")
    _checked(value, row, column)
    return value


def _checked(value: str, row: Row, column: str) -> None:
    """Raise UserError for a text that no UTF-8 file can hold, and for one of megabytes."""
    if len(value) > LONGEST:
        raise UserError(f"{row.where}: {column} has {len(value)} characters, expected at most {LONGEST}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        around = shown(value[max(0, error.start - 10) : error.end + 10])
        raise UserError(
            f"{row.where}: {column} has half a surrogate pair at character {error.start} ({around}), "
            "expected whole characters"
        ) from None


def _usable(row: Row, column: str, value: str | None, reason: str, expected: str = _TEXT) -> str:
    """The text, if it says something that a tokenizer and a terminal can take."""
    if not value or _blank(value):
        raise _Unusable(reason, row, column, expected)
    if "\0" in value:
        raise _Unusable("NUL character", row, column, "text without NUL", value[max(0, value.index("\0") - 20) :])
    return value


def _usable_prompt(row: Row, column: str, prompt: Prompt) -> None:
    _usable(row, column, spoken(prompt), "no prompt")
    for message in prompt if isinstance(prompt, list) else []:
        if message["role"] in ("user", "assistant"):
            _usable(row, column, message["content"], "blank message", "text in each turn")


def _blank(text: str) -> bool:
    """Nothing to see: spaces, control characters, zero-width ones."""
    return not any(c.isprintable() and not c.isspace() for c in text)


def _once(found: list[Example], kind: str, dropped: Dropped) -> list[Example]:
    unique: dict[str, Example] = {}
    for example in found:
        earlier = unique.setdefault(example.id, example)
        if earlier is not example:
            dropped.add(kind, "duplicate", first=f"{example.where}: is {earlier.where} once more")
    return list(unique.values())
