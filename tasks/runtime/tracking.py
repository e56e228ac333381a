"""The MLflow side of tracking, and the one file that imports it.

As a program it is a stage's companion (tasks/runtime/reporter.py): messages come in as JSON lines, lines for the user
go out. The flow imports its functions for the run that stands above the stages'.

Store: MLFLOW_TRACKING_URI, or sqlite in the project folder. Experiment: MLFLOW_EXPERIMENT_NAME, or "rlhf".
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.meta_dataset import MetaDataset
from mlflow.entities import Metric, Param, RunTag

from tasks.runtime import fingerprint, record
from tasks.runtime.process import LOCKS, PARENT_RUN

FLUSH_POINTS, FLUSH_SECONDS = 1000, 5.0
"""A batch is written at this size (MLflow's limit) or age."""
LIBRARIES = ("torch", "transformers", "mlflow", "dvc", "prefect", "numpy")
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]", re.ASCII)
"""In the name of a figure."""


class StageRun:
    """One stage's run: a buffer of points and the messages that the stage sends."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        """start: address, word, params (nested)."""
        self.word = start["word"]
        experiment = open_store()
        with contextlib.suppress(ValueError, TypeError):
            mlflow.enable_system_metrics_logging()
        parent = os.environ.get(PARENT_RUN)
        tags = {
            "stage": start["address"],
            "mlflow.source.name": f"python -m tasks {start['address']}",
            **environment(),
        }
        run = mlflow.start_run(
            experiment_id=experiment, run_name=start["address"], parent_run_id=parent, nested=bool(parent), tags=tags
        )
        self.id = run.info.run_id
        self.client = mlflow.MlflowClient()
        self.points: list[Metric] = []
        self.flushed = time.monotonic()
        self.dropped = 0
        self.notes: list[str] = []
        log_params(self.id, start["params"])
        self._describe(start["address"])

    def receive(self, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "log":
            self._add(message["values"], message["step"], message["time"])
        elif kind == "note":
            self.notes.append(message["text"])
        elif kind == "table":
            rows = message["rows"]
            columns = dict.fromkeys(key for row in rows for key in row)
            mlflow.log_table({c: [row.get(c) for row in rows] for c in columns}, f"{message['name']}.json", self.id)
        if len(self.points) >= FLUSH_POINTS or time.monotonic() - self.flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        while self.points:
            self.client.log_batch(self.id, metrics=self.points[:FLUSH_POINTS])
            del self.points[:FLUSH_POINTS]
        self.flushed = time.monotonic()

    def end(self, message: Mapping[str, Any]) -> None:
        """Write what is left, the final figures (in the group named after the stage) and the status."""
        self._add(figures(message.get("metrics", {}), self.word), 0, round(time.time() * 1000))
        self.flush()
        tags = dict(message.get("tags", {}))
        if message.get("error"):
            tags["error"] = message["error"][:5000]
        if self.dropped:
            tags["dropped_not_finite"] = str(self.dropped)
        self.client.log_batch(self.id, tags=[RunTag(k, str(v)) for k, v in tags.items()])
        if self.notes:
            mlflow.log_text("\n".join(self.notes) + "\n", "notes.txt", self.id)
        mlflow.end_run(message["status"])

    def _add(self, values: Mapping[str, float], step: int, when: int) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self.dropped += len(values) - len(finite)
        self.points += [Metric(name, value, when, step) for name, value in finite.items()]

    def _describe(self, address: str) -> None:
        """Fingerprint, and the artefacts that the stage reads as data sets with their DVC hashes."""
        if not Path(".dvc").is_dir():
            return
        entry = fingerprint.entry(address)
        self.client.set_tag(self.id, "fingerprint", fingerprint.of(entry))
        for dependency in entry.get("deps", []):
            path, digest = dependency["path"], dependency.get("md5", "")
            if not path.endswith(".py"):
                source = CodeDatasetSource({"dvc.path": path, "dvc.md5": digest})
                mlflow.log_input(MetaDataset(source, name=path, digest=digest[:36]), context="input")


def open_store() -> str:
    """Point MLflow at its store, made if it is missing, and return the experiment's id.

    Under a file lock: two processes that open a fresh sqlite store at once fail.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "5")
    local = "MLFLOW_TRACKING_URI" not in os.environ
    mlflow.set_tracking_uri("sqlite:///mlflow.db" if local else os.environ["MLFLOW_TRACKING_URI"])
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rlhf")
    with _waiting_lock("mlflow"):
        found = mlflow.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = Path("mlartifacts").resolve().as_uri() if local else None
        return str(mlflow.create_experiment(name, artifact_location=location))


