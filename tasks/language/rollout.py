"""One rollout: answers from the policy, and everything that policy, critic, reference and reward model say of them.

Legend: B episodes (one answer each), T longest answer. Index t: token t of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from tasks.language import adapters, scoring
from tasks.language.batches import Completion, by_length
from tasks.language.generation import Sampler, sample


@dataclass(frozen=True)
class Actors:
    """Who takes part. The reference is the SFT policy; reward and reference never change."""

    policy: PreTrainedModel
    values: Callable[[list[Completion]], list[Tensor]]
    """The critic: a value before each answer token."""
    reference: PreTrainedModel
    """May be the policy, where that is SFT with adapters: it is asked without them."""
    reward: PreTrainedModel


@dataclass(frozen=True)
class Rollout:
    """All tensors on the CPU, zero in masked slots."""

    completions: list[Completion]
    mask: Tensor
    """[B, T]"""
    log_probs: Tensor
    """[B, T] under the policy that sampled, in the precision that trains: the ratio is 1 before the first update."""
    entropies: Tensor
    """[B, T]"""
    reference: Tensor
    """[B, T] log-probabilities under the SFT policy."""
    values: Tensor
    """[B, T] the critic's value before each token."""
    scores: Tensor
    """[B] the reward model's normalised score."""
    finished: Tensor
    """[B] whether the answer ends with end-of-sequence."""

    @property
    def log_ratio(self) -> Tensor:
        """log p - log p_ref [B, T]."""
        return self.log_probs - self.reference

    @property
    def kl(self) -> float:
        """KL to the reference per answer: mean over answers of the sum over tokens of log p - log p_ref, in nats."""
        return float(self.log_ratio.sum(1).mean())


def collect(
    actors: Actors, prompts: Sequence[list[int]], sampler: Sampler, *, group: int, generator: torch.Generator, size: int
) -> Rollout:
    """Sample `group` answers per prompt, next to each other, and score them; `size` completions per forward pass."""
    found = sample(actors.policy, prompts, sampler, answers=group, generator=generator)
    answers = [answer for of_prompt in found for answer in of_prompt]
    completions = [Completion(list(prompts[i // group]), a.tokens) for i, a in enumerate(answers)]
    options = {"fill": sampler.pad, "size": size}
    policy = scoring.all_log_probs_and_entropies(actors.policy, completions, temperature=sampler.temperature, **options)
    with adapters.disabled(actors.reference):
        reference = scoring.all_log_probs(actors.reference, completions, temperature=sampler.temperature, **options)
    return Rollout(
        completions=completions,
        mask=_padded([torch.ones(len(c.answer), dtype=torch.bool) for c in completions]),
        log_probs=_padded([log_probs for log_probs, _ in policy]),
        entropies=_padded([entropies for _, entropies in policy]),
        reference=_padded(reference),
        values=_padded(actors.values(completions)),
        scores=scoring.all_scores(actors.reward, completions, **options),
        finished=torch.tensor([a.finished for a in answers]),
    )


@dataclass(frozen=True)
class Minibatch:
    """Rows of a rollout for one optimiser step, in micro-batches."""

    groups: list[list[int]]
    count: int
    """Answer tokens in all."""


def minibatch(rollout: Rollout, indices: list[int], *, size: int) -> Minibatch:
    """Micro-batches of at most `size` rows of about one length."""
    chosen = [rollout.completions[i] for i in indices]
    groups = [[indices[i] for i in group] for group in by_length(chosen, size)]
    return Minibatch(groups, sum(len(c.answer) for c in chosen))


def cut(x: Tensor, rows: list[int], mask: Tensor) -> Tensor:
    """Those rows of a rollout's tensor, as wide as the micro-batch's mask."""
    return x[rows, : mask.shape[1]].to(mask.device)


def _padded(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True)
