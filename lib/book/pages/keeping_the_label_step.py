"""What the chapter "Keeping the label step" computes and draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.patches import FancyBboxPatch, Polygon
from torch import Tensor
from torch.nn.functional import kl_div

from lib.book import figures
from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import directions, project_onto_safe_cone

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXES = torch.tensor([[0.0, -1.0, 1.0], [2.0, -1.0, -1.0]], dtype=torch.float64)
_AXES = _AXES / _AXES.norm(dim=-1, keepdim=True)
_INK = "#262626"


def to_plane(steps: Tensor) -> Tensor:
    r"""Return changes of three logits as points of the plane of logits modulo shift.

    Up is the label, right class 3, left class 2. Lengths and angles are those of the changes whose
    entries sum to zero.

    Args:
        steps: (..., 3), label first.

    Returns:
        (..., 2) float64.

    Example:
        >>> to_plane(torch.tensor([1.0, 1.0, 1.0])).abs().max() < 1e-12
        tensor(True)
    """
    return torch.as_tensor(steps, dtype=torch.float64) @ _AXES.T


def conditional_directions(classes: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw directions of L_y for the label 0: u = r - q of random states, then Gaussian ones.

    Args:
        classes: K.
        count: N; half of each sort.
        generator: source of randomness.

    Returns:
        (N, K) float64, 0 at the label, each row of zero sum and norm one.
    """
    half = count // 2
    student, teacher, labels = random_states(classes, half, generator)
    u = directions(student, teacher, labels).conditional
    others = torch.arange(classes) != labels.unsqueeze(-1)
    drawn = torch.randn(count - half, classes - 1, generator=generator, dtype=torch.float64)
    rows = torch.cat([u[others].reshape(half, classes - 1), drawn])
    rows = rows - rows.mean(-1, keepdim=True)
    return torch.nn.functional.pad(rows / rows.norm(dim=-1, keepdim=True), (1, 0))


