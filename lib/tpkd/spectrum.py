"""How far back-propagation stretches two output signals, from vector-Jacobian products alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

Gradients = Tensor | Iterable[Tensor]

_DEPENDENT = 1e-10  # relative norm of what one direction adds to the other


def restricted_spectrum(
    vjp: Callable[[Tensor], Gradients], first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return the least and the largest squared stretch of J^T on the span of two signals.

    $$m, M = \lambda_{\min}, \lambda_{\max} (Q^\top J J^\top Q), \qquad
      Q \text{ orthonormal, } \operatorname{span} Q = \operatorname{span}\{a, b\}$$

    The entries of the matrix are inner products of $J^\top \xi_1$ and $J^\top \xi_2$: two products,
    no Jacobian. If one signal depends on the other, to a relative 1e-10, one product is taken and
    m = M.

    **Source**: Yuan & Tao, Appendix D.5.

    Args:
        vjp: maps a cotangent xi, shaped like `first` and of its dtype, to J^T xi, a tensor or an
            iterable of tensors; None entries count as zero. `output_vjp` makes one.
        first: a, real and finite, of any shape, such as a batch of logit directions (N, K).
        second: b, of the same shape; not both zero.

    Returns:
        (m, M), each () float64.

    Raises:
        ValueError: if the shapes differ, an entry is not finite, both signals are zero or the
            products are not finite.

    Example:
        >>> scale = torch.tensor([3.0, 2.0, 1.0])  # J is diagonal
        >>> m, M = restricted_spectrum(lambda xi: scale * xi, torch.eye(3)[0], torch.eye(3)[1])
        >>> m, M
        (tensor(4., dtype=torch.float64), tensor(9., dtype=torch.float64))
    """
    if not callable(vjp):
        raise ValueError(f"vjp must be a function of a cotangent, got {vjp!r:.60}")
    basis = _orthonormal(first, second)
    products = [_flatten(vjp(column.reshape(first.shape).to(first.dtype))) for column in basis]
    gram = torch.stack([torch.stack([_dot(a, b) for b in products]) for a in products])
    if not bool(torch.isfinite(gram).all()):
        raise ValueError("vjp must return finite gradients, got NaN or infinity")
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    return values[0], values[-1]


def output_vjp(
    outputs: Tensor, parameters: Iterable[Tensor]
) -> Callable[[Tensor], tuple[Tensor, ...]]:
    r"""Return the map from a direction of the outputs to a gradient in the parameters.

    $$\xi \mapsto J^\top \xi, \qquad J = \partial z / \partial \theta$$

    The graph is kept, so the map may be called again and again. For the normalised batch Jacobian
    of Appendix D.2, pass the outputs divided by $\sqrt N$.

    **Source**: Yuan & Tao, Appendix D.2.

    Args:
        outputs: any shape, differentiable in the parameters.
        parameters: tensors that require gradients.

    Returns:
        A function of a tensor like `outputs`; parameters without influence give zeros.

    Raises:
        ValueError: if the outputs are not differentiable or a parameter requires no gradient; from
            the function, if a direction is not shaped like the outputs.

    Example:
        >>> theta = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> output_vjp(theta**2, [theta])(torch.tensor([1.0, 1.0]))
        (tensor([2., 4.]),)
    """
    if not isinstance(outputs, Tensor) or not outputs.requires_grad:
        raise ValueError(f"outputs must be a differentiable tensor, got {outputs!r:.60}")
    parameters = tuple(parameters) if isinstance(parameters, Iterable) else ()
    if not parameters or not all(isinstance(p, Tensor) and p.requires_grad for p in parameters):
        raise ValueError("parameters must be tensors that require gradients, at least one")

    def vjp(direction: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(direction, Tensor) or direction.shape != outputs.shape:
            raise ValueError(
                f"direction must be a tensor of shape {tuple(outputs.shape)}, got {direction!r:.60}"
            )
        return torch.autograd.grad(
            outputs, parameters, direction.to(outputs), retain_graph=True, materialize_grads=True
        )

    return vjp


def _orthonormal(first: Tensor, second: Tensor) -> list[Tensor]:
    """One or two orthonormal vectors, flat and in float64, that span both signals."""
    for name, signal in (("first", first), ("second", second)):
        if not isinstance(signal, Tensor) or not signal.is_floating_point():
            raise ValueError(f"{name} must be a floating-point tensor, got {signal!r:.60}")
        if not bool(torch.isfinite(signal).all()):
            raise ValueError(f"{name} must be finite, got NaN or infinity")
    if first.shape != second.shape:
        raise ValueError(
            f"first and second must have one shape, got {tuple(first.shape)} and "
            f"{tuple(second.shape)}"
        )
    basis = []
    for signal in (first, second):
        rest = signal.detach().to(torch.float64).flatten()
        if bool((rest != 0).any()):
            rest = torch.nn.functional.normalize(rest / rest.abs().max(), dim=0)
        for _ in range(2):  # twice, so that nearly parallel signals come out orthogonal
            for unit in basis:
                rest = rest - (unit @ rest) * unit
        if rest.norm() > _DEPENDENT:
            basis.append(rest / rest.norm())
    if not basis:
        raise ValueError("first and second must not both be zero: they span nothing")
    return basis


def _flatten(gradients: Gradients) -> list[Tensor]:
    """The parts of a gradient; None counts as zero."""
    many = isinstance(gradients, Iterable) and not isinstance(gradients, Tensor)
    parts = list(gradients) if many else [gradients]
    if not all(isinstance(part, Tensor) or (many and part is None) for part in parts):
        raise ValueError(f"vjp must return a tensor or an iterable of them, got {gradients!r:.60}")
    return [None if part is None else part.detach().flatten() for part in parts]


def _dot(first: list[Tensor], second: list[Tensor]) -> Tensor:
    """The inner product of two gradients, in float64, part by part."""
    pairs = [
        (a.to(torch.float64), b.to(torch.float64))
        for a, b in zip(first, second, strict=True)
        if a is not None and b is not None
    ]
    return (
        torch.stack([a @ b for a, b in pairs]).sum()
        if pairs
        else torch.zeros((), dtype=torch.float64)
    )
