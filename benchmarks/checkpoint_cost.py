"""What a checkpoint costs, and the share of a stage's time that follows from how often one is written.

`python -m benchmarks.checkpoint_cost [RUNS]`: a model of the default's size (135M parameters, random weights) with its
optimiser state is written RUNS times, whole: safetensors, hashes, flush to disk, rename. Checkpoints are then due when
the time since the last one is `work.SHARE` of what that one took, so the share is bounded whatever the disk; printed is
what it comes to here.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.language.master_weights import MasterWeights
from tasks.runtime import work

SETTINGS = SimpleNamespace(weight_decay=0.0, max_grad_norm=1.0)


def main(runs: int) -> None:
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    trained = MasterWeights(model, SETTINGS, precision=torch.float32)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    trained.step(1e-4)
    seconds = []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        checkpoints = work.Checkpoints(Path(folder))
        for step in range(runs):
            begun = time.monotonic()
            checkpoints.save(step + 1, partial(_write, trained))
            seconds.append(time.monotonic() - begun)
    cost = statistics.median(seconds)
    wait = max(work.LEAST, cost / work.SHARE)
    print(f"{trained.size / 1e9:.2f} GB, {runs} runs: {', '.join(f'{s:.1f}' for s in seconds)} s, median {cost:.1f} s")
    print(f"the next one is due after {wait:.0f} s: {100 * cost / (wait + cost):.1f} % of the stage's time")
    first = max(work.LEAST, trained.size / work.EXPECTED_SPEED / work.SHARE)
    print(f"the first one is due after {first:.0f} s: at most {100 * max(seconds) / (first + max(seconds)):.1f} %")


def _write(trained: MasterWeights, folder: Path) -> None:
    trained.save(folder / "model.safetensors")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