@contextlib.contextmanager
def _waiting_lock(name: str) -> Iterator[None]:
    LOCKS.mkdir(parents=True, exist_ok=True)
    with (LOCKS / f"{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment() -> dict[str, str]:
    """Tags of code version and libraries. The environment's variables, which may hold secrets, are not read."""
    tags = {"python": platform.python_version(), "platform": platform.platform()}
    for library in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            tags[f"version.{library}"] = importlib.metadata.version(library)
    if commit := git("rev-parse", "HEAD"):
        tags["mlflow.source.git.commit"] = commit
        # What runs write is no change of the code.
        changed = git("status", "--porcelain", "--", ".", ":!metrics", ":!dvc.lock")
        tags["git.dirty"] = str(bool(changed)).lower()
    return tags


def git(*arguments: str) -> str:
    """Output of a git command here, or "" where there is no repository or no git."""
    with contextlib.suppress(OSError):
        return subprocess.run(["git", *arguments], check=False, capture_output=True, text=True).stdout.strip()
    return ""


def figures(metrics: Mapping[str, Any], group: str) -> dict[str, float]:
    """The numbers among nested metrics, named "group/name": MLflow groups its charts by what is before the slash."""
    flat = record.flat(metrics, "/")
    numbers = {k: float(v) for k, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {_NOT_ALLOWED.sub("", k if "/" in k else f"{group}/{k}"): v for k, v in numbers.items()}


def log_params(run: str, params: Mapping[str, Any]) -> None:
    """Log nested params as flat ones: "ppo.kl.target"."""
    pairs = [Param(name, str(value)[:6000]) for name, value in record.flat(params).items()]
    client = mlflow.MlflowClient()
    for first in range(0, len(pairs), 100):
        client.log_batch(run, params=pairs[first : first + 100])


def companion(lines: Iterable[str]) -> None:
    """Serve one stage. The end of the lines without an "end" message means that the stage died."""
    inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in lines:
                inbox.put(json.loads(line))
        inbox.put(None)

    threading.Thread(target=read, daemon=True).start()
    start = inbox.get()
    if start is None:
        return
    run = StageRun(start)
    while True:
        try:
            message = inbox.get(timeout=FLUSH_SECONDS)
        except queue.Empty:
            run.flush()
            continue
        if message is None or message["kind"] == "end":
            run.end(message or {"status": "FAILED", "error": "the stage's process died"})
            break
        run.receive(message)
    if run.dropped:
        _say(f"MLflow: {run.dropped} figures were not finite and are left out")


def start_pipeline(name: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    """Open the run that stands above a pipeline's stages; returns its id."""
    run = mlflow.MlflowClient().create_run(open_store(), run_name=name, tags={**environment(), **tags})
    log_params(run.info.run_id, params)
    return str(run.info.run_id)


def end_pipeline(run: str, status: str, values: Mapping[str, float], tags: Mapping[str, str]) -> None:
    """Close the pipeline's run, and any stage's run below it that is still open (its process was killed outright)."""
    client = mlflow.MlflowClient()
    experiment = client.get_run(run).info.experiment_id
    for left in client.search_runs(
        [experiment], f"tags.`mlflow.parentRunId` = '{run}' and attributes.status = 'RUNNING'"
    ):
        client.set_terminated(left.info.run_id, "KILLED")
    now = round(time.time() * 1000)
    finite = [Metric(name, value, now, 0) for name, value in values.items() if math.isfinite(value)]
    try:
        client.log_batch(run, metrics=finite, tags=[RunTag(k, v) for k, v in tags.items()])
    finally:
        client.set_terminated(run, status)


def find(tags: Mapping[str, str]) -> str | None:
    """Id of the latest finished run with all of these tags."""
    wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    found = mlflow.MlflowClient().search_runs(
        [open_store()], f"{wanted} and attributes.status = 'FINISHED'", max_results=1, order_by=["start_time DESC"]
    )
    return str(found[0].info.run_id) if found else None


def tag(run: str, tags: Mapping[str, str]) -> None:
    mlflow.MlflowClient().log_batch(run, tags=[RunTag(name, value) for name, value in tags.items()])


def page(run: str) -> str:
    """Where the tracking server's pages show this run, from the server's address on."""
    return f"/#/experiments/{mlflow.MlflowClient().get_run(run).info.experiment_id}/runs/{run}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        companion(sys.stdin)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here must not end the stage
        _say(f"MLflow does not record this run: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        # The stage goes on writing; reading it to the end keeps the pipe whole.
        for _ in sys.stdin:
            pass
