"""How far a policy has moved from its reference, on answers of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tasks.language import scoring
from tasks.language.batches import Completion
from tasks.language.generation import Sampler, sample


def sampled_log_ratios(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    prompts: Sequence[list[int]],
    sampler: Sampler,
    *,
    generator: torch.Generator,
) -> Tensor:
    """One answer y of the policy to each prompt x: sum_t (log pi(y_t | x, y_<t) - log ref(y_t | x, y_<t)), [prompts].

    Their mean estimates KL(pi || ref) per answer in nats, without bias (the k1 estimator, as in the evaluation); a
    single one may be negative. Both models score at the temperature that was sampled at.
    """
    answers = [found[0] for found in sample(policy, prompts, sampler, generator=generator)]
    completions = [Completion(list(p), a.tokens) for p, a in zip(prompts, answers, strict=True)]
    options = {"temperature": sampler.temperature, "fill": sampler.pad, "size": sampler.batch}
    own, under = (scoring.all_log_probs(model, completions, **options) for model in (policy, reference))
    return torch.stack([(p - q).sum() for p, q in zip(own, under, strict=True)])
