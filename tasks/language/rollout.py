"""One PPO rollout: answers from the policy, and everything four models say of them, as padded tensors.

Legend: B episodes (one answer each), T longest answer. Index t: token t of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from tasks.language import scoring
from tasks.language.batches import Completion
from tasks.language.generation import Sampler, sample


@dataclass(frozen=True)
class Actors:
    """The four models. The reference is the SFT policy; reward and reference never change."""

    policy: PreTrainedModel
    critic: PreTrainedModel
    reference: PreTrainedModel
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


def collect(
    actors: Actors, prompts: Sequence[list[int]], sampler: Sampler, *, generator: torch.Generator, size: int
) -> Rollout:
    """Sample one answer per prompt and score it; `size` completions per forward pass."""
    answers = [found[0] for found in sample(actors.policy, prompts, sampler, generator=generator)]
    completions = [Completion(list(p), a.tokens) for p, a in zip(prompts, answers, strict=True)]
    options = {"fill": sampler.pad, "size": size}
    policy = scoring.all_log_probs_and_entropies(actors.policy, completions, temperature=sampler.temperature, **options)
    reference = scoring.all_log_probs(actors.reference, completions, temperature=sampler.temperature, **options)
    return Rollout(
        completions=completions,
        mask=_padded([torch.ones(len(c.answer), dtype=torch.bool) for c in completions]),
        log_probs=_padded([log_probs for log_probs, _ in policy]),
        entropies=_padded([entropies for _, entropies in policy]),
        reference=_padded(reference),
        values=_padded(scoring.all_values(actors.critic, completions, **options)),
        scores=scoring.all_scores(actors.reward, completions, **options),
        finished=torch.tensor([a.finished for a in answers]),
    )


def _padded(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True)
