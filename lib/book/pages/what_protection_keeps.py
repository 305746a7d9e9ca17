"""What the chapter "What protection keeps" computes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import (
    compensation_bounds,
    conditional_component,
    directions,
    margins,
    project_onto_safe_cone,
    weighted_label_loss,
)


def signals(classes: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw elements u of L_y: r - q of random states, centred after rounding and of norm one.

    Args:
        classes: K.
        count: N.
        generator: source of randomness.

    Returns:
        (N, K) float64, 0 at the label, and labels (N,).
    """
    student, teacher, labels = random_states(classes, count, generator)
    u = directions(student, teacher, labels).conditional
    others = 1.0 - torch.nn.functional.one_hot(labels, classes).double()
    u = u / u.norm(dim=-1, keepdim=True)
    u = u - u.sum(-1, keepdim=True) / (classes - 1) * others
    return u / u.norm(dim=-1, keepdim=True), labels


def retained(u: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Return what the correction keeps of conditional signals.

    Args:
        u: (..., K), elements of L_y other than zero.
        labels: (...).

    Returns:
        $u^\top d / \|u\|^2$, $\|d\|^2 / \|u\|^2$, $\|w\|^2 / \|d\|^2$ and the cosine of u and w,
        each (...).

    Example:
        >>> kept = retained(torch.tensor([0.0, 1.0, -1.0]), torch.tensor(0))
        >>> [round(float(value), 4) for value in kept]
        [0.75, 0.75, 0.75, 1.0]
    """
    d = project_onto_safe_cone(u, labels)
    w = conditional_component(d, labels)
    square, safe, pure = (x.square().sum(-1) for x in (u, d, w))
    cosine = (u * w).sum(-1) / (square * pure).sqrt()
    return (u * d).sum(-1) / square, safe / square, pure / safe, cosine


def one_up(classes: int) -> Tensor:
    """Return the signal of a teacher that wants one class up and all others alike down.

    Args:
        classes: K >= 3.

    Returns:
        (K,) float64, for the label 0.

    Example:
        >>> one_up(4)
        tensor([ 0.0000, -1.0000,  0.5000,  0.5000], dtype=torch.float64)
    """
    u = torch.full((classes,), 1 / (classes - 2), dtype=torch.float64)
    u[0], u[1] = 0.0, -1.0
    return u


def pair_for(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits of a student with uniform r and a teacher whose r - q is a multiple of u.

    Args:
        u: (K,), an element of L_0 other than zero.

    Returns:
        Two tensors (K,).
    """
    uniform = torch.full_like(u, 1 / (len(u) - 1))
    q = uniform - 0.5 * u / u.abs().max() / (len(u) - 1)
    return torch.zeros_like(u), q.log()


def frozen_loss(logits: Tensor, clipped: Tensor, taken: Tensor, labels: Tensor) -> Tensor:
    r"""Return the local loss of Eq. B.5 with its clipping held fixed.

    $$ (1 - \ell) \operatorname{KL}(\bar q \| r(z)) - \ell \operatorname{logit} \rho(z),
       \qquad \bar q = \tilde q / (1 - \ell) $$

    Args:
        logits: (..., K), z.
        clipped: (..., K), the clipped teacher, 0 at the label.
        taken: (...), the compensation.
        labels: (...).

    Returns:
        (...).
    """
    at = labels.unsqueeze(-1)
    others = logits.scatter(-1, at, -torch.inf)
    log_r = others.log_softmax(-1).scatter(-1, at, 0.0)
    log_odds = logits.gather(-1, at).squeeze(-1) - others.logsumexp(-1)
    target = clipped / (1 - taken).unsqueeze(-1)
    error = (torch.xlogy(target, target) - target * log_r).sum(-1)
    return (1 - taken) * error - taken * log_odds


def removed_signal(
    student: Tensor, teacher: Tensor, labels: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Compare the removed signal with Eqs. B.7 and B.8.

    Args:
        student: (N, K) logits.
        teacher: (N, K) logits.
        labels: (N,).

    Returns:
        The gap in B.7 (N,); and the three terms of B.8 in ascending order, each (N,).
    """
    found, at = directions(student, teacher, labels), labels.unsqueeze(-1)
    square = found.compensation**2
    cut = (found.corrected - found.conditional).scatter(-1, at, 0.0)
    removed = found.conditional.square().sum(-1) - found.corrected.square().sum(-1)
    gap = (removed - square - cut.square().sum(-1)).abs()
    number = (cut > 0).sum(-1).clamp(min=1)
    return gap, (square * (1 + 1 / number), removed, 2 * square)


def task_effects(
    student: Tensor, teacher: Tensor, labels: Tensor, step: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the terms of Eqs. B.9 and B.10, each in ascending order.

    Args:
        student: (N, K) logits.
        teacher: (N, K) logits.
        labels: (N,).
        step: (N,), step sizes.

    Returns:
        Zero, the extra margins (N, K) over the label step, 0 at the label, and their bound; and the
        five terms of B.10, each (N,).
    """
    found, at = directions(student, teacher, labels), labels.unsqueeze(-1)
    size = step.unsqueeze(-1)
    after_label, after = student - size * found.label, student - size * found.update
    extra = margins(after, labels) - margins(after_label, labels)
    limit = 1.5 * step * compensation_bounds(student, teacher, labels)[1]
    gradient = directions(after_label, teacher, labels).label
    doubts = [-x.gather(-1, at).squeeze(-1) for x in (gradient, found.label)]
    gained = weighted_label_loss(after_label, labels) - weighted_label_loss(after, labels)
    slope = step / 2 * (gradient * found.corrected).sum(-1)
    chain = (torch.zeros_like(step), gained, slope, limit * doubts[0], limit * doubts[1])
    return (torch.zeros_like(extra), extra, limit.unsqueeze(-1)), chain


def kept_of_mixture(
    student: Tensor, teacher: Tensor, label: Tensor, alphas: Tensor
) -> tuple[Tensor, float]:
    r"""Project $u + \alpha (1, -r)$ and return the share of the squared length that is kept.

    Args:
        student: (K,) logits.
        teacher: (K,) logits.
        label: ().
        alphas: (A,).

    Returns:
        (A,), and the alpha from which it is zero, $1 - \min_j q_j / r_j$.
    """
    at = label.unsqueeze(-1)
    r, q = (x.scatter(-1, at, -torch.inf).softmax(-1) for x in (student, teacher))
    mixed = (r - q) - alphas.unsqueeze(-1) * r.scatter(-1, at, -1.0)
    kept = project_onto_safe_cone(mixed, label).square().sum(-1) / mixed.square().sum(-1)
    ratios = (q / r).scatter(-1, at, torch.inf)
    return kept, 1.0 - float(ratios.min())


def best_safe_value(
    u: np.ndarray, label: int, smoothness: float | None = None, length: float | None = None
) -> float:
    r"""Return the largest safe progress that clarabel finds.

    It maximises $u^\top x - \tfrac L2 \|x\|^2$ over the safe cone if a smoothness L is given, and
    $u^\top x$ over its elements of norm at most S if a length S is.

    Args:
        u: (K,).
        label: the label.
        smoothness: L > 0, or None.
        length: S > 0, or None.

    Returns:
        The optimal value.

    Raises:
        RuntimeError: if the solver does not finish.
    """
    import clarabel
    from scipy import sparse

    count = len(u)
    rows = -np.eye(count)
    rows[:, label] += 1.0
    blocks, right = [np.delete(rows, label, axis=0)], [np.zeros(count - 1)]
    cones = [clarabel.NonnegativeConeT(count - 1)]
    if length is not None:
        blocks += [np.zeros((1, count)), -np.eye(count)]
        right += [np.array([length]), np.zeros(count)]
        cones.append(clarabel.SecondOrderConeT(count + 1))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    square = sparse.csc_matrix((smoothness or 0.0) * np.eye(count))
    matrix, limit = sparse.csc_matrix(np.vstack(blocks)), np.concatenate(right)
    solution = clarabel.DefaultSolver(square, -u, matrix, limit, cones, settings).solve()
    if "Solved" not in str(solution.status):
        raise RuntimeError(f"Clarabel ended with {solution.status}")
    return -float(solution.obj_val)


def follow(student: Tensor, teacher: Tensor, label: Tensor, steps: int, freeze: bool) -> Tensor:
    """Take update steps of size 0.8 and record the conditional distribution.

    Args:
        student: (K,) logits.
        teacher: (K,) logits.
        label: ().
        steps: number of steps.
        freeze: keep the clipping of the first step.

    Returns:
        r at each step (steps + 1, K), 0 at the label.
    """
    z, rows = student, []
    first = directions(student, teacher, label)
    for _ in range(steps + 1):
        now = directions(z, teacher, label)
        r = z.scatter(-1, label.unsqueeze(-1), -torch.inf).softmax(-1)
        rows.append(r)
        kept = (r - first.clipped_teacher).scatter(
            -1, label.unsqueeze(-1), -first.compensation.unsqueeze(-1)
        )
        z = z - 0.8 * (now.label + (kept if freeze else now.corrected) / 2)
    return torch.stack(rows)
