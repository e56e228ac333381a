"""float32 weights and AdamW behind a model, whatever the precision of the arithmetic.

bfloat16 has 8 bits of precision: at learning rate 1e-5 most updates of a weight near 1 round away. So the optimiser
and the accumulated gradients are float32 "master" copies, and the model that computes is their rounded image.
This is mixed precision in the sense of Micikevicius et al. 2017 (arXiv 1710.03740), section 3.1; unlike autocast it
casts each weight once a step, not once a forward pass.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tasks.language.models import cast_parameters


class Settings(Protocol):
    """AdamW, as a stage's section of params.yaml gives it (`config.Optimiser`)."""

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
