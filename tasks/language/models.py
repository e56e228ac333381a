"""Policies and scalar models: loading, the two forward passes that training needs, saving.

Legend: B sequences, L tokens of a sequence (prompt, answer, then padding on the right), N answer tokens of a whole
batch, V vocabulary. Sequences are padded on the right, so causal attention alone keeps padding out of every real
position: no attention mask is needed, and none is passed. Packed rows pass the positions (`Batch.positions`): from
them transformers builds the mask that keeps the sequences of a row apart, see `tasks.language.packing`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from tasks.errors import UserError
from tasks.language import adapters
from tasks.language.batches import Batch

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device() -> torch.device:
    """RLHF_DEVICE, or the GPU where there is one, or the CPU."""
    return torch.device(os.environ.get("RLHF_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))


def load_policy(folder: Path, precision: str = "float32") -> PreTrainedModel:
    """The causal language model in `folder`, without dropout, on `device()`; parameters rounded to `precision`."""
    return _load(AutoModelForCausalLM, folder, precision)


def new_scalar_model(folder: Path, generator: torch.Generator) -> PreTrainedModel:
    """A scalar model on the trunk of the policy in `folder`: one number per position, head std 1/sqrt(d+1), bias 0.

    Source: Ziegler et al. 2019 (code). The container is Hugging Face's sequence classifier, so that a saved reward
    model loads anywhere; its pooling is not used, see `scalars`.
    """
    model = _load(AutoModelForSequenceClassification, folder, "float32", num_labels=1)
    start_head(scalar_head(model), generator)
    return model


@torch.no_grad()
def start_head(head: nn.Linear, generator: torch.Generator) -> None:
    """Weights drawn with std 1/sqrt(d+1), d the hidden size; bias 0 where there is one (most classifiers have none)."""
    weight = head.weight
    drawn = torch.randn(weight.shape, generator=generator) / (weight.shape[1] + 1) ** 0.5
    weight.copy_(drawn.to(weight))
    if head.bias is not None:
        head.bias.zero_()


def load_scalar_model(folder: Path, precision: str = "float32") -> PreTrainedModel:
    """The reward model (or critic) in `folder`, head included; parameters rounded to `precision`."""
    return _load(AutoModelForSequenceClassification, folder, precision)


def scalar_head(model: PreTrainedModel) -> nn.Linear:
    """The linear layer from hidden state to scalar. Raises UserError for an architecture that names it otherwise."""
    head = getattr(model, "score", None)
    if not isinstance(head, nn.Linear):
        raise UserError(f"{type(model).__name__} has no linear `score` head, so it cannot serve as a reward model")
    return head


def answer_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Logits [1, N, V] that score the counted answer tokens, row after row: the output one position before each.

    Only those positions go through the vocabulary matrix. Architectures that change the logits after it (soft caps,
    scales) are found by `_plain_head` and take the long way.
    """
    if _plain_head(model):
        hidden = model.base_model(**_inputs(batch)).last_hidden_state
        return model.get_output_embeddings()(hidden[batch.before]).unsqueeze(0)
    return model(**_inputs(batch)).logits[batch.before].unsqueeze(0)


def scalars(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The scalar of every position [B, L], float32."""
    hidden = model.base_model(**_inputs(batch)).last_hidden_state
    return scalar_head(model)(hidden).squeeze(-1).float()


def stack(model: PreTrainedModel) -> nn.ModuleList:
    """The layers of the trunk, from the first to the last."""
    return max((m for m in model.base_model.modules() if isinstance(m, nn.ModuleList)), key=len)


def _inputs(batch: Batch) -> dict[str, Any]:
    packed = {} if batch.positions is None else {"position_ids": batch.positions}
    return {"input_ids": batch.tokens, "use_cache": False, **packed}


def freeze_below(model: PreTrainedModel, trainable_layers: int) -> None:
    """Train the last N layers, the final norm and the head only."""
    layers = stack(model)
    if trainable_layers > len(layers):
        raise UserError(f"{trainable_layers} trainable layers asked for, the model has {len(layers)}")
    # Learned positions (GPT-2) are embeddings, too: one that trained would send gradients through every frozen layer.
    for module in model.base_model.modules():
        if isinstance(module, nn.Embedding):
            module.requires_grad_(False)
    for parameter in layers[: len(layers) - trainable_layers].parameters():
        parameter.requires_grad_(False)


def cast_parameters(model: PreTrainedModel, precision: torch.dtype) -> list[nn.Parameter]:
    """Round the parameters to `precision` in place and return the trainable ones.

    Buffers stay as they are: rotary frequencies in bfloat16 would misplace distant tokens.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(precision)
    return [p for p in model.parameters() if p.requires_grad]


def save(
    model: PreTrainedModel, tokenizer: Any, out: Path, weights: dict[str, Tensor] | None = None, *, merge: bool = True
) -> None:
    """Write a Hugging Face folder with float32 safetensors. `weights` replaces the model's own (see MasterWeights).

    merge: adapters join the weights; else they stand in `adapter/` beside the plain model.
    """
    state = weights if weights is not None else {k: v.float() for k, v in model.state_dict().items()}
    if settings := adapters.settings_of(model):
        state = adapters.merged(state, settings) if merge else adapters.save(state, settings, out)
    model.config.dtype = torch.float32
    model.save_pretrained(out, state_dict=state)
    tokenizer.save_pretrained(out)


def _load(kind: Any, folder: Path, precision: str, **options: Any) -> PreTrainedModel:
    try:
        model = kind.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, use_safetensors=True, local_files_only=True, **options
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} holds no model that can be loaded: {error}") from error
    adapters.merge_into(model, folder)
    cast_parameters(model, PRECISIONS[precision])
    # eval() for good: dropout in any of the four models breaks ratio 1.
    return model.to(device()).eval()


def _plain_head(model: PreTrainedModel) -> bool:
    """Whether logits are just the output embedding of the last hidden state; tried once on two tokens and kept."""
    if not hasattr(model, "_rlhf_plain_head"):
        ids = torch.tensor([[1, 2]], device=model.device)
        with torch.no_grad():
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            direct = model.get_output_embeddings()(hidden)
            model._rlhf_plain_head = torch.equal(direct, model(input_ids=ids, use_cache=False).logits)
    return model._rlhf_plain_head
