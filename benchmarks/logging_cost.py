"""Milliseconds that recording one training step costs the step: `python -m benchmarks.logging_cost`.

A stage's own listeners in a throw-away workspace: terminal, history and the spool with its companion, with the twenty
figures that PPO logs; on a fresh sqlite store, with no server at the address, and with one that never answers. To be
held against the seconds of a step (benchmarks/training_step.py).
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

STEPS, FIGURES = 500, 20


def main() -> None:
    """Print median, 99th percentile and the slowest call for each store."""
    os.environ["PYTHONPATH"] = str(Path.cwd())
    silent = socket.create_server(("127.0.0.1", 0))
    # It takes connections and says nothing.
    hanging = f"http://127.0.0.1:{silent.getsockname()[1]}"
    for name, store in (("sqlite", ""), ("no server", "http://127.0.0.1:9"), ("a server that hangs", hanging)):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            os.environ["MLFLOW_TRACKING_URI"] = store or f"sqlite:///{folder}/mlflow.db"
            found = sorted(measure())
            slow = found[int(0.99 * len(found))]
            middle = statistics.median(found)
            print(f"{name}: median {middle:.3f} ms  p99 {slow:.3f} ms  max {found[-1]:.2f} ms", flush=True)
            os.chdir("/")


def measure() -> list[float]:
    """Milliseconds of each `record.log`, a hundredth of a second apart."""
    from tasks.runtime import record
    from tasks.runtime.reporter import Reporter
    from tasks.runtime.terminal import Terminal

    tracked = Reporter({"address": "ppo", "word": "ppo", "params": {}, "fingerprint": ""}, print)
    values = {f"ppo/figure_{n}": 0.5 + n for n in range(FIGURES)}
    found = []
    with record.listening(record.History(), Terminal("ppo"), tracked):
        for step in range(1, STEPS + 1):
            start = time.perf_counter()
            record.log(step, STEPS, values, {"tokens_per_second": 100.0})
            found.append(1000 * (time.perf_counter() - start))
            time.sleep(0.01)
    tracked.end("FINISHED")
    return found


if __name__ == "__main__":
    main()
