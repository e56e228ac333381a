"""The frozen layers' part of a scalar model, computed once for each sequence and reused.

Where only the last N layers train, what enters the first of them is the same in every epoch. It is kept in memory, in
the precision of the arithmetic: tokens x hidden size numbers a sequence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tasks.errors import UserError
from tasks.language.batches import Completion, by_length, pad
from tasks.language.models import stack
from tasks.language.scoring import last_scalars


class _Entered(Exception):
    """Carries what enters the first trainable layer out of the forward pass."""


class Reusing:
    """`scoring.scorer` that runs the frozen layers once for each sequence.

    Same scores and gradients, up to the rounding of another batch. Those of `completions` are kept from the start: a
    function of the sequences and the weights alone, not of the order of training, so that a resumed run has the same.
    """

    def __init__(self, model: PreTrainedModel, completions: Sequence[Completion], *, fill: int, size: int) -> None:
        """model: after `models.freeze_below`. Raises UserError for an architecture whose layers cannot be skipped."""
        layers = stack(model)
        self._frozen = next(n for n, layer in enumerate(layers) if any(p.requires_grad for p in layer.parameters()))
        self._model, self._fill = model, fill
        self._kept: dict[tuple[int, ...], Tensor] = {}
        self._tuples = False
        self._require_same()
        for group in by_length(completions, size):
            self._keep([completions[i] for i in group])

    def __call__(self, completions: Sequence[Completion]) -> Tensor:
        """The raw scores [len]; differentiable."""
        if new := [c for c in completions if _key(c) not in self._kept]:
            self._keep(new)
        batch = pad(completions, fill=self._fill, device=self._model.device)
        rows = [self._kept[_key(c)] for c in completions]
        hidden = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(batch.tokens.device)
        with self._skipping(), self._entering(lambda _: hidden):
            return last_scalars(self._model, batch)

    @torch.no_grad()
    def _keep(self, completions: Sequence[Completion]) -> None:
        def leave(hidden: Tensor) -> Tensor:
            raise _Entered(hidden)

        batch = pad(completions, fill=self._fill, device=self._model.device)
        try:
            with self._entering(leave):
                last_scalars(self._model, batch)
        except _Entered as found:
            for row, completion in zip(found.args[0], completions, strict=True):
                # A copy: a view would keep the whole padded batch.
                self._kept[_key(completion)] = row[: len(completion)].to("cpu", copy=True)

    @contextlib.contextmanager
    def _entering(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Put `change(hidden)` in the place of what enters the first trainable layer."""

        def enter(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
            if args:
                return (change(args[0]), *args[1:]), named
            return args, named | {"hidden_states": change(named["hidden_states"])}

        hook = stack(self._model)[self._frozen].register_forward_pre_hook(enter, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    @contextlib.contextmanager
    def _skipping(self) -> Iterator[None]:
        """The frozen layers return what they are given; they keep their place, as masks may depend on it."""

        def skip(*args: Any, **named: Any) -> Any:
            hidden = args[0] if args else named["hidden_states"]
            return (hidden,) if self._tuples else hidden

        frozen = stack(self._model)[: self._frozen]
        for layer in frozen:
            layer.forward = skip
        try:
            yield
        finally:
            for layer in frozen:
                del layer.forward

    def _require_same(self) -> None:
        """Try it once on two tokens: an architecture that trains something below, or passes more on, is refused."""
        probe = [Completion([1], [2])]
        trained = [p for p in self._model.parameters() if p.requires_grad]
        hooks = [
            layer.register_forward_hook(lambda *found: setattr(self, "_tuples", isinstance(found[-1], tuple)))
            for layer in stack(self._model)[: self._frozen]
        ]
        full = last_scalars(self._model, pad(probe, fill=self._fill, device=self._model.device))
        for hook in hooks:
            hook.remove()
        short = self(probe)
        gradients = [torch.autograd.grad(score.sum(), trained, allow_unused=True) for score in (full, short)]
        if not torch.equal(full, short) or not all(map(_equal, *gradients)):
            raise UserError(
                f"{type(self._model).__name__} does not let its frozen layers be skipped:"
                " reward.reuse_activations is true, expected false"
            )
        self._kept.clear()


def _key(completion: Completion) -> tuple[int, ...]:
    return (*completion.prompt, *completion.answer)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)
