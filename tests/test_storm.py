"""A handful of kills; `make storm KILLS=200` is the real thing."""

from __future__ import annotations

from tests import storm


def test_a_handful_of_kills_leaves_no_trace(tiny, tmp_path):
    tally = storm.run(4, 1, tmp_path, tiny)
    assert tally.ok, tally.line()
    assert tally.kills.total() == 4
    # Each kind of process has been hit.
    assert {label.partition(" ")[0] for label in tally.kills} == {"stage", "dvc", "flow"}
