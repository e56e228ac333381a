"""Proximal policy optimisation against the reward model, held near the SFT policy by a per-token KL penalty."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.algorithms.advantages import gae, replace_missing_eos, shaped_rewards
from tasks.algorithms.kl import KLCoefficient
from tasks.algorithms.masking import masked_mean, whiten
from tasks.algorithms.ppo import clipped_policy_loss, clipped_value_loss, explained_variance
from tasks.errors import UserError
from tasks.language import models, scoring, text
from tasks.language.batches import by_length, epoch_order, pad
from tasks.language.generation import Sampler
from tasks.language.optimisation import MasterWeights, accumulate, linear_schedule
from tasks.language.rollout import Actors, Rollout, collect
from tasks.runtime import config, record, records

Figures = dict[str, float]


def run(shared: config.Shared, cfg: config.PPO, *, sft: Path, reward: Path, corpus: Path, out: Path) -> dict[str, Any]:
    """`cfg.updates` rollouts, each followed by a few epochs of minibatches; write the policy to `out`."""
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(corpus / "prompts.jsonl", "prompt")
    prompts = [text.prompt_tokens(tokenizer, row["prompt"], shared.format) for row in rows]
    if len(prompts) < cfg.episodes:
        raise UserError(f"{len(prompts)} training prompts, expected at least ppo.episodes ({cfg.episodes})")
    generator = torch.Generator().manual_seed(shared.seed + 4)
    trainer = _Trainer(shared, cfg, _actors(sft, reward), tokenizer.pad_token_id, generator)
    sampler = Sampler(
        shared.answer_tokens, shared.temperature, tokenizer.eos_token_id, tokenizer.pad_token_id, cfg.episodes
    )
    order: list[list[int]] = []
    history: list[Figures] = []
    for update in range(cfg.updates):
        order = order or epoch_order(len(prompts), cfg.episodes, generator)
        episodes = [prompts[i] for i in order.pop(0)]
        rollout = collect(trainer.actors, episodes, sampler, generator=generator, size=cfg.optimiser.micro_batch)
        history.append(trainer.update(update, rollout))
        record.log(update + 1, cfg.updates, history[-1])
    models.save(trainer.actors.policy, tokenizer, out, trainer.policy.weights())
    shown = [text.text_of(tokenizer, c.answer) for c in rollout.completions]
    texts = [text.text_of(tokenizer, c.prompt) for c in rollout.completions]
    record.table(
        "last_rollout",
        [{"prompt": p, "answer": a, "score": float(s)} for p, a, s in zip(texts, shown, rollout.scores, strict=True)],
    )
    kept = ("reward/score", "kl/sum", "kl/coefficient", "ppo/entropy", "ppo/length", "ppo/finished")
    return {
        "updates": cfg.updates,
        "episodes": cfg.updates * cfg.episodes,
        "first": {name: history[0][name] for name in kept},
        "last": {name: history[-1][name] for name in kept},
    }


def _actors(sft: Path, reward: Path) -> Actors:
    """Policy and reference from SFT; critic from the reward model with its head at 0 (Ziegler et al. 2019, code)."""
    critic = models.load_scalar_model(reward)
    torch.nn.init.zeros_(models.scalar_head(critic).weight)
    return Actors(models.load_policy(sft), critic, models.load_policy(sft), models.load_scalar_model(reward))


@dataclass(frozen=True)
class _Targets:
    """What a rollout asks of policy and critic, [B, T] each."""

    rewards: Tensor
    advantages: Tensor
    returns: Tensor


class _Trainer:
    """The part of PPO that has state: weights, moments, the KL coefficient."""

    def __init__(
        self, shared: config.Shared, cfg: config.PPO, actors: Actors, fill: int, generator: torch.Generator
    ) -> None:
        self.cfg, self.actors, self._fill, self._generator = cfg, actors, fill, generator
        self._temperature = shared.temperature
        precision = models.PRECISIONS[shared.precision]
        models.freeze_below(actors.critic, cfg.critic_layers)
        self.policy = MasterWeights(actors.policy, cfg.optimiser, precision=precision)
        self.critic = MasterWeights(actors.critic, cfg.optimiser, precision=precision)
        for frozen in (actors.reference, actors.reward):
            models.cast_parameters(frozen, precision)
        adaptive = cfg.kl.kind == "adaptive"
        self.kl = KLCoefficient(
            cfg.kl.coefficient, cfg.kl.target if adaptive else None, cfg.kl.horizon if adaptive else None
        )

    def update(self, index: int, rollout: Rollout) -> Figures:
        """Epochs of minibatches over one rollout, then the KL coefficient's step. Returns the update's figures."""
        targets = self._targets(rollout)
        steps = self._optimise(index, rollout, targets)
        kl = float(rollout.log_ratio.sum(1).mean())
        figures = {
            "reward/total": float(targets.rewards.sum(1).mean()),
            "reward/score": float(rollout.scores.mean()),
            "kl/sum": kl,
            "kl/coefficient": self.kl.value,
            "ppo/entropy": float(masked_mean(rollout.entropies, rollout.mask)),
            "ppo/length": float(rollout.mask.sum(1).float().mean()),
            "ppo/finished": float(rollout.finished.float().mean()),
            "ppo/explained_variance": float(explained_variance(rollout.values, targets.returns, rollout.mask)),
        }
        self.kl = self.kl.step(kl, len(rollout.completions))
        return figures | steps

    def _targets(self, rollout: Rollout) -> _Targets:
        score = rollout.scores.clamp(-self.cfg.score_clip, self.cfg.score_clip)
        score = replace_missing_eos(score, rollout.finished, value=self.cfg.missing_eos)
        rewards = shaped_rewards(score, rollout.log_ratio, rollout.mask, coefficient=self.kl.value)
        advantages, returns = gae(
            rewards, rollout.values, rollout.mask, discount=self.cfg.discount, trace=self.cfg.trace
        )
        return _Targets(rewards, whiten(advantages, rollout.mask, centre=True), returns)

    def _optimise(self, index: int, rollout: Rollout, targets: _Targets) -> Figures:
        optimiser, warmup = self.cfg.optimiser, self.cfg.critic_warmup
        found: list[Figures] = []
        extremes: list[tuple[float, float]] = []
        for epoch in range(index * optimiser.epochs, (index + 1) * optimiser.epochs):
            for indices in epoch_order(len(rollout.completions), optimiser.batch, self._generator):
                figures = accumulate(self.critic, self._value_losses(rollout, targets, indices))
                norm = self.critic.step(self._scale(epoch, 0) * self.cfg.critic_learning_rate)
                step = {f"value_{name}": value for name, value in figures.items()} | {"value_gradient_norm": norm}
                if index >= warmup:
                    figures = accumulate(self.policy, self._policy_losses(rollout, targets, indices, extremes))
                    rate = self._scale(epoch, warmup) * optimiser.learning_rate
                    step |= figures | {"gradient_norm": self.policy.step(rate), "learning_rate": rate}
                found.append(step)
        means = {f"ppo/{name}": sum(step[name] for step in found) / len(found) for name in found[0]}
        return means | _ratios(extremes)

    def _scale(self, epoch: int, first: int) -> float:
        """Factor of the learning rate in an epoch of the run, for a model that learns from rollout `first` on."""
        epochs = self.cfg.optimiser.epochs
        total = (self.cfg.updates - first) * epochs
        return linear_schedule(epoch - first * epochs, total, peak=1.0, warmup=self.cfg.optimiser.warmup)

    def _policy_losses(
        self, rollout: Rollout, targets: _Targets, indices: list[int], extremes: list[tuple[float, float]]
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Each micro-batch's share of the policy loss; `extremes` collects its smallest and largest ratio."""
        for rows, count in self._groups(rollout, indices):
            batch = pad([rollout.completions[i] for i in rows], fill=self._fill, device=self.actors.policy.device)
            log_probs = scoring.answer_log_probs(self.actors.policy, batch, temperature=self._temperature)
            old, advantages = (self._cut(x, rows, batch.mask) for x in (rollout.log_probs, targets.advantages))
            loss, statistics = clipped_policy_loss(
                log_probs, old, advantages, batch.mask, clip=self.cfg.clip, count=count
            )
            extremes.append((float(statistics["ratio_min"]), float(statistics["ratio_max"])))
            yield loss, {name: statistics[name] for name in ("clip_fraction", "approx_kl")}

    def _value_losses(
        self, rollout: Rollout, targets: _Targets, indices: list[int]
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        for rows, count in self._groups(rollout, indices):
            batch = pad([rollout.completions[i] for i in rows], fill=self._fill, device=self.actors.critic.device)
            values = scoring.answer_values(self.actors.critic, batch)
            old, returns = (self._cut(x, rows, batch.mask) for x in (rollout.values, targets.returns))
            loss, statistics = clipped_value_loss(
                values, old, returns, batch.mask, clip=self.cfg.value_clip, count=count
            )
            yield self.cfg.value_coefficient * loss, statistics

    def _groups(self, rollout: Rollout, indices: list[int]) -> Iterator[tuple[list[int], int]]:
        """Micro-batches of a minibatch as rollout rows, with the minibatch's number of answer tokens."""
        chosen = [rollout.completions[i] for i in indices]
        count = sum(len(c.answer) for c in chosen)
        for group in by_length(chosen, self.cfg.optimiser.micro_batch):
            yield [indices[i] for i in group], count

    @staticmethod
    def _cut(x: Tensor, rows: list[int], mask: Tensor) -> Tensor:
        """Those rows of a rollout tensor, as wide as the micro-batch's mask."""
        return x[rows, : mask.shape[1]].to(mask.device)


def _ratios(extremes: list[tuple[float, float]]) -> Figures:
    """Extremes of p / p_old over the update, and the first micro-batch's distance from 1, which only rounding explains.

    A first distance that is not near 0 means that sampling and training score the same tokens differently.
    """
    if not extremes:
        return {}
    first = max(abs(math.log(ratio)) for ratio in extremes[0])
    return {
        "ppo/ratio_min": min(low for low, _ in extremes),
        "ppo/ratio_max": max(high for _, high in extremes),
        "ppo/first_log_ratio": first,
    }
