"""Puts right what DVC leaves behind when it is killed while it writes one of its own files, which it writes in place.

`python -m flows.salvage` before `dvc repro`; the flow does it by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
from pathlib import Path

from dvc.dvcfile import LOCK_FILE
from dvc.repo import Repo
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from dvc.utils.serialize import load_yaml

ASIDE = Path(".rlhf/broken")
RWLOCK = Path(".dvc/tmp/rwlock")


def salvage() -> list[str]:
    """Set aside a dvc.lock and remove a lock list that are cut off. Returns what was done, a line for each.

    The caller holds DVC's lock: a dvc.lock that is just being written looks the same.
    """
    done = []
    lock = Path(LOCK_FILE)
    if lock.exists() and not _sound_lock(lock):
        ASIDE.mkdir(parents=True, exist_ok=True)
        lock.replace(ASIDE / LOCK_FILE)
        done.append(
            f"{LOCK_FILE} was cut off when DVC was killed: it is moved to {ASIDE / LOCK_FILE}, and what was made comes"
            " back from DVC's run cache"
        )
    if RWLOCK.exists() and not _sound_rwlock():
        with RWLOCK.with_name("rwlock.lock").open("a") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            # Nobody writes it now: what is still cut off stays so.
            if not _sound_rwlock():
                RWLOCK.unlink(missing_ok=True)
                done.append(f"{RWLOCK} was cut off when DVC was killed; it is removed")
    return done


def _sound_lock(path: Path) -> bool:
    try:
        content = load_yaml(str(path))
        COMPILED_LOCKFILE_SCHEMA(content)
    except Exception:  # noqa: BLE001 - whatever makes it unreadable, by YAML or by DVC's schema
        return False
    return bool(content)


def _sound_rwlock() -> bool:
    with contextlib.suppress(OSError, ValueError):
        return isinstance(json.loads(RWLOCK.read_text(encoding="utf-8")), dict)
    return not RWLOCK.exists()


if __name__ == "__main__":
    with Repo() as repo, repo.lock:
        for line in salvage():
            sys.stdout.write(line + "\n")
