"""From scores of whole answers to advantages of their tokens.

Legend: B answers, T positions, right-padded; mask True where the token counts. Index t: token t is the action, r_t its
reward, V_t the value of the state before it (prompt and tokens < t).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.algorithms.kl import k1
from tasks.algorithms.masking import keep


def place_score(score: Tensor, mask: Tensor) -> Tensor:
    """The score on the last counted token of each row (its EOS where it has one), 0 elsewhere.

    Shapes: score [B], mask [B, T]; returns [B, T]. Errors: ValueError for a row without a counted token.
    """
    counts = mask.bool()
    if not counts.any(1).all():
        raise ValueError("an answer without a counted token has no place for its score")
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(counts, positions, -1).amax(1, keepdim=True)
    return torch.where(positions == last, score.unsqueeze(1), torch.zeros((), dtype=score.dtype, device=score.device))


def replace_missing_eos(score: Tensor, finished: Tensor, *, value: float) -> Tensor:
    """`value` in place of the score of an answer that was cut off before its end-of-sequence token.

    Source: Ziegler et al. 2019, code; N+ details (arXiv 2403.17031), which use -1. Shapes: score, finished [B].
    """
    return torch.where(finished.bool(), score, torch.full_like(score, value))


def shaped_rewards(score: Tensor, log_ratio: Tensor, mask: Tensor, *, coefficient: float) -> Tensor:
    """Reward of each token: r_t = -coefficient * (log p - log p_ref)_t, plus the score on the last counted token.

    Their sum over an answer is score - coefficient * k1 estimate of its KL.
    Source: Ziegler et al. 2019 (arXiv 1909.08593), equation 2; Ouyang et al. 2022 (arXiv 2203.02155), section 3.5.
    Shapes: score [B], log_ratio and mask [B, T]; returns [B, T], 0 in masked slots.
    Errors: ValueError for a row without a counted token.
    """
    return place_score(score, mask) - coefficient * k1(keep(log_ratio, mask))


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
