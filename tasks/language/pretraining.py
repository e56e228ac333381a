"""Demonstrations mixed into the policy's steps, so that it forgets less of what it was taught."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from transformers import PreTrainedModel

from tasks.algorithms.supervised import negative_log_likelihood
from tasks.language import scoring
from tasks.language.batches import Completion, by_length, epoch_order, pad
from tasks.language.policy import Part


class Demonstrations:
    """Supervised loss on demonstrations, mixed into each step of the policy (Ouyang et al. 2022, equation 2).

    coefficient * token mean of -log p over `batch` demonstrations, by turns in an order that is a function of the seed
    and of the number of steps alone. Temperature 1, as in supervised fine-tuning: nothing is sampled here.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        completions: Sequence[Completion],
        *,
        coefficient: float,
        batch: int,
        size: int,
        fill: int,
        seed: int,
    ) -> None:
        self._model, self._completions, self._coefficient = model, completions, coefficient
        self._batch, self._size, self._fill, self._seed = batch, size, fill, seed

    def losses(self, step: int) -> Iterator[Part]:
        """The micro-batches of the policy's step number `step`."""
        chosen = self._turn(step)
        count = sum(len(c.answer) for c in chosen)
        for group in by_length(chosen, self._size):
            part = pad([chosen[i] for i in group], fill=self._fill, device=self._model.device)
            log_probs = scoring.answer_log_probs(self._model, part, temperature=1.0)
            loss = negative_log_likelihood(log_probs, part.mask, count=count)
            yield self._coefficient * loss, {"pretraining_loss": loss.detach()}

    def _turn(self, step: int) -> list[Completion]:
        epoch, turn = divmod(step, len(self._completions) // self._batch)
        generator = torch.Generator().manual_seed(self._seed + epoch)
        order = epoch_order(len(self._completions), self._batch, generator)
        return [self._completions[i] for i in order[turn]]


def no_demonstrations(step: int) -> Iterable[Part]:
    """Nothing is mixed in."""
    return ()
