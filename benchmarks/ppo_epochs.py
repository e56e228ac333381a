"""Is PPO stable when it goes several times over one rollout? The default task, all else as in params.yaml.

`python -m benchmarks.ppo_epochs [EPOCHS ...]` (default 1 2 4), after `make align`. Each number of epochs has a
workspace in .rlhf/epochs that shares DVC's cache: what is there already, and every stage before PPO, comes from it.
Prints a row per update, and what the policy is worth in the end.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from flows import workspace
from tasks.runtime import records

COLUMNS = {
    "reward/score": "score",
    "kl/sum": "KL to SFT",
    "ppo/approx_kl": "KL of the update",
    "ppo/clip_fraction": "clipped",
    "ppo/ratio_max": "largest ratio",
    "ppo/entropy": "entropy",
    "ppo/explained_variance": "explained variance",
    "ppo/gradient_norm": "gradient norm",
    "ppo/length": "length",
}


def run(epochs: int, cache: Path) -> Path:
    """Bring PPO's evaluation up to date in a workspace of its own; returns it."""
    folder = Path(".rlhf/epochs", str(epochs))
    workspace.create(folder, {"ppo": {"optimiser": {"epochs": epochs}}})
    for command in (["cache", "dir", "--local", str(cache)], ["repro", "evaluation@ppo"]):
        subprocess.run([sys.executable, "-m", "dvc", *command], cwd=folder, check=True, stdout=sys.stderr)
    return folder


def show(epochs: int, folder: Path) -> None:
    """The course of the run as a table, and its end."""
    print(f"\nepochs {epochs}\n\n| update | {' | '.join(COLUMNS.values())} |\n| --- |{' ---: |' * len(COLUMNS)}")
    with (folder / "metrics/ppo.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values = (f"{float(row[name]):.3g}" if row[name] else "" for name in COLUMNS)
            print(f"| {row['step']} | {' | '.join(values)} |")
    found = records.read_json(folder / "runs/evaluation/ppo/summary.json")
    win, kl = found["win_rate"], found["kl"]
    print(
        f"\nwin rate {win['rate']:.3f} [{win['low']:.3f}, {win['high']:.3f}], KL to SFT {kl['mean']:.2f} nats,"
        f" skipped updates {records.read_json(folder / 'metrics/ppo.json')['skipped']:.0f}"
    )


def main(epochs: list[int]) -> None:
    cache = Path(".dvc/cache").resolve()
    for number in epochs:
        show(number, run(number, cache))


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1, 2, 4])
