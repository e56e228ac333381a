"""The spool: what a killed process leaves, what a resumed one adds, and its bound."""

from __future__ import annotations

import itertools
import json
import math
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.runtime import spool, spooled
from tests.conftest import environment
from tests.test_runner import wait_for

START = {"name": "sft", "address": "sft", "fingerprint": "f" * 16, "params": {}, "parent": "", "tags": {}}


def read(folder: Path, after: int = 0) -> list[dict]:
    source, found = spooled.Points(folder, after), []
    while batch := source.read():
        found += batch
    return found


def values(folder: Path) -> list[tuple[str, int, float]]:
    return [(name, line["step"], value) for line in read(folder) for name, value in line["values"].items()]


def test_points_come_back_in_order_with_number_time_and_the_same_bits(tmp_path):
    written = spool.Spool(tmp_path / "a")
    written.start(START)
    before = time.time() * 1000 - 1
    for step in (1, 2, 3):
        written.log(step, {"train/loss": 0.1 + 0.2, "kl/kl": step / 3})
    lines = read(tmp_path / "a")
    assert [line["n"] for line in lines] == [2, 3, 4]
    assert [line["values"]["kl/kl"] for line in lines] == [1 / 3, 2 / 3, 1.0]
    assert lines[0]["values"]["train/loss"] == 0.30000000000000004
    assert all(before <= line["time"] <= time.time() * 1000 + 1 for line in lines)
    assert [line["n"] for line in read(tmp_path / "a", after=3)] == [4]


def test_a_line_torn_at_any_byte_is_ignored_and_written_again_after_a_resumption(tmp_path):
    folder = tmp_path / "a"
    written = spool.Spool(folder)
    written.start(START)
    written.log(1, {"train/loss": 1.5})
    written.log(2, {"train/loss": 2.5})
    written.close()
    (part,) = spooled.parts(folder)
    whole = part.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last, len(whole)):
        part.write_bytes(whole[:cut])
        assert values(folder) == [("train/loss", 1, 1.5)]
        again = spool.Spool(folder)
        again.log(1, {"train/loss": 1.5})
        again.log(2, {"train/loss": 2.5})
        again.close()
        assert values(folder) == [("train/loss", 1, 1.5), ("train/loss", 2, 2.5)]


def test_torn_events_are_ignored(tmp_path):
    folder = tmp_path / "a"
    written = spool.Spool(folder)
    written.start(START)
    written.note("kept")
    written.note("torn")
    written.close()
    path = folder / spooled.EVENTS
    path.write_bytes(path.read_bytes()[:-3])
    again = spool.Spool(folder)
    assert again.token == written.token
    again.note("after")
    assert [event.get("text") for event in spooled.lines(path)] == [None, "kept", "after"]


def test_a_resumed_stage_records_a_figure_of_a_step_once(tmp_path):
    folder = tmp_path / "a"
    for first, last in ((1, 7), (5, 9), (1, 10)):
        written = spool.Spool(folder)
        written.start(START)
        for step in range(first, last + 1):
            written.log(step, {"train/loss": float(step), "speed/tokens": time.time()})
            if step > 8:
                written.log(step, {"kl/late": float(step)})
        written.end("KILLED", {"sft/share": 0.5})
        written.close()
    names = {name: [step for n, step, _ in values(folder) if n == name] for name, _, _ in values(folder)}
    assert names == {
        "train/loss": list(range(1, 11)),
        "speed/tokens": list(range(1, 11)),
        "kl/late": [9, 10],
        "sft/share": [0],
    }
    numbers = [line["n"] for line in read(folder)] + [event["n"] for event in spooled.lines(folder / spooled.EVENTS)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_what_is_not_finite_is_left_out_counted_and_named(tmp_path):
    folder = tmp_path / "a"
    bad = [math.nan, 1.0, math.inf, -math.inf, 2.0]
    written = spool.Spool(folder)
    written.start(START)
    for step, value in enumerate(bad[:3], 1):
        written.log(step, {"kl/kl": value, "train/loss": 1.0})
    written.close()
    again = spool.Spool(folder)
    for step, value in enumerate(bad, 1):
        again.log(step, {"kl/kl": value})
    assert again.tally.not_finite == {"kl/kl": [3, 1]}
    assert spool.tally(folder).not_finite == {"kl/kl": [3, 1]}
    assert [(s, v) for n, s, v in values(folder) if n == "kl/kl"] == [(2, 1.0), (5, 2.0)]
    # JSON that any reader takes: NaN is none.
    for part in spooled.parts(folder):
        for line in part.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


def test_parts_that_were_delivered_may_go(tmp_path):
    folder = tmp_path / "a"
    written = spool.Spool(folder, part=2000)
    written.start(START)
    written.log(1, {"kl/kl": math.nan})
    for step in range(1, 101):
        written.log(step, {"train/loss": float(step)})
    written.close()
    assert len(spooled.parts(folder)) > 3
    assert [step for _, step, _ in values(folder)] == list(range(1, 101))
    for part in spooled.parts(folder)[:-1]:
        part.unlink()
    again = spool.Spool(folder, part=2000)
    assert again.tally.not_finite == {"kl/kl": [1, 1]}
    again.log(1, {"kl/kl": 1.0})
    for step in range(50, 104):
        again.log(step, {"train/loss": float(step)})
    assert [step for _, step, _ in values(folder)][-5:] == [99, 100, 101, 102, 103]
    assert "kl/kl" not in {name for name, _, _ in values(folder)}


def test_beyond_the_bound_points_are_dropped_and_counted_and_the_end_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "_LOOK", 0.0)
    folder = tmp_path / "a"
    written = spool.Spool(folder, limit=8000, part=2000)
    written.start(START)
    for step in range(1, 201):
        written.log(step, {"train/loss": 1.0, "kl/kl": 1.0})
    kept = [step for name, step, _ in values(folder) if name == "kl/kl"]
    assert kept == list(range(1, len(kept) + 1))
    assert written.tally.dropped == [2 * (200 - len(kept)), len(kept) + 1]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8000 + 2 * 300
    # Room again once a part has been delivered.
    spooled.parts(folder)[0].unlink()
    written.log(201, {"train/loss": 1.0})
    assert values(folder)[-1][:2] == ("train/loss", 201)
    written.end("FINISHED", {})
    assert list(spooled.lines(folder / spooled.EVENTS))[-1]["dropped"] == written.tally.dropped


