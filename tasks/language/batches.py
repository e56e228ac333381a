"""Prompts with their answers as token ids, cut into padded or packed batches.

Legend: B completions, R rows of the model's input (one completion each where padded, several where packed), L tokens of
the longest row, T longest answer, N answer tokens of the whole batch. Padding stands on the right. Per-token quantities
of the answers travel flat [N], row after row, as the model gives them, or padded [B, T] with `mask`, as the algorithms
take them.
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
    """Padded or packed completions on one device. Only the layout of the rows differs: [B] and [B, T] are alike."""

    tokens: Tensor
    """[R, L]"""
    mask: Tensor
    """[B, T], True where an answer token counts."""
    before: tuple[Tensor, Tensor]
    """Row and column [N] of the position whose output scores each counted answer token: the one before it."""
    last: tuple[Tensor, Tensor]
    """Row and column [B] of the last real token."""
    positions: Tensor | None = None
    """[R, L] where packed: 0, 1, ... within each completion. A position that does not follow on the one before begins
    another sequence, which the model's attention must not look out of."""

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
    return _lay([[c] for c in completions], fill=fill, device=device, packed=False)


def pack(rows: Sequence[Sequence[Completion]], *, fill: int, device: torch.device) -> Batch:
    """Build a batch with several completions behind one another in each row; its order is row after row.

    Raises ValueError for a completion without answer.
    """
    return _lay(rows, fill=fill, device=device, packed=True)


def _lay(rows: Sequence[Sequence[Completion]], *, fill: int, device: torch.device, packed: bool) -> Batch:
    every = [c for row in rows for c in row]
    prompts = torch.tensor([len(c.prompt) for c in every])
    answers = torch.tensor([len(c.answer) for c in every])
    if (answers == 0).any():
        raise ValueError(f"completion {int((answers == 0).nonzero()[0])} of the batch has an empty answer")
    tokens = torch.full((len(rows), max(sum(map(len, row)) for row in rows)), fill)
    positions = torch.zeros_like(tokens)
    places = []
    for number, row in enumerate(rows):
        start = 0
        for c in row:
            tokens[number, start : start + len(c)] = torch.tensor(c.prompt + c.answer)
            positions[number, start : start + len(c)] = torch.arange(len(c))
            places.append((number, start))
            start += len(c)
    home, starts = torch.tensor(places).unbind(1)
    mask = torch.arange(int(answers.max())) < answers[:, None]
    which, offsets = mask.nonzero(as_tuple=True)
    columns = (starts + prompts)[which] + offsets - 1
    move = {"device": device}
    return Batch(
        tokens.to(**move),
        mask.to(**move),
        (home[which].to(**move), columns.to(**move)),
        (home.to(**move), (starts + prompts + answers - 1).to(**move)),
        positions.to(**move) if packed else None,
    )


def by_length(completions: Sequence[Sized], size: int) -> Iterator[list[int]]:
    """Indices in groups of at most `size`, longest first, so that a group holds little padding.

    A function of the lengths alone; longest first, so that memory runs out at once or not at all.
    """
    order = sorted(range(len(completions)), key=lambda i: (-len(completions[i]), i))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def packs(completions: Sequence[Sized], capacity: int) -> list[list[int]]:
    """Indices in rows of at most `capacity` tokens: first-fit decreasing, so that rows are few and full.

    A function of the lengths alone. Raises ValueError for a completion that fits no row.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    for i in sorted(range(len(completions)), key=lambda i: (-len(completions[i]), i)):
        length = len(completions[i])
        if length > capacity:
            raise ValueError(f"completion {i} has {length} tokens, a row holds {capacity}")
        row = next((r for r, room in enumerate(free) if room >= length), len(rows))
        if row == len(rows):
            rows.append([])
            free.append(capacity)
        rows[row].append(i)
        free[row] -= length
    return rows


def epoch_order(count: int, size: int, generator: torch.Generator) -> list[list[int]]:
    """A random pass over `count` rows in batches of `size`; a rest smaller than `size` joins no batch.

    Raises ValueError when there are fewer rows than one batch: a stage that did no work must fail.
    """
    if count < size:
        raise ValueError(f"{count} rows do not fill one batch of {size}")
    order = torch.randperm(count, generator=generator).tolist()
    return [order[start : start + size] for start in range(0, count - size + 1, size)]
