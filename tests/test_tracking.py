"""The MLflow runs: what they hold, and that no stage depends on them. The store is read with SQL and with MLflow."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest

from tasks.runtime import fingerprint, record, reporter, stage
from tests import stubs
from tests.conftest import environment, run_in
from tests.servers import companions
from tests.test_runner import wait_for


def runs(folder: Path) -> dict[str, mlflow.entities.Run]:
    """Stage address, or "pipeline", -> its run."""
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("rlhf")
    found = client.search_runs([experiment.experiment_id])
    named = {run.data.tags.get("stage", "pipeline"): run for run in found}
    assert len(named) == len(found), "a stage has two runs"
    return named


@pytest.fixture(scope="module")
def recorded(tiny):
    return runs(tiny)


@pytest.fixture
def addresses(tiny):
    return stage.addresses(tiny / "dvc.yaml")


def test_one_finished_run_per_stage_below_one_of_the_pipeline(recorded, addresses):
    assert set(recorded) == {"pipeline", *addresses}
    above = recorded["pipeline"].info.run_id
    for name, run in recorded.items():
        assert run.info.status == "FINISHED"
        assert run.data.tags.get("mlflow.parentRunId") == (None if name == "pipeline" else above)
        assert name == "pipeline" or run.info.run_name == name


def test_a_stages_fingerprint_is_that_of_its_entry_in_the_lock(recorded, addresses, tiny):
    # The stage computes it before dvc.lock has its entry, the flow from dvc.lock.
    locked = fingerprint.locked(tiny / "dvc.lock")
    assert {a: recorded[a].data.tags["fingerprint"] for a in addresses} == {
        a: fingerprint.of(locked[a]) for a in addresses
    }
    assert len({fingerprint.of(entry) for entry in locked.values()}) == len(addresses)


def test_the_fingerprint_depends_on_command_dependencies_and_params_only():
    entry = {"cmd": "x", "deps": [{"path": "a", "md5": "1"}], "params": {"params.yaml": {"lr": 5e-05}}, "outs": [1]}
    same = fingerprint.of(entry)
    assert fingerprint.of({**entry, "outs": []}) == same
    for key, other in (("cmd", "y"), ("deps", [{"path": "a", "md5": "2"}]), ("params", {"params.yaml": {"lr": 6e-05}})):
        assert fingerprint.of({**entry, key: other}) != same


def test_the_pipeline_links_each_stages_run(recorded, addresses):
    tags = recorded["pipeline"].data.tags
    for address in addresses:
        assert tags[f"run.{address.replace('@', '.')}"] == recorded[address].info.run_id
        assert recorded[address].info.run_id in tags["mlflow.note.content"]


def test_figures_are_grouped_and_finite(recorded, tiny):
    with sqlite3.connect(tiny / "mlflow.db") as store:
        bad = store.execute("select count(*) from metrics where is_nan or abs(value) > 1e300").fetchone()
        names = {name for (name,) in store.execute("select distinct key from metrics")}
    assert bad == (0,)
    assert all("/" in name for name in names)
    groups = {name.partition("/")[0] for name in names}
    assert {"train", "reward", "kl", "ppo", "evaluation", "dpo"} <= groups
    steps = mlflow.MlflowClient(f"sqlite:///{tiny}/mlflow.db").get_metric_history(recorded["ppo"].info.run_id, "kl/sum")
    rows = (tiny / "metrics/ppo.csv").read_text().splitlines()
    assert [m.step for m in steps] == [int(row.partition(",")[0]) for row in rows[1:]]


def test_headline_figures_of_the_metrics_files_are_on_the_pipelines_run(recorded, tiny):
    figures = recorded["pipeline"].data.metrics
    for policy in ("sft", "dpo", "ppo"):
        summary = json.loads((tiny / f"metrics/evaluation/{policy}.json").read_text())
        assert figures[f"evaluation/{policy}/win_rate/rate"] == summary["win_rate"]["rate"]
    # Few enough to be compared by: the stages' own runs have the rest.
    assert {name.partition("/")[0] for name in figures} >= {"sft", "preferences", "reward", "dpo", "ppo", "comparison"}
    assert "hacking/length/threshold" in recorded["evaluation@dpo"].data.metrics
    assert not [name for name in figures if name.endswith(("threshold", "bootstrap_low"))]


def test_params_are_flat(recorded):
    assert recorded["ppo"].data.params["ppo.kl.kind"] == "adaptive"
    assert recorded["ppo"].data.params["shared.seed"] == "17"
    assert not any(name.startswith("sft.") for name in recorded["ppo"].data.params)
    assert {"sft.optimiser.batch", "dpo.loss.beta", "corpus.judge.kind"} <= set(recorded["pipeline"].data.params)


def test_data_sets_carry_dvcs_hashes(recorded, tiny):
    wanted = {d["path"]: d["md5"] for d in fingerprint.locked(tiny / "dvc.lock")["dpo"]["deps"] if "runs/" in d["path"]}
    found = {i.dataset.name: i.dataset.digest for i in recorded["dpo"].inputs.dataset_inputs}
    assert found == wanted
    assert set(wanted) == {"runs/sft", "runs/preferences"}


def test_tags_tell_versions_device_and_the_artefacts_hash(recorded, tiny):
    tags = recorded["sft"].data.tags
    assert tags["version.torch"].startswith("2.")
    assert (tags["device"], tags["threads"]) == ("cpu", "1")
    outs = {out["path"]: out["md5"] for out in fingerprint.locked(tiny / "dvc.lock")["sft"]["outs"]}
    assert tags["dvc.out.runs/sft"] == outs["runs/sft"]


def test_the_environments_values_are_nowhere(stubbed):
    run_in(stubbed, "tasks", "base", AWS_SECRET_ACCESS_KEY="s3cr3t-value")
    written = [
        path for path in stubbed.rglob("*") if path.is_file() and path.suffix in (".db", ".json", ".log", ".txt")
    ]
    assert any(path.name == "mlflow.db" for path in written)
    assert not [path for path in written if b"s3cr3t-value" in path.read_bytes()]


def test_tables_are_artefacts(recorded, tiny):
    (table,) = (tiny / "mlartifacts" / recorded["comparison"].info.run_id / "artifacts").glob("*.json")
    content = json.loads(table.read_text())
    assert "prompt" in content["columns"]
    assert content["data"]


@pytest.mark.parametrize(("body", "status"), [("{}['lost']", "FAILED"), ("__import__('os').kill(PID, 15)", "KILLED")])
def test_a_stage_that_fails_leaves_no_run_open(stubbed, body, status):
    stubs.replace(stubbed, "base", f"import os\nPID = os.getpid()\ndef run(shared, cfg, *, out):\n    {body}\n")
    run_in(stubbed, "tasks", "base")
    # After a signal the stage does not wait for its companion.
    wait_for(lambda: not companions(stubbed), 240)
    (run,) = runs(stubbed).values()
    assert run.info.status == status
    assert run.data.tags["error"] == {"FAILED": "KeyError: 'lost'", "KILLED": "Stopped: "}[status]


def test_a_stage_killed_outright_leaves_no_run_open(stubbed):
    text = "import os, time\ndef run(shared, cfg, *, out):\n    time.sleep(1)\n    os.kill(os.getpid(), 9)\n"
    stubs.replace(stubbed, "base", text)
    assert run_in(stubbed, "tasks", "base").returncode == -signal.SIGKILL

    def statuses() -> list[tuple[str]]:
        # Not through MLflow: opening a store that the companion is about to make would disturb it.
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(stubbed / "mlflow.db") as store:
            return store.execute("select status from runs").fetchall()
        return []

    wait_for(lambda: statuses() == [("KILLED",)], 240)


def test_a_store_that_cannot_be_reached_is_said_once_and_stops_nothing(stubbed):
    done = run_in(
        stubbed, "tasks", "base", MLFLOW_TRACKING_URI="http://127.0.0.1:9", MLFLOW_HTTP_REQUEST_MAX_RETRIES="0"
    )
    assert done.returncode == 0
    # Two figures of three steps, their speed, and the final one.
    assert done.stdout.count("MLflow has not taken everything: 10 points wait in .rlhf/tracking/base-") == 1
    assert (stubbed / "runs/base/made.txt").exists()


def test_figures_that_are_not_finite_are_counted(stubbed):
    stubs.replace(stubbed, "base", stubs.STUB.replace("step / 8", "float('nan')"))
    done = run_in(stubbed, "tasks", "base")
    assert "MLflow: figures that are not finite are left out: kl/kl (3, first at step 1)" in done.stdout
    wait_for(lambda: not companions(stubbed), 240)
    (run,) = runs(stubbed).values()
    assert run.data.tags["not_finite"] == "kl/kl: 3 from step 1"
    assert "kl/kl" not in run.data.metrics
    assert run.data.metrics["train/loss"] == pytest.approx(1 / 3)


def test_a_name_that_mlflow_refuses_is_shortened():
    assert record.figures({"dropped": {"a tie, or less": 3}}, "x") == {"dropped/a tie or less": 3.0}
    assert record.figures({"loss": 1, "ok": True, "name": "n", "list": [1]}, "sft") == {"sft/loss": 1.0}


def test_recording_a_step_costs_a_training_step_nothing(stubbed, monkeypatch):
    # The companion takes seconds to import MLflow and writes batches in its own process: the stage appends to a file.
    monkeypatch.chdir(stubbed)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{stubbed}/mlflow.db")
    lines: list[str] = []
    start = {"address": "base", "word": "base", "params": {}, "fingerprint": ""}
    told = reporter.Reporter(start, lines.append)
    values = {f"train/figure{i}": 1.0 for i in range(20)}
    began = time.thread_time()
    for step in range(1, 201):
        told.log(step, 200, values, {"tokens_per_second": 1.0})
    per_step = (time.thread_time() - began) / 200
    told.end("FINISHED")
    wait_for(lambda: not companions(stubbed), 240)
    assert [line for line in lines if "goes on meanwhile" not in line] == []
    # 2 % of a step of 50 ms, far shorter than one of a real model.
    assert per_step < 0.001
    with sqlite3.connect(stubbed / "mlflow.db") as store:
        assert store.execute("select count(*) from metrics where key like 'train/%'").fetchone() == (200 * 20,)


def test_two_processes_open_a_fresh_store_at_once(stubbed):
    program = "from tasks.runtime import tracking; print(tracking.open_store())"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=stubbed, env=environment(), stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert {child.communicate(timeout=120)[0].strip() for child in both} == {"1"}


def test_no_telemetry_is_set_for_every_tool(monkeypatch):
    from tasks.runtime import process

    for name in process.NO_TELEMETRY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(process.os, "environ", dict(os.environ))
    process.prepare_environment()
    from mlflow.environment_variables import MLFLOW_DISABLE_TELEMETRY

    assert set(process.NO_TELEMETRY) <= set(process.os.environ)
    assert MLFLOW_DISABLE_TELEMETRY.name in process.NO_TELEMETRY
