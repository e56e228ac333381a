"""Replies of an endpoint on disk: a rerun asks nothing, and a run that was cut short goes on where it stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(".rlhf/verdicts")
"""Untracked: DVC clears a stage's outs before it runs, and verdicts cost money. Below the folder the stages run in."""


class Replies:
    """Reply by the hash of everything that decides it; the texts themselves are not kept."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._store = sqlite3.connect(file, timeout=60, isolation_level=None)
        self._store.execute("create table if not exists replies (key text primary key, reply text not null)")

    def get(self, key: str) -> str | None:
        """The reply, or None."""
        row = self._store.execute("select reply from replies where key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, reply: str) -> None:
        """Keep a reply, at once and whole. Where another process was quicker, its reply stays."""
        self._store.execute("insert or ignore into replies values (?, ?)", (key, reply))

    def close(self) -> None:
        self._store.close()


@contextlib.contextmanager
def replies() -> Iterator[Replies]:
    """The cache, open."""
    opened = Replies(FOLDER / "replies.sqlite")
    try:
        yield opened
    finally:
        opened.close()


def key(request: Mapping[str, Any], url: str) -> str:
    """Hash of a request (model, messages with the template and the texts, options) and whom it goes to; no secret."""
    text = json.dumps([url, request], ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
