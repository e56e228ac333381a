"""Who predicts returns: a value model of its own, a value head on the policy's trunk, or nobody.

Legend: B answers, T positions. V_t is the value before token t of the answer. All heads start at 0 (Ziegler et al.
2019, code).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tasks.algorithms.ppo import clipped_value_loss, explained_variance
from tasks.language import models, scoring
from tasks.language.batches import Completion, pad
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import Guard, accumulate
from tasks.language.rollout import Minibatch, Rollout, cut

Figures = dict[str, float]


def from_reward_model(reward: Path) -> PreTrainedModel:
    """A value model that starts as the reward model."""
    return _at_zero(models.load_scalar_model(reward))


def from_policy(sft: Path) -> PreTrainedModel:
    """A value model that starts as the SFT policy's trunk."""
    return _at_zero(models.new_scalar_model(sft, torch.Generator()))


def on_trunk(policy: PreTrainedModel, sft: Path, *, trains_trunk: bool) -> PreTrainedModel:
    """A value model whose trunk is the policy's, the same tensors: only its head is new.

    trains_trunk: whether the value loss sends a gradient into the trunk. It stays there for the policy's next step.
    """
    model = from_policy(sft)
    setattr(model, model.base_model_prefix, policy.base_model)
    if not trains_trunk:
        models.scalar_head(model).register_forward_pre_hook(lambda _, inputs: (inputs[0].detach(),))
    return model


class Critic:
    """A value model and its float32 weights, learning by the clipped squared error.

    trained: the part of the model that its optimiser owns; the head where the trunk is the policy's.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        trained: MasterWeights,
        guard: Guard,
        *,
        clip: float,
        coefficient: float,
        learning_rate: float,
        warmup: int,
        fill: int,
        size: int,
    ) -> None:
        self.warmup = warmup
        self._model, self._trained, self._guard, self._fill, self._size = model, trained, guard, fill, size
        self._clip, self._coefficient, self._learning_rate = clip, coefficient, learning_rate

    def values(self, completions: list[Completion]) -> list[Tensor]:
        """Per completion the values before its answer tokens."""
        return scoring.all_values(self._model, completions, fill=self._fill, size=self._size)

    def step(self, rollout: Rollout, returns: Tensor, batch: Minibatch, *, scale: float) -> Figures:
        """One optimiser step towards `returns` [B, T] at `scale` times the learning rate."""
        figures = accumulate(self._trained, self._losses(rollout, returns, batch))
        figures |= self._guard.update(self._trained, scale * self._learning_rate, figures)
        return {f"value_{name}": value for name, value in figures.items()}

    def explained(self, rollout: Rollout, returns: Tensor) -> Figures:
        """How much of the returns the rollout's values had predicted."""
        return {"explained_variance": float(explained_variance(rollout.values, returns, rollout.mask))}

    def save(self, path: Path) -> None:
        """Write weights and moments."""
        self._trained.save(path)

    def state(self) -> dict[str, Any]:
        return {"guard": self._guard.state()}

    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """Take on what `save` wrote and `state` returned."""
        self._trained.restore(path)
        self._guard.restore(state["guard"])

    @property
    def size(self) -> int:
        """Bytes that `save` writes, about."""
        return self._trained.size

    def _losses(
        self, rollout: Rollout, returns: Tensor, batch: Minibatch
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        for rows in batch.groups:
            part = pad([rollout.completions[i] for i in rows], fill=self._fill, device=self._model.device)
            values = scoring.answer_values(self._model, part)
            old, targets = (cut(x, rows, part.mask) for x in (rollout.values, returns))
            loss, statistics = clipped_value_loss(values, old, targets, part.mask, clip=self._clip, count=batch.count)
            yield self._coefficient * loss, statistics


class NoCritic:
    """In the critic's place where answers are compared with each other: all values 0, nothing to learn."""

    warmup = 0
    size = 0

    def values(self, completions: list[Completion]) -> list[Tensor]:
        return [torch.zeros(len(c.answer)) for c in completions]

    def step(self, rollout: Rollout, returns: Tensor, batch: Minibatch, *, scale: float) -> Figures:
        return {}

    def explained(self, rollout: Rollout, returns: Tensor) -> Figures:
        return {}

    def save(self, path: Path) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, path: Path, state: Mapping[str, Any]) -> None: ...


def _at_zero(model: PreTrainedModel) -> PreTrainedModel:
    nn.init.zeros_(models.scalar_head(model).weight)
    return model
