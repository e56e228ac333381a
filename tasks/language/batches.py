"""Prompts with their answers as token ids, cut into padded batches.

Legend: B completions, L longest of them (prompt and answer), T longest answer, N answer tokens of the whole batch.
Padding stands on the right. Per-token quantities of the answers travel flat [N], row after row, as the model gives
them, or padded [B, T] with `mask`, as the algorithms take them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Completion:
    """A prompt and its answer, as ids. An answer that ended carries its end-of-sequence token."""

    prompt: list[int]
    answer: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True)
class Batch:
    """Padded completions on one device."""

    tokens: Tensor
    """[B, L]"""
    mask: Tensor
    """[B, T], True where an answer token counts."""
    before: tuple[Tensor, Tensor]
    """Row and column [N] of the position whose output scores each counted answer token: the one before it."""
    last: tuple[Tensor, Tensor]
    """Row and column [B] of the last real token."""

    @property
    def answers(self) -> Tensor:
        """The counted answer tokens, flat [N]."""
        rows, columns = self.before
        return self.tokens[rows, columns + 1]

    def padded(self, flat: Tensor) -> Tensor:
        """[N] -> [B, T], zero where no token counts; gradients flow back."""
        return flat.new_zeros(self.mask.shape).masked_scatter(self.mask, flat)


def pad(completions: Sequence[Completion], *, fill: int, device: torch.device) -> Batch:
    """Build a batch; `fill` is the padding id. Raises ValueError for a completion without answer."""
    prompts = torch.tensor([len(c.prompt) for c in completions])
    answers = torch.tensor([len(c.answer) for c in completions])
    if (answers == 0).any():
        raise ValueError(f"completion {int((answers == 0).nonzero()[0])} of the batch has an empty answer")
    tokens = torch.full((len(completions), int((prompts + answers).max())), fill)
    for row, c in enumerate(completions):
        tokens[row, : len(c)] = torch.tensor(c.prompt + c.answer)
    mask = torch.arange(int(answers.max())) < answers[:, None]
    rows, offsets = mask.nonzero(as_tuple=True)
    columns = prompts[rows] + offsets - 1
    every = torch.arange(len(completions))
    move = {"device": device}
    return Batch(
        tokens.to(**move),
        mask.to(**move),
        (rows.to(**move), columns.to(**move)),
        (every.to(**move), (prompts + answers - 1).to(**move)),
    )


def by_length(completions: Sequence[Sized], size: int) -> Iterator[list[int]]:
    """Indices in groups of at most `size`, longest first, so that a group holds little padding.

    A function of the lengths alone; longest first, so that memory runs out at once or not at all.
    """
    order = sorted(range(len(completions)), key=lambda i: (-len(completions[i]), i))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def epoch_order(count: int, size: int, generator: torch.Generator) -> list[list[int]]:
    """A random pass over `count` rows in batches of `size`; a rest smaller than `size` joins no batch.

    Raises ValueError when there are fewer rows than one batch: a stage that did no work must fail.
    """
    if count < size:
        raise ValueError(f"{count} rows do not fill one batch of {size}")
    order = torch.randperm(count, generator=generator).tolist()
    return [order[start : start + size] for start in range(0, count - size + 1, size)]
