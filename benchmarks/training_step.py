"""Seconds of one training step (forward, backward, AdamW) on the default model, by how it is done; medians.

`python -m benchmarks.training_step [FOLDER]` (default runs/sft). Each variant runs in a process of its own, in turn, so
that both see the same machine:
  autocast   float32 weights, torch.autocast in bfloat16
  master     bfloat16 weights with float32 masters (tasks/language/optimisation.py), memory given back to the kernel
  kept       the same, freed memory kept (tasks/runtime/process.py): what the stages do
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS, STEPS, ROWS, PROMPT, ANSWER = 3, 6, 32, 5, 20


def main(folder: str) -> None:
    """Print each variant's median and its ratio to the first."""
    seconds: dict[str, list[float]] = {"autocast": [], "master": [], "kept": []}
    for _ in range(ROUNDS):
        for variant, found in seconds.items():
            command = [sys.executable, "-m", "benchmarks.training_step", folder, variant]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.extend(map(float, done.stdout.split()))
    first = statistics.median(seconds["autocast"])
    for variant, found in seconds.items():
        median = statistics.median(found)
        print(f"{variant:9} {median:6.2f} s  {ROWS * (PROMPT + ANSWER) / median:6.0f} tokens/s  {first / median:5.2f}x")


def measure(folder: Path, variant: str) -> list[float]:
    """Seconds of each step but the first."""
    from tasks.runtime.process import keep_freed_memory

    if variant == "kept":
        keep_freed_memory()
    import torch

    from tasks.algorithms.supervised import negative_log_likelihood
    from tasks.language import models, scoring
    from tasks.language.batches import Completion, pad
    from tasks.language.master_weights import MasterWeights
    from tasks.runtime import config

    model = models.load_policy(folder)
    precision = torch.float32 if variant == "autocast" else torch.bfloat16
    master = MasterWeights(model, config.load().sft.optimiser, precision=precision)
    draws = torch.randint(5, 1000, (ROWS, PROMPT + ANSWER), generator=torch.Generator().manual_seed(0)).tolist()
    batch = pad([Completion(row[:PROMPT], row[PROMPT:]) for row in draws], fill=0, device=model.device)
    found = []
    for _ in range(STEPS):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == "autocast"):
            log_probs = scoring.answer_log_probs(model, batch, temperature=1.0)
        master.backward(negative_log_likelihood(log_probs, batch.mask))
        master.step(1e-5)
        found.append(time.perf_counter() - start)
    return found[1:]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(*measure(Path(sys.argv[1]), sys.argv[2]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "runs/sft")
