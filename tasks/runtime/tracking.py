"""What is asked of MLflow, in the one file that imports it. Each call fails or succeeds as a whole and may be repeated.

Store: MLFLOW_TRACKING_URI, or sqlite in the project folder. Experiment: MLFLOW_EXPERIMENT_NAME, or "rlhf".

`python -m tasks.runtime.tracking replay` delivers what waits on this disk (tasks/runtime/companion.py).

Repeating is safe because a metric's row is its own primary key (run, name, step, time, value): MLflow's store leaves
out a row that it has, behind its server too. A run is found again by a tag, so that it is not created twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import mlflow
from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.meta_dataset import MetaDataset
from mlflow.entities import DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from tasks.runtime import owner, record
from tasks.runtime.process import LOCKS

SPOOL = "spool"
"""Tag: the token of the spool that the run was recorded in."""
POINTS, PARAMS = 1000, 100
"""MLflow's limits of one batch."""
PARAM_LENGTH, TAG_LENGTH = 6000, 5000
SETTINGS = {
    # Delivery tries again itself, and a server that hangs is left soon.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "5",
}
_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


def open_store() -> str:
    """Point MLflow at its store, made if it is missing, and return the experiment's id.

    A password inside the address goes to MLflow's own variables, so that no message shows it.
    """
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    uri = os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    address = urlsplit(uri)
    if address.scheme in ("http", "https") and address.username:
        os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(address.username)
        os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(address.password or "")
        uri = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    mlflow.set_tracking_uri(uri)
    file = Path(uri.removeprefix("sqlite:///")).resolve() if uri.startswith("sqlite:///") else None
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rlhf")
    # Beside the store: two clones that share it share the lock.
    with _lock(file.with_name(f"{file.name}.lock") if file else LOCKS / "mlflow.lock"):
        found = mlflow.get_experiment_by_name(name)
        if found is None:
            location = file.with_name("mlartifacts").as_uri() if file else None
            with contextlib.suppress(MlflowException):  # another machine may have been first
                return str(mlflow.create_experiment(name, artifact_location=location))
            found = mlflow.get_experiment_by_name(name)
    return str(found.experiment_id)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Two processes that open a fresh sqlite store at once fail."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def open_run(experiment: str, known: str | None, name: str, start_time: int, tags: Mapping[str, str]) -> str:
    """Id of the run with these tags, in state RUNNING: the known one, the one of this spool, or a new one."""
    client = mlflow.MlflowClient()
    run = known if known and exists(known) else by_spool(experiment, tags[SPOOL])
    if run is None:
        run = client.create_run(experiment, start_time=start_time, run_name=name, tags=_short(tags)).info.run_id
        return str(run)
    tag(run, tags)
    if client.get_run(run).info.status != "RUNNING":
        client.update_run(run, status="RUNNING")
    return run


def exists(run: str) -> bool:
    """Whether the server has the run, and not as a deleted one."""
    try:
        return str(mlflow.MlflowClient().get_run(run).info.lifecycle_stage) == "active"
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def by_spool(experiment: str, token: str) -> str | None:
    """Id of the run that was recorded in this spool."""
    found = mlflow.MlflowClient().search_runs(
        [experiment], f"tags.`{SPOOL}` = '{token}'", order_by=["start_time", "run_id"]
    )
    return str(found[0].info.run_id) if found else None


def delete_twins(experiment: str, run: str, token: str) -> None:
    """A request that was given up may still have created a run: only `run` stays."""
    client = mlflow.MlflowClient()
    for twin in client.search_runs([experiment], f"tags.`{SPOOL}` = '{token}'"):
        if twin.info.run_id != run:
            client.delete_run(twin.info.run_id)


