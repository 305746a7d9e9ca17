"""How a stretch opens the angle between two vectors, for "From outputs to parameters"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lib.book import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bisector_gram(first: Tensor, second: Tensor, smallest: float, largest: float) -> Tensor:
    r"""Return the matrix that is worst for two vectors: $m I + (M - m) e_- e_-^\top$.

    Args:
        first: (n,), a.
        second: (n,), b, not parallel to a.
        smallest: m.
        largest: M.

    Returns:
        (n, n); its inner product of the unit vectors is $[(1 + c) m - (1 - c) M] / 2$.

    Example:
        >>> a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.6, 0.8])
        >>> float(a @ bisector_gram(a, b, 1.0, 4.0) @ b)  # (1.6 - 0.4 * 4) / 2
        0.0
    """
    minus = first / first.norm() - second / second.norm()
    minus = minus / minus.norm()
    eye = torch.eye(len(first), dtype=first.dtype)
    return smallest * eye + (largest - smallest) * minus.outer(minus)


def wielandt(cosine: Tensor | float, ratio: Tensor | float) -> Tensor | float:
    r"""Return the least cosine two vectors can have after a stretch of ratio $\chi$.

    $$\frac{(1 + c) - \chi (1 - c)}{(1 + c) + \chi (1 - c)}, \qquad
      \tan \tfrac{\varphi'}2 = \sqrt \chi \tan \tfrac\varphi2$$

    Args:
        cosine: c.
        ratio: chi >= 1.

    Returns:
        The cosine of the images.

    Example:
        >>> wielandt(0.6, 4.0)
        0.0
    """
    return ((1 + cosine) - ratio * (1 - cosine)) / ((1 + cosine) + ratio * (1 - cosine))


def draw_stretch(ax: Axes, cosine: float, ratio: float) -> None:
    """Draw two unit vectors, stretched by the square root of the ratio across their bisector.

    Args:
        ax: where to draw.
        cosine: of the vectors before.
        ratio: chi.
    """
    half = torch.arccos(torch.tensor(cosine)) / 2
    scale = ratio**0.5
    angle = torch.linspace(0, 2 * torch.pi, 200)
    size = max(scale, 1.0)
    ax.plot(angle.cos() / size, scale * angle.sin() / size, color=figures.colours["grey"])
    for sign, name, colour in ((1, "$a$", "blue"), (-1, "$b$", "orange")):
        x, y = float(half.cos()) / size, sign * scale * float(half.sin()) / size
        style = {"arrowstyle": "-|>", "color": figures.colours[colour], "linewidth": 2.2}
        ax.annotate("", (x, y), (0, 0), arrowprops=style)
        ax.annotate(name, (x, y), xytext=(6, -4), textcoords="offset points")
    degrees = float(torch.rad2deg(torch.arccos(torch.tensor(wielandt(cosine, ratio)))))
    ax.set(title=rf"$\chi = {ratio:.3g}$: {degrees:.0f}°", aspect="equal")
    ax.set(xlim=(-1.1, 1.3), ylim=(-1.15, 1.15))
    ax.set_axis_off()
