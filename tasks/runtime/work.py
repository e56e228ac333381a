"""Checkpoints of a running stage, so that the same command goes on where a killed one stopped.

They stand in `.rlhf/work/<stage>/<fingerprint>/<step>/`, outside every out: DVC deletes a stage's outs before it runs.
The fingerprint covers command, code, data and params, so that nothing stale is ever resumed. A checkpoint is whole or
it is not there: it is written under a temporary name, flushed to disk, then renamed; `whole.json` lists its files with
their sizes and hashes, and one that does not agree is skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tasks.runtime import disk, record, surroundings

WORK = Path(".rlhf/work")
INTERVAL = "RLHF_CHECKPOINT_SECONDS"
"""Environment: seconds between two checkpoints; 0 writes one after every step. Unset: by what they cost (SHARE)."""
SHARE = 0.02
"""Share of a stage's time that its checkpoints may take, unless INTERVAL says otherwise."""
LEAST = 30.0
"""Seconds between two checkpoints at least, however cheap they are, unless INTERVAL says otherwise."""
EXPECTED_SPEED = 200e6
"""Bytes per second that the first checkpoint is expected to be written with; later ones know the last one's."""
KEEP = 2
"""Checkpoints kept. The newest may be lost to a failing disk, hence not one."""
_MANIFEST, _PARTIAL = "whole.json", ".partial"


class Checkpoints:
    """Those of one stage with one fingerprint. Without a folder: none is ever due or found."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._started = time.monotonic()
        self._seconds_per_byte = 1 / EXPECTED_SPEED

    def newest(self) -> Path | None:
        """The newest whole one, or None. Others are named in a note and never loaded."""
        for path in reversed(self._all()):
            fault = _fault(path)
            if fault:
                record.note(f"checkpoint {path} is skipped: {fault}")
                continue
            manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
            record.note(f"goes on after step {int(path.name)} ({path})")
            if changes := _changes(manifest["surroundings"]):
                record.note(f"the checkpoint was made with {changes}: the result can differ in its last bits")
            return path
        return None

    def due(self, size: int) -> bool:
        """Whether it is time to write one of about `size` bytes."""
        if self.folder is None:
            return False
        fixed = os.environ.get(INTERVAL)
        wait = float(fixed) if fixed else max(LEAST, size * self._seconds_per_byte / SHARE)
        return time.monotonic() - self._started >= wait

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Have `write(folder)` fill a checkpoint, make it whole, and remove all but the newest KEEP.

        One that cannot be written (disk full) is said, and the stage goes on without.
        """
        if self.folder is None:
            return
        begun = time.monotonic()
        partial = self.folder / f"{step:08d}{_PARTIAL}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write(partial)
            size = _seal(partial)
            final = self.folder / f"{step:08d}"
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            _flush(self.folder)
            for old in self._all()[:-KEEP]:
                shutil.rmtree(old, ignore_errors=True)
            self._seconds_per_byte = (time.monotonic() - begun) / max(1, size)
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            if not isinstance(error, OSError) and disk.number(error) is None:
                raise
            record.note(f"no checkpoint of step {step}: {error}")
        self._started = time.monotonic()

    def kept(self) -> Path | None:
        """The newest, unchecked, for a message."""
        return next(reversed(self._all()), None)

    def _all(self) -> list[Path]:
        if self.folder is None or not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.isdigit())


_open = [Checkpoints(None)]


def checkpoints() -> Checkpoints:
    """Those of the stage that runs. Outside a runner (a unit test that calls `run`) none is due or found."""
    return _open[-1]


@contextlib.contextmanager
def using(address: str, fingerprint: str) -> Iterator[None]:
    """Inside the `with` block `checkpoints()` are this stage's. An empty fingerprint (no DVC here) keeps none."""
    _open.append(Checkpoints(WORK / address / fingerprint if fingerprint else None))
    try:
        yield
    finally:
        _open.pop()


def forget(recorded: Mapping[str, str], keep: str = "") -> None:
    """Remove the checkpoints of stages that are done: those whose fingerprint stands in dvc.lock.

    recorded: address -> fingerprint in dvc.lock. keep: the stage that runs. A stage removes nothing of its own at its
    end: DVC may be killed before it records the stage, and would start it again.
    """
    for address, fingerprint in recorded.items():
        if address != keep and (WORK / address / fingerprint).exists():
            shutil.rmtree(WORK / address, ignore_errors=True)


def waiting() -> list[str]:
    """Addresses of the stages that have checkpoints."""
    return sorted(path.name for path in WORK.iterdir() if path.is_dir()) if WORK.is_dir() else []


def _seal(folder: Path) -> int:
    """Flush every file, write the manifest. Returns the size in bytes."""
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        _flush(path)
        files[path.relative_to(folder).as_posix()] = (path.stat().st_size, _hash(path))
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps({"files": files, "surroundings": surroundings.describe()}), encoding="utf-8")
    _flush(manifest)
    _flush(folder)
    return sum(size for size, _ in files.values())


def _fault(folder: Path) -> str:
    """What is wrong with a checkpoint, or ""."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, (size, digest) in files.items():
            path = folder / name
            if path.stat().st_size != size or _hash(path) != digest:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it is incomplete ({type(error).__name__}: {error})"
    return ""


def _changes(then: Mapping[str, str]) -> str:
    """ "threads 2 (now 1)" for everything that is not as it was."""
    now = surroundings.describe()
    return ", ".join(
        f"{name} {then.get(name, 'unknown')} (now {now.get(name, 'unknown')})"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
