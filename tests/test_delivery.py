"""Tracking may fail, training may not: real stages and companions against a real MLflow server that stops, answers 500,
hangs or is late; and what is in its store afterwards, read with MLflow.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
import psutil
import pytest

from tasks.runtime import spooled
from tasks.runtime.state import State
from tests import stubs
from tests.conftest import change_params, environment, run_in
from tests.servers import MlflowServer, Relay, companions
from tests.test_runner import gone, wait_for

STEPS = 30
STAGE = f"""
import time
from pathlib import Path
from tasks.runtime import record
def run(shared, cfg, *, out, **inputs):
    (out / "made.txt").write_text("made")
    checkpoint = Path("checkpoint")
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(first + 1, {STEPS} + 1):
        record.log(step, {STEPS}, {{"train/loss": 1 / step, "kl/kl": step / 8}}, {{"tokens_per_second": time.time()}})
        Path("step").write_text(str(step))
        if step % 10 == 0:
            checkpoint.write_text(str(step))
        while Path(f"pause-{{step}}").exists():
            time.sleep(0.05)
    record.note("dropped 2 rows: too long")
    record.table("answers", [{{"prompt": "the film is", "answer": " a delight"}}])
    return {{"share": 0.5}}
"""
FIGURES = {"train/loss", "kl/kl", "speed/tokens_per_second"}
LONG = 240.0
"""Seconds: only what hangs takes that long."""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[MlflowServer]:
    running = MlflowServer(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def relay(server) -> Iterator[Relay]:
    between = Relay(server.address)
    yield between
    between.close()


@pytest.fixture
def project(stubbed) -> Path:
    stubs.replace(stubbed, "base", STAGE)
    return stubbed


class Stage:
    """A stage in a process of its own that pauses at the steps named."""

    def __init__(self, project: Path, *pauses: int, address: str = "base", **variables: str) -> None:
        self.project, self.pauses = project, pauses
        for step in pauses:
            (project / f"pause-{step}").touch()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tasks", address],
            cwd=project,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def reach(self, step: int) -> None:
        path = self.project / "step"
        wait_for(lambda: self.process.poll() is not None or (path.exists() and path.read_text() == str(step)), LONG)
        assert self.process.poll() is None, self.process.stdout.read()

    def go_on(self, step: int) -> None:
        (self.project / f"pause-{step}").unlink()

    def end(self) -> str:
        """What it said, once its companion has ended too: on a slow machine the stage may not wait for that."""
        said = self.process.communicate(timeout=LONG)[0]
        assert self.process.returncode == 0, said
        wait_for(lambda: not companions(self.project), LONG)
        return "" if "goes on meanwhile" in said else said

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def runs(store: str, experiment: str = "rlhf") -> list[mlflow.entities.Run]:
    client = mlflow.MlflowClient(store)
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id], order_by=["start_time"]) if found else []


def history(store: str, run: mlflow.entities.Run) -> dict[str, list[int]]:
    """Figure -> its steps in the order of their times; what MLflow samples of the machine is left out."""
    client = mlflow.MlflowClient(store)
    names = [name for name in run.data.metrics if not name.startswith("system/")]
    points = {
        name: sorted(client.get_metric_history(run.info.run_id, name), key=lambda p: p.timestamp) for name in names
    }
    return {name: [point.step for point in found] for name, found in points.items()}


def assert_whole(store: str, run: mlflow.entities.Run) -> None:
    """Every figure of every step once, with its value, and a run that ended well."""
    assert run.info.status == "FINISHED"
    every = list(range(1, STEPS + 1))
    assert history(store, run) == {**dict.fromkeys(FIGURES, every), "base/share": [0]}
    points = mlflow.MlflowClient(store).get_metric_history(run.info.run_id, "train/loss")
    assert {point.step: point.value for point in points} == {step: 1 / step for step in range(1, STEPS + 1)}
    assert run.info.start_time <= min(point.timestamp for point in points)
    assert run.info.end_time >= max(point.timestamp for point in points)
    assert run.data.tags["mlflow.loggedArtifacts"] == '[{"path": "answers.json", "type": "table"}]'


def delivered(project: Path, count: int) -> bool:
    """Whether the server has confirmed the line with this number."""
    return any(State.read(folder).delivered >= count for folder in spooled.folders(project / spooled.FOLDER))


def test_a_server_that_stops_in_mid_run_gets_every_point_once_by_replay(project, server, request):
    name = request.node.name
    stage = Stage(project, 10, MLFLOW_TRACKING_URI=server.address, MLFLOW_EXPERIMENT_NAME=name)
    stage.reach(10)
    wait_for(lambda: delivered(project, 11), LONG)
    server.stop()
    stage.go_on(10)
    said = stage.end()
    (folder,) = spooled.folders(project / spooled.FOLDER)
    place = folder.relative_to(project)
    # Three figures of twenty steps, and the final one; once, with the way out.
    assert said.count("MLflow has not taken everything: 61 points wait in") == 1
    assert f"wait in {place}; the next stage or `python -m tasks.runtime.tracking replay` delivers them" in said
    assert (project / "runs/base/made.txt").read_text() == "made"
    server.start()
    (before,) = runs(server.store, name)
    assert before.info.status == "RUNNING"
    again = {"MLFLOW_TRACKING_URI": server.address, "MLFLOW_EXPERIMENT_NAME": name}
    done = run_in(project, "tasks.runtime.tracking", "replay", **again)
    assert done.returncode == 0
    assert f"{folder.name}: delivered\ndelivered 1 runs" in done.stdout
    (run,) = runs(server.store, name)
    assert run.info.run_id == before.info.run_id
    assert_whole(server.store, run)
    assert spooled.folders(project / spooled.FOLDER) == []
    assert "delivered 0 runs" in run_in(project, "tasks.runtime.tracking", "replay", **again).stdout


@pytest.mark.parametrize("mode", ["500", "hang", "late"])
def test_a_server_that_misbehaves_for_a_while_gets_every_point_once_and_nobody_notices(project, server, relay, mode):
    variables = {
        "MLFLOW_TRACKING_URI": relay.address,
        "MLFLOW_EXPERIMENT_NAME": f"misbehaves-{mode}",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    }
    # From the creation of the run on.
    relay.mode = mode if mode == "late" else "pass"
    stage = Stage(project, 10, 20, **variables)
    stage.reach(10)
    if mode != "late":
        wait_for(lambda: delivered(project, 11), LONG)
    relay.mode = mode
    stage.go_on(10)
    stage.reach(20)
    wait_for(lambda: len([path for seen, path in relay.seen if seen == mode]) > 3, LONG)
    relay.mode = "pass"
    wait_for(lambda: delivered(project, 21), LONG)
    stage.go_on(20)
    said = stage.end()
    assert "MLflow" not in said
    (run,) = runs(server.store, variables["MLFLOW_EXPERIMENT_NAME"])
    assert_whole(server.store, run)
    assert spooled.folders(project / spooled.FOLDER) == []


def test_a_whole_pipeline_without_a_server_is_created_later_with_its_own_times(project):
    stubs.replace(project, "base", stubs.STUB)
    done = run_in(project, "flows.pipeline", "base", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert done.returncode == 0, done.stdout
    folders = spooled.folders(project / spooled.FOLDER)
    assert [folder.name.partition("-")[0] for folder in folders] == ["pipeline", "base"]
    first = {folder.name.partition("-")[0]: next(spooled.lines(folder / spooled.EVENTS)) for folder in folders}
    last = {folder.name.partition("-")[0]: list(spooled.lines(folder / spooled.EVENTS))[-1] for folder in folders}
    # The store may be another one by then.
    again = run_in(project, "tasks.runtime.tracking", "replay")
    assert again.returncode == 0, again.stdout
    store = f"sqlite:///{project}/mlflow.db"
    found = {run.data.tags.get("stage", "pipeline"): run for run in runs(store)}
    assert set(found) == {"pipeline", "base"}
    for name, run in found.items():
        assert (run.info.status, run.info.start_time, run.info.end_time) == (
            "FINISHED",
            first[name]["time"],
            last[name]["time"],
        )
    assert found["base"].data.tags["mlflow.parentRunId"] == found["pipeline"].info.run_id
    assert found["pipeline"].data.tags["run.base"] == found["base"].info.run_id
    assert history(store, found["base"])["train/loss"] == [1, 2, 3]
    assert spooled.folders(project / spooled.FOLDER) == []


def test_a_resumed_stage_continues_its_run(project):
    store = f"sqlite:///{project}/mlflow.db"
    stage = Stage(project, 15)
    stage.reach(15)
    stage.kill()
    # However it died: the companion closes the run, and keeps what a resumption needs.
    wait_for(lambda: not companions(project), LONG)
    (killed,) = runs(store)
    assert killed.info.status == "KILLED"
    assert killed.data.tags["error"] == "the process has died"
    assert history(store, killed)["kl/kl"] == list(range(1, 16))
    stage.go_on(15)
    # From step 11 on.
    Stage(project).end()
    (run,) = runs(store)
    assert run.info.run_id == killed.info.run_id
    assert_whole(store, run)
    assert run.data.tags["error"] == ""
    assert run.data.tags["pid"] != killed.data.tags["pid"]
    assert spooled.folders(project / spooled.FOLDER) == []


def test_a_resumed_stage_whose_run_was_deleted_makes_a_new_one(project):
    store = f"sqlite:///{project}/mlflow.db"
    stage = Stage(project, 15)
    stage.reach(15)
    wait_for(lambda: delivered(project, 16), LONG)
    stage.kill()
    wait_for(lambda: not companions(project), LONG)
    (killed,) = runs(store)
    mlflow.MlflowClient(store).delete_run(killed.info.run_id)
    stage.go_on(15)
    Stage(project).end()
    (run,) = runs(store)
    assert run.info.run_id != killed.info.run_id
    assert_whole(store, run)


def test_a_run_that_is_deleted_while_the_stage_runs_is_made_anew(project):
    store = f"sqlite:///{project}/mlflow.db"
    stage = Stage(project, 15)
    stage.reach(15)
    wait_for(lambda: delivered(project, 16), LONG)
    (before,) = runs(store)
    mlflow.MlflowClient(store).delete_run(before.info.run_id)
    stage.go_on(15)
    stage.end()
    (run,) = runs(store)
    assert run.info.run_id != before.info.run_id
    assert_whole(store, run)


def test_when_stage_and_companion_are_killed_the_next_start_closes_the_run(project):
    store = f"sqlite:///{project}/mlflow.db"
    pipeline = subprocess.Popen(
        [sys.executable, "-m", "flows.pipeline", "base"],
        cwd=project,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (project / "pause-15").touch()
    wait_for(lambda: (project / "step").exists() and (project / "step").read_text() == "15", LONG)
    wait_for(lambda: delivered(project, 16) and len(runs(store)) == 2, LONG)
    for process in [*companions(project), psutil.Process(pipeline.pid)]:
        process.kill()
    pipeline.wait()
    holder = int((project / ".rlhf/locks/base.lock").read_text())
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder, signal.SIGKILL)
    wait_for(lambda: gone(holder), LONG)
    assert [run.info.status for run in runs(store)] == ["RUNNING", "RUNNING"]
    # Their spools are lost as well: then the tags tell whose they were.
    for folder in spooled.folders(project / spooled.FOLDER):
        spooled.remove(folder)
    (project / "pause-15").unlink()
    mine = mlflow.MlflowClient(store).create_run(
        runs(store)[0].info.experiment_id, tags={"host": "elsewhere", "pid": "1", "pid_started": "1"}
    )
    (project / "checkpoint").unlink()
    Stage(project).end()
    found = {run.info.run_id: run for run in runs(store)}
    assert found.pop(mine.info.run_id).info.status == "RUNNING"
    assert sorted(run.info.status for run in found.values()) == ["FINISHED", "KILLED", "KILLED"]


def test_a_companion_that_is_killed_is_made_up_for_at_the_end(project):
    store = f"sqlite:///{project}/mlflow.db"
    stage = Stage(project, 15)
    stage.reach(15)
    wait_for(lambda: delivered(project, 16), LONG)
    (companion,) = companions(project)
    companion.kill()
    stage.go_on(15)
    assert "MLflow" not in stage.end()
    (run,) = runs(store)
    assert_whole(store, run)


def test_two_clones_share_one_store(project, server, tmp_path, request):
    other = shutil.copytree(project, tmp_path / "clone")
    change_params(other, {"shared": {"seed": 18}})
    shared = f"sqlite:///{tmp_path}/shared.db"
    for store, read in ((shared, shared), (server.address, server.store)):
        name = f"two-{store[:6]}"
        variables = {"MLFLOW_TRACKING_URI": store, "MLFLOW_EXPERIMENT_NAME": name}
        both = []
        for clone in (project, other):
            for path in ("checkpoint", "step"):
                (clone / path).unlink(missing_ok=True)
            both.append(Stage(clone, **variables))
        for stage in both:
            assert "MLflow" not in stage.end()
        found = runs(read, name)
        assert len(found) == 2
        for run in found:
            assert_whole(read, run)
        for clone in (project, other):
            assert "locked" not in (clone / ".rlhf/mlflow.log").read_text()


def test_planted_secrets_are_nowhere(project, server, relay):
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "planted-aws-1",
        "MLFLOW_TRACKING_TOKEN": "planted-mlflow-2",
        "HF_TOKEN": "planted-hf-3",
    }
    address = relay.address.replace("//", "//ann:planted%2Furi-4@")
    text = STAGE.replace(
        'record.note("dropped', 'import os; record.note(" ".join(os.environ.values()) + os.environ["HF_TOKEN"] + "'
    )
    stubs.replace(project, "base", text + "\n")
    relay.mode = "500"
    config = "[core]\nno_scm = true\n['remote \"x\"']\nurl = webdavs://host/x\npassword = planted-dvc-5\n"
    (project / ".dvc/config.local").write_text(config)
    variables = {**secrets, "MLFLOW_TRACKING_URI": address, "MLFLOW_EXPERIMENT_NAME": "secrets"}
    said = Stage(project, **variables).end()
    waiting = spooled.folders(project / spooled.FOLDER)
    assert len(waiting) == 1
    planted = [*secrets.values(), "planted%2Furi-4", "planted/uri-4", "planted-dvc-5"]

    def leaks() -> list[tuple[str, str]]:
        # Not where they are planted, nor this file's copy.
        outside = [project / ".dvc/config.local", *(project / "tests").rglob("*")]
        places = [path for path in project.rglob("*") if path.is_file() and path not in outside]
        places += [path for path in server.folder.rglob("*") if path.is_file()]
        return [(str(path), secret) for path in places for secret in planted if secret.encode() in path.read_bytes()]

    assert leaks() == []
    assert not [secret for secret in planted if secret in said]
    relay.mode = "pass"
    done = run_in(project, "tasks.runtime.tracking", "replay", **variables)
    assert done.returncode == 0, done.stdout
    (run,) = runs(server.store, "secrets")
    shown = json.dumps(run.to_dictionary())
    assert any("***" in path.read_text() for path in server.folder.rglob("notes.txt"))
    assert leaks() == []
    assert not [secret for secret in planted if secret in shown or secret in done.stdout]
    # And yet MLflow had what it needs.
    assert any(value and value.startswith("Basic ") for value in relay.authorizations)
