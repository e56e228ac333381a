"""DVC and the flow do the same work; what they make can be shared. Also the guard of DVC's inner interface."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path

import pytest
import yaml
from dvc.exceptions import DvcException

from flows import graph
from tasks.errors import UserError
from tasks.runtime import fingerprint
from tests import stubs
from tests.conftest import change_params, run_in


def dvc(folder: Path, *arguments: str) -> str:
    done = run_in(folder, "dvc", *arguments, RLHF_TRACKING="off")
    assert done.returncode == 0, done.stdout
    return done.stdout


def flow(folder: Path, *arguments: str) -> str:
    done = run_in(folder, "flows.pipeline", *arguments, RLHF_TRACKING="off")
    assert done.returncode == 0, done.stdout
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    """What runs make, byte for byte."""
    found = [path for part in ("runs", "metrics") for path in (folder / part).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.slow
def test_dvc_and_the_flow_write_the_same_lock_and_skip_the_same_stages(stubbed, tmp_path):
    other = shutil.copytree(stubbed, tmp_path / "other")
    dvc(stubbed, "repro")
    flow(other)
    assert (other / "dvc.lock").read_bytes() == (stubbed / "dvc.lock").read_bytes()
    assert files(other) == files(stubbed)
    # A change in the middle: sft and what comes before stay.
    for folder in (stubbed, other):
        change_params(folder, {"dpo": {"loss": {"beta": 0.2}}})
    by_dvc = [line.split("'")[1] for line in dvc(stubbed, "repro").splitlines() if line.startswith("Running stage")]
    by_flow = flow(other).rpartition("made ")[2].partition(" (")[0].split(", ")
    assert by_flow == by_dvc == ["dpo", "evaluation@dpo", "comparison"]
    assert (other / "dvc.lock").read_bytes() == (stubbed / "dvc.lock").read_bytes()
    # Each finds nothing to do after the other.
    shutil.copy(stubbed / "dvc.lock", other / "dvc.lock")
    assert "Running stage" not in dvc(other, "repro")
    assert "everything was up to date" in flow(stubbed)


def test_dvc_has_nothing_to_do_after_the_flow(tiny):
    before = (tiny / "dvc.lock").read_bytes()
    shown = dvc(tiny, "repro")
    assert "Running stage" not in shown
    assert shown.count("didn't change, skipping") == 13
    assert (tiny / "dvc.lock").read_bytes() == before


def test_nothing_volatile_is_in_what_dvc_tracks(tiny):
    lock = yaml.safe_load((tiny / "dvc.lock").read_text())["stages"]
    tracked = {out["path"] for stage in lock.values() for out in stage["outs"]}
    assert {"runs/sft", "metrics/sft.json", "metrics/sft.csv", "runs/evaluation/dpo"} <= tracked
    text = " ".join(path.read_text() for path in (tiny / "metrics").rglob("*.*"))
    assert "tokens_per_second" not in text
    assert str(tiny) not in text


def test_what_was_pushed_comes_back(tiny, tmp_path):
    dvc(tiny, "push")
    clone = tmp_path / "clone"
    shutil.copytree(tiny, clone, ignore=shutil.ignore_patterns("runs", "cache", "tmp", ".rlhf", "ml*"))
    assert not (clone / "runs").exists()
    dvc(clone, "pull")
    assert files(clone) == files(tiny)
    # Not the run cache of this machine, not the cache folder: the remote has it all.
    assert "up to date" in dvc(clone, "status")


def test_the_plots_are_those_that_say_something(tiny, tmp_path):
    """By title and axis: a page's data hold every column, whatever is drawn; undirected, DVC draws the last one."""
    shown = dvc(tiny, "plots", "show", "--out", str(tmp_path / "plots"))
    assert "failed" not in shown
    page = (tmp_path / "plots/index.html").read_text()
    assert set(re.findall(r'"title": {"text": "([^"]+)"', page)) == {
        *("Reward of PPO", "KL of PPO to SFT", "KL coefficient of PPO", "Win rate against SFT"),
        "Reliability of the reward model",
        *("SFT loss", "Reward model accuracy in training", "DPO margin"),
    }
    assert set(re.findall(r'"title": "([^"]+)"', page)) == {
        *("step", "rollout", "mean of the episodes", "nats per answer", "policy", "win rate"),
        *("confidence in held-out pairs", "share ordered as preferred"),
        *("train/loss", "train/accuracy", "dpo/margin", "kl/coefficient"),
    }


