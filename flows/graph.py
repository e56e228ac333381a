"""DVC's graph, status and lock file, as the flow needs them. Besides tasks/runtime/fingerprint.py the only user of
DVC's inner interface (dvc 3.67; tests/test_dvc.py guards it)."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.dvcfile import LOCK_FILE
from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.repo.reproduce import get_active_graph, plan_repro
from dvc.utils.serialize import dump_yaml, parse_yaml_for_update

from flows import cache
from flows.salvage import salvage
from tasks.errors import UserError
from tasks.runtime import fingerprint
from tasks.runtime.made import made_by_runner

LOCK_TRIES = 30
"""Times, a second apart, that DVC's lock is asked for."""


@dataclass(frozen=True)
class Node:
    """One DVC stage on the way to the target."""

    address: str
    upstream: tuple[str, ...]
    tags: tuple[str, ...]
    retries: int
    retry_delay: float
    """Seconds between two tries."""
    up_to_date: bool
    """`dvc repro` would do nothing, here and upstream."""
    foreign: tuple[str, ...]
    """Outs whose present content neither DVC nor a stage of ours made."""


def plan(target: str) -> list[Node]:
    """The stages that `dvc repro TARGET` would visit, in its order, with their state.

    Raises UserError for a target that dvc.yaml does not declare, a broken dvc.yaml, or a repository that is in use.
    """
    try:
        with _open() as repo:
            for line in salvage():
                print(line, file=sys.stderr)
            graph = get_active_graph(repo.index.graph)
            goals = [s for s in graph if target in (s.addressing, s.addressing.partition("@")[0])]
            if not goals:
                raise UserError(f"unknown target {target!r}: expected one of {', '.join(s.addressing for s in graph)}")
            nodes: dict[str, Node] = {}
            for stage in plan_repro(graph, goals):
                upstream = tuple(s.addressing for s in graph.successors(stage))
                for out in stage.outs:
                    cache.complete(out)
                nodes[stage.addressing] = _node(stage, upstream, all(nodes[u].up_to_date for u in upstream))
            return list(nodes.values())
    except DvcException as error:
        raise UserError(f"DVC: {error}") from error


def require_cached(address: str) -> None:
    """Raise UserError unless DVC's cache has all that it has just recorded of a stage."""
    with _open() as repo:
        for out in repo.stage.load_one(name=address).outs:
            list(cache.files(out))


def refuse_foreign(nodes: Sequence[Node]) -> None:
    """Raise UserError when running would overwrite files that somebody put into `runs/` by hand."""
    paths = [path for node in nodes for path in node.foreign]
    if paths:
        raise UserError(
            f"{', '.join(paths)} holds content that no stage made, and running would delete it. Move what you want to "
            f"keep, then restore the recorded content with `dvc checkout --force {' '.join(paths)}`, or remove the "
            "folder to have it made anew"
        )


def keep_order(before: Sequence[str], order: Sequence[str], path: Path = Path(LOCK_FILE)) -> None:
    """Put the stages that a run added to dvc.lock in the order in which `dvc repro` would have.

    Stages that run side by side end in any order, and DVC appends each as it ends. before: the stages in dvc.lock
    before the run, order: the plan's.
    """
    if not path.exists():
        return
    with _open():
        text = path.read_text(encoding="utf-8")
        data = parse_yaml_for_update(text, str(path))
        stages = data["stages"]
        rank = {name: place for place, name in enumerate([*before, *(n for n in order if n not in before)])}
        wanted = sorted(stages, key=lambda name: rank.get(name, len(rank)))
        if wanted != list(stages):
            data["stages"] = {name: stages[name] for name in wanted}
            partial = path.with_name(f"{path.name}.partial")
            dump_yaml(str(partial), data)
            partial.replace(path)


def recorded(path: Path = Path(LOCK_FILE)) -> list[str]:
    """Addresses of the stages in dvc.lock, in its order."""
    return list(fingerprint.locked(path))


@contextlib.contextmanager
def _open() -> Iterator[Repo]:
    """The repository under DVC's lock, which others hold for moments only: `dvc repro` frees it while a stage runs."""
    with Repo() as repo:
        for attempt in range(LOCK_TRIES):
            try:
                repo.lock.lock()
                break
            except LockError as error:
                if attempt == LOCK_TRIES - 1:
                    raise UserError(f"another DVC command holds this repository: {error}") from error
                time.sleep(1)
        try:
            yield repo
        finally:
            repo.lock.unlock()


def _node(stage: Any, upstream: tuple[str, ...], upstream_done: bool) -> Node:
    options = (stage.meta or {}).get("prefect", {})
    changed = stage.changed()
    return Node(
        address=stage.addressing,
        upstream=upstream,
        tags=tuple(options.get("tags", ())),
        retries=int(options.get("retries", 0)),
        retry_delay=float(options.get("retry_delay_seconds", 10)),
        up_to_date=upstream_done and not changed,
        foreign=tuple(out.def_path for out in stage.outs if changed and _is_foreign(out, stage.addressing)),
    )


def _is_foreign(out: Any, address: str) -> bool:
    if not out.use_cache or not out.exists or not out.changed_checksum():
        return False
    # In the cache: an earlier version, which is safe there. Not in it, but left by our runner: DVC was interrupted
    # before it could record the stage.
    return not out.cache.exists(out.get_hash().value) and not made_by_runner(address, Path(out.fs_path))