def any_vectors(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw vectors to project: gradients of full KL, Gaussian, heavy-tailed, and full of ties.

    Args:
        classes: K.
        count: N; a quarter of each sort.
        generator: source of randomness.

    Returns:
        Vectors (N, K) float64 of norm one, and labels (N,).
    """
    student, teacher, labels = random_states(classes, count, generator)
    drawn = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    sorts = [student.softmax(-1) - teacher.softmax(-1), drawn, drawn**3, (2 * drawn).round()]
    kind = torch.arange(count) % 4
    vectors = torch.stack(sorts)[kind, torch.arange(count)]
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-300), labels


def consistent_prefix(vector: Tensor, labels: Tensor) -> Tensor:
    """Project by trying every prefix: pool it with the label, and see whether the order fits.

    A pool of the label and the k smallest other entries fits if its mean is at least each of them
    and at most each of the rest.

    Args:
        vector: (..., K).
        labels: (...).

    Returns:
        (..., K).

    Example:
        >>> consistent_prefix(torch.tensor([0.0, -3.0, 1.0, 2.0]), torch.tensor(0))
        tensor([-1.5000, -1.5000,  1.0000,  2.0000])
    """
    at = labels.unsqueeze(-1)
    target = vector.gather(-1, at)
    inf = torch.full_like(target, torch.inf)
    rest = vector.scatter(-1, at, torch.inf).sort(-1).values[..., :-1]
    pools = torch.cat([target, rest], -1)
    means = pools.cumsum(-1) / torch.arange(1, pools.shape[-1] + 1, dtype=vector.dtype)
    below, above = torch.cat([-inf, rest], -1), torch.cat([rest, inf], -1)
    misfit = torch.maximum(below - means, means - above)
    level = means.gather(-1, misfit.argmin(-1, keepdim=True))
    return torch.maximum(vector, level).scatter(-1, at, level)


def nearest_by_solver(point: np.ndarray, base: np.ndarray, label: int) -> np.ndarray:
    """Return the point w nearest to a given one with w - base in the safe cone, by clarabel.

    Args:
        point: (K,).
        base: (K,).
        label: the label.

    Returns:
        (K,).

    Raises:
        RuntimeError: if the solver does not finish.
    """
    import clarabel
    from scipy import sparse

    count = len(point)
    rows = np.zeros((count, count))
    rows[:, label] = 1.0
    rows = np.delete(rows - np.eye(count), label, axis=0)  # w_y - w_j <= base_y - base_j
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    identity, matrix = sparse.identity(count, format="csc"), sparse.csc_matrix(rows)
    cones = [clarabel.NonnegativeConeT(count - 1)]
    solver = clarabel.DefaultSolver(identity, -point, matrix, rows @ base, cones, settings)
    solution = solver.solve()
    if "Solved" not in str(solution.status):
        raise RuntimeError(f"Clarabel ended with {solution.status}")
    return np.array(solution.x)


def keep_the_loss(signal: Tensor, label: Tensor) -> Tensor:
    """Project onto the half-space of directions along which cross-entropy does not rise.

    Args:
        signal: (..., K), u.
        label: (..., K), h.

    Returns:
        (..., K).

    Example:
        >>> keep_the_loss(torch.tensor([1.0, 2.0]), torch.tensor([-2.0, 0.0]))
        tensor([0., 2.])
    """
    overlap = (signal * label).sum(-1, keepdim=True).clamp(max=0.0)
    return signal - overlap / label.square().sum(-1, keepdim=True) * label


def relative_times(
    shapes: Sequence[tuple[int, int]], generator: torch.Generator, repeats: int = 7
) -> list[dict[str, float]]:
    """Measure processor time in units of one softmax over the same array.

    Args:
        shapes: pairs of examples N and classes K.
        generator: source of randomness.
        repeats: the least of so many measurements counts.

    Returns:
        A row for each shape: the projection, a plain distillation loss with its backward pass, and
        a quadratic-programming solver, which gets one example and is scaled up.
    """
    rows = []
    for examples, classes in shapes:
        student, teacher = 3 * torch.randn(2, examples, classes, generator=generator)
        labels = torch.randint(classes, (examples,), generator=generator)
        u = directions(student, teacher, labels).conditional
        one, zeros = u[0].double().numpy(), np.zeros(classes)
        calls: dict[str, Callable[[], Any]] = {
            "projection": lambda u=u, y=labels: project_onto_safe_cone(u, y),
            "plain KD step": lambda s=student, t=teacher: _plain_step(s, t),
            "QP solver": lambda x=one, b=zeros, y=int(labels[0]): nearest_by_solver(x, b, y),
        }
        unit = _least_time(lambda u=u: u.softmax(-1), repeats)
        row: dict[str, float] = {"N": examples, "K": classes, "softmax": 1.0}
        for name, call in calls.items():
            factor = examples if name == "QP solver" else 1
            row[name] = factor * _least_time(call, 2 if factor > 1 else repeats) / unit
        rows.append(row)
    return rows


def _plain_step(student: Tensor, teacher: Tensor) -> None:
    leaf = student.detach().requires_grad_()
    soft, target = (z.div(4.0).log_softmax(-1) for z in (leaf, teacher))
    (16.0 * kl_div(soft, target, log_target=True, reduction="batchmean")).backward()


def _least_time(call: Callable[[], Any], repeats: int) -> float:
    """Processor seconds of the fastest of some calls, after one to warm up."""
    call()
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def draw_cone(ax: Axes, base: Tensor, reach: float, label: str | None = None) -> None:
    """Shade the safe steps from a point of the plane: the label's logit rises by the most.

    Args:
        ax: where to draw.
        base: (3,), the point as a change of the logits.
        reach: length of the sides of the wedge.
        label: the legend's text.
    """
    rays = torch.tensor([[1.0, 1, -2], [1, 0, -1], [2, -1, -1], [1, -1, 0], [1, -2, 1]])
    rays = to_plane(rays)
    rays = rays / rays.norm(dim=-1, keepdim=True) * reach
    corners = torch.cat([torch.zeros(1, 2), rays]) + to_plane(base)
    green = figures.colours["green"]
    shape = Polygon(corners.numpy(), facecolor=green, alpha=0.22, edgecolor="none", label=label)
    ax.add_patch(shape)
    for end in (1, -1):
        ax.plot(*corners[[0, end]].T, color=green, linewidth=1.3)


def arrow(
    ax: Axes,
    start: Tensor,
    end: Tensor,
    text: str,
    colour: str,
    shift: tuple[float, float] = (4, 4),
    **options: Any,
) -> None:
    """Draw an arrow between two changes of three logits, and its name at the tip.

    Args:
        ax: where to draw.
        start: (3,).
        end: (3,).
        text: the name.
        colour: of arrow and name.
        shift: of the name, in points.
        **options: of the arrow.
    """
    tail, tip = to_plane(start).tolist(), to_plane(end).tolist()
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.0, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", tip, tail, arrowprops=style | options)
    side = "left" if shift[0] >= 0 else "right"
    ax.annotate(text, tip, shift, textcoords="offset points", color=colour, ha=side)


def set_plane(ax: Axes, title: str, width: float, low: float, high: float) -> None:
    """Prepare a panel for changes of three logits.

    Args:
        ax: where to draw.
        title: of the panel.
        width: half the width that is shown.
        low: lower end of the picture.
        high: upper end.
    """
    ax.set(aspect="equal", xlim=(-width, width), ylim=(low, high), xticks=[], yticks=[])
    ax.grid(visible=False)
    ax.set_title(title, loc="center", fontsize=11)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.plot(0, 0, "o", color=_INK, zorder=5)


def draw_flow(ax: Axes) -> None:
    """Draw how the two signals of one example reach the parameters.

    Args:
        ax: where to draw.
    """
    ax.set(xlim=(0, 100), ylim=(0, 60), xticks=[], yticks=[])
    ax.axis("off")
    blue, orange, green = (figures.colours[name] for name in ("blue", "orange", "green"))
    boxes = [
        (1, 24, 17, 12, "student\nlogits $z$", _INK),
        (1, 2, 17, 12, "frozen\nteacher $q$", _INK),
        (27, 42, 21, 13, "label\n$h = p - e_y$", blue),
        (27, 8, 21, 13, "conditional\n$u = (0, r - q)$", orange),
        (56, 8, 18, 13, "corrected\n$d = \\Pi_{\\mathcal{K}_y}(u)$", green),
        (56, 42, 18, 13, "update\n$v = h + d/2$", _INK),
        (82, 42, 17, 13, "loss\n$\\langle v, z \\rangle$", _INK),
    ]
    for left, bottom, width, height, text, colour in boxes:
        shape = FancyBboxPatch(
            (left, bottom), width, height, "round,pad=0.2,rounding_size=1.5", ec=colour, fc="white"
        )
        shape.set_linewidth(1.8)
        ax.add_patch(shape)
        ax.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=10)
    lines = [
        ((18.5, 33), (26.3, 45), _INK, "-"),
        ((18.5, 27), (26.3, 18), _INK, "-"),
        ((18.5, 8), (26.3, 11.5), _INK, "-"),
        ((48.7, 48.5), (55.3, 48.5), blue, "-"),
        ((48.7, 14.5), (55.3, 14.5), orange, "-"),
        ((65, 21.7), (65, 41.3), green, "-"),
        ((74.7, 48.5), (81.3, 48.5), _INK, "--"),
        ((90.5, 41.3), (90.5, 21.5), _INK, "-"),
    ]
    for tail, tip, colour, style in lines:
        look = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "linestyle": style}
        ax.annotate("", tip, tail, arrowprops=look | {"shrinkA": 0, "shrinkB": 0})
    ax.text(90.5, 14.5, "gradient in $\\theta$\n$J^\\top v$", ha="center", va="center", fontsize=10)
    ax.text(78, 56.8, "held fixed", ha="center", va="bottom", fontsize=9)
    ax.text(66.5, 31, "half of it,\nno margin lower", ha="left", va="center", fontsize=9)
    ax.text(52, 56.8, "as it is", ha="center", va="bottom", fontsize=9)
