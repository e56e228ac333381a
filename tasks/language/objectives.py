"""What the kinds of params.yaml stand for: functions made of the rows' settings. Nothing else knows a kind by name.

An advantage estimator is a function of (rewards [B, T], rollout) that returns advantages and, for a critic, returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tasks.algorithms import advantages, rewards
from tasks.algorithms.kl import ESTIMATORS, no_penalty
from tasks.algorithms.masking import keep, whiten
from tasks.language import critic, models
from tasks.language.policy import Term, kl_to_reference
from tasks.language.rollout import Rollout
from tasks.language.trainable import TRAINABLE

Advantages = Callable[[Tensor, Rollout], tuple[Tensor, Tensor]]

PLACES: Mapping[str, rewards.Place] = {"last": rewards.place_score, "spread": rewards.spread_score}
MISSING_EOS: Mapping[str, Callable[..., Tensor]] = {
    "replace": rewards.replace_missing_eos,
    "subtract": rewards.subtract_missing_eos,
    "none": rewards.accept_missing_eos,
}
REWARD_SCALES = {True: partial(whiten, centre=False), False: keep}
_ADVANTAGE_SCALES = {True: partial(whiten, centre=True), False: keep}
_BASELINES = {"none": advantages.no_baseline, "batch": advantages.mean_of_the_others}
_STDS = {"population": advantages.population_std, "sample": advantages.sample_std, "none": advantages.unscaled}


def _gae(*, discount: float, trace: float, whiten: bool) -> Advantages:
    scale = _ADVANTAGE_SCALES[whiten]

    def estimate(rewards: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        found, returns = advantages.gae(rewards, rollout.values, rollout.mask, discount=discount, trace=trace)
        return scale(found, rollout.mask), returns

    return estimate


def _reinforce(*, discount: float, baseline: str, whiten: bool) -> Advantages:
    scale, compared = _ADVANTAGE_SCALES[whiten], _BASELINES[baseline]

    def estimate(rewards: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        found = advantages.reinforce(rewards, rollout.mask, discount=discount, baseline=compared)
        return scale(found, rollout.mask), found

    return estimate


def _rloo(*, group: int) -> Advantages:
    return _alike(partial(advantages.rloo, group=group))


def _grpo(*, group: int, std: str) -> Advantages:
    return _alike(partial(advantages.grpo, group=group, scale=_STDS[std]))


def _alike(function: Callable[[Tensor, Tensor], Tensor]) -> Advantages:
    """An estimator of (rewards, mask), whose advantages are all there is."""

    def estimate(rewards: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        found = function(rewards, rollout.mask)
        return found, found

    return estimate


ADVANTAGES: Mapping[str, Callable[..., Advantages]] = {
    "gae": _gae,
    "reinforce": _reinforce,
    "rloo": _rloo,
    "grpo": _grpo,
}


def _in_reward(estimator: str) -> tuple[rewards.Penalty, list[Term]]:
    return ESTIMATORS[estimator], []


def _in_loss(estimator: str) -> tuple[rewards.Penalty, list[Term]]:
    return no_penalty, [kl_to_reference(estimator=ESTIMATORS[estimator])]


PENALTIES: Mapping[str, Callable[[str], tuple[rewards.Penalty, list[Term]]]] = {
    "reward": _in_reward,
    "loss": _in_loss,
}
"""Estimator -> what is taken off the rewards, and the terms that join the policy's loss."""


def _own(model: PreTrainedModel, generator: torch.Generator, trainable: Any) -> tuple[PreTrainedModel, Any]:
    TRAINABLE[trainable.kind](model, generator, **trainable.settings)
    return model, model


def _reward_critic(
    policy: PreTrainedModel, generator: torch.Generator, *, sft: Path, reward: Path, trainable: Any
) -> Any:
    return _own(critic.from_reward_model(reward), generator, trainable)


def _sft_critic(policy: PreTrainedModel, generator: torch.Generator, *, sft: Path, reward: Path, trainable: Any) -> Any:
    return _own(critic.from_policy(sft), generator, trainable)


def _head_critic(
    policy: PreTrainedModel, generator: torch.Generator, *, sft: Path, reward: Path, trains_trunk: bool
) -> Any:
    model = critic.on_trunk(policy, sft, trains_trunk=trains_trunk)
    return model, models.scalar_head(model)


CRITICS: Mapping[str, Callable[..., Any]] = {"reward": _reward_critic, "sft": _sft_critic, "head": _head_critic}
"""(policy, generator, sft=, reward=, and the row's own settings) -> the value model, and the part that it trains."""
