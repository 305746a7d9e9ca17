"""Gradient descent, with and without momentum, on quadratics: thresholds, growth, iterates.

Conventions of `torch.optim.SGD` with gradient g, velocity v and momentum b:

| optimiser | step |
|---|---|
| `gd` | theta - eta g |
| `polyak` | v <- b v + g, theta - eta v |
| `nesterov` | v <- b v + g, theta - eta (g + b v) |
"""

from __future__ import annotations

import torch
from torch import Tensor

from lib.stability.checks import broadcast_float64, count, momentum_method, real_float64


def stability_threshold(
    step_size: float | Tensor, optimiser: str = "gd", momentum: float = 0.0
) -> float | Tensor:
    r"""Return the curvature above which a method diverges on a convex quadratic.

    $$\frac{2}{\eta}, \qquad \frac{2 + 2\beta}{\eta}, \qquad \frac{2 + 2\beta}{\eta (1 + 2\beta)}$$

    for gradient descent, Polyak's and Nesterov's momentum. Above it the iterate along that
    eigenvector grows and changes its sign at every step.

    **Source**: Cohen et al. (2021); derived from `growth_factor`, which reaches 1 there.

    Args:
        step_size: eta > 0, a number or a tensor (...).
        optimiser: "gd", "polyak" or "nesterov".
        momentum: beta in [0, 1); 0 for "gd".

    Returns:
        A number for a number, else a tensor (...) in float64.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> stability_threshold(0.5), stability_threshold(0.5, "polyak", 0.5)
        (4.0, 6.0)
        >>> stability_threshold(0.5, "nesterov", 0.5)
        3.0
    """
    optimiser, momentum = momentum_method(optimiser, momentum)
    steps = _step_sizes(step_size)
    scale = 1 + 2 * momentum if optimiser == "nesterov" else 1.0
    threshold = (2 + 2 * momentum) / (steps * scale)
    return threshold if isinstance(step_size, Tensor) else float(threshold)


def growth_factor(
    curvature: float | Tensor,
    step_size: float | Tensor,
    optimiser: str = "gd",
    momentum: float = 0.0,
) -> Tensor:
    r"""Return by what an iterate grows per step along an eigenvector, in the long run.

    The largest modulus of a root z of $z^2 - t z + d$, with

    $$t = 1 - \eta a, \; d = 0; \qquad t = 1 + \beta - \eta a, \; d = \beta; \qquad
      t = (1 + \beta)(1 - \eta a), \; d = \beta (1 - \eta a)$$

    for gradient descent, Polyak's and Nesterov's momentum. Below 1 the iterate shrinks.

    Args:
        curvature: a, any real number or tensor (...).
        step_size: eta > 0, a number or tensor that broadcasts with it.
        optimiser: "gd", "polyak" or "nesterov".
        momentum: beta in [0, 1); 0 for "gd".

    Returns:
        (...) float64, at least 0.

    Raises:
        ValueError: if an argument is out of its range, or the shapes do not broadcast.

    Example:
        >>> growth_factor(torch.tensor([0.0, 2.0, 4.0, 5.0]), 0.5)
        tensor([1.0000, 0.0000, 1.0000, 1.5000], dtype=torch.float64)
    """
    optimiser, momentum = momentum_method(optimiser, momentum)
    curvature, steps = broadcast_float64(curvature=curvature, step_size=_step_sizes(step_size))
    contraction = 1 - steps * curvature
    if optimiser == "nesterov":
        trace, product = (1 + momentum) * contraction, momentum * contraction
    else:
        trace, product = momentum + contraction, torch.full_like(contraction, momentum)
    discriminant = trace.square() - 4 * product
    real = (trace.abs() + discriminant.clamp(min=0).sqrt()) / 2
    return torch.where(discriminant >= 0, real, product.clamp(min=0).sqrt())


def quadratic_descent(
    curvatures: Tensor,
    start: Tensor,
    step_size: float | Tensor,
    steps: int,
    optimiser: str = "gd",
    momentum: float = 0.0,
) -> Tensor:
    r"""Return the iterates on a quadratic, in the coordinates of its eigenvectors.

    $$f(u) = \tfrac12 \sum_i a_i u_i^2$$

    Args:
        curvatures: (...) the eigenvalues a, of any sign.
        start: (...) the first iterate, which broadcasts with them; the velocity starts at 0.
        step_size: eta > 0, a number or tensor that broadcasts with them.
        steps: how many steps, at least 0.
        optimiser: "gd", "polyak" or "nesterov".
        momentum: beta in [0, 1); 0 for "gd".

    Returns:
        (steps + 1, ...) float64, the start first.

    Raises:
        ValueError: if an argument is out of its range, or the shapes do not broadcast.

    Example:
        >>> quadratic_descent(torch.tensor([1.0, 4.0, 5.0]), torch.ones(3), 0.5, 2)
        tensor([[ 1.0000,  1.0000,  1.0000],
                [ 0.5000, -1.0000, -1.5000],
                [ 0.2500,  1.0000,  2.2500]], dtype=torch.float64)
    """
    optimiser, momentum = momentum_method(optimiser, momentum)
    count("steps", steps, 0)
    curvatures, place, size = broadcast_float64(
        curvatures=curvatures, start=start, step_size=_step_sizes(step_size)
    )
    velocity = torch.zeros_like(place)
    places = [place]
    for _ in range(steps):
        gradient = curvatures * place
        velocity = momentum * velocity + gradient
        move = gradient + momentum * velocity if optimiser == "nesterov" else velocity
        place = place - size * move
        places.append(place)
    return torch.stack(places)


def _step_sizes(step_size: float | Tensor) -> Tensor:
    """Step sizes in float64, or ValueError."""
    steps = real_float64("step_size", step_size)
    if not bool((steps > 0).all()):
        raise ValueError(f"step_size must be > 0, got {float(steps.min()):g}")
    return steps
