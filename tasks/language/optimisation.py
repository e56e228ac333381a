"""One optimiser step, in float32 whatever the precision of the arithmetic.

bfloat16 has 8 bits of precision: at learning rate 1e-5 most updates of a weight near 1 round away. So the optimiser
and the accumulated gradients are float32 "master" copies, and the model that computes is their rounded image.
This is mixed precision in the sense of Micikevicius et al. 2017 (arXiv 1710.03740), section 3.1; unlike autocast it
casts each weight once a step, not once a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tasks.language.batches import epoch_order
from tasks.language.models import cast_parameters


class Settings(Protocol):
    """AdamW and its schedule, as a stage's section of params.yaml gives them (`config.Optimiser`)."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def batch(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def warmup(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def max_grad_norm(self) -> float: ...


class MasterWeights:
    """The float32 weights, gradients and AdamW moments behind a model that may compute in bfloat16.

    `backward` any number of losses (micro-batches whose sum is the batch's loss), then `step`.
    """

    def __init__(self, model: PreTrainedModel, settings: Settings, *, precision: torch.dtype) -> None:
        self.max_grad_norm = settings.max_grad_norm
        self._mixed = precision != torch.float32
        trainable = [p for p in model.parameters() if p.requires_grad]
        # In float32 the model's own parameters are the masters.
        self._masters = [p.detach().clone() for p in trainable] if self._mixed else list(trainable)
        # By storage, not by name: tied weights have two names and one storage.
        masters = {p.data_ptr(): master for p, master in zip(trainable, self._masters, strict=True)}
        self._exported = {k: masters.get(v.data_ptr(), v) for k, v in model.state_dict().items()}
        self._working = cast_parameters(model, precision)
        # eps 1e-5: Ziegler et al. 2019 (code), the value PPO is usually run with.
        decay = settings.weight_decay
        self._optimiser = torch.optim.AdamW(self._masters, lr=0.0, eps=1e-5, weight_decay=decay, fused=True)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to the float32 gradients."""
        loss.backward()
        if not self._mixed:
            return
        for master, working in zip(self._masters, self._working, strict=True):
            if working.grad is not None:
                if master.grad is None:
                    master.grad = working.grad.float()
                else:
                    master.grad += working.grad
                working.grad = None

    def step(self, learning_rate: float) -> float:
        """Clip, update, round into the model. Returns the gradient's norm before clipping; a norm not finite raises."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._masters, self.max_grad_norm, error_if_nonfinite=True))
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        if self._mixed:
            with torch.no_grad():
                torch._foreach_copy_(self._working, self._masters)
        return norm

    def weights(self) -> dict[str, Tensor]:
        """The float32 state dict: what a checkpoint holds. The model in memory is its image in `precision`."""
        return self._exported


def linear_schedule(step: int, total: int, *, peak: float, warmup: float) -> float:
    """Learning rate of step 0 <= `step` < `total`: linear rise over the first warmup * total steps, then to 0.

    The rise starts at peak / (rise + 1) and the last step is the last before 0, so that no step is wasted at rate 0.
    """
    rise = int(warmup * total)
    if step < rise:
        return peak * (step + 1) / (rise + 1)
    return peak * (total - step) / max(1, total - rise)


Losses = Callable[[list[int]], Iterator[tuple[Tensor, Mapping[str, Tensor]]]]
"""Rows of a batch -> for each micro-batch its share of the batch's loss and of its statistics (both add up)."""
Report = Callable[[int, int, dict[str, float]], None]
"""(step, total, figures)"""


def fit(
    master: MasterWeights,
    losses: Losses,
    settings: Settings,
    *,
    rows: int,
    generator: torch.Generator,
    report: Report,
) -> None:
    """Minimise over `rows` training rows: random passes over them in batches, one optimiser step each.

    Reports loss, statistics, gradient norm and learning rate of every step, 1 to total. Raises ValueError when the
    rows do not fill one batch.
    """
    batches = [indices for _ in range(settings.epochs) for indices in epoch_order(rows, settings.batch, generator)]
    for step, indices in enumerate(batches):
        rate = linear_schedule(step, len(batches), peak=settings.learning_rate, warmup=settings.warmup)
        figures = accumulate(master, losses(indices))
        figures |= {"gradient_norm": master.step(rate), "learning_rate": rate}
        report(step + 1, len(batches), figures)


def accumulate(master: MasterWeights, parts: Iterator[tuple[Tensor, Mapping[str, Tensor]]]) -> dict[str, float]:
    """Backward through every micro-batch of one optimiser batch; returns loss and statistics of the whole."""
    total: dict[str, float] = {}
    for loss, statistics in parts:
        master.backward(loss)
        for name, value in {"loss": loss.detach(), **statistics}.items():
            total[name] = total.get(name, 0.0) + float(value)
    return total
