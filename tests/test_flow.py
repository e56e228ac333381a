"""The flow: what a user sees of it, what Prefect's database holds, and how it fails."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from flows import child, environment
from flows.slot import Slot
from tasks.runtime import stage
from tasks.runtime.terminal import printable
from tests import stubs
from tests.conftest import run_in, start_in
from tests.test_runner import DEEP, SLEEPING, gone, holder, wait_for


def flow(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return run_in(folder, "flows.pipeline", *arguments, **{"RLHF_TRACKING": "off", **extra})


def task_states(folder: Path) -> dict[str, str]:
    """Stage -> name of its state in the latest flow run, from Prefect's database."""
    with sqlite3.connect(folder / ".rlhf/prefect/prefect.db") as store:
        query = (
            "select name, state_name from task_run where flow_run_id = (select id from flow_run order by created desc)"
        )
        return dict(store.execute(query).fetchall())


def flow_state(folder: Path) -> str:
    with sqlite3.connect(folder / ".rlhf/prefect/prefect.db") as store:
        return store.execute("select state_type from flow_run order by created desc").fetchone()[0]


@pytest.fixture(scope="module")
def again(tiny) -> str:
    """What a second call in the finished workspace prints."""
    done = run_in(tiny, "flows.pipeline")
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_first_run_ends_with_table_examples_and_the_way_to_mlflow(tiny):
    shown = (tiny / "flow.log").read_text()
    table = (tiny / "runs/comparison/table.md").read_text().strip()
    # A random model's answers hold control characters, which do not reach the terminal; its prompts do as they are.
    prompts = re.findall(r"^\*\*.+\*\*$", (tiny / "runs/comparison/examples.md").read_text(), re.MULTILINE)
    assert len(prompts) == 3
    places = [shown.index(text) for text in (table, *prompts, "comparison: made base, corpus, sft,")]
    assert places == sorted(places)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert "MLflow: `make ui`, then http://127.0.0.1:5000/#/experiments/" in shown
    # Prefect's own log lines are for its pages, DVC's chatter for nobody.
    assert "| INFO" not in shown
    assert "Updating lock file" not in shown
    assert shown.count("\nppo: done in") == 1


def test_what_a_model_says_cannot_steer_the_terminal():
    assert (
        printable("caf\u00e9\tna\u00efve\n\x1b[2Jgone\x00\r\x9b")
        == "caf\u00e9\tna\u00efve\n\ufffd[2Jgone\ufffd\ufffd\ufffd"
    )


def test_a_second_call_does_nothing_and_says_so(again, tiny):
    shown = again
    assert "comparison: everything was up to date" in shown
    assert (tiny / "runs/comparison/table.md").read_text().strip() in shown
    for address in stage.addresses(tiny / "dvc.yaml"):
        assert f"{address}: up to date" in shown
    assert "done in" not in shown


def test_a_second_call_makes_no_new_mlflow_run_and_links_the_first(again, tiny):
    with sqlite3.connect(tiny / "mlflow.db") as store:
        (run,) = store.execute("select run_uuid from tags where key = 'target'").fetchall()
        assert store.execute("select count(*) from runs").fetchone()[0] == len(stage.addresses(tiny / "dvc.yaml")) + 1
    assert f"/runs/{run[0]}" in again


def test_prefect_has_a_task_per_stage_and_the_table(again, tiny):
    assert task_states(tiny) == dict.fromkeys(stage.addresses(tiny / "dvc.yaml"), "Cached")
    with sqlite3.connect(tiny / ".rlhf/prefect/prefect.db") as store:
        runs = store.execute("select f.name, r.name, r.state_name from flow_run r join flow f on f.id = r.flow_id")
        assert set(runs.fetchall()) == {("rlhf", "comparison", "Completed")}
        states = store.execute("select state_name, count(*) from task_run group by 1").fetchall()
        assert dict(states) == {"Completed": 13, "Cached": 13}
        tags = dict(store.execute("select name, tags from task_run").fetchall())
        logged = " ".join(line for (line,) in store.execute("select message from log"))
        (artifact,) = store.execute("select data from artifact order by created desc limit 1").fetchone()
    assert ('"gpu"' in tags["dpo"], '"gpu"' in tags["preferences"]) == (True, False)
    assert "ppo: done in" in logged
    assert "win rate against SFT" in artifact
    assert not (tiny / ".prefect").exists()


