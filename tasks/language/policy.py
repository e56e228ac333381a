"""The policy's side of an update: terms that make up its loss, and its step on a minibatch.

Legend: B answers of a micro-batch, T positions. Index t: token t of the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from tasks.algorithms.logprobs import entropy
from tasks.algorithms.ppo import clipped_policy_loss, kl_loss, mean_entropy
from tasks.language import scoring
from tasks.language.batches import pad
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import Guard, accumulate
from tasks.language.rollout import Minibatch, Rollout, cut

Figures = dict[str, float]
Statistics = dict[str, Tensor]
Part = tuple[Tensor, Statistics]
"""A micro-batch's share of the minibatch's loss and of its statistics; both add up."""
_EXTREMES = {"ratio_min": min, "ratio_max": max}
"""The statistics that do not add up."""


@dataclass(frozen=True)
class Answers:
    """A micro-batch as the terms of the loss see it. All [B, T]; `log_probs` and `entropies()` are differentiable."""

    log_probs: Tensor
    entropies: Callable[[], Tensor]
    """Computed when asked for."""
    old: Tensor
    """Log-probabilities under the policy that sampled."""
    reference: Tensor
    """Log-probabilities under the SFT policy."""
    advantages: Tensor
    mask: Tensor
    count: int
    """Answer tokens of the minibatch, by which every mean divides."""
    kl_coefficient: float


Term = Callable[[Answers], Part]


Mixed = Callable[[int], Iterable[Part]]
"""Number of the policy's step -> micro-batches that join its loss."""


def surrogate(*, clip: float, dual_clip: float | None) -> Term:
    """PPO's clipped objective. Before the first step its gradient is the policy gradient, whatever the advantages."""

    def term(x: Answers) -> Part:
        return clipped_policy_loss(
            x.log_probs, x.old, x.advantages, x.mask, clip=clip, dual_clip=dual_clip, count=x.count
        )

    return term


def kl_to_reference(*, estimator: Callable[[Tensor], Tensor]) -> Term:
    """The KL to SFT in the loss, weighted by the coefficient of the update."""

    def term(x: Answers) -> Part:
        kl = kl_loss(x.log_probs, x.reference, x.mask, estimator=estimator, count=x.count)
        return x.kl_coefficient * kl, {"kl_loss": kl.detach()}

    return term


def entropy_bonus(*, coefficient: float) -> Term:
    """Rewards a policy that is not sure of itself."""

    def term(x: Answers) -> Part:
        bonus = mean_entropy(x.entropies(), x.mask, count=x.count)
        return -coefficient * bonus, {"update_entropy": bonus.detach()}

    return term


class Policy:
    """The policy model and its float32 weights, learning from rollouts by the sum of its terms."""

    def __init__(
        self,
        model: PreTrainedModel,
        trained: MasterWeights,
        guard: Guard,
        terms: Sequence[Term],
        *,
        mixed: Mixed,
        learning_rate: float,
        update_kl_limit: float,
        temperature: float,
        fill: int,
    ) -> None:
        self.model, self.trained, self._guard, self._steps = model, trained, guard, 0
        self._terms, self._mixed, self._learning_rate, self._limit = terms, mixed, learning_rate, update_kl_limit
        self._temperature, self._fill = temperature, fill

    def step(
        self, rollout: Rollout, advantages: Tensor, batch: Minibatch, *, scale: float, kl_coefficient: float
    ) -> tuple[Figures, bool]:
        """One optimiser step at `scale` times the learning rate. Returns its figures, and whether it was taken.

        It is left out where the approximate KL to the rollout's policy is above `update_kl_limit`.
        """
        extremes: list[Figures] = []
        losses = self._losses(rollout, advantages, batch, kl_coefficient, extremes)
        figures = accumulate(self.trained, itertools.chain(losses, self._mixed(self._steps)))
        figures |= {name: reduce(part[name] for part in extremes) for name, reduce in _EXTREMES.items()}
        if figures["approx_kl"] > self._limit:
            self.rest()
            return figures, False
        self._steps += 1
        figures |= self._guard.update(self.trained, scale * self._learning_rate, figures)
        return figures | {"policy_steps": 1.0}, True

    def rest(self) -> None:
        """Take no step: a gradient that a value head sent into the trunk goes with the others."""
        self.trained.discard()

    def save(self, path: Path) -> None:
        """Write weights and moments."""
        self.trained.save(path)

    def state(self) -> dict[str, Any]:
        return {"steps": self._steps, "guard": self._guard.state()}

    def restore(self, path: Path, state: Mapping[str, Any]) -> None:
        """Take on what `save` wrote and `state` returned."""
        self.trained.restore(path)
        self._steps = state["steps"]
        self._guard.restore(state["guard"])

    @property
    def size(self) -> int:
        """Bytes that `save` writes, about."""
        return self.trained.size

    def _losses(
        self, rollout: Rollout, advantages: Tensor, batch: Minibatch, coefficient: float, extremes: list[Figures]
    ) -> Iterator[Part]:
        """Each micro-batch's share of the loss; `extremes` collects the statistics that do not add up."""
        for rows in batch.groups:
            loss, statistics = self._sum(self._answers(rollout, advantages, rows, batch.count, coefficient))
            extremes.append({name: float(statistics.pop(name)) for name in _EXTREMES})
            yield loss, statistics

    def _sum(self, answers: Answers) -> Part:
        loss, statistics = self._terms[0](answers)
        for term in self._terms[1:]:
            more, further = term(answers)
            loss, statistics = loss + more, statistics | further
        return loss, statistics

    def _answers(
        self, rollout: Rollout, advantages: Tensor, rows: list[int], count: int, coefficient: float
    ) -> Answers:
        part = pad([rollout.completions[i] for i in rows], fill=self._fill, device=self.model.device)
        logits, log_probs = scoring.answer_logits_and_log_probs(self.model, part, temperature=self._temperature)
        old, reference, cut_advantages = (
            cut(x, rows, part.mask) for x in (rollout.log_probs, rollout.reference, advantages)
        )
        return Answers(
            log_probs=log_probs,
            entropies=lambda: part.padded(entropy(logits, temperature=self._temperature).squeeze(0)),
            old=old,
            reference=reference,
            advantages=cut_advantages,
            mask=part.mask,
            count=count,
            kl_coefficient=coefficient,
        )
