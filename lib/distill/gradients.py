"""Inner products of whole gradients, and the check that two of them belong together."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.tpkd.checks import check_range


def inner_product(first: Tensor, second: Tensor) -> Tensor:
    """Return the sum of the products of all entries, in float64.

    Args:
        first: floating point, any shape.
        second: the same shape.

    Returns:
        () float64.

    Example:
        >>> inner_product(torch.ones(2, 2), torch.full((2, 2), 0.5))
        tensor(2., dtype=torch.float64)
    """
    return torch.dot(first.flatten().to(torch.float64), second.flatten().to(torch.float64))


def check_pair(task: Tensor, distil: Tensor) -> None:
    """Raise ValueError unless both are finite gradients of one shape, dtype and device.

    Args:
        task: the gradient of the task loss.
        distil: the gradient of the distillation loss.
    """
    for name, gradient in (("task", task), ("distil", distil)):
        if not isinstance(gradient, Tensor):
            raise ValueError(
                f"{name} must be a torch.Tensor, a flat gradient, got {type(gradient).__name__}"
            )
        if not gradient.is_floating_point() or gradient.layout != torch.strided:
            raise ValueError(
                f"{name} must be a dense floating-point gradient, got {gradient.dtype}, "
                f"{gradient.layout}"
            )
    kinds = [(tuple(g.shape), g.dtype, g.device) for g in (task, distil)]
    if kinds[0] != kinds[1]:
        seen = " and ".join(", ".join(map(str, kind)) for kind in kinds)
        raise ValueError(f"task and distil must have one shape, dtype and device, got {seen}")
    for name, gradient in (("task", task), ("distil", distil)):
        check_range(name, gradient.to(torch.promote_types(gradient.dtype, torch.float32)))
