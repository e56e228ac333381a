"""Low-rank adapters: a frozen matrix W computes with W + (alpha / rank) B A, and only A and B are trained.

Source: Hu et al. 2021 (arXiv 2106.09685), section 4.1; the layers are those of the library peft. B starts at 0, so that
the model with fresh adapters is the model without, to the bit.
A folder with adapters holds the plain model and `adapter/` in peft's layout; loaded, it is W + (alpha / rank) B A.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tasks.errors import UserError

FOLDER = "adapter"
_NAME = "default"
_A, _B, _BASE = f".lora_A.{_NAME}.weight", f".lora_B.{_NAME}.weight", ".base_layer."


def add(model: PreTrainedModel, layers: nn.ModuleList, *, rank: int, alpha: float, generator: torch.Generator) -> None:
    """Put an adapter beside every linear map of `layers` and freeze the rest of the trunk; a scalar head still trains.

    A is drawn from `generator` (uniform, He et al. 2015, as in the reference code), B is 0.
    """
    from peft import LoraConfig, inject_adapter_in_model

    maps = {id(module): module for module in layers.modules() if isinstance(module, nn.Linear | Conv1D)}
    # GPT-2's Conv1D keeps its matrix transposed.
    transposed = {isinstance(module, Conv1D) for module in maps.values()}
    if len(transposed) != 1:
        raise UserError(f"{type(model).__name__} has layers that cannot take adapters: use trainable all or layers")
    settings = {
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(name for name, module in model.named_modules() if id(module) in maps),
        "fan_in_fan_out": transposed.pop(),
    }
    inject_adapter_in_model(LoraConfig(lora_dropout=0.0, **settings), model, adapter_name=_NAME)
    head = getattr(model, "score", None)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
        if name.endswith(_A):
            nn.init.kaiming_uniform_(parameter.data, a=math.sqrt(5), generator=generator)
    if head is not None:
        head.requires_grad_(True)
    model._rlhf_adapter = settings


def settings_of(model: PreTrainedModel) -> dict[str, Any] | None:
    """peft's settings of the model's adapters; None for a model without."""
    found: dict[str, Any] | None = getattr(model, "_rlhf_adapter", None)
    return found


@contextlib.contextmanager
def disabled(model: PreTrainedModel) -> Iterator[None]:
    """Inside the `with` block the model is what it was before its adapters. Nothing to do for a model without."""
    if settings_of(model) is None:
        yield
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(enabled=True)


def merged(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state dict of the plain model that computes the same: W + (alpha / rank) B A, float32."""
    plain = {name.replace(_BASE, "."): value for name, value in state.items() if ".lora_" not in name}
    scale = settings["lora_alpha"] / settings["r"]
    for name, a in state.items():
        if name.endswith(_A):
            module = name.removesuffix(_A)
            change = scale * (state[module + _B].float() @ a.float())
            plain[f"{module}.weight"] = plain[f"{module}.weight"] + (change.T if settings["fan_in_fan_out"] else change)
    return plain


def save(state: Mapping[str, Tensor], settings: Mapping[str, Any], out: Path) -> dict[str, Tensor]:
    """Write `adapter/`; returns the state dict of the frozen plain model, heads included."""
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    adapters = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": value.contiguous()
        for name, value in state.items()
        if ".lora_" in name
    }
    save_file(adapters, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    described = {**settings, "peft_type": "LORA", "lora_dropout": 0.0, "bias": "none", "base_model_name_or_path": ".."}
    (folder / "adapter_config.json").write_text(
        json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    return {name.replace(_BASE, "."): value for name, value in state.items() if ".lora_" not in name}


@torch.no_grad()
def merge_into(model: PreTrainedModel, folder: Path) -> None:
    """Add what `folder/adapter` holds to the weights of the plain model that was loaded from `folder`."""
    if not (folder / FOLDER).is_dir():
        return
    settings = json.loads((folder / FOLDER / "adapter_config.json").read_text(encoding="utf-8"))
    found = load_file(folder / FOLDER / "adapter_model.safetensors")
    renamed = {
        name.removeprefix("base_model.model.").replace(".weight", f".{_NAME}.weight"): value.to(model.device)
        for name, value in found.items()
    }
    own = model.state_dict()
    for name, value in merged({**own, **renamed}, settings).items():
        if value is not own[name]:
            own[name].copy_(value)
