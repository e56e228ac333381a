"""Seconds from Ctrl-C until every process of a running pipeline is gone.

`python -m benchmarks.interrupt`: a tiny pipeline, interrupted in one stage after another and started again; last, a
stage that is in one call into C for minutes and cannot listen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from flows import workspace
from tests import storm, stubs
from tests.conftest import ROOT, environment
from tests.test_runner import DEEP

STAGES = ("base", "sft", "samples", "reward", "ppo")
INTO = 3.0
"""Seconds that the stage has run."""


def interrupt(folder: Path, stage: str) -> float:
    """Start the flow, press Ctrl-C in `stage`, and wait until nothing is left."""
    name = f"{folder.name}-{stage}"
    running = subprocess.Popen(
        [sys.executable, "-m", "flows.pipeline", stage],
        cwd=folder,
        env=environment(**{storm.MARK: name}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not _runs(stage, name):
        if running.poll() is not None:
            raise SystemExit(f"the flow ended with {running.returncode} before {stage}: see {folder}")
        time.sleep(0.1)
    time.sleep(INTO)
    begun = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    while storm.survivors(name):
        running.poll()
        time.sleep(0.05)
    return time.monotonic() - begun


def _runs(stage: str, name: str) -> bool:
    for process in storm.survivors(name):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[-2:] == ["tasks", stage]:
                return True
    return False


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "project")
        workspace.create(folder, storm.overlay(), ROOT)
        found = {stage: interrupt(folder, stage) for stage in STAGES}
        other = Path(place, "deaf")
        workspace.create(other, storm.overlay(), ROOT)
        stubs.replace(other, "base", DEEP)
        found["a stage that cannot listen"] = interrupt(other, "base")
    for name, seconds in found.items():
        print(f"{name:27} {seconds:.1f} s")
    print(f"median {statistics.median(found.values()):.1f} s, longest {max(found.values()):.1f} s")


if __name__ == "__main__":
    # Whoever starts this in the background may have SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
