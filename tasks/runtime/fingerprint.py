"""What makes two runs of a stage the same: a hash of its command, the hashes of its dependencies and its params.

It is computed from the entry that DVC writes to dvc.lock, less the outs. So a running stage, whose entry is not written
yet, and the flow, which reads dvc.lock, come to the same hash. The one file besides flows/graph.py that uses DVC's
inner interface.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

SETTLES_IN = 5.0
"""Seconds that a dvc.lock which cannot be read is taken for one that DVC is just writing, which it does in place."""
T = TypeVar("T")


def of(entry: Mapping[str, Any]) -> str:
    """Fingerprint of a stage's entry in dvc.lock: 16 hex digits."""
    made_from = {key: value for key, value in entry.items() if key != "outs"}
    text = json.dumps(made_from, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def present(address: str) -> str:
    """Fingerprint of the stage as it would run now; "" where there is no DVC repository."""
    return of(entry(address)) if Path(".dvc").is_dir() else ""


def entry(address: str) -> dict[str, Any]:
    """The stage's entry as DVC would write it now, without outs. Hashes come from DVC's record of unchanged files."""
    from dvc.repo import Repo
    from dvc.stage.serialize import to_single_stage_lockfile

    with Repo() as repo:
        stage = _settled(lambda: repo.stage.load_one(name=address))
        for dependency in stage.deps:
            dependency.save()
        # Outs have no hash while the stage runs, and no part in the fingerprint.
        stage.outs = []
        found: dict[str, Any] = _plain(to_single_stage_lockfile(stage))
        return found


def locked(path: Path = Path("dvc.lock")) -> dict[str, dict[str, Any]]:
    """Address -> entry of every stage in dvc.lock; {} without one."""
    from dvc.utils.serialize import load_yaml

    if not path.exists():
        return {}
    # DVC's own reader: a YAML 1.1 one takes 5e-05 for text.
    stages = _settled(lambda: load_yaml(str(path))["stages"])
    return {address: _plain(entry) for address, entry in stages.items()}


def _settled(read: Callable[[], T]) -> T:
    """Call `read` until dvc.lock is whole. A stage does not take DVC's lock for that: a `dvc repro` beside it that
    ends its own stage in that moment would give up and lose it."""
    from dvc.exceptions import DvcException

    end = time.monotonic() + SETTLES_IN
    while True:
        try:
            return read()
        except (DvcException, KeyError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _plain(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {str(key): _plain(value) for key, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, list | tuple) else tree
