"""Two small systems that show the edge: a product of two numbers, and self-stabilisation."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.stability.checks import broadcast_float64, count, positive, real_float64


def product_loss(point: Tensor) -> Tensor:
    r"""Return the loss of the two-parameter example.

    $$L(a, b) = \tfrac12 (a b - 1)^2$$

    Args:
        point: (..., 2) the weights a and b.

    Returns:
        (...) in the point's dtype (float64 for integers); differentiable.

    Raises:
        ValueError: if the last dimension is not 2, or an entry is NaN or infinite.

    Example:
        >>> product_loss(torch.tensor([3.0, 1.0]))
        tensor(2.)
    """
    a, b = _weights(point)
    return (a * b - 1).square() / 2


def product_hessian(point: Tensor) -> Tensor:
    r"""Return the Hessian of `product_loss`.

    $$\nabla^2 L = \begin{pmatrix} b^2 & 2ab - 1 \\ 2ab - 1 & a^2 \end{pmatrix}$$

    Args:
        point: (..., 2) the weights a and b.

    Returns:
        (..., 2, 2) in the point's dtype.

    Raises:
        ValueError: if the last dimension is not 2, or an entry is NaN or infinite.

    Example:
        >>> product_hessian(torch.tensor([2.0, 0.5]))
        tensor([[0.2500, 1.0000],
                [1.0000, 4.0000]])
    """
    a, b = _weights(point)
    mixed = 2 * a * b - 1
    rows = [torch.stack([b.square(), mixed], -1), torch.stack([mixed, a.square()], -1)]
    return torch.stack(rows, -2)


def product_sharpness(point: Tensor) -> Tensor:
    r"""Return the sharpness of `product_loss`; at every minimum it is a^2 + b^2.

    $$S = \frac{a^2 + b^2}{2} + \sqrt{\left(\frac{a^2 - b^2}{2}\right)^2 + (2ab - 1)^2}$$

    Args:
        point: (..., 2) the weights a and b.

    Returns:
        (...) in the point's dtype.

    Raises:
        ValueError: if the last dimension is not 2, or an entry is NaN or infinite.

    Example:
        >>> product_sharpness(torch.tensor([2.0, 0.5]))
        tensor(4.2500)
    """
    a, b = _weights(point)
    half = (a.square() - b.square()) / 2
    return (a.square() + b.square()) / 2 + torch.hypot(half, 2 * a * b - 1)


def product_flow_sharpness(start: Tensor) -> Tensor:
    r"""Return the sharpness where gradient flow on `product_loss` ends.

    $$S_\infty = \sqrt{(a^2 - b^2)^2 + 4}$$

    because the flow conserves $a^2 - b^2$, ends at $a b = 1$, and the sharpness there is
    $a^2 + b^2$. Starts on the line a = -b end in the saddle at 0 instead.

    Args:
        start: (..., 2) the first weights a and b, with a + b not 0.

    Returns:
        (...) in the point's dtype.

    Raises:
        ValueError: if the last dimension is not 2, an entry is NaN or infinite, or a = -b.

    Example:
        >>> round(float(product_flow_sharpness(torch.tensor([3.0, 0.2], dtype=torch.float64))), 6)
        9.180501
    """
    a, b = _weights(start, "start")
    if bool((a == -b).any()):
        raise ValueError("start must not have a = -b: the flow ends in the saddle at 0 from there")
    return torch.hypot(a.square() - b.square(), torch.full_like(a, 2.0))


def product_descent(start: Tensor, step_size: float, steps: int) -> Tensor:
    r"""Return the iterates of gradient descent on `product_loss`.

    $$a' = a - \eta (a b - 1) b, \qquad b' = b - \eta (a b - 1) a$$

    Args:
        start: (..., 2) the first weights a and b.
        step_size: eta > 0.
        steps: how many steps, at least 0.

    Returns:
        (steps + 1, ..., 2), the start first; not finite where the descent diverges.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> product_descent(torch.tensor([2.0, 1.0]), 0.5, 1)
        tensor([[2.0000, 1.0000],
                [1.5000, 0.0000]])
    """
    point = torch.stack(_weights(start, "start"), -1)
    positive("step_size", step_size)
    count("steps", steps, 0)
    points = [point]
    for _ in range(steps):
        residual = point.prod(-1, keepdim=True) - 1
        point = point - step_size * residual * point.flip(-1)
        points.append(point)
    return torch.stack(points)


def self_stabilisation(
    alpha: float,
    beta: float,
    step_size: float,
    x: float | Tensor,
    y: float | Tensor,
    steps: int,
) -> tuple[Tensor, Tensor]:
    r"""Return oscillation x and excess sharpness y = S - 2/eta, in the cubic model.

    $$x' = -(1 + \eta y) x, \qquad y' = y + \eta \left( \alpha - \tfrac12 \beta x^2 \right)$$

    Progressive sharpening (alpha) raises the sharpness; an oscillation of size
    $x^2 > 2 \alpha / \beta$ lowers it again. With y = 0 and that size the system has period 2.

    **Source**: Damian, Nichani and Lee (2023), self-stabilisation; our sketch of the cubic model.

    Args:
        alpha: rate of progressive sharpening, > 0.
        beta: squared length of the sharpness's gradient, > 0.
        step_size: eta > 0.
        x: (...) first component along the top eigenvector.
        y: (...) first sharpness minus 2/eta; broadcasts with x.
        steps: how many steps, at least 0.

    Returns:
        x and y, each (steps + 1, ...) float64.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> x, y = self_stabilisation(0.5, 1.0, 0.1, 1.0, 0.0, 2)
        >>> x.tolist(), y.tolist()
        ([1.0, -1.0, 1.0], [0.0, 0.0, 0.0])
    """
    alpha, beta = positive("alpha", alpha), positive("beta", beta)
    step_size = positive("step_size", step_size)
    count("steps", steps, 0)
    x, y = broadcast_float64(x=x, y=y)
    pairs = [(x, y)]
    for _ in range(steps):
        x, y = -(1 + step_size * y) * x, y + step_size * (alpha - beta * x.square() / 2)
        pairs.append((x, y))
    xs, ys = zip(*pairs, strict=True)
    return torch.stack(xs), torch.stack(ys)


def _weights(point: Tensor, name: str = "point") -> tuple[Tensor, Tensor]:
    """The two weights of a point (..., 2), or ValueError."""
    checked = real_float64(name, point)
    if checked.ndim < 1 or checked.shape[-1] != 2:
        raise ValueError(f"{name} must have shape (..., 2), got {tuple(checked.shape)}")
    floating = isinstance(point, Tensor) and point.is_floating_point()
    a, b = (point if floating else checked).unbind(-1)
    return a, b
