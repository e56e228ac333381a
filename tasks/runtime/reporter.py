"""Sends what a stage records to its MLflow run, through a companion process, so that a training step never waits.

The companion (tasks/runtime/tracking.py) imports MLflow while the stage imports torch, writes in batches, and sees by
the end of the pipe that the stage has died, however it died: no run stays RUNNING. A failure of tracking is said once
and stops nothing.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

LOG = Path(".rlhf/mlflow.log")
"""What MLflow itself prints."""
OFF = "RLHF_TRACKING"
"""Environment: "off" records nothing in MLflow."""
PATIENCE = 60.0
"""Seconds that a finished stage waits for the last batch to be written."""


class Reporter:
    """Listener that passes everything on to the companion process."""

    def __init__(self, start: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """start: what the run is about (tracking.Start). say: called with a line for the user when tracking fails."""
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._say = say
        LOG.parent.mkdir(parents=True, exist_ok=True)
        with LOG.open("ab") as log:
            # Its own session: Ctrl-C and killpg end the stage, and the companion then closes the run.
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tasks.runtime.tracking"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )
        assert self._child.stdin
        assert self._child.stdout
        self._threads = [
            threading.Thread(target=self._write, args=(self._child.stdin,), daemon=True),
            threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._queue.put({"kind": "start", **start})

    def log(self, step: int, total: int, values: Mapping[str, float], timing: Mapping[str, float]) -> None:
        now = round(time.time() * 1000)
        speed = {name if "/" in name else f"speed/{name}": value for name, value in timing.items()}
        self._queue.put({"kind": "log", "step": step, "time": now, "values": {**values, **speed}})

    def note(self, text: str) -> None:
        self._queue.put({"kind": "note", "text": text})

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._queue.put({"kind": "table", "name": name, "rows": [dict(row) for row in rows]})

    def end(self, status: str, metrics: Mapping[str, Any] | None = None, error: str = "") -> None:
        """Close the run as FINISHED, FAILED or KILLED and wait until it is written."""
        self._queue.put({"kind": "end", "status": status, "metrics": metrics or {}, "error": error, "tags": _device()})
        self._queue.put(None)
        for thread in self._threads:
            thread.join(PATIENCE)
        if self._child.poll() is None and any(thread.is_alive() for thread in self._threads):
            self._say(f"MLflow is slow: process {self._child.pid} goes on writing this run")

    def _write(self, pipe: IO[str]) -> None:
        try:
            with pipe:
                while (message := self._queue.get()) is not None:
                    pipe.write(json.dumps(message, ensure_ascii=False, default=str) + "\n")
                    pipe.flush()
        except (OSError, ValueError) as error:
            self._say(f"MLflow does not record this run: its process has ended ({error}), see {LOG}")

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self._say(line.rstrip("\n"))


def wanted() -> bool:
    return os.environ.get(OFF, "").lower() not in ("off", "0", "false")


def _device() -> dict[str, str]:
    """Tags of the device that the stage used. Asks torch only where the stage has imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    used = torch.cuda.get_device_name() if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"
    return {"device": str(used), "threads": str(torch.get_num_threads())}
