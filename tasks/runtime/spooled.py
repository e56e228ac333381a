"""Reads what tasks/runtime/spool.py has written, also while it goes on writing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(".rlhf/tracking")
EVENTS, STATE, LOCK = "events.jsonl", "state.json", "lock"
_CHUNK = 2**18


def folders(root: Path = FOLDER) -> list[Path]:
    """Every spool, the one that began first at the head."""
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        first = next(lines(folder / EVENTS), None) if not folder.name.startswith(".") else None
        if first:
            found.append((first["time"], folder.name, folder))
    return [folder for _, _, folder in sorted(found)]


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; one that is torn or spoilt is left out. Nothing where there is no file."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    for line in data.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and "kind" in record:
                yield record


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("points-*.jsonl"))


def is_finished(folder: Path) -> bool:
    """Whether the run in this folder has come to its good end: a new run needs a new folder."""
    marks = [event for event in lines(folder / EVENTS) if event["kind"] in ("start", "end")]
    return bool(marks) and marks[-1].get("status") == "FINISHED"


def count(folder: Path, after: int) -> int:
    """How many points there are with a number above `after`."""
    records = (line for part in parts(folder) for line in lines(part) if line["kind"] == "log")
    return sum(len(line["values"]) for line in records if line["n"] > after)


class Points:
    """The points in order, from one number on."""

    def __init__(self, folder: Path, after: int) -> None:
        self._folder, self._after = folder, after
        self._part: Path | None = None
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """The next points; [] when all that is there has been read."""
        while True:
            # In this order: a part is complete once there is a later one.
            existing = parts(self._folder)
            if self._part is None:
                if not existing:
                    return []
                self._part = existing[0]
            found, moved = self._chunk(self._part)
            if found:
                return found
            later = [part for part in existing if part > self._part]
            if not moved and not later:
                return []
            if not moved:
                self._part, self._offset = later[0], 0

    def _chunk(self, part: Path) -> tuple[list[dict[str, Any]], bool]:
        """Points of the next whole lines, and whether there were such lines."""
        with part.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_CHUNK)
            if b"\n" not in data:
                data += file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        found = []
        for line in data[:whole].split(b"\n")[:-1]:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if record["kind"] == "log" and record["n"] > self._after:
                    found.append(record)
        return found, whole > 0


@contextlib.contextmanager
def delivering(folder: Path, wait: bool) -> Iterator[bool]:
    """Hold the right to deliver this spool; False if another process has it, or the folder is gone."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield _is_at(folder / LOCK, descriptor)
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is still the one of this name: the spool may have been delivered and removed meanwhile."""
    with contextlib.suppress(OSError):
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    return False


def remove(folder: Path) -> None:
    """Delete a spool. It leaves its name first: a stage that starts now must not write into half of one."""
    away = folder.with_name(f".{uuid.uuid4().hex}")
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def sweep(root: Path = FOLDER) -> None:
    """Delete what a process that was killed in `remove` has left."""
    for away in root.glob(".*") if root.is_dir() else ():
        shutil.rmtree(away, ignore_errors=True)
