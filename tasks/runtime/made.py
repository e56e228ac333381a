"""Remembers what the runner itself put into a stage's out, so that it can be told from what somebody put there."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.runtime import records

FOLDER = Path(".rlhf/made")


def remember(address: str, out: Path) -> None:
    """Note names, sizes and times of the files that the stage has just made."""
    records.write_json(FOLDER / f"{address}.json", _listing(out))


def made_by_runner(address: str, out: Path) -> bool:
    """Whether `out` holds exactly what the stage's last run left."""
    try:
        noted = json.loads((FOLDER / f"{address}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(noted == _listing(out))


def _listing(folder: Path) -> dict[str, list[int]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}
