"""Policy optimisation from rollouts: what PPO, REINFORCE, RLOO and GRPO share, and the state that a resume needs.

They differ in functions chosen at construction (`Objective`, the critic, the policy's terms), never in this loop.
Legend: B episodes, T longest answer. Index t: token t of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tasks.algorithms.kl import KLCoefficient
from tasks.algorithms.masking import masked_mean
from tasks.algorithms.rewards import Penalty, Place, shaped_rewards
from tasks.language.batches import epoch_order
from tasks.language.critic import Critic, NoCritic
from tasks.language.optimisation import linear_schedule
from tasks.language.policy import Policy
from tasks.language.rollout import Rollout, minibatch

Figures = dict[str, float]


class Passes(Protocol):
    """How a rollout is gone through, as `config.Optimiser` gives it."""

    @property
    def batch(self) -> int: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def warmup(self) -> float: ...


@dataclass(frozen=True)
class Objective:
    """From a rollout to what its tokens are worth."""

    score: Callable[[Tensor, Tensor], Tensor]
    """(the reward model's scores, finished), [B] each -> the scores that count [B]."""
    place: Place
    penalty: Penalty
    scale: Callable[[Tensor, Tensor], Tensor]
    """(rewards, mask), [B, T] each -> the rewards that count: whitened, or as they are."""
    advantages: Callable[[Tensor, Rollout], tuple[Tensor, Tensor]]
    """(rewards, rollout) -> advantages, and the returns that a critic learns; [B, T] each."""


class Trainer:
    """Everything that changes from update to update: policy, critic, KL coefficient."""

    def __init__(
        self,
        policy: Policy,
        critic: Critic | NoCritic,
        objective: Objective,
        kl: KLCoefficient,
        *,
        updates: int,
        passes: Passes,
        generator: torch.Generator,
    ) -> None:
        self.policy, self.critic, self.kl = policy, critic, kl
        self._objective, self._updates, self._passes, self._generator = objective, updates, passes, generator

    def update(self, index: int, rollout: Rollout) -> Figures:
        """Epochs of minibatches over one rollout, then the KL coefficient's step. Returns the update's figures."""
        rewards = self._rewards(rollout)
        scaled = self._objective.scale(rewards, rollout.mask)
        advantages, returns = self._objective.advantages(scaled, rollout)
        steps = self._optimise(index, rollout, advantages, returns)
        figures = {
            "reward/total": float(rewards.sum(1).mean()),
            "reward/score": float(rollout.scores.mean()),
            "kl/sum": rollout.kl,
            "kl/coefficient": self.kl.value,
            "ppo/entropy": float(masked_mean(rollout.entropies, rollout.mask)),
            "ppo/length": float(rollout.mask.sum(1).float().mean()),
            "ppo/finished": float(rollout.finished.float().mean()),
        }
        figures |= {f"ppo/{name}": value for name, value in self.critic.explained(rollout, returns).items()}
        self.kl = self.kl.step(rollout.kl, len(rollout.completions))
        return figures | _over(steps)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write weights and moments to `folder`; returns the rest of the state, for JSON."""
        self.policy.save(folder / "policy.safetensors")
        self.critic.save(folder / "critic.safetensors")
        # The generator's state is bytes; as hexadecimal it is text.
        generator = bytes(self._generator.get_state().tolist()).hex()
        return {
            "policy": self.policy.state(),
            "critic": self.critic.state(),
            "kl": self.kl.value,
            "generator": generator,
        }

    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Take on what `save` wrote and returned."""
        self.policy.restore(folder / "policy.safetensors", state["policy"])
        self.critic.restore(folder / "critic.safetensors", state["critic"])
        self.kl = replace(self.kl, value=state["kl"])
        self._generator.set_state(torch.tensor(list(bytes.fromhex(state["generator"])), dtype=torch.uint8))

    @property
    def size(self) -> int:
        """Bytes that `save` writes, about."""
        return self.policy.size + self.critic.size

    def _rewards(self, rollout: Rollout) -> Tensor:
        score = self._objective.score(rollout.scores, rollout.finished)
        return shaped_rewards(
            score,
            rollout.log_ratio,
            rollout.mask,
            coefficient=self.kl.value,
            penalty=self._objective.penalty,
            place=self._objective.place,
        )

    def _optimise(self, index: int, rollout: Rollout, advantages: Tensor, returns: Tensor) -> list[Figures]:
        """The steps of one update. The policy stays in the critic's warm-up, and from where it moved too far."""
        passes, warmup = self._passes, self.critic.warmup
        moves = index >= warmup
        found: list[Figures] = []
        for epoch in range(index * passes.epochs, (index + 1) * passes.epochs):
            for indices in epoch_order(len(rollout.completions), passes.batch, self._generator):
                batch = minibatch(rollout, indices, size=passes.micro_batch)
                step = self.critic.step(rollout, returns, batch, scale=self._scale(epoch, 0))
                if moves:
                    scale = self._scale(epoch, warmup)
                    figures, moves = self.policy.step(
                        rollout, advantages, batch, scale=scale, kl_coefficient=self.kl.value
                    )
                    step |= figures
                else:
                    self.policy.rest()
                found.append(step)
        return found

    def _scale(self, epoch: int, first: int) -> float:
        """Factor of the learning rate in an epoch of the run, for a model that learns from rollout `first` on."""
        epochs = self._passes.epochs
        total = (self._updates - first) * epochs
        return linear_schedule(epoch - first * epochs, total, peak=1.0, warmup=self._passes.warmup)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_ACROSS: dict[str, Callable[[Sequence[float]], float]] = {
    "ratio_min": min,
    "ratio_max": max,
    "policy_steps": sum,
    "skipped": max,
    "value_skipped": max,
}
"""How a figure of the steps becomes one of the update, where that is not their mean."""


def _over(steps: Sequence[Figures]) -> Figures:
    """The steps' figures as the update's. What is not finite (a step that was skipped) is left out.

    `first_log_ratio` is the first minibatch's distance from ratio 1, which only rounding explains: one that is not near
    0 means that sampling and training score the same tokens differently.
    """
    found: Figures = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if math.isfinite(step.get(name, math.nan))]
        if values:
            found[f"ppo/{name}"] = _ACROSS.get(name, _mean)(values)
    first = steps[0]
    if all(first.get(name, 0.0) > 0 for name in ("ratio_min", "ratio_max")):
        found["ppo/first_log_ratio"] = max(abs(math.log(first[name])) for name in ("ratio_min", "ratio_max"))
    return found
