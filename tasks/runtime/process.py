"""The stage's process: its environment, its life and death with the parent, its locks."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from tasks.errors import UserError

LOCKS = Path(".rlhf/locks")
FLOW_PID = "RLHF_FLOW_PID"
"""Set by the flow: a stage also ends when the flow that started it is gone."""
PARENT_RUN = "RLHF_PARENT_RUN"
"""Set by the flow: id of the MLflow run that stands above the stages'."""

NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DVC_NO_ANALYTICS": "1",
}
QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}
END_IN = 3.0
"""Seconds that a stage has to put things in order after Ctrl-C."""
_POLL, _GRACE = 2.0, 15.0
_SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh"}
_PR_SET_PDEATHSIG = 1
_M_MMAP_MAX, _M_TRIM_THRESHOLD, _M_TOP_PAD = -4, -1, -2


class Stopped(BaseException):
    """SIGTERM. Not an Exception, so that no `except Exception` of a library swallows it."""


def prepare_environment(downloads: bool = False) -> None:
    """No telemetry and no foreign progress bars, unless the user's environment says otherwise.

    downloads: the stage may fetch gigabytes from a hub, whose own progress bar then stays.
    """
    wanted = NO_TELEMETRY | QUIET | ({} if downloads else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed. A training step frees and asks again for hundreds of MB; given back to the
    kernel each time, they cost page faults (measured by benchmarks/training_step.py). Elsewhere: nothing to do.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**28)):
            mallopt(option, value)


def stop_on_sigterm() -> None:
    """Turn SIGTERM into an exception, so that locks, files and the MLflow run are put in order."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    signal.signal(signal.SIGTERM, stop)


def end_in_time(said: Callable[[], str], seconds: float = END_IN) -> None:
    """See that SIGINT and SIGTERM end this process within about `seconds`, whatever the main thread is doing.

    Python handles a signal between two of its own instructions, and one backward pass of a large model is one. The
    kernel frees the locks, and the companion closes the MLflow run. said: the last line, for the user.
    """
    seen, signalled = os.pipe()
    os.set_blocking(signalled, False)
    # Written at once, by the C handler.
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)

    def watch() -> None:
        number = 0
        while number not in (signal.SIGINT, signal.SIGTERM):
            number = os.read(seen, 1)[0]
        time.sleep(seconds)
        with contextlib.suppress(OSError):
            os.write(2, f"error: {said()}\n".encode())
        os._exit(128 + number)

    threading.Thread(target=watch, name="end-in-time", daemon=True).start()


def die_with_parent() -> None:
    """End this process when the `dvc repro` or the flow that started it is gone, so that no trainer is orphaned.

    Linux sends SIGTERM at once. A thread does the same where the kernel does not, sees through a shell that DVC put in
    between, and after a grace period ends a process that is stuck outside Python.
    """
    import psutil

    me = psutil.Process()
    parent = me.parent()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have died before the request was made; then nobody would ever send the signal.
    if parent is None or os.getppid() != parent.pid:
        raise Stopped
    watched = [parent]
    with contextlib.suppress(psutil.Error):
        grandparent = parent.parent()
        if parent.name() in _SHELLS and grandparent is not None:
            watched.append(grandparent)
    with contextlib.suppress(psutil.Error, ValueError):
        watched.append(psutil.Process(int(os.environ[FLOW_PID])) if FLOW_PID in os.environ else parent)

    def watch() -> None:
        while all(process.is_running() for process in watched):
            time.sleep(_POLL)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


@contextlib.contextmanager
def locked(name: str, what: str, folder: Path = LOCKS) -> Iterator[None]:
    """Hold the OS lock `name`; the kernel frees it when the process ends, however it ends.

    Raises UserError with the holder's process id when it is taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise UserError(f"{what} is in use by process {holder} ({path}): wait for it, or end it") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def gpus() -> list[str]:
    """Names of the GPUs that this process would use, found without importing torch; [] on a machine without."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    if not present or visible is None:
        return present
    return [device.strip().replace("/", "_") for device in visible.split(",") if device.strip() not in ("", "-1")]
