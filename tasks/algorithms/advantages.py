"""From rewards of tokens to their advantages, with a critic (GAE) and without (REINFORCE, RLOO, GRPO).

Legend: B answers, T positions, right-padded; mask True where the token counts. Index t: token t is the action, r_t its
reward, V_t the value of the state before it (prompt and tokens < t). G groups of `group` answers to one prompt each,
B = G * group, the answers of a group next to each other. Everything returned is detached and 0 in masked slots.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tasks.algorithms.masking import keep, masked_sum

Baseline = Callable[[Tensor], Tensor]
"""Whole rewards of answers [B] -> what each is compared with [B]."""
Scale = Callable[[Tensor], Tensor]
"""Rewards less their group's mean [G, group] -> the unit they are measured in [G, 1]."""


def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, discount: float, trace: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, and the returns that the value function learns.

    delta_t = r_t + discount * V_{t+1} - V_t;  A_t = delta_t + discount * trace * A_{t+1};  returns_t = A_t + V_t.
    V and A after the last counted token are 0, for cut answers too. trace=0 gives the TD error, trace=1 the discounted
    return minus the value. Source: Schulman et al. 2016 (arXiv 1506.02438), equations 11 and 16.
    Shapes: all [B, T]; returns (advantages, returns), detached, 0 in masked slots.
    Errors: ValueError for a mask with a gap or with padding on the left, or shapes that differ.
    """
    counts = mask.bool()
    if (counts[:, 1:] & ~counts[:, :-1]).any():
        raise ValueError("the mask must be True from the first token of each answer to its last, then False")
    rewards, values = keep(rewards.detach(), counts), keep(values.detach(), counts)
    advantage = next_value = torch.zeros_like(values[:, 0])
    backwards = []
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + discount * next_value - values[:, t]
        advantage = delta + discount * trace * advantage
        next_value = values[:, t]
        backwards.append(advantage)
    advantages = torch.stack(backwards[::-1], 1)
    return advantages, advantages + values


def returns_to_go(rewards: Tensor, mask: Tensor, *, discount: float) -> Tensor:
    """What is still to come: G_t = r_t + discount * G_{t+1}, the Monte Carlo return.

    It is GAE's return at trace 1, and its advantage where all values are 0. Shapes and errors: as in `gae`.
    """
    return gae(rewards, torch.zeros_like(rewards), mask, discount=discount, trace=1.0)[0]


def reinforce(rewards: Tensor, mask: Tensor, *, discount: float, baseline: Baseline) -> Tensor:
    """REINFORCE: A_t = G_t - b with the return to go G_t and a baseline b per answer, made of whole returns G_0.

    The gradient's mean is right for every b that does not depend on the answer itself.
    Source: Williams 1992, "Simple statistical gradient-following algorithms", section 4.
    Shapes: rewards, mask [B, T]; returns [B, T]. Errors: as in `gae`, and what the baseline raises.
    """
    returns = returns_to_go(rewards, mask, discount=discount)
    return keep(returns - baseline(returns[:, 0]).unsqueeze(1), mask)


def rloo(rewards: Tensor, mask: Tensor, *, group: int) -> Tensor:
    """REINFORCE leave-one-out: every token of an answer gets R - (mean R of the other answers of its group).

    R = sum_t r_t: the whole answer is one action. [1, 0, 0, 3] gives [0, -4/3, -4/3, 8/3]; equal R give exactly 0.
    Source: Kool et al. 2019; Ahmadian et al. 2024 (arXiv 2402.14740), equation 8.
    Shapes: rewards, mask [B, T]; returns [B, T]. Errors: ValueError for a group of one (nothing is left to compare
    with) and for a batch that is not made of whole groups.
    """
    totals = _grouped(rewards, mask, group)
    return _on_tokens(_centred(totals) * (group / (group - 1)), mask)


def grpo(rewards: Tensor, mask: Tensor, *, group: int, scale: Scale) -> Tensor:
    """Group-relative advantage: every token of an answer gets (R - mean R of its group) / scale, R = sum_t r_t.

    scale: `population_std` (divides by n), `sample_std` (by n - 1; TRL's) or
    `unscaled` (Dr. GRPO). [1, 0, 0, 3] gives [0, -.816, -.816, 1.633], [0, -.707, -.707, 1.414], [0, -1, -1, 2]. Equal
    R give exactly 0: they are centred before they are squared. STD_FLOOR is added to the deviation, so that R that
    differ by roundings stay near 0.
    Source: Shao et al. 2024 (arXiv 2402.03300), section 4.1.2; Liu et al. 2025 (arXiv 2503.20783) for no scale.
    Shapes and errors: as in `rloo`.
    """
    centred = _centred(_grouped(rewards, mask, group))
    return _on_tokens(centred / scale(centred), mask)


def no_baseline(totals: Tensor) -> Tensor:
    """0 [B]: the bare return, of high variance."""
    return torch.zeros_like(totals)


def mean_of_the_others(totals: Tensor) -> Tensor:
    """(sum of all - own) / (B - 1) [B]: the rollout's mean without the answer itself, so that no bias comes in.

    Errors: ValueError for a single answer.
    """
    if totals.shape[0] < 2:
        raise ValueError("one answer has no others: its baseline would be nothing")
    return totals - _centred(totals.unsqueeze(0)).squeeze(0) * (totals.shape[0] / (totals.shape[0] - 1))


STD_FLOOR = 1e-6


def population_std(centred: Tensor) -> Tensor:
    """sqrt(mean of squares) + STD_FLOOR, [G, group] -> [G, 1]."""
    return centred.square().mean(1, keepdim=True).sqrt() + STD_FLOOR


def sample_std(centred: Tensor) -> Tensor:
    """sqrt(sum of squares / (group - 1)) + STD_FLOOR, [G, group] -> [G, 1]."""
    return (centred.square().sum(1, keepdim=True) / (centred.shape[1] - 1)).sqrt() + STD_FLOOR


def unscaled(centred: Tensor) -> Tensor:
    """1, [G, group] -> [G, 1]: hard and easy prompts count by how far their answers differ."""
    return torch.ones_like(centred[:, :1])


def _grouped(rewards: Tensor, mask: Tensor, group: int) -> Tensor:
    """Whole rewards as [G, group]."""
    if group < 2:
        raise ValueError(f"a group of {group} has nothing to compare an answer with, expected at least 2")
    if rewards.shape[0] % group:
        raise ValueError(f"{rewards.shape[0]} answers are not whole groups of {group}")
    return masked_sum(rewards.detach(), mask, dim=1).view(-1, group)


def _centred(groups: Tensor) -> Tensor:
    """Each row less its mean. Less its first entry before that: a flat row is then 0 to the bit."""
    shifted = groups - groups[:, :1]
    return shifted - shifted.mean(1, keepdim=True)


def _on_tokens(groups: Tensor, mask: Tensor) -> Tensor:
    """[G, group] -> [B, T]: each answer's number on all its tokens."""
    return keep(groups.reshape(-1, 1).expand(mask.shape), mask)
