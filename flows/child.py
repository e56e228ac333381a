"""A DVC stage in a child process: its output line by line, and its end whenever the flow ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.runtime.process import FLOW_PID

RETRY_LATER = 75
"""Exit status of a stage whose network source did not answer (EX_TEMPFAIL)."""
_PATIENCE = {signal.SIGINT: 20.0, signal.SIGTERM: 10.0, signal.SIGKILL: 10.0}
"""Seconds after each signal before the next. SIGINT first: DVC leaves it to the stage, then puts its locks in order."""
_CHATTER = (
    "Running stage ",
    "> ",
    "Generating lock",
    "Updating lock",
    "Use `dvc push`",
    "Stage '",
    "Data and pipelines are up to date",
    "ERROR: failed to reproduce",
    "To track the changes with git",
    "\tgit add",
    "To enable auto staging",
    "\tdvc config",
)
_running: set[subprocess.Popen[str]] = set()
_stopping = threading.Event()


@dataclass(frozen=True)
class Outcome:
    ok: bool
    ran: bool
    """False: DVC found nothing to do, or took the result from its run cache."""
    error: str
    retry: bool
    """The failure may pass by itself."""


def reproduce(address: str, force: bool, variables: Mapping[str, str], say: Callable[[str], None]) -> Outcome:
    """Bring one stage up to date with DVC; `say` is called with each line that it and the stage print."""
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", address]
    if force:
        command.append("--force")
    here = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        # dvc.yaml says `python`: the one that runs this flow.
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        FLOW_PID: str(os.getpid()),
        **variables,
    }
    if _stopping.is_set():
        return Outcome(False, False, "the flow was stopped", False)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    _running.add(child)
    try:
        lines = []
        assert child.stdout
        for line in child.stdout:
            lines.append(line.rstrip("\n"))
            say(lines[-1])
        ok = child.wait() == 0
    finally:
        _running.discard(child)
    ran = any(line.startswith("Running stage ") for line in lines)
    return Outcome(
        ok, ran, "" if ok else _error(lines), any(f"exited with {RETRY_LATER}" in line for line in lines[-3:])
    )


def is_chatter(line: str) -> bool:
    """Lines of DVC itself that tell the user of the flow nothing."""
    return not line.strip() or line.startswith(_CHATTER)


def stop_all() -> None:
    """End every running child with its whole process group, gently first."""
    _stopping.set()
    for number, seconds in _PATIENCE.items():
        children = [child for child in _running if child.poll() is None]
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)


def kill_all() -> None:
    """End every running child with its whole process group at once."""
    for child in list(_running):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def _error(lines: list[str]) -> str:
    """The stage's own message where it has one, or the last line of its traceback, or what DVC says."""
    own = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if own:
        message = [line for line in lines[own[-1] :] if line and not line.startswith("ERROR:")]
        return "\n".join(message).removeprefix("error: ")
    said = [line for line in lines if line.strip()]
    before_dvc = [line for line in said if not line.startswith("ERROR: failed to reproduce")]
    return (before_dvc or said or ["no output"])[-1].removeprefix("ERROR: ")
