"""What the chapter "A quadratic first" computes: growth and thresholds, measured on runs."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.stability import growth_factor, product_loss


def rotated_descent(
    curvatures: Tensor, step_size: float, steps: int, generator: torch.Generator
) -> Tensor:
    r"""Run gradient descent on a quadratic in a random basis, seen from its eigenvectors.

    $$f(\theta) = \tfrac12 \theta^\intercal Q \operatorname{diag}(a)\, Q^\intercal \theta$$

    by automatic differentiation and `torch.optim.SGD`, with no use of the answer.

    Args:
        curvatures: (D,) the eigenvalues a, float64.
        step_size: eta > 0.
        steps: how many.
        generator: draws the rotation Q.

    Returns:
        (steps + 1, D) float64, the components $Q^\intercal \theta_t$, all 1 at the start.

    Example:
        >>> a = torch.tensor([1.0, 5.0], dtype=torch.float64)
        >>> rotated_descent(a, 0.5, 2, torch.Generator().manual_seed(0)).round(decimals=6)
        tensor([[ 1.0000,  1.0000],
                [ 0.5000, -1.5000],
                [ 0.2500,  2.2500]], dtype=torch.float64)
    """
    square = torch.randn(len(curvatures), len(curvatures), generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(square).Q
    hessian = basis @ torch.diag(curvatures) @ basis.T
    theta = basis.sum(1).requires_grad_()
    optimiser, seen = torch.optim.SGD([theta], lr=step_size), [theta.detach() @ basis]
    for _ in range(steps):
        optimiser.zero_grad()
        (theta @ hessian @ theta / 2).backward()
        optimiser.step()
        seen.append(theta.detach() @ basis)
    return torch.stack(seen)


def threshold_on_runs(
    step_size: float, momentum: float = 0.0, nesterov: bool = False, steps: int = 300
) -> float:
    """Return the curvature at which `torch.optim.SGD` starts to diverge on a quadratic.

    Found by runs alone. 64 curvatures run side by side; one grows where its iterate is larger after
    all steps than after half of them. The bracket shrinks to the last that shrinks and the first
    that grows, six times.

    Args:
        step_size: eta > 0.
        momentum: in [0, 1).
        nesterov: which momentum.
        steps: of each run; an even number of at least 100.

    Returns:
        The middle of the last bracket.

    Raises:
        ValueError: if no curvature between 0.1 and 4.5 over the step size is where growth starts.

    Example:
        >>> round(threshold_on_runs(0.5), 6)
        4.0
    """
    low, high = 0.1 / step_size, 4.5 / step_size
    for _ in range(6):
        curvatures = torch.linspace(low, high, 64, dtype=torch.float64)
        grows = _grows(curvatures, step_size, momentum, nesterov, steps)
        first = int(grows.to(torch.int64).argmax())
        if first == 0:
            raise ValueError(
                f"momentum={momentum!r}: the iterates shrink, or grow, for every curvature from "
                f"{low:g} to {high:g}; no threshold lies there"
            )
        low, high = float(curvatures[first - 1]), float(curvatures[first])
    return (low + high) / 2


def _grows(
    curvatures: Tensor, step_size: float, momentum: float, nesterov: bool, steps: int
) -> Tensor:
    """Whether each iterate is larger after all steps than after half of them."""
    place = torch.ones_like(curvatures, requires_grad=True)
    optimiser = torch.optim.SGD([place], lr=step_size, momentum=momentum, nesterov=nesterov)
    for step in range(steps):
        if step == steps // 2:
            half = place.detach().abs()
        optimiser.zero_grad()
        ((curvatures * place.square()).sum() / 2).backward()
        optimiser.step()
    last = place.detach().abs()
    return ~torch.isfinite(last) | (last > half)


def draw_iterates(ax, step_size: float, scaled: tuple[float, ...], steps: int, looks) -> None:
    """Draw iterates along eigenvectors, one curve for each curvature.

    Args:
        ax: where to draw.
        step_size: eta.
        scaled: the curvatures times eta.
        steps: how many.
        looks: (colour, marker) of each.
    """
    for value, (colour, marker) in zip(scaled, looks, strict=True):
        factor = float(growth_factor(value / step_size, step_size))
        sign = 1 if value < 1 else -1
        places = (sign * factor) ** torch.arange(steps + 1.0)
        ax.plot(places, marker + "-", ms=4, color=colour, lw=1.3, label=rf"$\eta a = {value:g}$")


def draw_product_plane(ax, edge: float, levels: tuple[float, ...] = (0.02, 0.2, 1.0, 3.0)) -> None:
    """Draw level lines of (ab - 1)^2 / 2 and its minima, those sharper than the edge dotted.

    Args:
        ax: where to draw; limits are set.
        edge: a sharpness >= 2.
        levels: values of the loss.
    """
    a = torch.linspace(1.8, 3.6, 300, dtype=torch.float64)
    b = torch.linspace(-0.15, 1.15, 200, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(a, b, indexing="xy"), -1)
    ax.contour(a, b, product_loss(grid), levels, colors="#b0b0b0", linewidths=0.8)
    flat = a.square() + 1 / a.square() < edge
    ax.plot(a[flat], 1 / a[flat], color="black", lw=2, label=f"minima, $S < {edge:g}$")
    ax.plot(a[~flat], 1 / a[~flat], ":", color="black", lw=2, label=f"minima, $S > {edge:g}$")
    ax.set(xlim=(1.8, 3.6), ylim=(-0.15, 1.15), xlabel="$a$", ylabel="$b$")
