"""TRL's trainers without their constructors: the methods are TRL's, the settings are given here."""

from __future__ import annotations

import copy
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from accelerate import Accelerator
from trl.trainer.utils import add_fused_lm_head


def trainer(kind: type, model: Any, *, args: dict[str, Any] | None = None, **settings: Any) -> Any:
    """An object of TRL's class `kind` that has only the attributes which its loss reads."""
    made = object.__new__(kind)
    vars(made).update(
        model=model,
        accelerator=Accelerator(cpu=True),
        args=SimpleNamespace(gradient_checkpointing_kwargs=None, **(args or {})),
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
        **settings,
    )
    return made


def fused(model: Any, *, temperature: float = 1.0) -> Any:
    """A copy of the model that scores tokens as TRL's trainers do."""
    made = copy.deepcopy(model).train()
    outputs = ("log_probs", "entropy", "mean_logits", "is_top1")
    add_fused_lm_head(made, temperature=temperature, outputs=outputs)
    return made
