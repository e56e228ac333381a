"""Several at once: pipelines that share a DVC cache and an MLflow store, stages side by side, a reader beside them."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests import stubs
from tests.conftest import change_params, environment, run_in, start_in
from tests.test_runner import wait_for

SLOW = """
import time
from pathlib import Path
from tasks.runtime import record
def run(shared, cfg, *, out, **inputs):
    (out / "made.txt").write_text("made")
    record.log(1, 1, {"train/loss": 1.0})
    Path("started").touch()
    for _ in range(600):
        if Path("go").exists():
            return {"share": 0.5}
        time.sleep(0.1)
"""


def runs(store: Path, tag: str) -> dict[str, list[str]]:
    """Value of a tag -> the states of the MLflow runs that have it: `stage` is a stage's, `target` a pipeline's."""
    query = "select tags.value, runs.status from runs join tags using (run_uuid) where tags.key = ?"
    found: dict[str, list[str]] = {}
    with contextlib.closing(sqlite3.connect(store)) as connection:
        for name, status in connection.execute(query, (tag,)).fetchall():
            found.setdefault(name, []).append(status)
    return found


def test_two_clones_share_a_cache_and_a_store(stubbed, tmp_path):
    """Started together on empty stores. Same params: the outs agree, and every run is there and finished."""
    clones = [stubbed, shutil.copytree(stubbed, tmp_path / "second")]
    store = tmp_path / "mlflow.db"
    for clone in clones:
        assert run_in(clone, "dvc", "cache", "dir", "--local", str(tmp_path / "cache")).returncode == 0
    change_params(clones[1], {"dpo": {"loss": {"beta": 0.2}}})
    running = [start_in(clone, "flows.pipeline", MLFLOW_TRACKING_URI=f"sqlite:///{store}") for clone in clones]
    said = [process.communicate(timeout=600)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert "database is locked" not in "".join(said)
    assert "does not record" not in "".join(said)
    stages = ["base", "corpus", "sft", "baseline", "samples", "preferences", "reward", "ppo", "dpo", "comparison"]
    found = runs(store, "stage")
    assert runs(store, "target") == {"comparison": ["FINISHED"] * 2}
    for name in [*stages, "evaluation@sft", "evaluation@dpo", "evaluation@ppo"]:
        # A stage that the other clone had just made may come from the shared run cache.
        assert 1 <= len(found[name]) <= 2
    assert len(found["comparison"]) == len(found["dpo"]) == 2
    assert {status for states in found.values() for status in states} == {"FINISHED"}
    for clone in clones:
        assert "up to date" in run_in(clone, "dvc", "status").stdout
    for name in ("base", "sft", "reward", "ppo"):
        assert len({(clone / "runs" / name / "made.txt").read_text() for clone in clones}) == 1


def test_two_stages_side_by_side_and_a_reader(stubbed):
    """`dvc repro` of two stages in one clone, and `dvc status` and `dvc metrics show` while they run."""
    for address in ("base", "corpus", "sft", "samples", "preferences"):
        assert run_in(stubbed, "dvc", "repro", "--single-item", address, RLHF_TRACKING="off").returncode == 0
    stubs.replace(stubbed, "dpo", SLOW)
    stubs.replace(stubbed, "reward", SLOW.replace('Path("started")', 'Path("started-too")'))
    both = [
        start_in(stubbed, "dvc", "--wait-for-lock", "repro", "--single-item", address, RLHF_TRACKING="off")
        for address in ("dpo", "reward")
    ]
    wait_for(lambda: (stubbed / "started").exists() and (stubbed / "started-too").exists(), 60)
    status = run_in(stubbed, "dvc", "status")
    # DVC reads no out that is just being written: it says who writes it.
    assert status.returncode == 0 or "is busy, it is being blocked by" in status.stdout
    assert run_in(stubbed, "dvc", "metrics", "show").returncode == 0
    (stubbed / "go").touch()
    for process in both:
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0, said
    lock = (stubbed / "dvc.lock").read_text()
    assert "\n  dpo:\n" in lock
    assert "\n  reward:\n" in lock
    assert run_in(stubbed, "dvc", "status", "dpo", "reward").stdout.strip().endswith("up to date.")


def test_a_second_start_of_a_stage_names_the_holder(stubbed):
    stubs.replace(stubbed, "base", SLOW)
    first = start_in(stubbed, "tasks", "base", RLHF_TRACKING="off")
    try:
        wait_for((stubbed / "started").exists, 60)
        second = run_in(stubbed, "tasks", "base", RLHF_TRACKING="off")
        assert second.returncode == 1
        assert f"error: stage base is in use by process {first.pid} " in second.stdout
    finally:
        (stubbed / "go").touch()
        assert first.wait(60) == 0


@pytest.mark.parametrize("number", [2, 3])
def test_many_processes_open_a_fresh_store_at_once(stubbed, tmp_path, number):
    code = "from tasks.runtime import tracking; tracking.open_store()"
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=stubbed, env=environment(MLFLOW_TRACKING_URI=store),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(number)
    ]  # fmt: skip
    for process in running:
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0, said