def test_another_target_shows_its_own_table_without_training_a_reward_model(again, tiny):
    done = flow(tiny, "evaluation@dpo")
    assert done.returncode == 0
    assert "| DPO" in done.stdout
    assert "| PPO" not in done.stdout
    made_for = {"base", "corpus", "sft", "samples", "preferences", "dpo", "baseline", "evaluation@dpo"}
    assert set(task_states(tiny)) == made_for


def test_a_changed_file_in_runs_is_refused_before_any_work(again, tiny):
    changed = tiny / "runs/sft/config.json"
    original = changed.read_bytes()
    # A new file in its place, as an editor writes it: the old one may be a hard link into DVC's cache.
    changed.unlink()
    changed.write_bytes(original + b" ")
    lock = (tiny / "dvc.lock").read_bytes()
    try:
        done = flow(tiny)
        assert done.returncode == 1
        assert done.stdout.startswith("error: runs/sft holds content that no stage made")
        assert "`dvc checkout --force runs/sft`" in done.stdout
        assert done.stdout.count("\n") == 1
        assert changed.read_bytes() == original + b" "
        assert (tiny / "dvc.lock").read_bytes() == lock
    finally:
        run_in(tiny, "dvc", "checkout", "--force", "runs/sft")
    # The way out that the message names leads out.
    assert changed.read_bytes() == original
    assert "everything was up to date" in flow(tiny).stdout


@pytest.mark.parametrize(
    ("arguments", "change", "message"),
    [
        (["evaluation@nobody"], None, "error: unknown target 'evaluation@nobody': expected one of base, "),
        ([], ("beta:", "betta:"), "error: params.yaml has 2 fault(s):"),
    ],
)
def test_a_mistake_is_told_before_prefect_starts(stubbed, arguments, change, message):
    if change:
        path = stubbed / "params.yaml"
        path.write_text(path.read_text().replace(*change))
    done = flow(stubbed, *arguments)
    assert done.returncode == 1
    assert done.stdout.startswith(message)
    assert "Traceback" not in done.stdout
    with sqlite3.connect(stubbed / ".rlhf/prefect/prefect.db") as store:
        assert store.execute("select count(*) from flow_run").fetchone() == (0,)


def test_a_stage_that_fails_stops_what_depends_on_it_and_nothing_else(stubbed):
    text = "from tasks.errors import UserError\ndef run(shared, cfg, *, out, **inputs):\n"
    stubs.replace(stubbed, "preferences", text + "    raise UserError('the judge likes nothing')\n")
    done = flow(stubbed)
    assert done.returncode == 1
    assert task_states(stubbed) == {
        **dict.fromkeys(("base", "corpus", "sft", "samples", "baseline", "evaluation@sft"), "Completed"),
        "preferences": "Failed",
        **dict.fromkeys(("reward", "dpo", "ppo", "evaluation@dpo", "evaluation@ppo", "comparison"), "NotReady"),
    }
    assert flow_state(stubbed) == "FAILED"
    # Once as the stage says it, once as the flow's last word.
    assert done.stdout.count("the judge likes nothing") == 2
    assert "error: preferences failed: the judge likes nothing\nnot run: reward, " in done.stdout
    assert "Traceback" not in done.stdout
    # Mended, it goes on from there.
    stubs.replace(stubbed, "preferences", stubs.STUB)
    mended = flow(stubbed, "dpo")
    assert mended.stdout.rstrip().endswith(
        "dpo: made preferences, dpo" + mended.stdout[mended.stdout.rindex(" (") :].rstrip()
    )


def test_a_defect_of_the_flow_keeps_its_traceback(stubbed):
    (stubbed / "flows/summary.py").write_text("def table(nodes):\n    return {}['lost']\n")
    done = flow(stubbed, "base")
    assert done.returncode == 1
    assert "summary.py" in done.stdout
    assert "KeyError: 'lost'" in done.stdout


