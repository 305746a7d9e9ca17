"""What the chapter "The price of what remains" computes: literal margins, a solver, quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lib.book import figures
from lib.book.pages.log_optimum import maximise_logs
from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import (
    conditional_kl,
    conditional_log_probs,
    log_odds,
    margins,
    safe_path,
    transfer_cost,
    transfer_frontier,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def transferred(log_odds: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return logits of $(a, (1 - a) q)$ from the log-odds of $a$.

    Args:
        log_odds: (...), logit(a).
        teacher_logits: (..., K).
        labels: (...).

    Returns:
        (..., K) logits.

    Example:
        >>> t = torch.tensor([0.4, 0.25, 0.35], dtype=torch.float64)
        >>> moved = transferred(torch.tensor(17.5).log(), t.log(), torch.tensor(0))
        >>> moved.softmax(-1) * 222
        tensor([210.0000,   5.0000,   7.0000], dtype=torch.float64)
    """
    log_q = conditional_log_probs(teacher_logits, labels)
    at = labels.unsqueeze(-1)
    return log_q.scatter(-1, at, log_odds.unsqueeze(-1).to(log_q))


def keeps_every_margin(student_logits: Tensor, moved_logits: Tensor, labels: Tensor) -> Tensor:
    """Say whether no margin of a move is smaller, compared one by one.

    Args:
        student_logits: (..., K).
        moved_logits: (..., K).
        labels: (...).

    Returns:
        (...) bool.
    """
    return (margins(moved_logits, labels) >= margins(student_logits, labels)).all(-1)


def threshold_by_bisection(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, steps: int = 60
) -> Tensor:
    """Find the least log-odds at which the transferred prediction keeps every margin, by halving.

    Args:
        student_logits: (N, K).
        teacher_logits: (N, K).
        labels: (N,).
        steps: number of halvings of an interval of 256 nats.

    Returns:
        (N,) log-odds.

    Example:
        >>> p, t = torch.tensor([[0.9, 0.07, 0.03]]), torch.tensor([[0.4, 0.25, 0.35]])
        >>> states = p.double().log(), t.double().log(), torch.tensor([0])
        >>> round(float(threshold_by_bisection(*states).exp()), 4)
        17.5
    """
    low = log_odds(student_logits, labels) - 1.0
    high = low + 256.0
    for _ in range(steps):
        middle = (low + high) / 2
        moved = transferred(middle, teacher_logits, labels)
        safe = keeps_every_margin(student_logits, moved, labels)
        low, high = torch.where(safe, low, middle), torch.where(safe, middle, high)
    return high


def walk(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, points: int
) -> tuple[Tensor, Tensor]:
    """Walk the safe path in equal steps of s.

    Args:
        student_logits: (N, K).
        teacher_logits: (N, K).
        labels: (N,).
        points: number of points, both ends included.

    Returns:
        Smallest change of a margin in a step, relative to one plus its size, (N,); conditional KL
        along the path, (points, N).
    """
    before = margins(student_logits, labels)
    worst, errors = torch.full(labels.shape, torch.inf, dtype=before.dtype), []
    for s in torch.linspace(0, 1, points, dtype=torch.float64):
        here = safe_path(student_logits, teacher_logits, labels, s)
        after = margins(here, labels)
        worst = torch.minimum(worst, ((after - before) / (1 + before.abs())).amin(-1))
        errors.append(conditional_kl(here, teacher_logits, labels))
        before = after
    return worst, torch.stack(errors)