def test_a_disk_that_takes_no_more_loses_points_and_nothing_else(tmp_path):
    program = f"""
import resource, signal
from pathlib import Path
from tasks.runtime import spool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
written = spool.Spool(Path({str(tmp_path / "a")!r}))
written.start({START!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, {resource.RLIM_INFINITY}))
for step in range(1, 101):
    written.log(step, {{"train/loss": 1.0}})
resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY}, {resource.RLIM_INFINITY}))
written.log(101, {{"train/loss": 1.0}})
print(written.tally.dropped)
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = [step for _, step, _ in values(tmp_path / "a")]
    kept = len(steps) - 1
    assert 5 < kept < 50
    assert steps == [*range(1, kept + 1), 101]
    assert json.loads(done.stdout) == [100 - kept, kept + 1]


def test_a_process_that_is_killed_while_it_writes_loses_no_step(tmp_path):
    program = f"""
import itertools
from pathlib import Path
from tasks.runtime import spool
written = spool.Spool(Path({str(tmp_path / "a")!r}), part=20000)
written.start({START!r})
first = max(written.tally.last.values(), default=0)
for step in itertools.count(first + 1):
    written.log(step, {{f"train/figure{{n}}": step / 3 for n in range(20)}})
"""
    for attempt in range(3):
        child = subprocess.Popen([sys.executable, "-c", program], env=environment())
        wait_for(lambda n=attempt: len(spooled.parts(tmp_path / "a")) > 2 * (n + 1), 60)
        child.kill()
        assert child.wait() == -signal.SIGKILL
    lines = read(tmp_path / "a")
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert all(line["values"]["train/figure7"] == line["step"] / 3 for line in lines)
    assert len(lines[-1]["values"]) == 20


def test_points_can_be_read_while_they_are_written(tmp_path):
    folder = tmp_path / "a"
    written = spool.Spool(folder, part=1000)
    source, found = spooled.Points(folder, 0), []
    for step in itertools.islice(itertools.count(1), 60):
        written.log(step, {"train/loss": float(step)})
        if step % 7 == 0:
            while batch := source.read():
                found += [line["step"] for line in batch]
            assert found == list(range(1, step + 1))


def test_a_line_that_is_only_half_there_is_read_when_it_is_whole(tmp_path):
    folder = tmp_path / "a"
    written = spool.Spool(folder)
    written.log(1, {"train/loss": 1.0})
    source = spooled.Points(folder, 0)
    (part,) = spooled.parts(folder)
    whole = part.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 20):
        part.write_bytes(whole[:cut])
        assert source.read() == []
    part.write_bytes(whole)
    assert [line["step"] for line in source.read()] == [1]


def test_the_place_of_a_run(tmp_path):
    def begin(folder: Path) -> spool.Spool:
        written = spool.Spool(folder)
        written.start(START)
        return written

    first = spool.place("sft", "abc", tmp_path)
    assert first.name == "sft-abc"
    begin(first).end("KILLED", {})
    assert spool.place("sft", "abc", tmp_path) == first
    begin(first).end("FINISHED", {})
    # Finished, not delivered: the next run of the same leaves it alone.
    assert spool.place("sft", "abc", tmp_path).name == "sft-abc.2"
    assert spool.place("sft", "other", tmp_path).name == "sft-other"
    assert spool.place("sft", "", tmp_path) != spool.place("sft", "", tmp_path)
    spooled.remove(first)
    assert spool.place("sft", "abc", tmp_path) == first
    assert list(tmp_path.iterdir()) == []


def test_one_process_delivers_a_spool(tmp_path):
    folder = tmp_path / "a"
    spool.Spool(folder).start(START)
    with spooled.delivering(folder, wait=False) as mine:
        assert mine
        with spooled.delivering(folder, wait=False) as second:
            assert not second
    with spooled.delivering(tmp_path / "nothing", wait=False) as held:
        assert not held
