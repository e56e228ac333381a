"""Losses on pairs of answers of which one is preferred.

Legend: B pairs; `chosen[i]` and `rejected[i]` belong to one prompt.
Reduction, everywhere: mean over the pairs of the whole optimiser batch. `count` is their number; with it the losses and
the statistics of micro-batches add up to the batch's, however it was split. None: this batch's own.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

Statistics = dict[str, Tensor]


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float,
    count: float | None = None,
) -> tuple[Tensor, Statistics]:
    """Direct preference optimisation: Bradley-Terry on implicit rewards beta * (log pi(y|x) - log pi_ref(y|x)).

    loss = -log sigmoid(beta * h), h = (log pi(y_w) - log ref(y_w)) - (log pi(y_l) - log ref(y_l)).
    Source: Rafailov et al. 2023 (arXiv 2305.18290), equation 7.
    Shapes: four [B] log-probabilities of whole answers given their prompts: SUMS over answer tokens, in nats, none of
    the prompt's or the padding's. No gradient flows to the reference. Returns a scalar in nats per pair and detached
    scalars: `accuracy` (share with h > 0), `ties` (share with h = 0), `margin` (mean beta * h), `chosen_reward`,
    `rejected_reward` (mean implicit rewards).
    Policy = reference gives ln 2 with a gradient that is not zero; identical answers give ln 2 with gradient zero.
    Errors: ValueError for no pairs, shapes that differ, or beta not positive.
    """
    if not beta > 0:
        raise ValueError(f"beta is {beta}, expected a positive number")
    divisor = _pairs(policy_chosen, policy_rejected, reference_chosen, reference_rejected, count=count)
    chosen = beta * (policy_chosen - reference_chosen.detach())
    rejected = beta * (policy_rejected - reference_rejected.detach())
    margin = chosen - rejected
    statistics = _statistics(margin, divisor)
    statistics["chosen_reward"] = chosen.detach().sum() / divisor
    statistics["rejected_reward"] = rejected.detach().sum() / divisor
    return -logsigmoid(margin).sum() / divisor, statistics


def _statistics(margin: Tensor, divisor: float) -> Statistics:
    margin = margin.detach()
    return {
        "accuracy": (margin > 0).sum() / divisor,
        "ties": (margin == 0).sum() / divisor,
        "margin": margin.sum() / divisor,
    }


def _pairs(*sides: Tensor, count: float | None) -> float:
    """The divisor: `count`, or the number of pairs. Refuses shapes that would broadcast."""
    shapes = [tuple(side.shape) for side in sides]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"shapes {shapes}, expected the same [B] for all")
    divisor = shapes[0][0] if count is None else count
    if not divisor > 0:
        raise ValueError(f"a mean over {divisor} pairs")
    return divisor
