"""A language model behind an OpenAI-compatible endpoint: shown two answers, it says which is better."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tasks.errors import UserError
from tasks.language.dialogue import Prompt
from tasks.language.judges import cache
from tasks.language.judges.chat import Chat, Pace
from tasks.language.judges.protocol import write

TEMPLATE = """\
Two answers to one prompt are below. Decide which of them is the better answer: more correct, more useful and better \
written. Neither the order in which they stand nor their length is a reason.

[Prompt]
{prompt}

[Answer A]
{first}

[Answer B]
{second}

End your reply with [[A]] if answer A is better, [[B]] if answer B is better, or [[C]] if neither is."""
"""Used where corpus.judge.template is null. [[A]], [[B]] and [[C]] are the marks of MT-bench (arXiv 2306.05685)."""
FIELDS = ("prompt", "first", "second")
_MARK = re.compile(r"\[\[([ABC])\]\]")
_SHARES = {"A": 1.0, "B": 0.0, "C": 0.5}


class Endpoint:
    """Pairwise. A reply without a verdict counts as a tie and is counted as unparsable."""

    name = "endpoint"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._pace = Pace(settings["requests_per_minute"])
        self._unparsable: set[str] = set()

    def prefer(self, prompts: Sequence[Prompt], first: Sequence[str], second: Sequence[str]) -> list[float | None]:
        """Shares of the first answers. Each different question is asked once, and never again: replies are cached."""
        requests = [self._request(*texts) for texts in zip(prompts, first, second, strict=True)]
        keys = [cache.key(request, self._settings["url"]) for request in requests]
        replies = self._replies(dict(zip(keys, requests, strict=True)))
        shares: list[float | None] = []
        for key in keys:
            found = share(replies[key])
            if found is None:
                self._unparsable.add(key)
            shares.append(0.5 if found is None else found)
        return shares

    def counts(self) -> dict[str, int]:
        """How many different questions got a reply without a verdict."""
        return {"unparsable": len(self._unparsable)}

    def _request(self, prompt: Prompt, first: str, second: str) -> dict[str, Any]:
        texts = dict(zip(FIELDS, (_shown(prompt), first, second), strict=True))
        template = TEMPLATE if self._settings["template"] is None else self._settings["template"]
        # One pass, so that a text that holds "{second}" stays as it is.
        said = re.sub(r"\{(prompt|first|second)\}", lambda mark: texts[mark[1]], template)
        messages = [{"role": "user", "content": said}]
        return {"model": self._settings["model"], "messages": messages, **self._settings["options"]}

    def _replies(self, requests: dict[str, dict[str, Any]]) -> dict[str, str]:
        """Reply by key: from the cache, else from the endpoint, several at once, each kept as it comes."""
        with cache.replies() as kept:
            found = {key: reply for key in requests if (reply := kept.get(key)) is not None}
            missing = [key for key in requests if key not in found]
            if not missing:
                return found
            settings = self._settings
            limits = {"attempts": settings["attempts"], "timeout": settings["timeout"], "pace": self._pace}
            chat = Chat(settings["url"], settings["key_variable"], **limits)
            with ThreadPoolExecutor(settings["parallel"]) as pool:
                asked = {pool.submit(chat.reply, requests[key]): key for key in missing}
                try:
                    for done in as_completed(asked):
                        kept.put(asked[done], done.result())
                finally:
                    pool.shutdown(cancel_futures=True)
                    chat.close()
                    # What came while another question failed is paid for, too.
                    for done, key in asked.items():
                        if not done.cancelled() and done.exception() is None:
                            kept.put(key, done.result())
            # As kept: of two processes that asked the same, both go by the one reply that stays.
            return found | {key: str(kept.get(key)) for key in missing}


def share(reply: str) -> float | None:
    """The first answer's share by the reply's last mark, or by its only letter; None for a reply without a verdict."""
    marks = _MARK.findall(reply)
    letter = marks[-1] if marks else reply.strip().strip(".").upper()
    return _SHARES.get(letter)


def keep(settings: dict[str, Any], folder: Path) -> None:
    """Write an endpoint judge to `folder`: its settings, the name of the key's variable and never the key.

    Raises UserError for a template that lacks a field.
    """
    template = settings["template"]
    missing = [name for name in FIELDS if template is not None and f"{{{name}}}" not in template]
    if missing:
        raise UserError(f"corpus.judge.template: lacks {', '.join(f'{{{name}}}' for name in missing)}")
    write(folder, settings)


def _shown(prompt: Prompt) -> str:
    """A prompt as the judge reads it: a chat with its roles."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
