"""What the page "Why one minimiser and not another?" calls: one example in the plane, drawn."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from torch import Tensor

from lib.book.figures import colours
from lib.implicit.max_margin import max_margin
from lib.implicit.spectrum import norm_value, signal, spectrum

# network: colour, marker, line style, the norm that belongs to it
LOOKS = {
    "dense": ("blue", "o", "-", "l2"),
    "diagonal": ("orange", "s", "--", "l1"),
    "convolutional": ("green", "^", "-.", "fourier-l1"),
}


def balanced_starts(example: Tensor, size: float) -> dict[str, list[Tensor]]:
    r"""Return balanced weights of depth 2 whose predictor is a multiple of an example.

    $$P(w) = \varepsilon\, a$$

    for the dense, the diagonal and the convolutional network.

    Args:
        example: (2,) float64, a signed example with $a_1 > a_2 > 0$, so that its entries and its
            Fourier coefficients are positive.
        size: $\varepsilon > 0$.

    Returns:
        Layers by the network's name.

    Raises:
        ValueError: if the example is not of that kind.

    Example:
        >>> first, second = balanced_starts(torch.tensor([4.0, 1.0]), 1.0)["diagonal"]
        >>> first * second
        tensor([4., 1.])
    """
    if example.shape != (2,) or not bool(example[0] > example[1] > 0):
        raise ValueError(f"example must be two numbers a1 > a2 > 0, got {example.tolist()}")
    length = (size * example).norm().sqrt()
    out = torch.stack([length, 0 * length])
    root = (size * example).sqrt()
    kernel = signal((size * spectrum(example)).sqrt(), 2)
    return {
        "dense": [torch.outer(example / example.norm(), out), out],
        "diagonal": [root, root],
        "convolutional": [kernel, kernel],
    }


def predicted_paths(example: Tensor, size: float, clock: Tensor) -> dict[str, Tensor]:
    r"""Return the flows from `balanced_starts` in closed form.

    $$\varepsilon\, a\, e^{2 \|a\| \tau}, \qquad \varepsilon\, a_k\, e^{2 a_k \tau}, \qquad
      \varepsilon\, \hat a_d\, e^{2 \hat a_d \tau}$$

    Args:
        example: (2,), as for `balanced_starts`.
        size: $\varepsilon$.
        clock: (T,) times $\tau = \int \mathcal L\, dt$.

    Returns:
        (T, 2) predictors by the network's name.

    Example:
        >>> predicted_paths(torch.tensor([2.0, 1.0]), 1.0, torch.zeros(1))["diagonal"]
        tensor([[2., 1.]])
    """
    clock = clock[:, None]
    start, transformed = size * example, spectrum(example)
    return {
        "dense": start * (2 * example.norm() * clock).exp(),
        "diagonal": start * (2 * example * clock).exp(),
        "convolutional": signal(spectrum(start) * (2 * transformed.real * clock).exp(), 2),
    }


def draw_paths(
    ax: Axes, example: Tensor, predicted: dict[str, Tensor], trained: dict[str, Tensor]
) -> None:
    """Draw lines of equal loss of one example, predicted paths as lines, trained ones as markers.

    Args:
        ax: where to draw.
        example: (2,), both entries positive.
        predicted: (T, 2) by the network's name.
        trained: (R, 2) by the network's name.
    """
    slope = float(-example[0] / example[1])
    for level in range(-2, 14, 2):
        ax.axline((level / 2, 0), slope=slope, color="#cccccc", lw=0.8)
    for name, (colour, marker, style, _) in LOOKS.items():
        ax.plot(*predicted[name].T, style, color=colours[colour], label=name)
        ax.plot(*trained[name].T, marker, color=colours[colour], ms=4)
    ax.set(xlim=(-0.2, 3.6), ylim=(-0.2, 3), aspect="equal")
    ax.set(xlabel=r"$\beta_1$", ylabel=r"$\beta_2$", title="paths")
    ax.legend()


def draw_balls(ax: Axes, example: Tensor) -> None:
    """Draw the balls of the three norms that touch the line of margin 1 of one example.

    Args:
        ax: where to draw.
        example: (2,), not along an axis or a diagonal of the plane.
    """
    turn = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    circle = torch.stack([turn.cos(), turn.sin()], -1)
    slope = float(-example[0] / example[1])
    ax.axline((float(1 / example[0]), 0), slope=slope, color="#262626", lw=1.2)
    for colour, marker, style, norm in LOOKS.values():
        touch = max_margin(example[None], torch.ones(1), norm)
        ball = circle * (norm_value(touch, norm) / norm_value(circle, norm))[:, None]
        ax.plot(*ball.T, style, color=colours[colour])
        ax.plot(*touch, marker, color=colours[colour], ms=8)
    ax.set(xlim=(-0.6, 0.75), ylim=(-0.55, 0.65), aspect="equal")
    ax.set(xlabel=r"$\beta_1$", ylabel=r"$\beta_2$", title="balls")
