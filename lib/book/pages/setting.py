"""What the page "The setting" calls: literal loss, curves in the plane, labels of few bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.contour import ContourSet
from matplotlib.patches import Wedge
from torch import Tensor

from lib.book.figures import colours
from lib.linear.loss import logits, soft_labels

FORMATS = ("8 bit", "float16", "float32", "float16 logits")
SATURATION = {
    "8 bit": (math.log(509), math.log(509)),
    "float16": (math.log(2**25 - 1), math.log(2**12 - 1)),
    "float32": (math.log(2.0**150), math.log(2**25 - 1)),
}


def literal_loss(weights: Tensor, inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the distillation loss as the paper writes it: cross-entropy minus label entropy.

    .. math::
        -\frac1n \sum_i \big[ y_i \log \sigma(u_i) + (1 - y_i) \log(1 - \sigma(u_i)) \big]
        - \frac1n \sum_i \big[ -y_i \log y_i - (1 - y_i) \log(1 - y_i) \big]

    Nothing is rearranged, so it loses all digits near the teacher and fails where a label or a
    prediction rounds to 0 or 1. `lib.linear.cross_entropy` does neither.

    **Source**: Phuong & Lampert, Eq. 1.

    Args:
        weights: (..., d).
        inputs: (..., n, d), rows are examples.
        teacher: (..., d); all leading dimensions broadcast.

    Returns:
        (...), in nats.

    Example:
        >>> x = torch.ones(1, 1, dtype=torch.float64)
        >>> literal_loss(0 * x[0], x, 0 * x[0])
        tensor(0., dtype=torch.float64)
    """
    y, prediction = soft_labels(inputs, teacher), soft_labels(inputs, weights)
    entropy = -y * y.log() - (1 - y) * (1 - y).log()
    return (-y * prediction.log() - (1 - y) * (1 - prediction).log() - entropy).mean(-1)


