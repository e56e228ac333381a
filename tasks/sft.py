"""Supervised fine-tuning: the base model learns the demonstrations' answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.algorithms.supervised import negative_log_likelihood
from tasks.errors import UserError
from tasks.language import demonstrations, models, text
from tasks.language.batches import Batch, Completion, by_length, pack, packs, pad
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import fit
from tasks.language.packing import require_separable
from tasks.language.scoring import answer_log_probs
from tasks.language.trainable import TRAINABLE
from tasks.runtime import config, record, records, work


def run(shared: config.Shared, cfg: config.SFT, *, base: Path, corpus: Path, out: Path) -> dict[str, Any]:
    """Train on `corpus`, write the policy to `out`. Raises UserError when no demonstration is left."""
    tokenizer = text.load_tokenizer(base)
    rows = records.read_jsonl(corpus / "demonstrations.jsonl", "prompt", "answer")[: cfg.demonstrations]
    completions, dropped = demonstrations.completions(
        rows, tokenizer, shared.format, prompt_tokens=shared.prompt_tokens, answer_tokens=shared.answer_tokens
    )
    for reason, rows_lost in sorted(dropped.items()):
        record.note(f"dropped {rows_lost}: {reason}")
    if len(completions) < cfg.optimiser.batch:
        lost = "".join(f"; {count} dropped, {reason}" for reason, count in sorted(dropped.items()))
        raise UserError(
            f"{len(completions)} demonstrations do not fill one batch"
            f" (sft.optimiser.batch: {cfg.optimiser.batch}){lost}"
        )
    model = models.load_policy(base)
    if cfg.packing:
        require_separable(model, max(map(len, completions)))
    generator = torch.Generator().manual_seed(shared.seed)
    TRAINABLE[cfg.trainable.kind](model, generator, **cfg.trainable.settings)
    master = MasterWeights(model, cfg.optimiser, precision=models.PRECISIONS[shared.precision])

    def losses(indices: list[int]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = [completions[i] for i in indices]
        count = sum(len(c.answer) for c in batch)
        options = {"fill": tokenizer.pad_token_id, "device": model.device}
        for part in _parts(batch, cfg.optimiser.micro_batch, packing=cfg.packing, **options):
            log_probs = answer_log_probs(model, part, temperature=1.0)
            yield negative_log_likelihood(log_probs, part.mask, count=count), {}

    def report(step: int, total: int, figures: dict[str, float]) -> None:
        record.log(step, total, {f"train/{name}": value for name, value in figures.items()})

    history = fit(
        master,
        losses,
        cfg.optimiser,
        rows=len(completions),
        generator=generator,
        report=report,
        checkpoints=work.checkpoints(),
    )
    models.save(model, tokenizer, out, master.weights(), merge=cfg.trainable.merge)
    losses_seen = [figures["loss"] for figures in history if math.isfinite(figures["loss"])]
    cut = sum(c.answer[-1] != tokenizer.eos_token_id for c in completions)
    return {
        "demonstrations": len(completions),
        "dropped": dict(sorted(dropped.items())),
        "supervised_tokens": sum(len(c.answer) for c in completions),
        "cut_answers": cut,
        "steps": len(history),
        "skipped": history[-1]["skipped"],
        "loss_first": losses_seen[0],
        "loss_last": losses_seen[-1],
    }


def _parts(
    batch: Sequence[Completion], size: int, *, packing: bool, fill: int, device: torch.device
) -> Iterator[Batch]:
    """The batch in forward passes of `size` rows; packed, a row is as long as the longest completion."""
    if not packing:
        for group in by_length(batch, size):
            yield pad([batch[i] for i in group], fill=fill, device=device)
        return
    rows = packs(batch, max(map(len, batch)))
    for start in range(0, len(rows), size):
        yield pack([[batch[i] for i in row] for row in rows[start : start + size]], fill=fill, device=device)