def send_points(run: str, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write the figures of these lines of a spool. Returns the names of those that the server refuses."""
    points = [
        Metric(record.allowed(name), value, line["time"], line["step"])
        for line in records
        for name, value in line["values"].items()
    ]
    refused = []
    for first in range(0, len(points), POINTS):
        refused += _send(run, "metrics", points[first : first + POINTS])
    return refused


def send_params(run: str, params: Mapping[str, Any]) -> dict[str, str]:
    """Write nested params as flat ones: "ppo.kl.target". Returns those that the server does not hold as they are:
    too long, or different from what an earlier start of the run has written, which cannot be changed.
    """
    wanted = {name: str(value) for name, value in record.flat(params).items()}
    there = mlflow.MlflowClient().get_run(run).data.params
    new = [Param(name, value[:PARAM_LENGTH]) for name, value in wanted.items() if name not in there]
    left = {name for name, value in wanted.items() if value != there.get(name, value[:PARAM_LENGTH])}
    for first in range(0, len(new), PARAMS):
        left.update(_send(run, "params", new[first : first + PARAMS]))
    return {name: wanted[name] for name in sorted(left)}


def _send(run: str, what: str, entries: Sequence[Any]) -> list[str]:
    """Log a batch of one kind; of one that is refused, the half that is at fault is looked for. Returns the refused."""
    try:
        mlflow.MlflowClient().log_batch(run, **{what: entries})
    except MlflowException as error:
        if error.error_code not in _REFUSALS or not exists(run):
            raise
        if len(entries) == 1:
            return [entries[0].key]
        middle = len(entries) // 2
        return _send(run, what, entries[:middle]) + _send(run, what, entries[middle:])
    return []


def send_inputs(run: str, hashes: Mapping[str, str]) -> None:
    """Show artefacts that the stage reads as data sets, with their DVC hashes."""
    sets = []
    for path, digest in hashes.items():
        source = CodeDatasetSource({"dvc.path": path, "dvc.md5": digest})
        data = MetaDataset(source, name=path, digest=digest[:36])
        sets.append(DatasetInput(data._to_mlflow_entity(), [InputTag("mlflow.data.context", "input")]))
    mlflow.MlflowClient().log_inputs(run, sets)


def send_document(run: str, name: str, text: str, table: bool) -> None:
    """Write an artefact, in the place of an earlier one of this name."""
    client = mlflow.MlflowClient()
    client.log_text(run, text, name)
    if table:  # its pages list tables by this tag
        held = json.loads(client.get_run(run).data.tags.get("mlflow.loggedArtifacts", "[]"))
        if (entry := {"path": name, "type": "table"}) not in held:
            client.set_tag(run, "mlflow.loggedArtifacts", json.dumps([*held, entry]))


def end_run(run: str, status: str, end_time: int) -> None:
    mlflow.MlflowClient().set_terminated(run, status, end_time)


def tag(run: str, tags: Mapping[str, Any]) -> None:
    entries = [RunTag(name, value) for name, value in _short(tags).items()]
    for first in range(0, len(entries), PARAMS):
        mlflow.MlflowClient().log_batch(run, tags=entries[first : first + PARAMS])


def _short(tags: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value)[:TAG_LENGTH] for name, value in tags.items()}


def close_runs_of_the_dead(experiment: str) -> None:
    """End as KILLED what is RUNNING though its process, on this host, is gone: nobody else will."""
    client = mlflow.MlflowClient()
    query = f"attributes.status = 'RUNNING' and tags.`host` = '{owner.me()['host']}'"
    for run in client.search_runs([experiment], query):
        if owner.is_gone(run.data.tags):
            client.set_terminated(run.info.run_id, "KILLED")


def find(experiment: str, tags: Mapping[str, str]) -> str | None:
    """Id of the latest finished run with all of these tags."""
    wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    found = mlflow.MlflowClient().search_runs(
        [experiment], f"{wanted} and attributes.status = 'FINISHED'", max_results=1, order_by=["start_time DESC"]
    )
    return str(found[0].info.run_id) if found else None


def links(experiment: str, stages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Tags that lead from a pipeline's run to each stage's, also to those that were made earlier.

    stages: address, fingerprint ("" without one), outs (path -> DVC's hash) and fresh (made just now) of each.
    """
    tags, rows = {}, ["| stage | run | |", "|---|---|---|"]
    for stage in stages:
        address, made_from = stage["address"], stage["fingerprint"]
        run = find(experiment, {"stage": address, "fingerprint": made_from}) if made_from else None
        if run:
            tags[f"run.{address.replace('@', '.')}"] = run
            if stage["fresh"]:
                tag(run, {f"dvc.out.{path}": digest for path, digest in stage["outs"].items()})
        shown = f"[{run[:8]}]({page(experiment, run)[1:]})" if run else "none"
        rows.append(f"| {address} | {shown} | {'made now' if stage['fresh'] else 'as before'} |")
    return {**tags, "mlflow.note.content": "\n".join(rows)}


def page(experiment: str, run: str) -> str:
    """Where the tracking server's pages show this run, from the server's address on."""
    return f"/#/experiments/{experiment}/runs/{run}"


class SystemFigures:
    """Load of processor, memory, disk, network and GPU, which MLflow samples by itself while the run goes on."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._monitor: Any = None

    def keep_going(self) -> None:
        """Start it, or start it again: it ends at the first request that fails."""
        thread: threading.Thread | None = getattr(self._monitor, "_process", None)
        if thread is None or not thread.is_alive():
            self._monitor = SystemMetricsMonitor(self._run, resume_logging=True)
            self._monitor.start()

    def stop(self) -> None:
        thread: threading.Thread | None = getattr(self._monitor, "_process", None)
        if thread is not None:
            self._monitor._shutdown_event.set()
            thread.join(2.0)
            with contextlib.suppress(MlflowException):
                self._monitor.mlflow_logger.flush()


if __name__ == "__main__":
    from tasks.runtime.companion import main

    sys.exit(main(sys.argv[1:]))
