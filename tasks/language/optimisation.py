"""Training of a model on the batches of a data set: schedule, steps, checkpoints, and the end when numbers go bad."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tasks.errors import UserError
from tasks.language.batches import epoch_order
from tasks.language.master_weights import MasterWeights
from tasks.language.progress import Checkpoints, read_state, write_state


class Settings(Protocol):
    """Passes and schedule, as a stage's section of params.yaml gives them (`config.Optimiser`)."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def batch(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def warmup(self) -> float: ...
    @property
    def max_skipped(self) -> int: ...


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
