"""What of the recorded outs is in DVC's local cache.

DVC (3.67) reports success when the cache takes no more (disk full): it prints an error, records the stage and exits
with 0. Nothing could then restore or push that version, so the flow asks the cache itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.errors import UserError


def files(out: Any) -> Iterator[tuple[str, Path]]:
    """(hash, place in the cache) of a recorded DVC out: a folder's list, then what it lists. Raises UserError."""
    if not (out.use_cache and out.hash_info):
        return
    yield out.hash_info.value, (path := _present(out, out.hash_info.value))
    if out.hash_info.isdir:
        for entry in json.loads(path.read_text(encoding="utf-8")):
            yield entry["md5"], _present(out, entry["md5"])


def complete(out: Any) -> None:
    """Give the cache what it lacks of an out, where the workspace has the recorded content."""
    try:
        list(files(out))
    except UserError:
        if out.exists and not out.changed_checksum():
            out.commit()


def _present(out: Any, oid: str) -> Path:
    path = Path(out.cache.oid_to_path(oid))
    if not path.exists():
        raise UserError(
            f"{out} is recorded in dvc.lock, but DVC's cache lacks {path.name} of it . If the disk was"
            " full, free some space and run the same command again: the workspace still has it. Else `dvc pull` it"
        )
    return path
