"""Answer tokens a second: the sampling engine against transformers' `generate`, side by side, medians.

`python -m benchmarks.generation [FOLDER]` (default runs/sft); K answers to each of 32 prompts, the same limit for both.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tasks.language import models, text
from tasks.language.generation import Sampler, sample
from tasks.runtime import records

ROUNDS, PROMPTS, ANSWERS, TOKENS = 5, 32, 4, 24


def main(folder: Path) -> None:
    """Print both rates and their ratio."""
    tokenizer = text.load_tokenizer(folder)
    rows = records.read_jsonl(Path("runs/corpus/held_out.jsonl"), "prompt")[:PROMPTS]
    prompts = [text.prompt_tokens(tokenizer, row["prompt"], "plain") for row in rows]
    model = models.load_policy(folder)
    models.cast_parameters(model, torch.bfloat16)
    sampler = Sampler(TOKENS, 1.0, tokenizer.eos_token_id, tokenizer.pad_token_id, PROMPTS * ANSWERS)
    width = max(map(len, prompts))
    padded = torch.tensor([[tokenizer.pad_token_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])

    def ours() -> int:
        return sum(len(a.tokens) for answers in sample(model, prompts, sampler, answers=ANSWERS) for a in answers)

    def theirs() -> int:
        found = model.generate(
            padded, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=TOKENS, num_return_sequences=ANSWERS,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )[:, width:]  # fmt: skip
        return int((found != tokenizer.pad_token_id).sum())

    rates: dict[str, list[float]] = {"engine": [], "generate": []}
    for _ in range(ROUNDS):
        rates["engine"].append(_rate(ours))
        rates["generate"].append(_rate(theirs))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, rate in medians.items():
        print(f"{name:9} {rate:7.0f} answer tokens/s")
    print(f"ratio     {medians['engine'] / medians['generate']:7.2f}")


def _rate(work: Callable[[], int]) -> float:
    start = time.perf_counter()
    tokens = work()
    return tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/sft"))
