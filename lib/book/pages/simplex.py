"""The triangle of all predictions over three classes, and what the chapters of Part III draw in it.

Probabilities are (..., 3) with the label first: its corner is at the top, class 2 at the bottom
left, class 3 at the bottom right. Height above the base is the label's probability. The line on
which two probabilities keep their ratio passes through the third corner; the line on which one
probability is constant is parallel to the opposite side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.patches import Polygon
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.tri import TriContourSet

HEIGHT = 3**0.5 / 2
_CORNERS = ((0.5, HEIGHT), (0.0, 0.0), (1.0, 0.0))
_INK, _GREY = "#262626", "#d4d4d4"


def to_plane(probabilities: Tensor) -> Tensor:
    r"""Return the place of predictions in a triangle of side one.

    $$ p \mapsto p_1 \big(\tfrac12, \tfrac{\sqrt 3}2\big) + p_3 (1, 0) $$

    Args:
        probabilities: (..., 3), non-negative, sums to one.

    Returns:
        (..., 2) float64.

    Raises:
        ValueError: if there are not three classes, or a row is no distribution.

    Example:
        >>> to_plane(torch.tensor([0.0, 0.25, 0.75]))
        tensor([0.7500, 0.0000], dtype=torch.float64)
    """
    probabilities = torch.as_tensor(probabilities, dtype=torch.float64)
    if probabilities.ndim < 1 or probabilities.shape[-1] != 3:
        raise ValueError(
            f"probabilities must have shape (..., 3), got {tuple(probabilities.shape)}"
        )
    off = (probabilities.sum(-1) - 1).abs() > 1e-6
    if bool(off.any()) or not bool((probabilities >= -1e-9).all()):
        raise ValueError(
            "probabilities must be non-negative and sum to one, got a row that is not: "
            f"{probabilities.flatten()[:6].tolist()}"
        )
    return probabilities @ torch.tensor(_CORNERS, dtype=torch.float64)


def safe_polygon(probabilities: Tensor) -> Tensor:
    """Return the corners of the task-preserving predictions of Eq. 2, for three classes.

    Each kept margin is a half-plane whose line runs from the opposite corner through p.

    Args:
        probabilities: (..., 3) positive, the reference p, label first.

    Returns:
        (..., 4, 3): the label's corner, the point towards class 2, p, the point towards class 3.

    Example:
        >>> safe_polygon(torch.tensor([0.50, 0.25, 0.25]))[1]
        tensor([0.6667, 0.3333, 0.0000], dtype=torch.float64)
    """
    p = torch.as_tensor(probabilities, dtype=torch.float64)
    rows = [torch.zeros_like(p), p.clone(), p, p.clone()]
    rows[0][..., 0] = 1.0
    rows[1][..., 2] = 0.0
    rows[3][..., 1] = 0.0
    corners = torch.stack(rows, -2)
    return corners / corners.sum(-1, keepdim=True)


def blocked_polygon(teacher: Tensor) -> Tensor:
    """Return the corners of the students that a teacher's full imitation blocks, three classes.

    Args:
        teacher: (..., 3) positive probabilities t, label first.

    Returns:
        (..., 4, 3): the label's corner, the point with all of t_2, t, the point with all of t_3.

    Example:
        >>> blocked_polygon(torch.tensor([0.5, 0.2, 0.3]))[1]
        tensor([0.8000, 0.2000, 0.0000], dtype=torch.float64)
    """
    t = torch.as_tensor(teacher, dtype=torch.float64)
    rows = [torch.zeros_like(t), t.clone(), t, t.clone()]
    rows[1][..., 2] = 0.0
    rows[3][..., 1] = 0.0
    for row in (rows[0], rows[1], rows[3]):
        row[..., 0] = 1.0 - row[..., 1] - row[..., 2]
    return torch.stack(rows, -2)


def lattice(steps: int) -> tuple[Tensor, Tensor]:
    """Return an even lattice of positive predictions, and its triangles.

    Args:
        steps: lattice points along a side, 2 or more; the outermost lie just inside the triangle.

    Returns:
        Probabilities (N, 3) float64 with N = steps (steps + 1) / 2, and corner indices (T, 3)
        int64 with T = (steps - 1)^2.

    Raises:
        ValueError: if steps is below 2.

    Example:
        >>> points, triangles = lattice(2)
        >>> points.round(decimals=3).tolist()[0], triangles.tolist()
        ([1.0, 0.0, 0.0], [[0, 1, 2]])
    """
    if not isinstance(steps, int) or steps < 2:
        raise ValueError(f"steps must be a whole number, 2 or more, got {steps!r}")
    rows, columns = np.tril_indices(steps)
    counts = np.stack([steps - 1 - rows, rows - columns, columns], -1)
    inside = (counts + 1e-6) / (steps - 1 + 3e-6)
    start = rows * (rows + 1) // 2 + columns
    up = rows < steps - 1
    down = (rows < steps - 1) & (columns < rows)
    below = start + rows + 1
    first = np.stack([start, below, below + 1], -1)[up]
    second = np.stack([start, below + 1, start + 1], -1)[down]
    return torch.as_tensor(inside), torch.as_tensor(np.concatenate([first, second]))


def draw(
    ax: Axes, names: Sequence[str] = ("class 1", "class 2", "class 3"), least: float = 0.0
) -> None:
    """Draw the triangle, or its upper part, with the names of its corners and a grid.

    Args:
        ax: where to draw.
        names: of the label, class 2 and class 3.
        least: the smallest probability of the label that is shown, in [0, 1); above zero the
            picture is the tip of the triangle, and its base is a dotted cut.

    Raises:
        ValueError: if least is outside [0, 1).
    """
    if not 0 <= least < 1:
        raise ValueError(f"least must lie in [0, 1), got {least!r}")
    room = 1.0 - least
    ax.set(aspect="equal", xticks=[], yticks=[])
    ax.axis("off")
    top = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    ends = [torch.tensor(row, dtype=torch.float64) for row in ([least, room, 0], [least, 0, room])]
    for share in (0.25, 0.5, 0.75):
        sides = [top + share * (end - top) for end in ends]
        base = [end + share * (other - end) for end, other in (ends, ends[::-1])]
        for pair in (sides, (base[1], sides[0]), (base[0], sides[1])):
            segment(ax, *pair, color=_GREY, linewidth=0.8, zorder=0)
    segment(ax, ends[0], top, color=_INK, linewidth=1.2)
    segment(ax, ends[1], top, color=_INK, linewidth=1.2)
    segment(ax, *ends, color=_INK, linewidth=1.2, linestyle=":" if least else "-")
    (left, bottom), (right, _) = (to_plane(end).tolist() for end in ends)
    ax.set(xlim=(left - 0.06 * room, right + 0.06 * room))
    ax.set(ylim=(bottom - 0.01 * room, HEIGHT + 0.1 * room))
    ax.text(0.5, HEIGHT + 0.02 * room, names[0], ha="center", va="bottom")
    arrow = "" if not least else " ↓"
    ax.text(left, bottom - 0.03 * room, names[1] + arrow, ha="left", va="top")
    ax.text(right, bottom - 0.03 * room, names[2] + arrow, ha="right", va="top")


def region(
    ax: Axes, corners: Tensor, colour: str, label: str | None = None, **options: Any
) -> None:
    """Shade a polygon.

    Args:
        ax: where to draw.
        corners: (M, 3) probabilities, M >= 3, in order.
        colour: of the area and its edge.
        label: the legend's text.
        **options: handed to ``matplotlib.patches.Polygon``, for example ``hatch``.
    """
    settings = {"alpha": 0.3, "facecolor": colour, "edgecolor": colour, "linewidth": 1.5} | options
    ax.add_patch(Polygon(to_plane(corners).numpy(), closed=True, label=label, **settings))


def point(
    ax: Axes,
    probabilities: Tensor,
    text: str = "",
    shift: tuple[float, float] = (6, 6),
    marker: str = "o",
    **options: Any,
) -> None:
    """Mark a prediction, and write a name beside it.

    Args:
        ax: where to draw.
        probabilities: (3,).
        text: the name; empty for none.
        shift: of the text, in points.
        marker: as in matplotlib.
        **options: handed to ``ax.plot``.
    """
    place = to_plane(probabilities).tolist()
    ax.plot(*place, marker, **({"color": _INK, "zorder": 5} | options))
    if text:
        ax.annotate(
            text, place, shift, textcoords="offset points", ha="left" if shift[0] >= 0 else "right"
        )


def path(ax: Axes, probabilities: Tensor, **options: Any) -> None:
    """Draw a line through predictions.

    Args:
        ax: where to draw.
        probabilities: (M, 3).
        **options: handed to ``ax.plot``.
    """
    across, up = to_plane(probabilities).unbind(-1)
    ax.plot(across, up, **options)


def segment(ax: Axes, start: Tensor, end: Tensor, **options: Any) -> None:
    """Draw the straight line between two predictions.

    Args:
        ax: where to draw.
        start: (3,).
        end: (3,).
        **options: handed to ``ax.plot``.
    """
    path(ax, torch.stack([torch.as_tensor(start), torch.as_tensor(end)]), **options)


def contours(
    ax: Axes,
    function: Callable[[Tensor], Tensor],
    levels: Sequence[float],
    steps: int = 160,
    filled: bool = False,
    least: float = 0.0,
    **options: Any,
) -> TriContourSet:
    """Draw level lines of a function of the prediction, or fill between them.

    Args:
        ax: where to draw.
        function: takes probabilities (N, 3) float64, positive, and returns (N,) real or bool.
        levels: increasing.
        steps: lattice points along a side.
        filled: fill between the levels instead.
        least: where the label's probability begins, as in `draw`.
        **options: handed to ``ax.tricontour`` or ``ax.tricontourf``.

    Returns:
        The contour set, for ``ax.clabel`` or a colour bar.

    Raises:
        ValueError: if function returns another shape.
    """
    points, triangles = lattice(steps)
    points = (1 - least) * points + least * torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    values = function(points)
    if values.shape != points.shape[:1]:
        raise ValueError(
            f"function must return shape {tuple(points.shape[:1])}, got {tuple(values.shape)}"
        )
    across, up = to_plane(points).unbind(-1)
    method = ax.tricontourf if filled else ax.tricontour
    return method(across, up, triangles, values.to(torch.float64), levels=list(levels), **options)
