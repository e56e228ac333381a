"""From scores of whole answers to rewards of their tokens.

Legend: B answers, T positions, right-padded; mask True where the token counts. Index t: token t is the action, r_t its
reward. Masked slots hold 0, whatever stood there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tasks.algorithms.masking import keep

Place = Callable[[Tensor, Tensor], Tensor]
"""(score [B], mask [B, T]) -> rewards [B, T] whose sum over an answer is its score."""
Penalty = Callable[[Tensor], Tensor]
"""log p - log p_ref -> the penalty of each token, alike in shape, in nats."""


def place_score(score: Tensor, mask: Tensor) -> Tensor:
    """The score on the last counted token of each row (its EOS where it has one), 0 elsewhere.

    Shapes: score [B], mask [B, T]; returns [B, T]. Errors: ValueError for a row without a counted token.
    """
    counts = _with_tokens(mask)
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(counts, positions, -1).amax(1, keepdim=True)
    return torch.where(positions == last, score.unsqueeze(1), torch.zeros((), dtype=score.dtype, device=score.device))


def spread_score(score: Tensor, mask: Tensor) -> Tensor:
    """The score in equal parts on every counted token of its row: score / (number of its tokens), 0 elsewhere.

    A denser signal, which pays a token for what came before it too; the sum over the answer is the same score.
    Shapes: score [B], mask [B, T]; returns [B, T]. Errors: ValueError for a row without a counted token.
    """
    counts = _with_tokens(mask)
    return keep((score / counts.sum(1)).unsqueeze(1).expand(mask.shape), counts)


def replace_missing_eos(score: Tensor, finished: Tensor, *, value: float) -> Tensor:
    """`value` in place of the score of an answer that was cut off before its end-of-sequence token.

    Source: Ziegler et al. 2019, code; N+ details (arXiv 2403.17031), which use -1. Shapes: score, finished [B].
    """
    return torch.where(finished.bool(), score, torch.full_like(score, value))


def subtract_missing_eos(score: Tensor, finished: Tensor, *, value: float) -> Tensor:
    """The score less `value` for an answer that was cut off before its end-of-sequence token.

    Unlike `replace_missing_eos` it still tells a good cut answer from a bad one. Source: TRL, `missing_eos_penalty`.
    Shapes: score, finished [B].
    """
    return torch.where(finished.bool(), score, score - value)


def accept_missing_eos(score: Tensor, finished: Tensor) -> Tensor:
    """The score as it is, whether the answer ended or was cut off. Shapes: score, finished [B]."""
    return score


def shaped_rewards(
    score: Tensor, log_ratio: Tensor, mask: Tensor, *, coefficient: float, penalty: Penalty, place: Place
) -> Tensor:
    """Reward of each token: r_t = -coefficient * penalty(log p - log p_ref)_t, plus the score where `place` puts it.

    Their sum over an answer is score - coefficient * (the penalty's estimate of its KL). With penalty k1:
    Ziegler et al. 2019 (arXiv 1909.08593), equation 2; Ouyang et al. 2022 (arXiv 2203.02155), section 3.5.
    Shapes: score [B], log_ratio and mask [B, T]; returns [B, T], 0 in masked slots.
    Errors: ValueError for a row without a counted token.
    """
    return place(score, mask) - coefficient * penalty(keep(log_ratio, mask))


def _with_tokens(mask: Tensor) -> Tensor:
    counts = mask.bool()
    if not counts.any(1).all():
        raise ValueError("an answer without a counted token has no place for its score")
    return counts
