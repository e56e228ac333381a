"""Is the evaluation's control a fair coin? Win rates of independent samples of one policy against each other.

`python -m benchmarks.control [FOLDER]` (default runs/sft), on the held-out prompts of runs/corpus. By symmetry the mean
is one half and the deviation of one pair 0.5 / sqrt(prompts).
"""

from __future__ import annotations

import itertools
import statistics
import sys
from pathlib import Path

import torch

from tasks.algorithms.intervals import win_rate
from tasks.language import judge, models, text
from tasks.language.generation import Sampler, sample
from tasks.runtime import config, records

SAMPLES = 10


def main(folder: Path) -> None:
    """Print the win rates of disjoint pairs, and what all pairs come to."""
    shared = config.load().shared
    tokenizer, model = text.load_tokenizer(folder), models.load_policy(folder)
    models.cast_parameters(model, models.PRECISIONS[shared.precision])
    rows = records.read_jsonl(Path("runs/corpus/held_out.jsonl"), "prompt")
    prompts = [text.prompt_tokens(tokenizer, row["prompt"], shared.format) for row in rows]
    eos, fill = tokenizer.eos_token_id, tokenizer.pad_token_id
    sampler = Sampler(shared.answer_tokens, shared.temperature, eos, fill, batch=128)
    gold, asked = judge.load(Path("runs/corpus/judge")), [row["prompt"] for row in rows]
    scores = []
    for seed in range(1000, 1000 + SAMPLES):
        found = sample(model, prompts, sampler, generator=torch.Generator().manual_seed(seed))
        scores.append(gold.score(asked, [text.text_of(tokenizer, answers[0].tokens) for answers in found]))
    rates = {
        pair: win_rate(scores[pair[0]], scores[pair[1]]).rate for pair in itertools.combinations(range(SAMPLES), 2)
    }
    disjoint = [rates[i, i + 1] for i in range(0, SAMPLES, 2)]
    print(
        "disjoint pairs   ", *(f"{rate:.3f}" for rate in disjoint), f"  expected deviation {0.5 / len(rows) ** 0.5:.4f}"
    )
    every = list(rates.values())
    print(f"all {len(every)} pairs      mean {statistics.mean(every):.4f}  from {min(every):.3f} to {max(every):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/sft"))
