"""What the chapter "Both at once" computes and draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lib.book import figures
from lib.book.pages.task_preserving_states import random_states, state_logits
from lib.tpkd import (
    conditional_kl,
    conditional_log_probs,
    directions,
    log_odds,
    margins,
    potential,
    potential_gradient,
    retention_bound,
    update_direction,
    weighted_descent_constant,
    weighted_step_limit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Case(NamedTuple):
    """Random states of one number of classes with their directions.

    Attributes:
        student: (N, K) logits.
        teacher: (N, K) logits.
        labels: (N,).
        h: (N, K), gradient of the label loss.
        u: (N, K), gradient of the conditional KL.
        d: (N, K), corrected direction.
        v: (N, K), update with the weight 1/2.
        g: (N, K), gradient of the joint potential.
    """

    student: Tensor
    teacher: Tensor
    labels: Tensor
    h: Tensor
    u: Tensor
    d: Tensor
    v: Tensor
    g: Tensor


def case(student: Tensor, teacher: Tensor, labels: Tensor) -> Case:
    """Return states together with their directions.

    Args:
        student: (N, K) logits.
        teacher: (N, K) logits.
        labels: (N,).

    Returns:
        The states and the directions h, u, d, v and g.

    Example:
        >>> found = case(torch.zeros(1, 3), torch.zeros(1, 3), torch.tensor([0]))
        >>> bool(found.u.any()), found.g.tolist() == (4 * found.h).tolist()
        (False, True)
    """
    found = directions(student, teacher, labels)
    joint = potential_gradient(found.label, found.conditional)
    parts = (found.label, found.conditional, found.corrected, found.update, joint)
    return Case(student, teacher, labels, *parts)


def alignment(found: Case) -> tuple[Tensor, Tensor]:
    r"""Return the slack of Eq. 12, left, and the cosine on its right.

    Args:
        found: states and directions.

    Returns:
        $g^\top v - |v|^2 - \gamma_K |g|^2 / 4$ (N,), and $\cos \angle(g, v)$ (N,).

    Example:
        >>> state = case(torch.zeros(1, 3), torch.zeros(1, 3), torch.tensor([0]))
        >>> [round(float(part), 9) + 0.0 for part in alignment(state)]  # 3 - 4 gamma_3 = 0
        [0.0, 1.0]
    """
    gamma = retention_bound(found.g.shape[-1])
    product, size = _dot(found.g, found.v), _dot(found.v, found.v)
    slack = product - size - gamma / 4 * _dot(found.g, found.g)
    return slack, product / (found.g.norm(dim=-1) * found.v.norm(dim=-1))


def extremal_case(classes: int, doubt: float) -> Case:
    r"""Return the state of Appendix C.1: r uniform, one competitor wanted up, and $\rho$ near one.

    Args:
        classes: K >= 3.
        doubt: $1 - \rho$ > 0.

    Returns:
        One state (1, K).

    Example:
        >>> round(float(alignment(extremal_case(3, 1e-9))[1]), 6)  # sqrt(3/4)
        0.866025
    """
    uniform = torch.full((1, classes - 1), 1 / (classes - 1), dtype=torch.float64)
    shift = torch.full_like(uniform, -0.5 / (classes - 1) / (classes - 2))
    shift[:, 0] = 0.5 / (classes - 1)
    sure = torch.tensor([1 / doubt - 1], dtype=torch.float64).log()
    label = torch.zeros(1, dtype=torch.int64)
    student, teacher = (state_logits(sure, part, label) for part in (uniform, uniform + shift))
    return case(student, teacher, label)


def descent(found: Case, step_sizes: list[float]) -> tuple[Tensor, Tensor]:
    r"""Return how far the joint potential falls, and how far Eq. 13 says it does.

    Args:
        found: states and directions.
        step_sizes: S values of eta.

    Returns:
        Fall (S, N) and promised fall (S, N).
    """
    eta = torch.tensor(step_sizes, dtype=torch.float64).unsqueeze(-1)
    start = potential(found.student, found.teacher, found.labels)
    after = found.student - eta.unsqueeze(-1) * found.v
    fall = start - potential(after, found.teacher, found.labels)
    gamma = retention_bound(found.g.shape[-1])
    promised = eta * gamma / 4 * _dot(found.g, found.g)
    return fall, promised + eta * (1 - 1.25 * eta) * _dot(found.v, found.v)


def variation(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Return the total variation between two conditional distributions, given by logits.

    Args:
        first: (..., K) logits.
        second: (..., K) logits.
        labels: (...).

    Returns:
        (...) in [0, 1].

    Example:
        >>> one, two = torch.tensor([0.0, 3.0, 1.0]).log(), torch.zeros(3)
        >>> round(float(variation(one.nan_to_num(neginf=0.0), two, torch.tensor(0))), 6)
        0.25
    """
    gap = conditional_log_probs(first, labels).exp() - conditional_log_probs(second, labels).exp()
    return gap.abs().sum(-1) / 2


def sure_states(classes: int, count: int, generator: torch.Generator) -> Case:
    """Draw random states and make their students surer of the label, by up to 25 nats.

    Args:
        classes: K.
        count: N.
        generator: source of randomness.

    Returns:
        States and directions.
    """
    student, teacher, labels = random_states(classes, count, generator)
    lift = 25 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    return case(student.scatter_add(-1, labels.unsqueeze(-1), lift), teacher, labels)


