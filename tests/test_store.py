"""What MLflow's store takes, refuses and does with what it gets twice: a real sqlite store, in this process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import mlflow
import pytest

from tasks.runtime import owner, tracking
from tests.conftest import environment


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/store.db"


@pytest.fixture
def experiment(store, monkeypatch, request) -> str:
    for name in tracking.SETTINGS:
        monkeypatch.setenv(name, tracking.SETTINGS[name])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    before = mlflow.get_tracking_uri()
    yield tracking.open_store()
    mlflow.set_tracking_uri(before)


def make(experiment: str, token: str = "t1", **tags: str) -> str:
    return tracking.open_run(experiment, None, "sft", 1000, {tracking.SPOOL: token, **owner.me(), **tags})


def line(n: int, step: int, when: int = 5000, **values: float) -> dict:
    return {"n": n, "step": step, "time": when, "values": values}


def test_rows_that_are_sent_again_are_there_once(experiment):
    run = make(experiment)
    lines = [line(n, n, 5000 + n, loss=n / 3, kl=0.1 + 0.2) for n in range(1, 701)]
    assert tracking.send_points(run, lines) == []
    # As after an answer that got lost: the same rows again, and new ones with them.
    assert tracking.send_points(run, [*lines[300:], line(701, 701, 6000, loss=1.0)]) == []
    points = mlflow.MlflowClient().get_metric_history(run, "loss")
    assert [(p.step, p.value, p.timestamp) for p in points] == [
        *((n, n / 3, 5000 + n) for n in range(1, 701)),
        (701, 1.0, 6000),
    ]
    assert mlflow.MlflowClient().get_run(run).data.metrics == {"loss": 1.0, "kl": 0.1 + 0.2}


def test_a_run_is_found_again_by_its_spool_and_not_created_twice(experiment):
    run = make(experiment)
    tracking.end_run(run, "KILLED", 7000)
    assert make(experiment, device="cpu") == run
    found = mlflow.MlflowClient().get_run(run)
    assert (found.info.status, found.info.start_time, found.data.tags["device"]) == ("RUNNING", 1000, "cpu")
    assert make(experiment, "t2") != run
    # A request that was given up has created one more.
    twin = mlflow.MlflowClient().create_run(experiment, tags={tracking.SPOOL: "t1"}).info.run_id
    tracking.delete_twins(experiment, run, "t1")
    assert tracking.exists(run)
    assert not tracking.exists(twin)
    assert not tracking.exists("0" * 32)


def test_a_figure_that_is_refused_holds_up_no_other(experiment):
    run = make(experiment)
    lines = [line(n, n, 5000, loss=1.0, **{"a,b" * 200: 2.0}) for n in range(1, 20)]
    lines[7] = line(8, 8, -1, broken=1.0)
    assert tracking.send_points(run, lines) == ["broken"]
    metrics = mlflow.MlflowClient().get_run(run).data.metrics
    # Names are cut to what MLflow takes: 250 characters, and no comma.
    assert metrics == {"loss": 1.0, ("ab" * 200)[:250]: 2.0}
    assert len(mlflow.MlflowClient().get_metric_history(run, "loss")) == 18


def test_long_and_changed_params_stop_nothing_and_are_handed_back_whole(experiment):
    run = make(experiment)
    long = "x" * 7000
    params = {"sft": {"prompt": long, "lr": 1e-4, "a,b": 1}, "shared": {f"key{n}": n for n in range(150)}}
    assert tracking.send_params(run, params) == {"sft.a,b": "1", "sft.prompt": long}
    held = mlflow.MlflowClient().get_run(run).data.params
    assert held == {"sft.prompt": long[:6000], "sft.lr": "0.0001", **{f"shared.key{n}": str(n) for n in range(150)}}
    assert tracking.send_params(run, {"sft": {"lr": 2e-4, "prompt": "y", "new": None}}) == {
        "sft.lr": "0.0002",
        "sft.prompt": "y",
    }
    held = mlflow.MlflowClient().get_run(run).data.params
    assert (held["sft.lr"], held["sft.new"]) == ("0.0001", "None")


def test_runs_of_processes_that_are_gone_are_closed_and_no_others(experiment):
    child = subprocess.Popen(
        [sys.executable, "-c", "import json; from tasks.runtime import owner; print(owner.me())"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    gone = ast.literal_eval(child.communicate()[0])
    client = mlflow.MlflowClient()
    tags = {"mine": owner.me(), "gone": gone, "elsewhere": {**gone, "host": "elsewhere"}, "untagged": {}}
    runs = {name: client.create_run(experiment, tags=each).info.run_id for name, each in tags.items()}
    tracking.close_runs_of_the_dead(experiment)
    states = {name: client.get_run(run).info.status for name, run in runs.items()}
    assert states == {"mine": "RUNNING", "gone": "KILLED", "elsewhere": "RUNNING", "untagged": "RUNNING"}


def test_documents_replace_each_other_and_tables_are_listed_once(experiment):
    run = make(experiment)
    for text in ('{"columns": ["a"], "data": [[1]]}', '{"columns": ["a"], "data": [[1], [2]]}'):
        tracking.send_document(run, "answers.json", text, table=True)
    tracking.send_document(run, "notes.txt", "one\n", table=False)
    client = mlflow.MlflowClient()
    assert client.get_run(run).data.tags["mlflow.loggedArtifacts"] == '[{"path": "answers.json", "type": "table"}]'
    table = mlflow.load_table("answers.json", run_ids=[run])
    assert table["a"].tolist() == [1, 2]


def test_the_password_of_the_address_is_handed_over_apart(monkeypatch, store):
    for name in (*tracking.SETTINGS, "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, tracking.SETTINGS.get(name, "before"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:s3cr%40t@127.0.0.1:9/base")
    with pytest.raises(mlflow.MlflowException) as raised:
        tracking.open_store()
    assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == ("ann", "s3cr@t")
    assert mlflow.get_tracking_uri() == "http://127.0.0.1:9/base"
    assert "s3cr" not in str(raised.value)
    mlflow.set_tracking_uri(store)
