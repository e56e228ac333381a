"""Losses of a reward model on answers of one prompt that people or a judge have put in order.

Legend: B pairs or rankings, K answers of the longest ranking; `scores` are raw rewards r, higher is better.
Reduction, everywhere: mean over the pairs (rankings) of the whole optimiser batch. `count` is their number; with it the
losses and the statistics of micro-batches add up to the batch's, however it was split. None: this batch's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tasks.algorithms.masking import keep, masked_sum

Statistics = dict[str, Tensor]


def bradley_terry_loss(
    chosen: Tensor,
    rejected: Tensor,
    margin: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    count: float | None = None,
) -> tuple[Tensor, Statistics]:
    """Negative log-likelihood that the chosen answer beats the rejected one by `margin`: -log sigmoid(d - m).

    d = r_chosen - r_rejected, m = `margin` (None: 0). With label smoothing e, the chance that a label is wrong:
    -(1 - e) log sigmoid(d - m) - e log sigmoid(-d - m), the wrong label keeping the margin on its own side; without a
    margin its optimum is d = logit(1 - e).
    `logsigmoid` stays finite where log(1 + exp(-x)) overflows (from x = -89 in float32).
    Source: Bradley and Terry 1952; Ouyang et al. 2022 (arXiv 2203.02155), equation 1; margin: Touvron et al. 2023
    (arXiv 2307.09288), equation 2; label smoothing: Wang et al. 2024 (arXiv 2401.06080).
    Shapes: chosen, rejected, margin [B]; returns a scalar in nats per pair and detached scalars: `accuracy` (share of
    pairs with d > 0), `ties` (share with d = 0: neither right nor wrong), `margin` (mean d).
    Errors: ValueError for no pairs, shapes that differ, or label smoothing outside [0, .5).
    """
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}, expected at least 0 and below 0.5")
    divisor = _rows(chosen, rejected, *([] if margin is None else [margin]), dims=1, count=count)
    difference = chosen - rejected
    asked = difference if margin is None else difference - margin
    losses = -logsigmoid(asked)
    if label_smoothing:
        reverse = -difference if margin is None else -difference - margin
        losses = (1 - label_smoothing) * losses - label_smoothing * logsigmoid(reverse)
    seen = difference.detach()
    return losses.sum() / divisor, {
        "accuracy": (seen > 0).sum() / divisor,
        "ties": (seen == 0).sum() / divisor,
        "margin": seen.sum() / divisor,
    }


def plackett_luce_loss(
    scores: Tensor, gold: Tensor, mask: Tensor, *, count: float | None = None
) -> tuple[Tensor, Statistics]:
    """Negative log-likelihood of a ranking, its answers taken best first, each from those that are left.

    sum over answers i of log(exp r_i + sum over j below i of exp r_j) - r_i, where j is below i if gold_j < gold_i.
    Answers of equal gold do not compete with each other: nothing is known of their order. K = 2 is Bradley-Terry.
    Source: Luce 1959; Plackett 1975; as a loss: Xia et al. 2008 (ListMLE).
    Shapes: scores, gold (any order-preserving numbers, higher is better), mask (True where an answer stands) [B, K];
    returns a scalar in nats per ranking and detached scalars: of the pairs that gold orders, `accuracy` (share that the
    scores order alike), `ties` (share with equal scores), `margin` (mean difference); per ranking, then the mean.
    Errors: ValueError for no rankings, shapes that differ, or a ranking that orders nothing.
    """
    divisor = _rows(scores, gold, mask, dims=2, count=count)
    reward, level = keep(scores, mask), keep(gold, mask)
    both = mask.unsqueeze(2) & mask.unsqueeze(1)
    below = both & (level.unsqueeze(2) > level.unsqueeze(1))
    ordered = below.sum((1, 2))
    if (ordered == 0).any():
        raise ValueError("a ranking whose answers all have equal gold orders nothing")
    # Every answer competes at least with itself, so that no row is empty; alone it costs log exp r - r = 0.
    rivals = below | torch.eye(scores.shape[1], dtype=torch.bool, device=scores.device)
    field = torch.where(rivals, reward.unsqueeze(1), -torch.inf).logsumexp(2)
    difference = keep((reward.unsqueeze(2) - reward.unsqueeze(1)).detach(), below)
    return (field - reward).sum() / divisor, {
        "accuracy": ((difference > 0).sum((1, 2)) / ordered).sum() / divisor,
        "ties": ((below & (difference == 0)).sum((1, 2)) / ordered).sum() / divisor,
        "margin": (difference.sum((1, 2)) / ordered).sum() / divisor,
    }


def centring_penalty(scores: Tensor, mask: Tensor, *, count: float | None = None) -> Tensor:
    """Squared mean score of a pair or a ranking: ((r_1 + ... + r_K) / K)^2, which both losses leave open.

    Both know differences only; this takes away the freedom to add a number to every score of a prompt.
    Source: Eisenstein et al. 2023 (arXiv 2312.09244), with the sum of a pair's two scores in place of their mean:
    weight w there is 4 w here.
    Shapes: scores, mask [B, K]; returns a scalar in squared units of the scores.
    Errors: ValueError for no rankings, shapes that differ, or a ranking without answers.
    """
    divisor = _rows(scores, mask, dims=2, count=count)
    answers = mask.sum(1)
    if (answers == 0).any():
        raise ValueError("a ranking without answers has no mean score")
    return (masked_sum(scores, mask, 1) / answers).square().sum() / divisor


def graded_margin(gap: Tensor, *, thresholds: Sequence[float], margins: Sequence[float]) -> Tensor:
    """The margin of a pair's grade: margins[n] where the gap has reached n of the thresholds.

    Llama 2 has four grades, negligibly, slightly, (plainly) and significantly better, with margins 0, 1/3, 2/3, 1 (or
    0, 1, 2, 3). Source: Touvron et al. 2023 (arXiv 2307.09288), equation 2 and table 27.
    Shapes: gap [B] in units of the judge's scores; returns [B] in units of the reward.
    Errors: ValueError unless the thresholds rise and there is one margin more than thresholds.
    """
    if len(margins) != len(thresholds) + 1:
        raise ValueError(f"{len(margins)} margins for {len(thresholds)} thresholds, expected one more than thresholds")
    if sorted(set(thresholds)) != list(thresholds):
        raise ValueError(f"thresholds are {list(thresholds)}, expected rising numbers")
    grade = torch.bucketize(gap, gap.new_tensor(list(thresholds)), right=True)
    return gap.new_tensor(list(margins))[grade]


def scaled_margin(gap: Tensor, *, scale: float) -> Tensor:
    """A margin in proportion to the pair's own gap: scale * max(gap, 0).

    The gap is negative where annotators outvoted the judge; such a pair asks for no margin.

    Shapes: gap [B] in units of the judge's scores; returns [B] in units of the reward.
    Errors: ValueError for a scale that is not positive.
    """
    if not scale > 0:
        raise ValueError(f"scale is {scale}, expected a positive number")
    return scale * gap.clamp_min(0)


def _rows(*tensors: Tensor, dims: int, count: float | None) -> float:
    """The divisor: `count`, or the number of rows. Refuses shapes that would broadcast."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) != 1 or len(shapes[0]) != dims:
        raise ValueError(f"shapes {shapes}, expected the same {'[B]' if dims == 1 else '[B, K]'} for all")
    divisor = shapes[0][0] if count is None else count
    if not divisor > 0:
        raise ValueError(f"a mean over {divisor} pairs or rankings")
    return divisor