def test_the_plan_is_dvcs_own(tiny, monkeypatch):
    monkeypatch.chdir(tiny)
    nodes = graph.plan("comparison")
    order = [
        line.split("'")[1] for line in dvc(tiny, "repro", "--dry", "--force").splitlines() if "Running stage" in line
    ]
    assert [node.address for node in nodes] == order
    for place, node in enumerate(nodes):
        assert set(node.upstream) <= {earlier.address for earlier in nodes[:place]}
    assert {n.address: n.upstream for n in nodes}["dpo"] in (("sft", "preferences"), ("preferences", "sft"))
    assert all(node.up_to_date and not node.foreign for node in nodes)
    assert [n.address for n in graph.plan("evaluation")][-1].startswith("evaluation@")
    with pytest.raises(UserError, match="unknown target 'x': expected one of base"):
        graph.plan("x")


def test_what_is_foreign(stubbed, monkeypatch):
    monkeypatch.chdir(stubbed)

    def foreign() -> tuple[str, ...]:
        return graph.plan("base")[0].foreign

    made = stubbed / "runs/base/made.txt"
    assert foreign() == ()
    # Somebody's own folder, before anything ran.
    made.parent.mkdir(parents=True)
    made.write_text("mine")
    assert foreign() == ("runs/base",)
    # A stage started by hand: DVC has not recorded it, but it is ours.
    assert run_in(stubbed, "tasks", "base", RLHF_TRACKING="off").returncode == 0
    assert foreign() == ()
    # An earlier version, as after `git checkout` of another dvc.lock: it is safe in the cache.
    dvc(stubbed, "repro", "base")
    old = made.read_bytes()
    change_params(stubbed, {"shared": {"seed": 18}})
    dvc(stubbed, "repro", "base")
    made.unlink()
    made.write_bytes(old)
    assert not graph.plan("base")[0].up_to_date
    assert foreign() == ()
    made.unlink()
    made.write_text("changed by hand")
    assert foreign() == ("runs/base",)
    with pytest.raises(UserError, match="runs/base holds content that no stage made"):
        graph.refuse_foreign(graph.plan("base"))


def test_stages_that_ended_in_another_order_stand_in_the_plans(stubbed, monkeypatch):
    monkeypatch.chdir(stubbed)
    for address in ("base", "corpus", "sft"):
        dvc(stubbed, "repro", "--single-item", address)
    straight = (stubbed / "dvc.lock").read_bytes()
    lock = yaml.safe_load(straight)
    text = straight.decode()
    parts = {name: text[text.index(f"  {name}:\n") :] for name in lock["stages"]}
    corpus, sft = parts["corpus"].removesuffix(parts["sft"]), parts["sft"]
    (stubbed / "dvc.lock").write_text(text.replace(corpus + sft, sft + corpus))
    assert graph.recorded() == ["base", "sft", "corpus"]
    graph.keep_order(["base"], ["base", "corpus", "sft"])
    assert (stubbed / "dvc.lock").read_bytes() == straight
    # What stood there before the run keeps its place, as with DVC.
    (stubbed / "dvc.lock").write_text(text.replace(corpus + sft, sft + corpus))
    graph.keep_order(["base", "sft", "corpus"], ["base", "corpus", "sft"])
    assert graph.recorded() == ["base", "sft", "corpus"]


def test_a_stage_that_ran_leaves_dvcs_locks_free(stubbed):
    stubs.replace(stubbed, "base", "def run(shared, cfg, *, out):\n    raise KeyboardInterrupt\n")
    assert run_in(stubbed, "dvc", "repro", "base", RLHF_TRACKING="off").returncode == 255
    stubs.replace(stubbed, "base", stubs.STUB)
    dvc(stubbed, "repro", "base")


def test_no_analytics_and_a_remote_are_configured(tiny):
    shown = dvc(tiny, "config", "--list")
    for line in ("core.analytics=false", "core.autostage=false", "core.remote=local"):
        assert line in shown


@pytest.mark.parametrize("begun", ["", "schema: '2.0'\nstages:\n  base:\n    cmd: [", "schema: '2.0'\nstag"])
def test_a_stage_reads_past_a_lock_that_dvc_is_writing_for_another(stubbed, begun, monkeypatch):
    monkeypatch.chdir(stubbed)
    lock = stubbed / "dvc.lock"
    whole = "schema: '2.0'\nstages:\n  other:\n    cmd: x\n"
    lock.write_text(whole)
    expected = fingerprint.present("base"), fingerprint.locked()
    for number, read in enumerate((lambda: fingerprint.present("base"), fingerprint.locked)):
        lock.write_text(begun)
        writer = threading.Timer(0.3, lock.write_text, (whole,))
        writer.start()
        assert read() == expected[number]
        writer.join()


def test_a_lock_that_stays_cut_off_is_an_error(stubbed, monkeypatch):
    monkeypatch.chdir(stubbed)
    monkeypatch.setattr(fingerprint, "SETTLES_IN", 0.1)
    Path("dvc.lock").write_text("schema: '2.0'\nstages:\n  base:\n    cmd: [")
    with pytest.raises(DvcException):
        fingerprint.locked()
