"""What a stage records: history file, progress line."""

from __future__ import annotations

import io
import math

import pytest

from tasks.errors import UserError
from tasks.runtime import record, terminal


class Screen(io.StringIO):
    def __init__(self, tty: bool) -> None:
        super().__init__()
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_the_history_has_the_union_of_columns_and_no_text_for_what_is_not_finite(tmp_path):
    history = record.History()
    with record.listening(history):
        record.log(1, 2, {"train/loss": 0.5}, {"tokens_per_second": 99.0})
        record.log(1, 2, {"kl/kl": math.nan})
        record.log(2, 2, {"train/loss": 0.25, "ppo/clip": 1})
        record.log(2, 2, {})
    history.write(tmp_path / "h.csv")
    assert (tmp_path / "h.csv").read_text() == "step,train/loss,kl/kl,ppo/clip\n1,0.5,,\n2,0.25,,1.0\n"


def test_no_rows_leave_no_file(tmp_path):
    (tmp_path / "h.csv").write_text("old")
    record.History().write(tmp_path / "h.csv")
    assert not (tmp_path / "h.csv").exists()


def test_outside_a_runner_nothing_happens():
    record.log(1, 1, {"a/b": 1.0})
    record.note("x")
    record.table("t", [{"a": 1}])


def test_metrics_name_the_figure_that_is_not_finite(tmp_path):
    with pytest.raises(UserError, match=r"m\.json: a\.b is inf, expected a finite number"):
        record.write_metrics(tmp_path / "m.json", {"a": {"b": math.inf}})
    assert not (tmp_path / "m.json").exists()


def test_flat_keeps_lists_as_values():
    assert record.flat({"ppo": {"kl": {"kind": "fixed"}, "x": [1, 2]}}) == {"ppo.kl.kind": "fixed", "ppo.x": [1, 2]}


def test_the_time_left_is_at_the_pace_of_this_phase(clock):
    screen = Screen(tty=False)
    shown = terminal.Terminal("ppo", screen)
    clock[0] += 60  # loading is no step
    shown.log(1, 5, {"train/loss": 2.0}, {})
    clock[0] += 20
    shown.log(2, 5, {"train/loss": 1.5}, {"tokens_per_second": 812.345})
    # One step took 20 s, three are left.
    assert screen.getvalue() == "ppo 1/5  loss 2\nppo 2/5  loss 1.5  tokens_per_second 812.3  1m00s left\n"


def test_a_log_gets_a_line_every_ten_seconds_and_the_last_one(clock):
    screen = Screen(tty=False)
    shown = terminal.Terminal("sft", screen)
    for step in range(1, 31):
        clock[0] += 1
        shown.log(step, 30, {}, {})
    assert [line.split()[1] for line in screen.getvalue().splitlines()] == ["1/30", "11/30", "21/30", "30/30"]


def test_a_terminal_line_is_rewritten_and_ended_before_a_note(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(tty=True)
    shown = terminal.Terminal("sft", screen)
    shown.log(1, 2, {}, {})
    clock[0] += 1
    shown.log(2, 2, {}, {})
    shown.note("dropped 1")
    assert screen.getvalue() == "\r\x1b[2Ksft 1/2\r\x1b[2Ksft 2/2\nsft: dropped 1\n"


def test_the_closing_line_has_the_figures_of_nested_metrics(clock):
    screen = Screen(tty=False)
    shown = terminal.Terminal("dpo", screen)
    clock[0] += 65
    shown.done({"win_rate": {"rate": 0.75}, "name": "x", "kl": 2})
    assert screen.getvalue() == "dpo: done in 1m05s  win_rate/rate 0.75  kl 2\n"


@pytest.mark.parametrize(("seconds", "text"), [(8.44, "8.4 s"), (125, "2m05s"), (59.97, "60.0 s"), (3725, "1h02m")])
def test_durations(seconds, text):
    assert terminal.duration(seconds) == text


def test_a_reader_that_has_gone_stops_nothing():
    class Closed(Screen):
        def write(self, text):
            raise BrokenPipeError

    terminal.Terminal("sft", Closed(tty=False)).note("x")
