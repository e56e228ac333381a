"""Prompts: a string, or a list of chat messages `{"role", "content"}`."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from tasks.errors import UserError, shown

Message = dict[str, str]
Prompt = str | list[Message]
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""A run of letters and digits; in Chinese and Japanese, which put no space between words, each character."""
ROLES = ("system", "user", "assistant", "tool")


def messages(value: Any, where: str) -> list[Message]:
    """Check a list of chat messages; only role and content are kept. Raises UserError that begins with `where`."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: is {shown(value)}, expected a list of chat messages")
    checked = []
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise UserError(f"{where}[{number}]: is {shown(message)}, expected an object with role and content")
        role, content = message["role"], message["content"]
        if role not in ROLES:
            raise UserError(f"{where}[{number}].role: is {shown(role)}, expected one of {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise UserError(f"{where}[{number}].content: is {shown(content)}, expected text")
        checked.append({"role": role, "content": content})
    return checked


def parted(chat: list[Message]) -> tuple[list[Message], str | None]:
    """The messages before the last assistant turn, and that turn; a chat without one is all prompt."""
    for index in range(len(chat) - 1, -1, -1):
        if chat[index]["role"] == "assistant":
            return chat[:index], chat[index]["content"]
    return chat, None


def spoken(prompt: Prompt) -> str:
    """What a prompt says, without system messages: those are shared by rows that have nothing else in common."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(message["content"] for message in prompt if message["role"] != "system")


def words(text: str) -> tuple[str, ...]:
    """Lower-case words; punctuation and spacing make no difference."""
    return tuple(_WORD.findall(text.lower()))


def key(*parts: Any) -> str:
    """Hex digest that is equal for equal prompts (or any JSON values)."""
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def draw(seed: int, purpose: str, *parts: Any) -> float:
    """A number in [0, 1) of seed, purpose and value alone: rows can join or leave and the others keep their place."""
    return int(key(seed, purpose, *parts)[:13], 16) / 16**13
