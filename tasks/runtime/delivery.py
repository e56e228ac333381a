"""Brings one spool (tasks/runtime/spool.py) to MLflow: in order, once, and for as long as it takes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
import time
from pathlib import Path
from typing import Any

from tasks.runtime import owner, spooled, tracking
from tasks.runtime.artefacts import artefacts
from tasks.runtime.provenance import environment, inputs
from tasks.runtime.redaction import redacted
from tasks.runtime.spool import tally
from tasks.runtime.state import State

SHOWN = 160
"""Characters of an error that the user is shown; `.rlhf/mlflow.log` has all of it."""
KEEP = 14 * 24 * 3600.0
"""Seconds that a delivered spool of a stage that did not finish waits for its resumption."""


class Delivery:
    """One spool on its way. Whoever makes one holds the spool's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = State.read(folder)
        self._points: spooled.Points | None = None
        self._pending: list[dict[str, Any]] = []
        self._system: tracking.SystemFigures | None = None
        self.look()

    def look(self) -> None:
        """Read the events again."""
        self.events = list(spooled.lines(self.folder / spooled.EVENTS))
        marks = [event for event in self.events if event["kind"] in ("start", "end")]
        starts = [event for event in marks if event["kind"] == "start"]
        self.first, self.start = (starts[0], starts[-1]) if starts else ({}, {})
        self.end = marks[-1] if marks and marks[-1]["kind"] == "end" else None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be written by the present start."""
        return self.end is not None or owner.is_gone(self.start["owner"])

    @property
    def is_closed(self) -> bool:
        return self.state.closed == self.start["n"] and not self.state.artefacts_wait

    def describe(self) -> None:
        """Note where the present start comes from, while the code and the data are still those."""
        if self.state.described != self.start["n"]:
            self.state.described = self.start["n"]
            self.state.tags = environment()
            # Where DVC cannot tell, the run goes without them.
            with contextlib.suppress(Exception):
                self.state.inputs = inputs(self.start["address"]) if self.start.get("fingerprint") else {}
            self.state.write(self.folder)

    def advance(self) -> None:
        """Send what is there. Raises whatever the server's failure raises; nothing is lost by that."""
        self.open()
        assert self.state.run
        if self._points is None:
            self._points = spooled.Points(self.folder, self.state.delivered)
        while batch := self._next():
            try:
                refused = tracking.send_points(self.state.run, batch)
            except Exception:
                if not tracking.exists(self.state.run):
                    # Deleted by someone: what is still here goes to a new run.
                    self._forget_run()
                raise
            self.state.refused = sorted({*self.state.refused, *refused})
            self._pending = []
            self.state.delivered = batch[-1]["n"]
            self.state.write(self.folder)
            self._drop_parts()
        self._send_documents()
        if self._system:
            self._system.keep_going()

    def open(self) -> None:
        """Have the run, in state RUNNING and with the tags and params of the present start."""
        state, start = self.state, self.start
        if state.run and state.opened == start["n"]:
            return
        experiment = tracking.open_store()
        tags = {tracking.SPOOL: start["token"], **state.tags, **start.get("tags", {}), **start["owner"]}
        if start.get("parent"):
            tags["mlflow.parentRunId"] = _parent(experiment, start["parent"])
        if state.run and not tracking.exists(state.run):
            self._forget_run()
        tags = {name: value for name, value in tags.items() if value}
        state.run = tracking.open_run(experiment, state.run, start["name"], self.first["time"], tags)
        state.experiment = experiment
        left = tracking.send_params(state.run, start.get("params", {}))
        state.params = {**state.params, **left}
        if state.inputs:
            tracking.send_inputs(state.run, state.inputs)
        state.opened = start["n"]
        state.write(self.folder)

    def _forget_run(self) -> None:
        if self._system:
            self._system.stop()
        self.state.forget_run()
        self._points, self._pending, self._system = None, [], None

    def close(self) -> None:
        """End the run as the stage has ended, at that time, and remove the spool unless the stage may go on."""
        state = self.state
        assert state.run
        assert state.experiment
        if self._system:
            self._system.stop()
        ended = self.end or {"status": "KILLED", "error": "the process has died", "time": self._last_time()}
        counted = tally(self.folder)
        tags = {
            **ended.get("tags", {}),
            # "" where an earlier start has left one.
            "error": ended.get("error", "") or ("" if self.first is not self.start else None),
            "not_finite": "; ".join(f"{name}: {n} from step {s}" for name, (n, s) in counted.not_finite.items()),
            "points_dropped": str(ended.get("dropped", [0])[0] or ""),
            "refused": ", ".join(state.refused),
            "params_not_as_run": ", ".join(state.params),
        }
        if "stages" in ended:
            tags |= tracking.links(state.experiment, ended["stages"])
        tracking.tag(
            state.run, {name: value for name, value in tags.items() if value or (name == "error" and value is not None)}
        )
        tracking.end_run(state.run, ended["status"], ended["time"])
        tracking.delete_twins(state.experiment, state.run, self.start["token"])
        state.closed = self.start["n"]
        state.error = ""
        state.write(self.folder)
        self.tidy()

    def tidy(self) -> None:
        """Remove the spool once everything has arrived, unless its stage may go on: not finished, and made from the
        same when it starts again.
        """
        finished = not self.start.get("fingerprint") or (self.end or {}).get("status") == "FINISHED"
        if self.is_closed and (finished or time.time() - self._last_time() / 1000 > KEEP):
            spooled.remove(self.folder)

    def watch_machine(self) -> None:
        """Record the machine's load from now on."""
        if self.state.run and self._system is None:
            self._system = tracking.SystemFigures(self.state.run)

    def failed(self, error: Exception) -> None:
        """Remember why the server has not taken everything, for whoever tells the user."""
        said = redacted(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        sys.stderr.write(f"{self.folder}: {said}\n")
        said = said if len(said) <= SHOWN else f"{said[:SHOWN]}..."
        if self.state.error != said and self.folder.exists():
            self.state.error = said
            self.state.write(self.folder)

    def _next(self) -> list[dict[str, Any]]:
        assert self._points
        self._pending = self._pending or self._points.read()
        return self._pending

    def _send_documents(self) -> None:
        """Write notes and tables. An artefact store that does not answer holds up no figures."""
        state = self.state
        assert state.run
        state.artefacts_wait = False
        for name, (text, table) in artefacts(self.events, state.params).items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            if state.artefacts.get(name) == digest:
                continue
            try:
                tracking.send_document(state.run, name, text, table)
            except Exception as error:  # noqa: BLE001 - the artefact store's own exceptions are many
                state.artefacts_wait = True
                self.failed(error)
                break
            state.artefacts[name] = digest
        state.write(self.folder)

    def _drop_parts(self) -> None:
        """Delete the parts of which every point has arrived; the newest stays, as its head sums up the others."""
        existing = spooled.parts(self.folder)
        for part, following in itertools.pairwise(existing):
            head = next(spooled.lines(following), None)
            if head is None or head["tally"]["number"] > self.state.delivered:
                break
            part.unlink()

    def _last_time(self) -> int:
        newest = spooled.parts(self.folder)[-1:]
        times = [line["time"] for part in newest for line in spooled.lines(part) if "time" in line]
        return int(max([*times, *(event["time"] for event in self.events)]))


class Waiting(Exception):
    """Another process is about to make what is needed here."""


def _parent(experiment: str, token: str) -> str:
    """Id of the run above; made from its spool where the server does not have it yet, "" where nobody knows it."""
    found = tracking.by_spool(experiment, token)
    for folder in spooled.folders() if not found else ():
        if next(spooled.lines(folder / spooled.EVENTS))["token"] == token:
            with spooled.delivering(folder, wait=False) as held:
                if not held:
                    raise Waiting("the run above is not there yet")
                above = Delivery(folder)
                above.open()
                found = above.state.run
    return found or ""
