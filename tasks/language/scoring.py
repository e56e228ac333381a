"""What a model says of completions it did not have to generate: log-probabilities and scalars.

A figure of a completion does not depend on what it is batched with (up to rounding).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tasks.algorithms.logprobs import token_log_probs
from tasks.language.batches import Batch, Completion, by_length, pad
from tasks.language.models import answer_logits, scalars


def answer_log_probs(model: PreTrainedModel, batch: Batch, *, temperature: float) -> Tensor:
    """log p(answer token | what comes before) [B, T], zero where no token counts; differentiable.

    Raises ValueError for an empty prompt: nothing would score the answer's first token.
    """
    if batch.before[1].numel() and int(batch.before[1].min()) < 0:
        raise ValueError("a completion with an empty prompt has no probability: its first token follows nothing")
    flat = token_log_probs(answer_logits(model, batch), batch.answers.unsqueeze(0), temperature=temperature)
    return batch.padded(flat.squeeze(0))


def answer_values(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The critic's value before each answer token [B, T], zero where no token counts; differentiable."""
    return batch.padded(scalars(model, batch)[batch.before])


def last_scalars(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The scalar at each completion's last real token [B]; differentiable."""
    return scalars(model, batch)[batch.last]


@torch.no_grad()
def all_log_probs(
    model: PreTrainedModel, completions: Sequence[Completion], *, temperature: float, fill: int, size: int
) -> list[Tensor]:
    """Per completion the log-probabilities of its answer tokens, on the CPU, in the order given."""
    found: list[Tensor] = [torch.empty(0)] * len(completions)
    for group in by_length(completions, size):
        batch = pad([completions[i] for i in group], fill=fill, device=model.device)
        values = answer_log_probs(model, batch, temperature=temperature).cpu()
        for row, i in enumerate(group):
            found[i] = values[row, : len(completions[i].answer)]
    return found


@torch.no_grad()
def all_values(model: PreTrainedModel, completions: Sequence[Completion], *, fill: int, size: int) -> list[Tensor]:
    """Per completion the critic's values before its answer tokens, on the CPU, in the order given."""
    found: list[Tensor] = [torch.empty(0)] * len(completions)
    for group in by_length(completions, size):
        batch = pad([completions[i] for i in group], fill=fill, device=model.device)
        values = answer_values(model, batch).cpu()
        for row, i in enumerate(group):
            found[i] = values[row, : len(completions[i].answer)]
    return found


@torch.no_grad()
def all_scores(model: PreTrainedModel, completions: Sequence[Completion], *, fill: int, size: int) -> Tensor:
    """The reward model's score of each completion [len], normalised by the statistics in its config, on the CPU."""
    found = torch.empty(len(completions))
    for group in by_length(completions, size):
        batch = pad([completions[i] for i in group], fill=fill, device=model.device)
        found[torch.tensor(group)] = last_scalars(model, batch).cpu()
    mean, std = getattr(model.config, "reward_mean", 0.0), getattr(model.config, "reward_std", 1.0)
    return (found - mean) / std