def test_only_a_stage_whose_source_is_out_of_reach_is_tried_again(stubbed):
    text = "from tasks.errors import Unreachable, UserError\nfrom pathlib import Path\n"
    text += "def run(shared, cfg, *, out, **inputs):\n    with Path('tries').open('a') as f: f.write('x')\n"
    stubs.replace(stubbed, "base", text + "    raise UserError('no model')\n")
    path = stubbed / "dvc.yaml"
    path.write_text(path.read_text().replace("retry_delay_seconds: 10", "retry_delay_seconds: 0"))
    assert flow(stubbed, "base").returncode == 1
    assert (stubbed / "tries").read_text() == "x"
    (stubbed / "tries").unlink()
    stubs.replace(stubbed, "base", text + "    raise Unreachable('no index')\n")
    done = flow(stubbed, "base")
    assert (stubbed / "tries").read_text() == "xxx"
    assert "error: base failed: no index\n" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_neither_stage_nor_server_outlives_the_flow(stubbed, number):
    stubs.replace(stubbed, "base", SLEEPING)
    running = start_in(stubbed, "flows.pipeline", "base", RLHF_TRACKING="off")
    try:
        wait_for((stubbed / "started").exists, 240)
        trainer = holder(stubbed)
        below = psutil.Process(running.pid).children(recursive=True)
        (server,) = [process for process in below if "flows.server" in process.cmdline()]
        # As Ctrl-C does it: the signal reaches the whole process group of the terminal.
        os.killpg(running.pid, number)
        # Not the minute that Prefect would wait for a server that has gone before the flow.
        running.wait(60)
        wait_for(lambda: gone(trainer) and gone(server.pid), 60)
        if number == signal.SIGINT:
            assert running.returncode == 130
            said = running.stdout.read()
            assert "interrupted: the same command goes on" in said
            assert "Traceback" not in said
            assert flow_state(stubbed) == "CRASHED"
        assert not (stubbed / "runs/base").exists()
    finally:
        running.kill()
        running.wait()


def test_ctrl_c_ends_a_stage_that_does_not_listen(stubbed):
    stubs.replace(stubbed, "base", DEEP)
    running = start_in(stubbed, "flows.pipeline", "base", RLHF_TRACKING="off")
    wait_for((stubbed / "started").exists, 240)
    below = psutil.Process(running.pid).children(recursive=True)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(60) == 130
    assert "interrupted: the same command goes on" in running.stdout.read()
    wait_for(lambda: all(gone(process.pid) for process in below), 60)


def test_the_slot_is_held_by_one_and_goes_to_the_first_in_the_plan():
    slot, order, ready = Slot(), [], threading.Event()

    def take(place: int) -> None:
        with slot.held(place):
            order.append(place)

    with slot.held(0):
        threads = [threading.Thread(target=take, args=(place,)) for place in (3, 1, 2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(slot._waiting) == 3)
        with slot.held(9, wanted=False):
            ready.set()
        assert ready.is_set()
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [1, 2, 3]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["error: a\n  b", "ERROR: failed to reproduce 'x'"], "a\n  b"),
        (
            ["Traceback (most recent call last):", "KeyError: 'x'", "ERROR: failed to reproduce 'x': exited"],
            "KeyError: 'x'",
        ),
        (["ERROR: failed to reproduce 'x': busy"], "failed to reproduce 'x': busy"),
        ([], "no output"),
    ],
)
def test_what_is_told_of_a_failed_child(lines, error):
    assert child._error(lines) == error


def test_a_server_of_the_users_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in environment.SERVER_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert not environment.has_server()
    (tmp_path / ".prefect").mkdir()
    (tmp_path / ".prefect/profiles.toml").write_text('[profiles.cloud]\nPREFECT_API_URL = "https://example.org"\n')
    assert environment.has_server()
    (tmp_path / ".prefect/profiles.toml").unlink()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert environment.has_server()


def test_files_that_dvc_was_killed_in_are_put_right(stubbed):
    assert flow(stubbed, "sft").returncode == 0
    lock = stubbed / "dvc.lock"
    whole, runs = lock.read_bytes(), sorted(stubbed.glob("runs/**/made.txt"))
    for rest in ("", "schema: '2.0'\nstages:\n  base:\n    cmd: [", "schema: '2.0'\nstag"):
        lock.write_text(rest)
        (stubbed / ".dvc/tmp/rwlock").write_text('{"read": {"/x": [{"pi')
        done = flow(stubbed, "sft")
        assert done.returncode == 0, done.stdout
        assert "dvc.lock was cut off" in done.stdout
        assert "rwlock was cut off" in done.stdout
        assert lock.read_bytes() == whole
        # Brought back, not made again.
        assert "base: done in" not in done.stdout
        assert sorted(stubbed.glob("runs/**/made.txt")) == runs
        assert (stubbed / ".rlhf/broken/dvc.lock").read_text() == rest
