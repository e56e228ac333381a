"""Kill storm: a whole tiny pipeline under SIGKILL, SIGTERM and SIGINT at random moments, against one left in peace.

`make storm KILLS=50`. Each kill hits the stage, `dvc repro` or the flow, in turn; then the same command is started
again. When a pipeline gets through before the kills are spent, the next one begins in a fresh workspace. The closing
line says whether dvc.lock, metrics and every out are those of the untouched run, and counts what must be zero:
processes that outlive their pipeline, locks held, MLflow runs left RUNNING, points recorded twice.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import yaml

from flows import workspace
from tests.conftest import ROOT, environment

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TARGETS = ("stage", "dvc", "flow")
MARK = "RLHF_STORM"
"""Environment variable by which every process of a pipeline is found again."""
CHECKPOINT = "0"
LONGEST = {"stage": 1 / 18, "dvc": 1 / 8, "flow": 1 / 8}
"""From the sight of the victim to the kill, at most: a share of the untouched run's time, so that on a slow machine,
too, some stages get through and some do not."""
PACE = 50.0
"""Seconds that stand for an untouched run which was not made here: few, so that each of a handful of kills strikes."""
PATIENCE = 45.0
"""Seconds after which a process that is still there is an orphan. The watch of a stage polls every 2 and waits 15."""


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    pipelines: int = 0
    resumed: int = 0
    different: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    locks: list[str] = field(default_factory=list)
    running: int = 0
    duplicates: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        counts = (self.different, self.orphans, self.locks, self.running, self.duplicates, self.failures)
        return not any(counts) and self.pipelines > 0

    def line(self) -> str:
        return (
            f"kills={self.kills.total()} identical={'yes' if not self.different else 'NO'} orphans={len(self.orphans)}"
            f" locks={len(self.locks)} running={self.running} duplicates={self.duplicates}"
            f" (pipelines {self.pipelines}, resumed from a checkpoint {self.resumed}, unexpected endings"
            f" {len(self.failures)})"
        )


def overlay() -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((ROOT / "profiles/tiny.yaml").read_text(encoding="utf-8"))
    return found


def run(kills: int, seed: int, folder: Path, calm: Path | None = None) -> Tally:
    """The storm. Deterministic in its choices, not in where a process is when the signal comes.

    calm: a finished run of the tiny profile that nobody touched; made where there is none.
    """
    draw, tally, pace = random.Random(seed), Tally(), PACE
    if calm is None:
        calm = folder / "calm"
        workspace.create(calm, overlay(), ROOT)
        _say("a run that nobody touches")
        begun = time.monotonic()
        if _start(calm, "flow", "calm").wait():
            raise SystemExit(f"the untouched run failed: see {calm}/storm.log")
        pace = time.monotonic() - begun
    expected = digests(calm)
    while tally.kills.total() < kills:
        name = f"storm-{tally.pipelines}"
        place = folder / name
        workspace.create(place, overlay(), ROOT)
        _weather(place, name, kills, draw, pace, tally)
        found = digests(place)
        tally.different += [
            f"{name}/{path}" for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)
        ]
        tally.orphans += _orphans(name)
        tally.locks += held_locks(place)
        tally.running += unfinished_runs(place)
        tally.duplicates += duplicate_points(place)
        tally.resumed += (place / "storm.log").read_text(errors="replace").count(": goes on after step ")
        tally.pipelines += 1
        _say(tally.line())
        if tally.ok:
            shutil.rmtree(place)
    return tally


def _weather(place: Path, name: str, kills: int, draw: random.Random, pace: float, tally: Tally) -> None:
    """Start, kill, start again, until the pipeline is through."""
    while True:
        number = tally.kills.total()
        target, kind = TARGETS[number % 3], SIGNALS[(number // 3) % 3]
        # `dvc repro` alone is the other way in, and has no flow above it.
        way = "flow" if target == "flow" or number % 2 else "dvc"
        process = _start(place, way, name)
        if number < kills and (
            label := _strike(process, target, kind, partial(draw.uniform, 0, pace * LONGEST[target]))
        ):
            tally.kills[label] += 1
            _say(f"{tally.kills.total()}/{kills} {label}, {len(list(place.glob('runs/*')))} outs made")
            process.wait()
            tally.orphans += _orphans(name)
        elif process.wait() == 0:
            return
        else:
            tally.failures.append(f"{name}: the pipeline ended with {process.returncode}: {_last(place)}")
            _say(tally.failures[-1])
            if len(tally.failures) > 5:
                raise SystemExit("\n".join(tally.failures))


def _strike(root: subprocess.Popen[bytes], target: str, kind: signal.Signals, after: Callable[[], float]) -> str | None:
    """Signal a process of that kind `after()` seconds of its life; None where the pipeline ends before."""
    while (victim := _wait_for(root, target)) is not None:
        time.sleep(after())
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            # Ctrl-C reaches the whole process group of the terminal.
            victim.send_signal(kind) if kind != signal.SIGINT else os.killpg(os.getpgid(victim.pid), kind)
            return f"{target} {kind.name}"
    return None


def _start(place: Path, way: str, name: str) -> subprocess.Popen[bytes]:
    command = ["flows.pipeline"] if way == "flow" else ["dvc", "repro"]
    variables = environment(**{MARK: name, "RLHF_CHECKPOINT_SECONDS": CHECKPOINT})
    with (place / "storm.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=place, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def _wait_for(root: subprocess.Popen[bytes], target: str) -> psutil.Process | None:
    """The process of that kind below `root`, or None where the pipeline ends before there is one."""
    while root.poll() is None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(root.pid)
            for candidate in [process, *process.children(recursive=True)]:
                if _kind(candidate, root.pid) == target:
                    return candidate
        time.sleep(0.05)
    return None


def _kind(process: psutil.Process, root: int) -> str:
    words = process.cmdline()
    if "tasks" in words and words[-2:-1] == ["tasks"]:
        # Behind the shell that DVC starts it with.
        return "stage" if Path(words[0]).name.startswith("python") else ""
    if "dvc" in words and "repro" in words:
        return "dvc"
    return "flow" if process.pid == root and "flows.pipeline" in words else ""


def survivors(name: str) -> list[psutil.Process]:
    """Every live process that was started for this workspace, found by its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _orphans(name: str) -> list[str]:
    """Those that are still there after PATIENCE seconds; they are ended."""
    deadline = time.monotonic() + PATIENCE
    while (left := survivors(name)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return [f"{name}: {process}" for process in left]


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of dvc.lock, the metrics and every file of every out."""
    files = [folder / "dvc.lock", *_files(folder / "runs"), *_files(folder / "metrics")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def held_locks(folder: Path) -> list[str]:
    """Lock files that somebody still holds, ours and DVC's."""
    held = []
    for path in [*folder.glob(".rlhf/locks/*.lock"), *folder.glob(".dvc/tmp/*lock*")]:
        if path.name == "rwlock":
            # DVC's list of who uses what. Entries of the dead stay until somebody wants the same path.
            held += [
                f"{path}: {pid}" for pid in re.findall(r'"pid": (\d+)', path.read_text()) if psutil.pid_exists(int(pid))
            ]
            continue
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(str(path))
    return held


def unfinished_runs(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
        return int(store.execute("select count(*) from runs where status = 'RUNNING'").fetchone()[0])


def duplicate_points(folder: Path) -> int:
    """Points of one stage's run that stand there more than once for a step (machine figures aside)."""
    query = (
        "select count(*) from (select 1 from metrics where key not like 'system/%'"
        " group by run_uuid, key, step having count(*) > 1)"
    )
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
        return int(store.execute(query).fetchone()[0])


def _last(place: Path) -> str:
    return " | ".join((place / "storm.log").read_text(errors="replace").splitlines()[-5:])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the workspaces; a temporary one otherwise")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="storm-"))
    folder.mkdir(parents=True, exist_ok=True)
    tally = run(arguments.kills, arguments.seed, folder.resolve())
    for fault in [*tally.different, *tally.orphans, *tally.locks, *tally.failures]:
        _say(fault)
    if tally.ok and not arguments.keep:
        shutil.rmtree(folder)
    _say(", ".join(f"{label} {count}" for label, count in sorted(tally.kills.items())))
    _say(tally.line())
    return 0 if tally.ok else 1


if __name__ == "__main__":
    # A Ctrl-C here ends the pipelines too: they are found by their mark.
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if MARK in process.environ() and process.pid != os.getpid():
                    process.kill()
        sys.exit(130)