def on_plane(
    function: Callable[[Tensor], Tensor], low: float, high: float, points: int = 161
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate a function of weights on a square grid, ready for `Axes.contour`.

    Args:
        function: maps (points, points, 2) to (points, points).
        low: smallest coordinate, on both axes.
        high: largest coordinate.
        points: grid points a side.

    Returns:
        Two coordinate matrices and the values, each (points, points).

    Example:
        >>> first, second, value = on_plane(lambda w: w.sum(-1), 0.0, 1.0, points=2)
        >>> value
        tensor([[0., 1.],
                [1., 2.]], dtype=torch.float64)
    """
    axis = torch.linspace(low, high, points, dtype=torch.float64)
    first, second = torch.meshgrid(axis, axis, indexing="xy")
    return first, second, function(torch.stack([first, second], -1))


def curve_gap(first: Tensor, second: Tensor) -> Tensor:
    """Return the Hausdorff distance of two curves: how far a point of one lies from the other.

    Times play no role. Points are the vertices of a polygonal line, the other line is taken whole.

    Args:
        first: (T, d), vertices in order.
        second: (U, d).

    Returns:
        A scalar, the larger of the two one-sided distances.

    Example:
        >>> straight = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
        >>> curve_gap(straight, torch.tensor([[0.0, 0.0], [1.0, 0.5], [2.0, 0.0]]))
        tensor(0.5000)
    """
    return torch.maximum(_farthest(first, second), _farthest(second, first))


def _farthest(points: Tensor, line: Tensor) -> Tensor:
    """Largest distance of a point from a polygonal line."""
    start, edge = line[:-1], line.diff(dim=0)
    offset = points[:, None] - start
    share = (offset * edge).sum(-1) / edge.square().sum(-1).clamp(min=1e-300)
    nearest = offset - share.clamp(0, 1)[..., None] * edge
    return torch.linalg.vector_norm(nearest, dim=-1).amin(1).max()


def heading(path: Tensor) -> Tensor:
    """Return the angle (radians) between where a path starts and the way it sets off.

    Args:
        path: (T, d), T >= 2, with a first step that is short and not zero.

    Returns:
        A scalar in [0, pi].

    Example:
        >>> torch.rad2deg(heading(torch.tensor([[1.0, 0.0], [1.0, 0.1]])))
        tensor(90.)
    """
    step = path[1] - path[0]
    along = (step * path[0]).sum() / torch.linalg.vector_norm(path[0])
    across = (step.square().sum() - along.square()).clamp(min=0).sqrt()
    return torch.atan2(across, along)


def stored_logits(inputs: Tensor, teacher: Tensor, form: str) -> Tensor:
    """Return the logits a student can read off labels that were stored in few bits.

    Args:
        inputs: (..., n, d) float64.
        teacher: (..., d) float64.
        form: one of `FORMATS`: labels rounded to multiples of 1/255, to half or to single
            precision, or the logits themselves in half precision.

    Returns:
        (..., n); minus or plus infinity where a label was rounded to 0 or 1.

    Raises:
        ValueError: for another format.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> [stored_logits(one, z * one[0], "8 bit").item() for z in (7.0, -7.0)]
        [inf, -inf]
    """
    z = logits(inputs, teacher)
    labels = torch.sigmoid(z)
    if form == "8 bit":
        return torch.logit((255 * labels).round() / 255)
    if form == "float16":
        return torch.logit(labels.half().double())
    if form == "float32":
        return torch.logit(labels.float().double())
    if form == "float16 logits":
        return z.half().double()
    raise ValueError(f"form is {form!r}; allowed: {', '.join(FORMATS)}")


def recovery_error(inputs: Tensor, teacher: Tensor, form: str) -> Tensor:
    """Return how far the student of rounded labels ends from the teacher, relative to its norm.

    With n = d examples the loss on rounded labels is least where the student's logits equal the
    stored ones. A label of exactly 0 or 1 leaves the loss without a minimiser: infinity.

    Args:
        inputs: (..., d, d) float64, of full rank.
        teacher: (..., d) float64, not zero.
        form: one of `FORMATS`.

    Returns:
        (...), >= 0.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> recovery_error(one, 2 * one[0], "float16 logits").item()
        0.0
    """
    read = stored_logits(inputs, teacher, form)
    finite = read.isfinite().all(-1)
    wrong = torch.where(read.isfinite(), read - logits(inputs, teacher), 0.0)
    error = torch.linalg.vector_norm(torch.linalg.solve(inputs, wrong), dim=-1)
    return torch.where(finite, error / torch.linalg.vector_norm(teacher, dim=-1), torch.inf)


def saturation_probability(norm: Tensor, form: str, n: int) -> Tensor:
    r"""Return the probability that at least one of n rounded labels is exactly 0 or 1.

    For Gaussian inputs of unit covariance the teacher's logits are N(0, |w*|^2), and
    $1 - (1 - \Phi(-a / |w_*|) - \Phi(-b / |w_*|))^n$ with the sizes a, b of the logits from which a
    label rounds to 0 and to 1.

    Args:
        norm: (...), |w*|, > 0.
        form: one of `FORMATS`.
        n: number of examples.

    Returns:
        (...), in [0, 1]; 0 for stored logits.

    Example:
        >>> saturation_probability(torch.tensor(1e9), "8 bit", 2)  # every label is 0 or 1
        tensor(1.)
    """
    if form not in SATURATION:
        return torch.zeros_like(norm)
    to_zero, to_one = (torch.special.ndtr(-edge / norm) for edge in SATURATION[form])
    return 1 - (1 - to_zero - to_one).clamp(min=0) ** n


def draw_wedges(ax: Axes, degrees: float) -> None:
    """Draw teacher, student, their boundaries, and the wedges in which they disagree.

    Args:
        ax: where to draw.
        degrees: angle of the student to the teacher, in (0, 90).

    Example:
        >>> import matplotlib.pyplot as plt
        >>> fig, ax = plt.subplots()
        >>> draw_wedges(ax, 50)
        >>> [round(wedge.theta2 - wedge.theta1) for wedge in ax.patches]
        [50, 50]
        >>> plt.close(fig)
    """
    for base in (90, 270):
        ax.add_patch(Wedge((0, 0), 1, base, base + degrees, color=colours["orange"], alpha=0.45))
    for name, turn, style in (("teacher", 0.0, "-"), ("student", math.radians(degrees), "--")):
        colour = colours["blue" if name == "teacher" else "green"]
        c, s = math.cos(turn), math.sin(turn)
        ax.plot([-s, s], [c, -c], style, color=colour)
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2}
        ax.annotate("", (0.72 * c, 0.72 * s), (0, 0), arrowprops=arrow)
        ax.text(0.76 * c, 0.76 * s, name, color=colour, va="center", fontsize=10)
    half = math.radians(degrees / 2)
    for sign in (1, -1):
        place = (-0.66 * sign * math.sin(half), 0.66 * sign * math.cos(half))
        ax.text(*place, "disagree", ha="center", va="center", fontsize=9)
    ax.set(aspect="equal", xlim=(-1.1, 1.35), ylim=(-1.1, 1.1))
    ax.set(xlabel="first coordinate", ylabel="second coordinate")


def draw_loss(ax: Axes, plane: tuple[Tensor, Tensor, Tensor]) -> ContourSet:
    """Fill a panel with a loss over two weights, in steps of a factor of about three.

    Args:
        ax: where to draw.
        plane: coordinates and values, as from `on_plane`.

    Returns:
        The shades, for a colour bar.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> fig, ax = plt.subplots()
        >>> draw_loss(ax, on_plane(lambda w: w.square().sum(-1), -1, 1)).levels[:2].tolist()
        [0.0, 0.001]
        >>> plt.close(fig)
    """
    levels = [0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3]
    shades = ListedColormap(colormaps["Blues"](torch.linspace(0, 0.6, 256).numpy()))
    return ax.contourf(*plane, levels=levels, cmap=shades, norm=BoundaryNorm(levels, 256))


def draw_minimisers(ax: Axes, example: Tensor, teacher: Tensor) -> None:
    """Draw the line of minimisers of one example in the plane, the teacher, the path from zero.

    Args:
        ax: where to draw.
        example: (2,), not zero.
        teacher: (2,).

    Example:
        >>> import matplotlib.pyplot as plt
        >>> fig, ax = plt.subplots()
        >>> draw_minimisers(ax, torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]))
        >>> [float(end) for end in ax.lines[1].get_data()[0]]  # from zero to the projection
        [0.0, 2.0]
        >>> plt.close(fig)
    """
    projection = (example @ teacher) / (example @ example) * example
    along = torch.stack([-example[1], example[0]]) / torch.linalg.vector_norm(example)
    ends = torch.stack([teacher - 5 * along, teacher + 5 * along])
    low, high = ax.get_xlim(), ax.get_ylim()
    ax.plot(*ends.T, "--", color="black")
    ax.plot([0, projection[0]], [0, projection[1]], "-s", color="black", markevery=[1])
    ax.plot(*teacher, "*", markersize=13, color=colours["vermilion"])
    for place, name in ((teacher, "teacher $w_*$"), (projection, r"$\hat w$")):
        shift = 0.2 * example / torch.linalg.vector_norm(example)
        ax.text(*(place + shift), name, va="center")
    ax.set(xlim=low, ylim=high)
