"""Supervised fine-tuning: the base model learns the demonstrations' answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.algorithms.supervised import negative_log_likelihood
from tasks.errors import UserError
from tasks.language import models, text
from tasks.language.batches import Completion, by_length, pad
from tasks.language.optimisation import MasterWeights, fit
from tasks.language.scoring import answer_log_probs
from tasks.runtime import config, record, records, work


def run(shared: config.Shared, cfg: config.SFT, *, base: Path, corpus: Path, out: Path) -> dict[str, Any]:
    """Train on `corpus`, write the policy to `out`. Raises UserError when no demonstration is left."""
    tokenizer = text.load_tokenizer(base)
    rows = records.read_jsonl(corpus / "demonstrations.jsonl", "prompt", "answer")[: cfg.demonstrations]
    completions = [
        Completion(
            text.prompt_tokens(tokenizer, row["prompt"], shared.format),
            text.answer_tokens(tokenizer, row["answer"], shared.answer_tokens),
        )
        for row in rows
    ]
    if len(completions) < cfg.optimiser.batch:
        raise UserError(
            f"{len(completions)} demonstrations do not fill one batch (sft.optimiser.batch: {cfg.optimiser.batch})"
        )
    model = models.load_policy(base)
    master = MasterWeights(model, cfg.optimiser, precision=models.PRECISIONS[shared.precision])

    def losses(indices: list[int]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = [completions[i] for i in indices]
        count = sum(len(c.answer) for c in batch)
        for group in by_length(batch, cfg.optimiser.micro_batch):
            part = pad([batch[i] for i in group], fill=tokenizer.pad_token_id, device=model.device)
            log_probs = answer_log_probs(model, part, temperature=1.0)
            yield negative_log_likelihood(log_probs, part.mask, count=count), {}

    def report(step: int, total: int, figures: dict[str, float]) -> None:
        record.log(step, total, {f"train/{name}": value for name, value in figures.items()})

    history = fit(
        master,
        losses,
        cfg.optimiser,
        rows=len(completions),
        generator=torch.Generator().manual_seed(shared.seed),
        report=report,
        checkpoints=work.checkpoints(),
    )
    models.save(model, tokenizer, out, master.weights())
    losses_seen = [figures["loss"] for figures in history if math.isfinite(figures["loss"])]
    cut = sum(c.answer[-1] != tokenizer.eos_token_id for c in completions)
    return {
        "demonstrations": len(completions),
        "supervised_tokens": sum(len(c.answer) for c in completions),
        "cut_answers": cut,
        "steps": len(history),
        "skipped": history[-1]["skipped"],
        "loss_first": losses_seen[0],
        "loss_last": losses_seen[-1],
    }
