"""What a model says of completions it did not have to generate: log-probabilities and scalars.

A figure of a completion does not depend on what it is batched with (up to rounding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tasks.algorithms.logprobs import entropy, token_log_probs
from tasks.language.batches import Batch, Completion, by_length, pad
from tasks.language.models import answer_logits, scalars


def answer_log_probs(model: PreTrainedModel, batch: Batch, *, temperature: float) -> Tensor:
    """log p(answer token | what comes before) [B, T], zero where no token counts; differentiable.

    Raises ValueError for an empty prompt: nothing would score the answer's first token.
    """
    return answer_logits_and_log_probs(model, batch, temperature=temperature)[1]


def answer_logits_and_log_probs(model: PreTrainedModel, batch: Batch, *, temperature: float) -> tuple[Tensor, Tensor]:
    """The logits [1, N, V] that score the counted answer tokens, and `answer_log_probs`, from one forward pass."""
    if batch.before[1].numel() and int(batch.before[1].min()) < 0:
        raise ValueError("a completion with an empty prompt has no probability: its first token follows nothing")
    logits = answer_logits(model, batch)
    flat = token_log_probs(logits, batch.answers.unsqueeze(0), temperature=temperature)
    return logits, batch.padded(flat.squeeze(0))


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

    def measure(batch: Batch) -> tuple[Tensor, ...]:
        return (answer_log_probs(model, batch, temperature=temperature),)

    return [found for (found,) in _per_token(model, completions, measure, fill=fill, size=size)]


@torch.no_grad()
def all_log_probs_and_entropies(
    model: PreTrainedModel, completions: Sequence[Completion], *, temperature: float, fill: int, size: int
) -> list[tuple[Tensor, ...]]:
    """Per completion (log-probabilities, entropies of the distributions they came from), from one forward pass."""

    def measure(batch: Batch) -> tuple[Tensor, ...]:
        logits = answer_logits(model, batch)
        flat = token_log_probs(logits, batch.answers.unsqueeze(0), temperature=temperature)
        return batch.padded(flat.squeeze(0)), batch.padded(entropy(logits, temperature=temperature).squeeze(0))

    return _per_token(model, completions, measure, fill=fill, size=size)


@torch.no_grad()
def all_values(model: PreTrainedModel, completions: Sequence[Completion], *, fill: int, size: int) -> list[Tensor]:
    """Per completion the critic's values before its answer tokens, on the CPU, in the order given."""

    def measure(batch: Batch) -> tuple[Tensor, ...]:
        return (answer_values(model, batch),)

    return [found for (found,) in _per_token(model, completions, measure, fill=fill, size=size)]


Scorer = Callable[[Sequence[Completion]], Tensor]
"""Completions -> their raw scores [len], differentiable."""


def scorer(model: PreTrainedModel, *, fill: int) -> Scorer:
    """The raw scores of completions in one forward pass."""
    return lambda completions: last_scalars(model, pad(completions, fill=fill, device=model.device))


@torch.no_grad()
def all_raw_scores(score: Scorer, completions: Sequence[Completion], *, size: int) -> Tensor:
    """The raw score of each completion [len], as the head gives it, on the CPU."""
    found = torch.empty(len(completions))
    for group in by_length(completions, size):
        found[torch.tensor(group)] = score([completions[i] for i in group]).cpu()
    return found


def all_scores(model: PreTrainedModel, completions: Sequence[Completion], *, fill: int, size: int) -> Tensor:
    """The reward model's score of each completion [len], normalised by the statistics in its config, on the CPU."""
    found = all_raw_scores(scorer(model, fill=fill), completions, size=size)
    return (found - getattr(model.config, "reward_mean", 0.0)) / getattr(model.config, "reward_std", 1.0)


def _per_token(
    model: PreTrainedModel,
    completions: Sequence[Completion],
    measure: Callable[[Batch], tuple[Tensor, ...]],
    *,
    fill: int,
    size: int,
) -> list[tuple[Tensor, ...]]:
    """`measure` every batch ([B, T] each) and give every completion its own rows, cut to its answer."""
    found: list[tuple[Tensor, ...]] = [()] * len(completions)
    for group in by_length(completions, size):
        batch = pad([completions[i] for i in group], fill=fill, device=model.device)
        measured = [values.cpu() for values in measure(batch)]
        for row, i in enumerate(group):
            found[i] = tuple(values[row, : len(completions[i].answer)] for values in measured)
    return found
