"""Direct preference optimisation: the SFT policy moves towards the preferred answers, held by a pull to SFT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.algorithms.preference import dpo_loss
from tasks.errors import UserError
from tasks.language import models, pairs, scoring, text
from tasks.language.batches import by_length, pad
from tasks.language.optimisation import MasterWeights, fit
from tasks.runtime import config, record, records, work


def run(shared: config.Shared, cfg: config.DPO, *, sft: Path, preferences: Path, out: Path) -> dict[str, Any]:
    """Train on the training split of `preferences`, write the policy to `out`."""
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(preferences / "pairs.jsonl", "prompt_tokens", "chosen_tokens", "rejected_tokens")
    training = pairs.select(rows, split="train", origins=cfg.origins)
    optimiser = cfg.optimiser
    if len(training) < optimiser.batch:
        raise UserError(
            f"{len(training)} pairs of origin {', '.join(cfg.origins)} do not fill one batch"
            f" (dpo.optimiser.batch: {optimiser.batch})"
        )
    if any(not pair.chosen.prompt for pair in training):
        raise UserError("dpo.origins holds pairs without a prompt (ratings): an answer to nothing has no probability")
    model = models.load_policy(sft)
    # Before the first step the policy is the reference, so its log-probabilities are computed here once, in the
    # precision of the training.
    master = MasterWeights(model, cfg.optimiser, precision=models.PRECISIONS[shared.precision])
    reference = _summed(
        scoring.all_log_probs(
            model,
            pairs.interleaved(training),
            temperature=shared.temperature,
            fill=tokenizer.pad_token_id,
            size=optimiser.micro_batch,
        )
    )

    def losses(indices: list[int]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = [training[i] for i in indices]
        for group in by_length(batch, max(1, optimiser.micro_batch // 2)):
            sides = pairs.interleaved([batch[i] for i in group])
            part = pad(sides, fill=tokenizer.pad_token_id, device=model.device)
            policy = scoring.answer_log_probs(model, part, temperature=shared.temperature).sum(1)
            fixed = reference[[indices[i] for i in group]].to(model.device)
            loss, statistics = dpo_loss(
                policy[0::2], policy[1::2], fixed[:, 0], fixed[:, 1], beta=cfg.beta, count=len(batch)
            )
            # How far each side's log-probability has moved from SFT's: DPO may lower both while the margin grows.
            drift = (policy.detach() - fixed.flatten()).view(-1, 2).sum(0) / len(batch)
            yield loss, statistics | {"chosen_drift": drift[0], "rejected_drift": drift[1]}

    def report(step: int, total: int, figures: dict[str, float]) -> None:
        record.log(step, total, {f"dpo/{name}": value for name, value in figures.items()})

    last = fit(
        master,
        losses,
        cfg.optimiser,
        rows=len(training),
        generator=torch.Generator().manual_seed(shared.seed),
        report=report,
        checkpoints=work.checkpoints(),
    )[-1]
    models.save(model, tokenizer, out, master.weights())
    kept = ("loss", "accuracy", "margin", "chosen_drift", "rejected_drift", "skipped")
    return {"pairs": len(training), "last_step": {name: last[name] for name in kept}}


def _summed(log_probs: list[Tensor]) -> Tensor:
    """Per pair the two sums over answer tokens [pairs, 2]."""
    return torch.stack([values.sum() for values in log_probs]).view(-1, 2)
