"""Demonstrations as token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.language import text
from tasks.language.batches import Completion


def completions(
    rows: Sequence[Mapping[str, Any]], tokenizer: Any, layout: str, *, prompt_tokens: int, answer_tokens: int
) -> tuple[list[Completion], Counter[str]]:
    """Rows with prompt and answer as completions; those that have nothing to learn from are counted by reason.

    layout: `shared.format`. Prompt and answer share a row of prompt_tokens + answer_tokens: a prompt that is longer
    than its part shortens the answer, and one that takes all leaves none.
    """
    found, dropped = [], Counter[str]()
    for row in rows:
        prompt = text.prompt_tokens(tokenizer, row["prompt"], layout)
        room = prompt_tokens + answer_tokens - len(prompt)
        answer = text.answer_tokens(tokenizer, row["answer"], min(answer_tokens, room))
        if not prompt:
            dropped["the prompt has no token, so nothing scores the answer's first"] += 1
        elif not answer:
            dropped["the prompt leaves no room for the answer"] += 1
        elif answer == [tokenizer.eos_token_id]:
            dropped["the answer has no token"] += 1
        else:
            found.append(Completion(prompt, answer))
    return found, dropped
