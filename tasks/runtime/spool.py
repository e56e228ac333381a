"""What a stage has recorded, on this disk, until MLflow has it: one folder per run.

`.rlhf/tracking/<stage>-<fingerprint>/` holds
- `events.jsonl`: starts, notes, tables and ends;
- `points-000001.jsonl`, ...: the figures of each step, in parts. A part begins with a summary of what came before it,
  so that the parts that are delivered can go;
- `state.json`: how far delivery is (tasks/runtime/delivery.py), and `lock`, which whoever delivers holds.

Lines are JSON, numbered, with the time at which they were recorded, and are in the kernel's hands when `log` returns:
the death of the process loses none. A line that it tears is ignored. What waits is bounded; beyond it points are
dropped and counted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.runtime import owner
from tasks.runtime.redaction import redacted_tree
from tasks.runtime.spooled import EVENTS, FOLDER, is_finished, lines, parts

LIMIT, PART = 64 * 2**20, 4 * 2**20
"""Bytes of a whole spool and of one part of its points."""
_LOOK = 1.0
"""Seconds between two looks whether delivery has made room in a full spool."""


@dataclass
class Tally:
    """Everything about earlier points that later ones need."""

    number: int = 0
    """Of the last line."""
    last: dict[str, int] = field(default_factory=dict)
    """Figure -> its last step. Steps rise, so one that does not is a repetition by a stage that was resumed."""
    not_finite: dict[str, list[int]] = field(default_factory=dict)
    """Figure -> how many of its values were NaN or infinite, and the first one's step."""
    dropped: list[int] = field(default_factory=lambda: [0, 0])
    """How many points found no room, and the first one's step."""

    def add(self, record: Mapping[str, Any]) -> None:
        self.number = record["n"]
        for name in record["values"]:
            self.last[name] = record["step"]
        for name in record.get("not_finite", {}):
            self.last[name] = record["step"]
            self.not_finite.setdefault(name, [0, record["step"]])[0] += 1


def place(address: str, fingerprint: str, root: Path = FOLDER) -> Path:
    """Folder of the run that goes on (the same stage, made from the same, not finished) or else of a new one.

    Without a fingerprint nothing can go on.
    """
    name = f"{address}-{fingerprint or uuid.uuid4().hex[:16]}"
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
    return next(folder for each in names if not is_finished(folder := root / each))


def tally(folder: Path) -> Tally:
    """The tally of the points that were recorded so far, from the newest part."""
    found = Tally()
    for record in lines(parts(folder)[-1]) if parts(folder) else ():
        if record["kind"] == "head":
            found = Tally(**record["tally"])
        else:
            found.add(record)
    return found


class Spool:
    """The writing end. One process writes; the stage's own lock sees to that. No method raises for a full disk."""

    def __init__(self, folder: Path, limit: int = LIMIT, part: int = PART) -> None:
        """Raises OSError where the folder cannot be made or read."""
        self.folder = folder
        self._limit, self._part_size = limit, part
        self._mutex = threading.Lock()
        self._looked = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder / EVENTS, *parts(folder)[-1:]):
            _cut_torn_line(path)
        events = list(lines(folder / EVENTS))
        self.tally = tally(folder)
        self.tally.number = max([self.tally.number, *(event["n"] for event in events)])
        starts = [event for event in events if event["kind"] == "start"]
        self.token: str = starts[0]["token"] if starts else uuid.uuid4().hex
        self.resumed = bool(starts)
        self._events = _open(folder / EVENTS)
        existing = parts(folder)
        self._points = _open(existing[-1]) if existing else self._next_part(1)
        self._part = int(existing[-1].stem.removeprefix("points-")) if existing else 1
        self._used = self._measure()

    def start(self, described: Mapping[str, Any]) -> int:
        """Begin, or go on with, the run; returns the line's number. described: what tasks/runtime/tracking.py shows."""
        self._event({**described, "kind": "start", "token": self.token, "owner": owner.me()}, always=True)
        return self.tally.number

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the figures of one step; a figure whose step is not above its last one has been kept before."""
        with self._mutex:
            new = {name: value for name, value in values.items() if step > self.tally.last.get(name, -1)}
            if not new:
                return
            finite = {name: value for name, value in new.items() if math.isfinite(value)}
            record: dict[str, Any] = {"n": self.tally.number + 1, "kind": "log", "step": step, "time": _now()}
            record["values"] = finite
            if len(finite) < len(new):
                record["not_finite"] = {name: str(value) for name, value in new.items() if name not in finite}
            if self._has_room() and self._write(self._points, record):
                self.tally.add(record)
            else:
                self.tally.dropped = [self.tally.dropped[0] + len(new), self.tally.dropped[1] or step]

    def note(self, text: str) -> None:
        self._event({"kind": "note", "text": text})

    def table(self, name: str, rows: Any) -> None:
        self._event({"kind": "table", "name": name, "rows": [dict(row) for row in rows]})

    def end(self, status: str, figures: Mapping[str, float], **more: Any) -> None:
        """Keep the final figures (step 0) and how the run ended: FINISHED, FAILED or KILLED."""
        self.log(0, figures)
        self._event({"kind": "end", "status": status, "dropped": self.tally.dropped, **more}, always=True)

    def close(self) -> None:
        os.close(self._points)
        os.close(self._events)

    def _event(self, record: Mapping[str, Any], always: bool = False) -> None:
        with self._mutex:
            if always or self._has_room():
                clean = redacted_tree({"n": self.tally.number + 1, "time": _now(), **record})
                self.tally.number += self._write(self._events, clean)

    def _write(self, file: int, record: Mapping[str, Any]) -> bool:
        """Append one line whole or not at all."""
        line = json.dumps(record).encode() + b"\n"
        before = os.fstat(file).st_size
        try:
            if os.write(file, line) < len(line):
                raise OSError
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            return False
        self._used += len(line)
        return True

    def _has_room(self) -> bool:
        if self._used >= self._limit and time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            self._used = self._measure()
        if self._used >= self._limit:
            return False
        if os.fstat(self._points).st_size >= self._part_size:
            with contextlib.suppress(OSError):
                following = self._next_part(self._part + 1)
                os.close(self._points)
                self._points, self._part = following, self._part + 1
        return True

    def _next_part(self, number: int) -> int:
        path = self.folder / f"points-{number:06}.jsonl"
        # Under its name only with its first line: a part without one would forget what came before.
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"kind": "head", "tally": asdict(self.tally)}) + "\n", encoding="utf-8")
        partial.replace(path)
        return _open(path)

    def _measure(self) -> int:
        return sum(path.stat().st_size for path in _present([self.folder / EVENTS, *parts(self.folder)]))


def _present(paths: list[Path]) -> Iterator[Path]:
    # Delivery deletes parts meanwhile.
    return (path for path in paths if path.exists())


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)


def _now() -> int:
    """Milliseconds since 1970, MLflow's unit."""
    return round(time.time() * 1000)