def path_derivatives(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, s: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the derivatives of margins and conditional KL in s, by Eq. A.5-A.6 and by autograd.

    Args:
        student_logits: (N, K).
        teacher_logits: (N, K).
        labels: (N,).
        s: (N,) in (0, 1).

    Returns:
        Margins (N, K) and conditional KL (N,) from the formulas, and the same two from autograd.
    """
    r = conditional_log_probs(student_logits, labels).exp()
    q = conditional_log_probs(teacher_logits, labels).exp()
    at, column = labels.unsqueeze(-1), s.unsqueeze(-1)
    ratio = (q / r.scatter(-1, at, 1.0)).scatter(-1, at, 0.0)
    largest = ratio.amax(-1, keepdim=True)
    mixed = 1 - column + column * ratio
    formula = (largest - ratio) / ((1 - column + column * largest) * mixed)
    mixture = ((1 - column) * r + column * q).scatter(-1, at, 1.0)
    falling = -(1 - s) * ((q - r) ** 2 / mixture).sum(-1)

    def along(share: Tensor) -> tuple[Tensor, Tensor]:
        here = safe_path(student_logits, teacher_logits, labels, share)
        return margins(here, labels), conditional_kl(here, teacher_logits, labels)

    _, found = torch.autograd.functional.jvp(along, s, torch.ones_like(s))
    return (formula.scatter(-1, at, 0.0), falling), found


def solve_frontier(r: np.ndarray, q: np.ndarray, budget: float) -> float:
    r"""Solve $\min \operatorname{KL}(q \| x)$ under $x \le e^B r$ with the solver Clarabel.

    In $v_j = x_j / r_j$ maximise $\sum_j q_j s_j$ with $s_j \le \log v_j$ (exponential cones),
    $\sum_j r_j v_j = 1$ and $v_j \le e^B$.

    Args:
        r: (n,) positive, sums to one.
        q: (n,) positive, sums to one.
        budget: B >= 0, nats.

    Returns:
        The least conditional KL, nats.

    Raises:
        RuntimeError: if the solver reports no solution.

    Example:
        >>> value = solve_frontier(np.array([0.5, 0.5]), np.array([0.75, 0.25]), np.log(1.2))
        >>> exact = 0.75 * np.log(0.75 / 0.6) + 0.25 * np.log(0.25 / 0.4)
        >>> bool(abs(value - exact) < 1e-8)
        True
    """
    count = len(r)
    _, value = maximise_logs(q, r, np.eye(count), np.full(count, np.exp(budget)))
    return float((q * (np.log(q) - np.log(r))).sum() + value)


def frontier_gaps(classes: int, count: int, generator: torch.Generator) -> tuple[float, float, int]:
    """Compare the frontier with its stated properties on random states.

    Args:
        classes: K.
        count: number of states.
        generator: source of randomness.

    Returns:
        Smallest second difference of V over 17 equally spaced budgets up to 1.2 times the price;
        largest gap between V(0) and conditional KL; number of
        (state, budget) pairs on which V = 0 and B >= price disagree.
    """
    states = random_states(classes, count, generator)
    price = transfer_cost(*states)
    shares = torch.linspace(0, 1.2, 17, dtype=torch.float64)
    values = torch.stack([transfer_frontier(*states, share * price) for share in shares])
    second = values[2:] - 2 * values[1:-1] + values[:-2]
    factors = torch.tensor([0.9, 0.999, 1.0, 1.001, 1.5], dtype=torch.float64)
    wrong = 0
    for factor in factors:
        budget = factor * price
        wrong += int(((transfer_frontier(*states, budget) == 0) != (budget >= price)).sum())
    start = float((values[0] - conditional_kl(*states)).abs().max())
    return float(second.min()), start, wrong


def draw_price_plane(ax: Axes, student: Tensor, teacher: Tensor, steps: Tensor) -> None:
    """Draw the left panel of Figure 1: share of class 3 against log-odds gained.

    Args:
        ax: where to draw.
        student: (3,) log-probabilities, label first.
        teacher: (3,) log-probabilities, label first.
        steps: (T,) places on the safe path, in [0, 1].
    """
    label = torch.tensor(0)
    r = conditional_log_probs(student, label).exp()
    here, there = log_odds(student, label), log_odds(teacher, label) - log_odds(student, label)
    wanted = float(conditional_log_probs(teacher, label)[2].exp())
    share = torch.linspace(0.02, 0.98, 400, dtype=torch.float64)
    border = torch.maximum((share / r[2]).log(), ((1 - share) / r[1]).log())
    path = safe_path(student, teacher, label, steps)
    height = log_odds(path, torch.zeros(len(steps), dtype=torch.int64)) - here
    green, blue, red = (figures.colours[name] for name in ("green", "blue", "vermilion"))
    ax.fill_between(share, border, 3, color=green, alpha=0.25, label="safe")
    ax.plot(share, border, color=green)
    across = path[:, 2].exp() / (path[:, 1].exp() + path[:, 2].exp())
    ax.plot(across, height, color=blue, linewidth=4, label="safe path")
    ax.plot(float(r[2]), 0, "o", color="#262626", markersize=7)
    ax.annotate("student", (float(r[2]), 0), (-8, -15), textcoords="offset points", ha="right")
    ax.plot(wanted, float(there), "s", color=red, markersize=7)
    ax.annotate("teacher", (wanted, float(there)), (9, -4), textcoords="offset points")
    figures.reference(ax, wanted, "teacher's share", axis="x")
    ax.set(xlabel="share of class 3 among the wrong classes, $x$", xlim=(0, 1), ylim=(-3, 3))
    ax.set_ylabel(r"log-odds gained, $\Delta$ (nats)")
    ax.legend(loc="lower left")
