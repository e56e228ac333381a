"""CPU seconds of reward training by what is done with the frozen layers, per epoch.

`python -m benchmarks.frozen_layers [FOLDER]` (default runs/sft). With the last 15 and the last 4 layers trained, each
variant in a process of its own, in turn:
  recomputed   the frozen layers run in every epoch
  reused       they run once for each answer (tasks/language/activations.py); the first epoch pays for all of it
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS, PAIRS, EPOCHS, PROMPT, ANSWER = 3, 64, 3, 5, 20


def main(folder: str) -> None:
    """Print each variant's first epoch, the median of the later ones, and both ratios."""
    for layers in ("15", "4"):
        found: dict[str, list[list[float]]] = {"recomputed": [], "reused": []}
        for _ in range(ROUNDS):
            for variant, rounds in found.items():
                command = [sys.executable, "-m", "benchmarks.frozen_layers", folder, layers, variant]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rounds.append(list(map(float, done.stdout.split())))
        seconds = {
            variant: (
                statistics.median(r[0] for r in rounds),
                statistics.median(second for r in rounds for second in r[1:]),
            )
            for variant, rounds in found.items()
        }
        base = seconds["recomputed"]
        for variant, (first, later) in seconds.items():
            print(
                f"last {layers:2} layers  {variant:10}  first epoch {first:6.2f} s  {base[0] / first:5.2f}x"
                f"  later {later:6.2f} s  {base[1] / later:5.2f}x"
            )


def measure(folder: Path, layers: int, variant: str) -> list[float]:
    """CPU seconds of each epoch."""
    from tasks.runtime.process import keep_freed_memory

    keep_freed_memory()
    import torch

    from tasks.algorithms.ranking import bradley_terry_loss
    from tasks.language import models, scoring
    from tasks.language.activations import Reusing
    from tasks.language.batches import Completion
    from tasks.language.master_weights import MasterWeights
    from tasks.runtime import config

    generator = torch.Generator().manual_seed(0)
    model = models.new_scalar_model(folder, generator)
    models.freeze_below(model, layers)
    params = config.load()
    settings = params.reward.optimiser
    master = MasterWeights(model, settings, precision=models.PRECISIONS[params.shared.precision])
    draws = torch.randint(5, 1000, (2 * PAIRS, PROMPT + ANSWER), generator=generator).tolist()
    answers = [Completion(row[:PROMPT], row[PROMPT:]) for row in draws]
    score = scoring.scorer(model, fill=0)
    found = []
    for epoch in range(EPOCHS):
        start = time.process_time()
        if epoch == 0 and variant == "reused":
            score = Reusing(model, answers, fill=0, size=settings.micro_batch)
        for step in range(0, len(answers), settings.micro_batch):
            scores = score(answers[step : step + settings.micro_batch])
            master.backward(bradley_terry_loss(scores[0::2], scores[1::2])[0])
            master.step(1e-5)
        found.append(time.process_time() - start)
    return found


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(*measure(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "runs/sft")
