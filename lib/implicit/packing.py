"""Weights of any network as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

Weights = Tensor | Sequence[Tensor]


def pack(weights: Weights) -> Tensor:
    """Return all weights as one vector: layers in order, matrices row by row.

    Args:
        weights: (..., p), or layers with common batch dimensions whose last one is (..., d).

    Returns:
        (..., p).

    Example:
        >>> pack([torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0])])
        tensor([1., 2., 3., 4., 5., 6.])
    """
    if isinstance(weights, Tensor):
        return weights
    batch = weights[-1].ndim - 1
    return torch.cat([layer.flatten(batch) for layer in weights], -1)


def unpacker(weights: Weights) -> Callable[[Tensor], Weights]:
    """Return the inverse of `pack` for weights of these shapes, whatever the batch dimensions.

    Args:
        weights: (..., p), or layers with common batch dimensions whose last one is (..., d).

    Returns:
        A function from (..., p) to weights.

    Example:
        >>> layers = [torch.ones(2, 2), torch.ones(2)]
        >>> [layer.shape for layer in unpacker(layers)(torch.zeros(7, 6))]
        [torch.Size([7, 2, 2]), torch.Size([7, 2])]
    """
    if isinstance(weights, Tensor):
        return lambda flat: flat
    batch = weights[-1].ndim - 1
    shapes = [layer.shape[batch:] for layer in weights]
    sizes = [prod(shape) for shape in shapes]

    def unpack(flat: Tensor) -> tuple[Tensor, ...]:
        parts = flat.split(sizes, -1)
        return tuple(
            part if len(shape) == 1 else part.unflatten(-1, shape)
            for part, shape in zip(parts, shapes, strict=True)
        )

    return unpack
