"""Log-probabilities of tokens under a causal language model.

Legend: B sequences, T positions, V vocabulary. Index t: `logits[:, t]` is the distribution that `tokens[:, t]` was
drawn from. A model's raw output runs one step ahead (its output at input position t-1 scores token t): the caller
shifts once, where the model is called, and nothing here shifts again.
The temperature divides the logits in the sampler, the reference, the update and the entropy alike.

Memory: the logits are the largest tensor of a training step. Both functions keep only them, in their own precision, for
the backward pass; float32 copies of a few positions at a time are made, used and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK = 1 << 22
"""Logits in a float32 working copy: 16 MB."""


def token_log_probs(logits: Tensor, tokens: Tensor, *, temperature: float) -> Tensor:
    """Log-probability of each token: log softmax(z)[token] = z[token] - logsumexp(z), z = logits / temperature.

    Shapes: logits [B, T, V] of any float type, tokens [B, T] of integers in [0, V), also in masked slots;
    returns [B, T] float32 (float64 of float64), in nats. Gradient: (onehot - softmax(z)) / temperature, rounded to the
    type of the logits; it is 0, not NaN, wherever the incoming gradient is 0, whatever the logits are there.
    Errors: ValueError for a temperature that is not positive or shapes that do not fit.
    """
    _check(logits, temperature)
    if logits.shape[:-1] != tokens.shape:
        raise ValueError(f"tokens have shape {tuple(tokens.shape)}, expected {tuple(logits.shape[:-1])}")
    found: Tensor = _TokenLogProbs.apply(logits, tokens, temperature)  # type: ignore[no-untyped-call]
    return found


def entropy(logits: Tensor, *, temperature: float) -> Tensor:
    """Entropy of the next-token distribution: H = -sum_v p_v log p_v, p = softmax(z), z = logits / temperature.

    Shapes: logits [B, T, V]; returns [B, T] float32 (float64 of float64), in nats, in [0, ln V]. A logit of -inf (a
    forbidden token) contributes 0. Gradient: -p (log p + H) / temperature, 0 wherever the incoming gradient is 0.
    Errors: ValueError for a temperature that is not positive.
    """
    _check(logits, temperature)
    found: Tensor = _Entropy.apply(logits, temperature)  # type: ignore[no-untyped-call]
    return found


def nucleus_logits(logits: Tensor, *, temperature: float, top_p: float) -> Tensor:
    """Logits of the truncated distribution: -inf outside the nucleus, unchanged inside.

    The nucleus is the smallest set of tokens whose probabilities under softmax(logits / temperature) add up to top_p,
    likeliest first, of equally likely ones the lower id first; the token that crosses top_p belongs to it, so that it
    is never empty. Source: Holtzman et al. 2020 (arXiv 1904.09751), section 3.1, equation 2.
    Shapes: logits [..., V]; returns the same shape and type, for top_p 1 the very tensor. For sampling alone: two
    policies have two nuclei, so that a ratio or a KL of truncated distributions is infinite wherever they differ.
    Errors: ValueError for a temperature that is not positive or a top_p outside (0, 1].
    """
    if not (temperature > 0 and 0 < top_p <= 1):
        raise ValueError(f"temperature is {temperature} and top_p {top_p}, expected one > 0 and one in (0, 1]")
    if top_p == 1:
        return logits
    p, order = _log_softmax(logits, temperature).exp().sort(dim=-1, descending=True, stable=True)
    before = torch.nn.functional.pad(p.cumsum(-1)[..., :-1], (1, 0))
    outside = torch.empty_like(before, dtype=torch.bool).scatter_(-1, order, before >= top_p)
    return logits.masked_fill(outside, -torch.inf)


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        found = _empty_per_token(logits)
        for block in _chunks(logits):
            log_p = _log_softmax(logits[block], temperature)
            found[block] = log_p.gather(-1, tokens[block].unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(logits, tokens)
        ctx.temperature = temperature
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, tokens = ctx.saved_tensors
        out = torch.empty_like(logits)
        for block in _chunks(logits):
            slope = (grad[block] / ctx.temperature).unsqueeze(-1)
            p = _log_softmax(logits[block], ctx.temperature).exp_()
            local = p.mul_(-slope).scatter_add_(-1, tokens[block].unsqueeze(-1), slope)
            out[block] = local.masked_fill_(slope == 0, 0.0).to(out.dtype)
        return out, None, None


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: float) -> Tensor:
        found = _empty_per_token(logits)
        for block in _chunks(logits):
            log_p = _log_softmax(logits[block], temperature)
            found[block] = -(log_p.exp() * log_p).masked_fill_(log_p == -torch.inf, 0.0).sum(-1)
        ctx.save_for_backward(logits, found)
        ctx.temperature = temperature
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, found = ctx.saved_tensors
        out = torch.empty_like(logits)
        for block in _chunks(logits):
            slope = (grad[block] / ctx.temperature).unsqueeze(-1)
            log_p = _log_softmax(logits[block], ctx.temperature)
            local = -slope * log_p.exp() * (log_p + found[block].unsqueeze(-1))
            out[block] = local.masked_fill_((slope == 0) | (log_p == -torch.inf), 0.0).to(out.dtype)
        return out, None


def _chunks(logits: Tensor) -> Iterator[tuple[slice, slice]]:
    """Blocks of [B, T] of at most _CHUNK logits: several rows, or a part of one. Slices are views, where flattening
    [B, T, V] could copy it.
    """
    rows, columns, size = logits.shape
    width = max(1, min(columns, _CHUNK // max(1, size)))
    height = max(1, _CHUNK // max(1, size * width))
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, row + height), slice(column, column + width)


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """A new tensor of at least float32. z - logsumexp(z) would round at the size of z."""
    return (logits.to(_precision(logits)) / temperature).log_softmax(-1)


def _empty_per_token(logits: Tensor) -> Tensor:
    return torch.empty(logits.shape[:-1], dtype=_precision(logits), device=logits.device)


def _precision(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _check(logits: Tensor, temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected a positive number")
    if logits.ndim != 3:
        raise ValueError(f"logits have shape {tuple(logits.shape)}, expected [B, T, V]")
