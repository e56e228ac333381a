"""The reward model: a scalar on the SFT trunk that orders answers as the preferences do (Bradley-Terry)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.algorithms.preference import bradley_terry_loss
from tasks.errors import UserError
from tasks.language import models, pairs, scoring, text
from tasks.language.batches import Completion, by_length, pad
from tasks.language.optimisation import MasterWeights, fit
from tasks.runtime import config, record, records, work

_REFERENCE_ANSWERS = 256
"""Answers of the SFT policy on which scores get mean 0 and standard deviation 1."""


def run(
    shared: config.Shared, cfg: config.Reward, *, sft: Path, samples: Path, preferences: Path, out: Path
) -> dict[str, Any]:
    """Train on the training split of `preferences`, measure on the held-out prompts, write the model to `out`."""
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(preferences / "pairs.jsonl", "prompt_tokens", "chosen_tokens", "rejected_tokens")
    training = pairs.select(rows, split="train", origins=cfg.origins)
    if len(training) < cfg.optimiser.batch:
        raise UserError(
            f"{len(training)} pairs of origin {', '.join(cfg.origins)} do not fill one batch"
            f" (reward.optimiser.batch: {cfg.optimiser.batch})"
        )
    generator = torch.Generator().manual_seed(shared.seed)
    model = models.new_scalar_model(sft, generator)
    models.freeze_below(model, cfg.trainable_layers)
    optimiser = cfg.optimiser
    master = MasterWeights(model, cfg.optimiser, precision=models.PRECISIONS[shared.precision])

    def losses(indices: list[int]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = [training[i] for i in indices]
        for group in by_length(batch, max(1, optimiser.micro_batch // 2)):
            sides = pairs.interleaved([batch[i] for i in group])
            part = pad(sides, fill=tokenizer.pad_token_id, device=model.device)
            scores = scoring.last_scalars(model, part)
            yield bradley_terry_loss(scores[0::2], scores[1::2], count=len(batch))

    def report(step: int, total: int, figures: dict[str, float]) -> None:
        record.log(step, total, {f"train/{name}": value for name, value in figures.items()})

    fit(
        master,
        losses,
        cfg.optimiser,
        rows=len(training),
        generator=generator,
        report=report,
        checkpoints=work.checkpoints(),
    )
    fill, size = tokenizer.pad_token_id, optimiser.micro_batch
    reference = scoring.all_scores(model, _reference_answers(samples), fill=fill, size=size)
    if not reference.std() > 0:
        raise UserError(f"the reward model scores all {len(reference)} reference answers alike: it learned nothing")
    model.config.reward_mean, model.config.reward_std = float(reference.mean()), float(reference.std())
    models.save(model, tokenizer, out, master.weights())
    held_out = {
        origin: _accuracy(model, pairs.select(rows, split="held_out", origins=[origin]), fill=fill, size=size)
        for origin in sorted({row["origin"] for row in rows})
    }
    return {
        "pairs": {o: sum(p.origin == o for p in training) for o in cfg.origins},
        "held_out": held_out,
        "reward_mean": model.config.reward_mean,
        "reward_std": model.config.reward_std,
    }


def _reference_answers(samples: Path) -> list[Completion]:
    rows = records.read_jsonl(samples / "samples.jsonl", "prompt_tokens", "answers")
    answers = [Completion(row["prompt_tokens"], answer["tokens"]) for row in rows for answer in row["answers"]]
    return answers[:_REFERENCE_ANSWERS]


def _accuracy(model: Any, held_out: list[pairs.Pair], *, fill: int, size: int) -> dict[str, float]:
    """Share of held-out pairs ordered as preferred, ties apart, and the log-loss of the raw scores."""
    scores = scoring.all_scores(model, pairs.interleaved(held_out), fill=fill, size=size) * model.config.reward_std
    loss, statistics = bradley_terry_loss(scores[0::2], scores[1::2])
    return {
        "pairs": len(held_out),
        "accuracy": float(statistics["accuracy"]),
        "ties": float(statistics["ties"]),
        "log_loss": float(loss),
    }