def small_label_gradient(found: Case) -> tuple[Tensor, Tensor]:
    r"""Return the condition of Eq. C.9 on the state, and its largest step.

    Args:
        found: states and directions.

    Returns:
        $|u| > 0$ and $|h| / |u| < \gamma_K / 2$, (N,) bool; $4 u^\top v / |v|^2$, (N,).
    """
    h, u = found.h.norm(dim=-1), found.u.norm(dim=-1)
    meets = (u > 0) & (h < u * retention_bound(found.u.shape[-1]) / 2)
    return meets, 4 * _dot(found.u, found.v) / _dot(found.v, found.v)


def conditional_fall(found: Case, step_size: float | Tensor) -> Tensor:
    """Return how far the conditional KL falls under a complete step.

    Args:
        found: states and directions.
        step_size: number or (N,).

    Returns:
        (N,).
    """
    eta = torch.as_tensor(step_size, dtype=torch.float64).unsqueeze(-1)
    before = conditional_kl(found.student, found.teacher, found.labels)
    return before - conditional_kl(found.student - eta * found.v, found.teacher, found.labels)


def weighted_slacks(found: Case, label_weight: float, weight: float) -> tuple[float, float]:
    """Return the smallest margin slack of a weighted update, and the smallest slack of Eq. C.12.

    Args:
        found: states and directions.
        label_weight: w.
        weight: beta, with 4 w beta gamma_K > 1.

    Returns:
        Margins after a step of size one against the label step's; descent at the largest step.
    """
    z, labels, classes = found.student, found.labels, found.u.shape[-1]
    update = found.h + weight * found.d
    order = margins(z - update, labels) - margins(z - found.h, labels)
    eta = weighted_step_limit(label_weight, weight, classes)
    constant = weighted_descent_constant(label_weight, weight, classes)
    before, after = (
        potential(point, found.teacher, labels, label_weight) for point in (z, z - eta * update)
    )
    promised = eta * constant / 2 * (_dot(found.h, found.h) + _dot(found.u, found.u))
    return float(order.min()), float((before - after - promised).min())


def steepest_tug(classes: int, corner: float, ratio: float) -> Case:
    r"""Return a state at which label and teacher pull almost as much apart as they can.

    r is near a corner, $r = \nu + (1 - c)(e_1 - \nu)$, q lies a little further out, and the doubt
    makes $|h| / |u|$ what is asked.

    Args:
        classes: K >= 3.
        corner: c in (0, 1), the distance to the corner.
        ratio: $|h| / |u|$ > 0.

    Returns:
        One state (1, K).

    Example:
        >>> tug = steepest_tug(3, 1e-4, 1.0)
        >>> cosine = (tug.u * tug.h).sum() / (tug.u.norm() * tug.h.norm())
        >>> round(float(cosine), 3)
        -0.5
    """
    uniform = torch.full((1, classes - 1), 1 / (classes - 1), dtype=torch.float64)
    outward = -uniform.clone()
    outward[:, 0] += 1
    r, q = uniform + (1 - corner) * outward, uniform + (1 - corner / 2) * outward
    doubt = ratio * (r - q).norm() / (1 + _dot(r, r)).sqrt()
    label = torch.zeros(1, dtype=torch.int64)
    student, teacher = (state_logits((1 / doubt - 1).log(), part, label) for part in (r, q))
    return case(student, teacher, label)


def cycle_targets(
    student: Tensor, teachers: Tensor, labels: Tensor, step_sizes: Tensor, steps: int, keep: int
) -> Tensor:
    """Take TPKD steps while the teacher moves through a cycle, with a step size per example.

    Args:
        student: (N, K) logits.
        teachers: (P, N, K) or (P, 1, K), one after the other, again and again.
        labels: (N,).
        step_sizes: (N,).
        steps: number of steps.
        keep: how many of the last logits to return.

    Returns:
        (keep, N, K).

    Example:
        >>> one = torch.ones(1, dtype=torch.int64)
        >>> cycle_targets(torch.zeros(1, 3), torch.zeros(2, 1, 3), one, one, 4, 2).shape
        torch.Size([2, 1, 3])
    """
    z, eta, kept = student.to(torch.float64), step_sizes.unsqueeze(-1), []
    for step in range(steps):
        teacher = teachers[step % len(teachers)].expand_as(z)
        z = z - eta * update_direction("tpkd", z, teacher, labels)
        if step >= steps - keep:
            kept.append(z)
    return torch.stack(kept)


def portrait(ax: Axes, logits: Tensor, target: float, colour: str, label: str) -> None:
    """Draw paths of three-class outputs: the share of the first competitor and the log-odds.

    Args:
        ax: where to draw.
        logits: (T, N, 3), the label first.
        target: share where the paths are expected to end.
        colour: name of a colour of the book.
        label: name of the target.
    """
    labels = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    share = conditional_log_probs(logits, labels)[..., 1].exp()
    height = log_odds(logits, labels)
    ax.plot(share, height, color=figures.colours[colour], linewidth=1.4)
    ax.plot(share[0], height[0], "o", color="black", markersize=4)
    for column in range(share.shape[1]):
        at = int((height[:, column] < height[0, column] + 2.2).sum())
        ends = [(float(share[i, column]), float(height[i, column])) for i in (at, at - 1)]
        arrow = {"arrowstyle": "-|>", "color": figures.colours[colour], "linewidth": 1.4}
        ax.annotate("", ends[0], ends[1], arrowprops=arrow)
    figures.reference(ax, target, label, axis="x")
    ax.set(xlabel="$r_2$", xlim=(0, 1), ylim=(-5.6, 6))
    ax.legend(loc="lower left")


def _dot(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum(-1)
