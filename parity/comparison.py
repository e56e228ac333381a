"""Two implementations on the same inputs: values and gradients side by side, the largest difference of each kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

TOLERANCE = 1e-5
FOUND: dict[str, float] = {}
"""Quantity -> the largest difference seen, for the table at the end of a run."""


def agree(quantity: str, ours: Tensor, theirs: Tensor, *, unit: float = 0.0) -> None:
    """Assert that two tensors differ by at most TOLERANCE, relative to the largest entry of theirs.

    unit: the least that they are measured in. A loss is a sum of terms of about 1 nat, which may cancel.
    """
    ours, theirs = ours.detach().double(), theirs.detach().double()
    assert ours.shape == theirs.shape, f"{quantity}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}"
    size = theirs.abs().max()
    assert size > 1e-3, f"{quantity}: nothing but 0, so nothing is compared"
    difference = float((ours - theirs).abs().max() / size.clamp_min(unit))
    assert difference <= TOLERANCE, f"{quantity}: differs by {difference:.2g}\nours   {ours}\ntheirs {theirs}"
    FOUND[quantity] = max(FOUND.get(quantity, 0.0), difference)


def agree_on(
    quantity: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> None:
    """`agree` on the value and on the gradient with respect to each input, for a random weight on each output."""
    results = []
    for function in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        value = function(*leaves)
        weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(7)).to(value)
        (value * weights).sum().backward()
        results.append((value, [x.grad for x in leaves]))
    (our_value, our_gradients), (their_value, their_gradients) = results
    agree(quantity, our_value, their_value)
    for ours_, theirs_ in zip(our_gradients, their_gradients, strict=True):
        agree(quantity, ours_, theirs_)


def agree_on_models(
    quantity: str, our_loss: Tensor, our_model: nn.Module, their_loss: Tensor, their_model: nn.Module
) -> None:
    """`agree` on two losses and on the gradients of all weights of the two models that they came from."""
    agree(quantity, our_loss, their_loss, unit=1.0)
    agree(quantity, gradient(our_loss, our_model), gradient(their_loss, their_model))


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """All weights' gradients in one row; a weight that has none counts as 0."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
