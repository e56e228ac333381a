"""One optimiser step, in float32 whatever the precision of the arithmetic.

bfloat16 has 8 bits of precision: at learning rate 1e-5 most updates of a weight near 1 round away. So the optimiser
and the accumulated gradients are float32 "master" copies, and the model that computes is their rounded image.
This is mixed precision in the sense of Micikevicius et al. 2017 (arXiv 1710.03740), section 3.1; unlike autocast it
casts each weight once a step, not once a forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tasks.errors import UserError
from tasks.language.batches import epoch_order
from tasks.language.models import cast_parameters
from tasks.language.progress import Checkpoints, read_state, write_state


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
    @property
    def max_skipped(self) -> int: ...


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
        """Clip, update, round into the model. Returns the gradient's norm before clipping.

        A norm that is not finite updates nothing: weights and moments stay as they were.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self._masters, self.max_grad_norm))
        if not math.isfinite(norm):
            self.discard()
            return norm
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._round()
        return norm

    def discard(self) -> None:
        """Forget the gradients, also those that another loss left on the model."""
        self._optimiser.zero_grad(set_to_none=True)
        for working in self._working:
            working.grad = None

    def weights(self) -> dict[str, Tensor]:
        """The float32 state dict: what a checkpoint holds. The model in memory is its image in `precision`."""
        return self._exported

    @property
    def size(self) -> int:
        """Bytes that `save` writes, about: weights and two moments."""
        return 3 * sum(master.numel() * master.element_size() for master in self._masters)

    def save(self, path: Path) -> None:
        """Write the trainable weights and the optimiser's state, from which `restore` goes on to the bit."""
        tensors = {f"{i}.master": master.detach() for i, master in enumerate(self._masters)}
        for i, master in enumerate(self._masters):
            tensors |= {f"{i}.{name}": value for name, value in self._optimiser.state[master].items()}
        save_file(tensors, path)

    def restore(self, path: Path) -> None:
        """Take on what `save` wrote."""
        tensors = load_file(path)
        with torch.no_grad():
            for i, master in enumerate(self._masters):
                master.copy_(tensors.pop(f"{i}.master"))
        for key, value in tensors.items():
            i, name = key.split(".")
            master = self._masters[int(i)]
            self._optimiser.state[master][name] = value.to(master.device)
        self._round()

    def _round(self) -> None:
        if self._mixed:
            with torch.no_grad():
                torch._foreach_copy_(self._working, self._masters)


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


class Guard:
    """Skips updates whose loss or gradient is not finite, and ends the training when too many come in a row."""

    def __init__(self, settings: Settings, checkpoints: Checkpoints) -> None:
        self._limit, self._checkpoints = settings.max_skipped, checkpoints
        self.skipped = 0
        """Updates skipped so far."""
        self._row = 0
        self._broke = ""
        """What broke first in the present row of skipped updates."""

    def update(self, master: MasterWeights, learning_rate: float, figures: Mapping[str, float]) -> dict[str, float]:
        """Step with the accumulated gradients if they and `figures` are finite. Returns the gradient norm and the rate.

        figures: of this update, in the order in which they were computed. Raises UserError after `max_skipped` updates
        in a row were skipped.
        """
        broken = [name for name, value in figures.items() if not math.isfinite(value)]
        if broken:
            master.discard()
            norm = math.nan
        else:
            norm = master.step(learning_rate)
        if math.isfinite(norm):
            self._row = 0
        else:
            name = broken[0] if broken else "gradient_norm"
            self._skip(name, figures.get(name, norm))
        return {"gradient_norm": norm, "learning_rate": learning_rate, "skipped": float(self.skipped)}

    def state(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "row": self._row, "broke": self._broke}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.skipped, self._row, self._broke = state["skipped"], state["row"], state["broke"]

    def _skip(self, name: str, value: float) -> None:
        if not self._row:
            self._broke = f"{name} was {value:g}"
        self._row += 1
        self.skipped += 1
        if self._row >= self._limit:
            last = self._checkpoints.kept()
            raise UserError(
                f"{self._row} updates in a row were skipped (max_skipped), as numbers were not finite; first"
                f" {self._broke}. The last good checkpoint is {last or 'not written yet'}. The same params would end"
                " here again: try a lower learning_rate, a longer warmup or a smaller max_grad_norm"
            )


def fit(
    master: MasterWeights,
    losses: Losses,
    settings: Settings,
    *,
    rows: int,
    generator: torch.Generator,
    report: Report,
    checkpoints: Checkpoints,
) -> list[dict[str, float]]:
    """Minimise over `rows` training rows: random passes over them in batches, one optimiser step each.

    Reports loss, statistics, gradient norm and learning rate of every step, 1 to total, and returns them. Goes on from
    the newest checkpoint, if there is one, and then reports the earlier steps again: whoever listens sees the whole
    run. Raises ValueError when the rows do not fill one batch, UserError when numbers go bad (see Guard).
    """
    batches = [indices for _ in range(settings.epochs) for indices in epoch_order(rows, settings.batch, generator)]
    guard = Guard(settings, checkpoints)
    history: list[dict[str, float]] = []
    if saved := checkpoints.newest():
        master.restore(saved / "model.safetensors")
        state = read_state(saved)
        guard.restore(state["guard"])
        history = state["history"]
        for step, figures in enumerate(history):
            report(step + 1, len(batches), figures)
    for step, indices in list(enumerate(batches))[len(history) :]:
        rate = linear_schedule(step, len(batches), peak=settings.learning_rate, warmup=settings.warmup)
        figures = accumulate(master, losses(indices))
        figures |= guard.update(master, rate, figures)
        history.append(figures)
        report(step + 1, len(batches), figures)
        if step + 1 < len(batches) and checkpoints.due(master.size):
            state = {"history": history, "guard": guard.state()}
            checkpoints.save(step + 1, partial(_save, master, state))
    return history


def _save(master: MasterWeights, state: Mapping[str, Any], folder: Path) -> None:
    master.save(folder / "model.safetensors")
    write_state(state, folder)


def accumulate(master: MasterWeights, parts: Iterator[tuple[Tensor, Mapping[str, Tensor]]]) -> dict[str, float]:
    """Backward through every micro-batch of one optimiser batch; returns loss and statistics of the whole."""
    total: dict[str, float] = {}
    for loss, statistics in parts:
        master.backward(loss)
        for name, value in {"loss": loss.detach(), **statistics}.items():
            total[name] = total.get(name, 0.0) + float(value)
    return total
