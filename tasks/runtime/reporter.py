"""Takes what a stage records into its spool, and starts the companion process that brings it to MLflow.

A training step waits for one line to be appended to a file, never for the server. The companion
(tasks/runtime/companion.py) imports MLflow while the stage imports torch, and sees that the stage has died, however it
died: no run stays RUNNING. A failure of tracking is said once and stops nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.runtime import record, spool, spooled, surroundings
from tasks.runtime.process import PARENT_RUN
from tasks.runtime.redaction import redacted
from tasks.runtime.state import State

LOG = Path(".rlhf/mlflow.log")
"""What MLflow itself prints."""
OFF = "RLHF_TRACKING"
"""Environment: "off" records nothing in MLflow."""
PATIENCE = 60.0
"""Seconds that an ended stage waits for its companion, which gives the server less."""
REPLAY = "`python -m tasks.runtime.tracking replay`"


class Reporter:
    """Listener that keeps everything for MLflow."""

    def __init__(self, start: Mapping[str, Any], say: Callable[[str], None], resident: bool = True) -> None:
        """start: address, word, params (nested), fingerprint ("": nothing can go on); name and tags where the run has
        others than a stage's. say: called with a line for the user. resident: a companion goes along; without, one
        delivers the start and another the end.
        """
        self._say = say
        self._resident = resident
        self._group = start["word"]
        self._spool: spool.Spool | None = None
        self.token = ""
        self.page = ""
        """Where the tracking server shows the run; "" until it has it."""
        try:
            self._spool = spool.Spool(spool.place(start["address"], start["fingerprint"]))
            self.token = self._spool.token
            self._number = self._spool.start(_described(start))
            self._child = self._companion(once=not resident)
        except OSError as error:
            self._spool = None
            say(redacted(f"MLflow does not record this run: {error}"))

    def log(self, step: int, total: int, values: Mapping[str, float], timing: Mapping[str, float]) -> None:
        if self._spool:
            speed = {name if "/" in name else f"speed/{name}": value for name, value in timing.items()}
            self._spool.log(step, {**values, **speed})

    def note(self, text: str) -> None:
        if self._spool:
            self._spool.note(text)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._spool:
            self._spool.table(name, rows)

    def end(self, status: str, metrics: Mapping[str, Any] | None = None, error: str = "", **more: Any) -> None:
        """Close the run as FINISHED, FAILED or KILLED; wait, but not for long, until it has arrived. After Ctrl-C
        nobody wants to wait: the companion goes on alone.

        metrics: nested; its numbers become figures. more: tags, and what the end of a pipeline has besides.
        """
        if self._spool is None:
            return
        more["tags"] = {**surroundings.device(), **more.get("tags", {})}
        self._spool.end(status, record.figures(metrics or {}, self._group), error=error, **more)
        self._spool.close()
        if not self._resident or self._child.poll():
            self._child = self._companion(once=True)
        if status == "KILLED":
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._child.wait(PATIENCE):
                # Someone has killed it.
                self._child = self._companion(once=True)
                self._child.wait(PATIENCE)
            self._reader.join(1.0)
        self._tell(self._spool)

    def _tell(self, written: spool.Spool) -> None:
        """Say what MLflow does not show, and why."""
        counted = written.tally
        if counted.not_finite:
            named = ", ".join(f"{name} ({n}, first at step {s})" for name, (n, s) in counted.not_finite.items())
            self._say(f"MLflow: figures that are not finite are left out: {named}")
        if counted.dropped[0]:
            self._say(
                f"MLflow: {counted.dropped[0]} points from step {counted.dropped[1]} on found no room in "
                f"{written.folder} and are lost"
            )
        state = State.read(written.folder)
        if state.refused:
            self._say(f"MLflow refuses these figures: {', '.join(state.refused)}")
        if written.folder.exists() and (state.closed != self._number or state.artefacts_wait):
            waiting = spooled.count(written.folder, state.delivered)
            reason = f" ({state.error})" if state.error else ""
            if self._child.poll() is None:
                reason = f"; process {self._child.pid} goes on meanwhile{reason}"
            self._say(
                f"MLflow has not taken everything: {waiting} points wait in {written.folder}; the next stage "
                f"or {REPLAY} delivers them{reason}"
            )

    def _companion(self, once: bool) -> subprocess.Popen[str]:
        assert self._spool
        command = [sys.executable, "-m", "tasks.runtime.companion", str(self._spool.folder), str(self._number)]
        LOG.parent.mkdir(parents=True, exist_ok=True)
        with LOG.open("ab") as log:
            # Its own session: Ctrl-C and killpg end the stage, and the companion then closes the run.
            child = subprocess.Popen(
                [*command, *(["--once"] if once else [])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )
        self._reader = threading.Thread(target=self._read, args=(child,), daemon=True)
        self._reader.start()
        return child

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout
        with child.stdout:
            for line in child.stdout:
                self.page = line.rstrip("\n")


def wanted() -> bool:
    return os.environ.get(OFF, "").lower() not in ("off", "0", "false")


def _described(start: Mapping[str, Any]) -> dict[str, Any]:
    address = start["address"]
    tags = {"stage": address, "mlflow.source.name": f"python -m tasks {address}", "fingerprint": start["fingerprint"]}
    return {
        "name": start.get("name", address),
        "address": address,
        "fingerprint": start["fingerprint"],
        "params": start["params"],
        "parent": os.environ.get(PARENT_RUN, ""),
        "tags": start.get("tags", tags),
    }
