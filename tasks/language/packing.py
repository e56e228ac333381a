"""Whether a model keeps the sequences of a packed row apart: tried on the model, not looked up in a list."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tasks.errors import UserError
from tasks.language.batches import Batch, Completion, pack, pad
from tasks.language.models import answer_logits

_TOLERANCE = 1e-4
"""Of the largest logit: far above what float32 rounds, far below what one token of another sequence does."""


@torch.no_grad()
def require_separable(model: PreTrainedModel, length: int) -> None:
    """Raise UserError unless a sequence of up to `length` tokens says the same behind another one as alone.

    Two things are tried: that its logits do not change with what stands before it (attention, a recurrent state, a
    convolution or a window that reaches across), and that they are those of the sequence alone (positions that do not
    restart). The model must be in float32.
    """
    generator = torch.Generator().manual_seed(0)
    length = max(length, 2)
    before, instead, last = torch.randint(model.config.vocab_size, (3, length), generator=generator).tolist()
    first, other, probe = (Completion(ids[:1], ids[1:]) for ids in (before, instead, last))
    options = {"fill": 0, "device": model.device}
    alone = answer_logits(model, pad([probe], **options))[0]
    try:
        behind, behind_other = (_last(model, pack([[c, probe]], **options)) for c in (first, other))
    except TypeError as error:
        raise UserError(f"{_refusal(model)}: it takes no positions ({error})") from error
    tolerance = _TOLERANCE * float(alone.abs().max())
    if not torch.allclose(behind, behind_other, rtol=0, atol=tolerance):
        raise UserError(f"{_refusal(model)}: a sequence in a row sees the one before it")
    if not torch.allclose(behind, alone, rtol=0, atol=tolerance):
        raise UserError(f"{_refusal(model)}: positions do not restart within a row")


def _last(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Logits of the second completion's answer tokens."""
    return answer_logits(model, batch)[0, int(batch.mask[0].sum()) :]


def _refusal(model: PreTrainedModel) -> str:
    return f"sft.packing: is true, expected false for {type(model).__name__}"
