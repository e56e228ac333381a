"""Which of a model's weights are trained: all, the last layers, or adapters beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from transformers import PreTrainedModel

from tasks.language import adapters, models


def _everything(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Models are loaded so."""


def _last_layers(model: PreTrainedModel, generator: torch.Generator, *, count: int) -> None:
    models.freeze_below(model, count)


def _low_rank(model: PreTrainedModel, generator: torch.Generator, *, rank: int, alpha: float) -> None:
    adapters.add(model, models.stack(model), rank=rank, alpha=alpha, generator=generator)


TRAINABLE: Mapping[str, Callable[..., None]] = {"all": _everything, "layers": _last_layers, "lora": _low_rank}
"""`trainable.kind` -> what makes just that of a loaded model trainable. Draws from the generator only where it must."""
