"""The loss of supervised fine-tuning.

Legend: B sequences, T positions. Index t: the log-probability of token t given the tokens before it.
"""

from __future__ import annotations

from torch import Tensor

from tasks.algorithms.masking import counted, masked_sum


def negative_log_likelihood(log_probs: Tensor, mask: Tensor, *, count: float | Tensor | None = None) -> Tensor:
    """Cross-entropy of the demonstrated tokens: -sum_t mask_t log p(x_t | x_<t) / count.

    Reduction: mean over the counted tokens of the whole optimiser batch. `count` is the number of those tokens; with it
    the losses of micro-batches add up to the batch's, however it was split. None: this batch's own.
    Shapes: log_probs, mask [B, T]; returns a scalar, in nats per token.
    Errors: ValueError where nothing counts. Masked slots change neither value nor gradient.
    """
    return -masked_sum(log_probs, mask) / counted(mask, count)
