"""The gradient of one loss, or of two that a method combines, summed over the parts of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lib.distill.dto import dto_weights
from lib.distill.objectives import combine_gradients


class OneGradient:
    """The gradient of a single loss, in the parameters' own `grad`.

    Args:
        parameters: of the optimiser.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters

    def clear(self) -> None:
        """Forget what was added."""
        for parameter in self.parameters:
            parameter.grad = None

    def add(self, losses: Sequence[Tensor]) -> None:
        """Add the gradient of a part's loss."""
        losses[0].backward()

    def tensors(self) -> list[Tensor]:
        """Return what was summed, to be changed in place."""
        return [p.grad for p in self.parameters if p.grad is not None]

    def finish(self, losses: Sequence[float]) -> bool:
        """Leave in `grad` what the optimiser takes; False where `tensors` were that already."""
        return False


class TwoGradients:
    r"""The gradients of a task loss and of a distillation loss, and what a method makes of them.

    Both are summed over all parts of the batch before they are combined: the sum of combinations
    of the parts is another method. Parameters that only the distillation reads, such as
    projections of hidden states, take no part in the weights of DTO-KD; they get
    $w_{\rm distil} \nabla L_{\rm distil}$.

    **Source**: Yang et al. (2025) and Hayder et al. (2026), see `combine_gradients`; the case of
    projections is ours.

    Args:
        method: "dhkd" or "dto-kd".
        options: a value for every option of the method.
        parameters: that both losses are combined in.
        outside: parameters of the distillation loss alone.
    """

    def __init__(
        self,
        method: str,
        options: Mapping[str, object],
        parameters: Sequence[Tensor],
        outside: Sequence[Tensor] = (),
    ) -> None:
        self.method, self.options = method, options
        self.parameters, self.outside = list(parameters), list(outside)
        self.clear()

    def clear(self) -> None:
        """Forget what was added."""
        both = [*self.parameters, *self.outside]
        for parameter in both:
            parameter.grad = None
        self._sums: list[list[Tensor | None]] = [[None] * len(both), [None] * len(both)]

    def add(self, losses: Sequence[Tensor]) -> None:
        """Add the gradients of a part's two losses, which share a graph."""
        both = [*self.parameters, *self.outside]
        for number, (loss, total) in enumerate(zip(losses, self._sums, strict=True)):
            found = torch.autograd.grad(loss, both, retain_graph=number == 0, allow_unused=True)
            for place, gradient in enumerate(found):
                if gradient is not None:
                    old = total[place]
                    total[place] = gradient if old is None else old + gradient

    def tensors(self) -> list[Tensor]:
        """Return both gradients, flat, then those of the outside, to be changed in place.

        Zeros stand where a loss does not reach a parameter; one that neither reaches has no place.
        """
        task, distil = self._sums
        own = range(len(self.parameters))
        self._reached = [k for k in own if task[k] is not None or distil[k] is not None]
        inside = [self.parameters[k] for k in self._reached]
        self._flat = [_flatten([total[k] for k in self._reached], inside) for total in self._sums]
        self._alone = [
            _flatten([gradient], [parameter])
            for gradient, parameter in zip(distil[len(own) :], self.outside, strict=True)
        ]
        return [*self._flat, *self._alone]

    def finish(self, losses: Sequence[float]) -> bool:
        """Leave in `grad` what the optimiser takes."""
        combined = combine_gradients(self.method, tuple(self._flat), tuple(losses), **self.options)
        inside = [self.parameters[k] for k in self._reached]
        pieces = combined.split([parameter.numel() for parameter in inside])
        for parameter, piece in zip(inside, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        if self.outside:
            weight = dto_weights(*self._flat, *losses, **self.options).distil
            for parameter, gradient in zip(self.outside, self._alone, strict=True):
                parameter.grad = (weight * gradient).to(gradient.dtype).view_as(parameter)
        return True


def _flatten(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """One vector of the gradients, with zeros where there is none."""
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1)
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
    )
