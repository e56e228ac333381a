"""Checkpoints of a running stage: whole or not at all, never stale, never loaded when damaged."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tasks.runtime import record, surroundings, work


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, step, total, values, timing) -> None: ...

    def note(self, text: str) -> None:
        self.lines.append(text)

    def table(self, name, rows) -> None: ...


@pytest.fixture
def notes():
    heard = Notes()
    with record.listening(heard):
        yield heard.lines


def write(text: str):
    def fill(folder: Path) -> None:
        (folder / "state.json").write_text(text)
        (folder / "model.safetensors").write_bytes(text.encode() * 1000)

    return fill


def saved(folder: Path, *steps: int) -> work.Checkpoints:
    checkpoints = work.Checkpoints(folder)
    for step in steps:
        checkpoints.save(step, write(f"step {step}"))
    return checkpoints


def test_the_newest_two_are_kept(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "00000010"]
    assert (checkpoints.newest() / "state.json").read_text() == "step 10"
    assert work.Checkpoints(tmp_path).newest().name == "00000010"


def truncate(path: Path) -> None:
    os.truncate(path / "model.safetensors", 100)


def flip(path: Path) -> None:
    content = bytearray((path / "model.safetensors").read_bytes())
    content[17] ^= 1
    (path / "model.safetensors").write_bytes(content)


def remove(path: Path) -> None:
    (path / "state.json").unlink()


def unfinished(path: Path) -> None:
    (path / "whole.json").unlink()


def torn(path: Path) -> None:
    (path / "whole.json").write_text('{"files": {"state')


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "model.safetensors is damaged"),
        (flip, "model.safetensors is damaged"),
        (remove, "it is incomplete"),
        (unfinished, "it is incomplete"),
        (torn, "it is incomplete"),
    ],
)
def test_a_damaged_one_is_skipped_with_a_warning(tmp_path, notes, damage, reason):
    checkpoints = saved(tmp_path, 1, 2)
    damage(tmp_path / "00000002")
    assert checkpoints.newest().name == "00000001"
    assert any("00000002 is skipped" in line and reason in line for line in notes)
    damage(tmp_path / "00000001")
    assert checkpoints.newest() is None


def test_one_that_is_half_written_is_never_seen(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)

    def die(folder: Path) -> None:
        (folder / "state.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, die)
    assert (tmp_path / "00000002.partial").exists()
    assert work.Checkpoints(tmp_path).newest().name == "00000001"
    checkpoints.save(2, write("step 2"))
    assert (checkpoints.newest() / "state.json").read_text() == "step 2"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        # As safetensors says it, which knows no errno.
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_costs_the_checkpoint_and_not_the_stage(tmp_path, notes, error):
    checkpoints = saved(tmp_path, 1)

    def full(folder: Path) -> None:
        (folder / "state.json").write_text("half")
        raise error

    checkpoints.save(2, full)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]
    assert any("no checkpoint of step 2" in line and "No space left" in line for line in notes)


def test_a_defect_in_writing_one_is_not_hidden(tmp_path):
    def defect(folder: Path) -> None:
        raise ValueError("a shape that cannot be")

    with pytest.raises(ValueError, match="a shape"):
        saved(tmp_path, 1).save(2, defect)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]


def test_how_often(tmp_path, monkeypatch):
    """Unset: by cost, 2 % of the time. 1 GB at 200 MB/s is 5 s, due after 250 s; small ones every half minute."""
    clock = [0.0]
    monkeypatch.setattr(work.time, "monotonic", lambda: clock[0])
    monkeypatch.delenv(work.INTERVAL, raising=False)
    checkpoints = work.Checkpoints(tmp_path)
    found = {}
    for seconds in (29, 31, 249, 251):
        clock[0] = seconds
        found[seconds] = (checkpoints.due(1000), checkpoints.due(10**9))
    assert found == {29: (False, False), 31: (True, False), 249: (True, False), 251: (True, True)}
    monkeypatch.setenv(work.INTERVAL, "0")
    assert work.Checkpoints(tmp_path).due(10**12)
    assert not work.Checkpoints(None).due(0)


def test_a_slow_disk_gets_fewer(tmp_path, monkeypatch):
    """One of 1 MB that took 10 s: the next is due after 10 s / 0.02 = 500 s."""
    clock = [0.0]
    monkeypatch.setattr(work.time, "monotonic", lambda: clock[0])
    monkeypatch.delenv(work.INTERVAL, raising=False)
    checkpoints = work.Checkpoints(tmp_path)

    def slow(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(bytes(10**6))
        clock[0] += 10

    checkpoints.save(1, slow)
    clock[0] += 499
    assert not checkpoints.due(10**6)
    clock[0] += 2
    assert checkpoints.due(10**6)


def test_another_fingerprint_finds_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with work.using("sft", "aaaa"):
        work.checkpoints().save(3, write("step 3"))
    with work.using("sft", "bbbb"):
        assert work.checkpoints().newest() is None
    with work.using("sft", "aaaa"):
        assert work.checkpoints().newest().name == "00000003"
    with work.using("sft", ""):
        assert work.checkpoints().newest() is None
    assert work.checkpoints().folder is None


def test_those_of_a_recorded_stage_are_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for address, fingerprint in (("sft", "aaaa"), ("dpo", "bbbb"), ("ppo", "cccc")):
        with work.using(address, fingerprint):
            work.checkpoints().save(1, write("x"))
    work.forget({"sft": "aaaa", "dpo": "other", "ppo": "cccc"}, keep="ppo")
    assert work.waiting() == ["dpo", "ppo"]


def test_other_surroundings_are_named(tmp_path, notes):
    checkpoints = saved(tmp_path, 1)
    manifest = tmp_path / "00000001/whole.json"
    content = json.loads(manifest.read_text())
    assert content["surroundings"] == surroundings.describe()
    content["surroundings"]["python"] = "3.99"
    manifest.write_text(json.dumps(content))
    assert checkpoints.newest()
    assert any("was made with python 3.99 (now 3." in line for line in notes)
