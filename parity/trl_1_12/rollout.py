"""One update of TRL's PPOTrainer on answers given here: its own `train`, stopped at each step to see its variables."""

from __future__ import annotations

import contextlib
import copy
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from trl.experimental.ppo import ppo_trainer

from parity import tiny
from tasks.language.batches import Completion

T = 0.8
LENGTH = 8
"""Tokens that are sampled for each answer; what follows an EOS is cut off."""
COUNTED = [4, 8, 8, 2, 6, 8, 3, 8]
UNFINISHED = {2, 7}
"""Answers of the whole length that have no EOS."""
CLIP, VALUE_CLIP, DISCOUNT, TRACE, KL = 0.2, 0.1, 0.97, 0.95, 0.1
MISSING_EOS = 0.7
POLICY, REFERENCE = tiny.policy(31), tiny.moved(tiny.policy(31), by=0.05, seed=31)
VALUE, REWARD = tiny.scalar_model(32), tiny.scalar_model(33)


def _completions() -> tuple[list[Completion], Tensor]:
    """The answers up to their EOS, and what was sampled, with garbage behind it."""
    fresh = tiny.answers(len(COUNTED), seed=34)
    sampled = torch.randint(2, tiny.VOCABULARY, (len(COUNTED), LENGTH), generator=torch.Generator().manual_seed(35))
    for row, count in enumerate(COUNTED):
        if row not in UNFINISHED:
            sampled[row, count - 1] = tiny.EOS
    cut = [Completion(c.prompt, sampled[row, : COUNTED[row]].tolist()) for row, c in enumerate(fresh)]
    return cut, sampled


COMPLETIONS, SAMPLED = _completions()
FINISHED = torch.tensor([row not in UNFINISHED for row in range(len(COUNTED))])


class Watched(Accelerator):
    """Keeps the variables of whoever calls `backward`, and the gradients of its two losses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cpu=True, **options)
        self.steps: list[dict[str, Any]] = []

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        seen = sys._getframe(1).f_locals
        kept = {name: value.detach().clone() for name, value in seen.items() if isinstance(value, Tensor)}
        kept["rows"] = torch.as_tensor(seen["micro_batch_inds"])
        for name, of, by in (("policy_slope", "pg_loss", "new_logprobs"), ("value_slope", "vf_loss", "vpred")):
            kept[name] = torch.autograd.grad(seen[of], seen[by], retain_graph=True)[0]
        self.steps.append(kept)
        super().backward(loss, **kwargs)


def update(monkeypatch: Any, **changes: Any) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The variables at each micro-batch of one update, and what TRL logs at its end."""
    settings = {
        "num_ppo_epochs": 2,
        "num_mini_batches": 2,
        "gradient_accumulation_steps": 1,
        "per_device_train_batch_size": 4,
        "local_mini_batch_size": 4,
        "local_batch_size": 8,
        "batch_size": 8,
        "local_rollout_forward_batch_size": 8,
        "response_length": LENGTH,
        "temperature": T,
        "total_episodes": 8,
        "num_total_batches": 1,
        "num_sample_generations": 0,
        "logging_steps": None,
        "eval_steps": None,
        "save_steps": None,
        "ds3_gather_for_generation": True,
        "missing_eos_penalty": MISSING_EOS,
        "kl_estimator": "k1",
        "kl_coef": KL,
        "whiten_rewards": False,
        "gamma": DISCOUNT,
        "lam": TRACE,
        "cliprange": CLIP,
        "cliprange_value": VALUE_CLIP,
        "vf_coef": 0.1,
    }
    value = changes.pop("value", VALUE)
    args = SimpleNamespace(**settings | changes)
    accelerator = Watched(gradient_accumulation_steps=args.gradient_accumulation_steps)
    both = ppo_trainer.PolicyAndValueWrapper(copy.deepcopy(POLICY), copy.deepcopy(value))
    logged: dict[str, float] = {}
    control = SimpleNamespace(should_save=False)
    called = {name: lambda *_: control for name in ("on_train_begin", "on_step_end", "on_train_end")}
    made = object.__new__(ppo_trainer.PPOTrainer)
    vars(made).update(
        args=args,
        accelerator=accelerator,
        model=both,
        optimizer=accelerator.prepare(torch.optim.SGD(both.parameters(), lr=0.01)),
        lr_scheduler=SimpleNamespace(step=lambda: None, get_last_lr=lambda: [0.0]),
        ref_model=copy.deepcopy(REFERENCE),
        reward_model=copy.deepcopy(REWARD),
        processing_class=SimpleNamespace(pad_token_id=tiny.PAD, eos_token_id=tiny.EOS),
        stop_token_id=tiny.EOS,
        dataloader=[{"input_ids": _prompts()}],
        train_dataset_len=8,
        is_deepspeed_enabled=False,
        state=SimpleNamespace(),
        control=control,
        callback_handler=SimpleNamespace(**called),
        log=logged.update,
    )
    monkeypatch.setattr(ppo_trainer, "batch_generation", _generated)
    monkeypatch.setattr(
        ppo_trainer, "unwrap_model_for_generation", lambda model, *_, **__: contextlib.nullcontext(model)
    )
    np.random.seed(1)  # noqa: NPY002 - TRL shuffles by numpy's own state
    ppo_trainer.PPOTrainer.train(made)
    return accelerator.steps, logged


def _prompts() -> Tensor:
    """Padded on the left."""
    widest = max(len(c.prompt) for c in COMPLETIONS)
    return torch.tensor([[tiny.PAD] * (widest - len(c.prompt)) + c.prompt for c in COMPLETIONS])


def _generated(model: Any, queries: Tensor, size: int, pad: int, settings: Any) -> tuple[Tensor, Tensor]:
    """In the place of sampling: the answers given here, with the logits that they would have been drawn from."""
    sequences = torch.cat([queries, SAMPLED], 1)
    logits = ppo_trainer.forward(model, sequences, pad).logits[:, queries.shape[1] - 1 : -1]
    return sequences, logits / settings.temperature
