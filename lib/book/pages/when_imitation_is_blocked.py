"""What the chapter "When imitation is blocked" computes and draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lib.book import figures
from lib.book.pages import simplex
from lib.book.pages.log_optimum import maximise_logs
from lib.tpkd import full_kl
from lib.tpkd.imitation import safe_imitation

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def safe_moves(student_logits: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a random safe prediction for each student.

    Margins gain exponential amounts of a common size between 0.001 and 10 nats; each stays as it
    is with a probability that is uniform for the state.

    Args:
        student_logits: (N, K).
        labels: (N,).
        generator: source of randomness.

    Returns:
        (N, K) logits.

    Example:
        >>> z, labels = torch.zeros(5, 4, dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
        >>> moved = safe_moves(z, labels, torch.Generator().manual_seed(0))
        >>> (moved <= z).all().item()
        True
    """
    shape = student_logits.shape
    options = {"generator": generator, "dtype": torch.float64}
    gains = -torch.rand(shape, **options).clamp(min=1e-300).log()
    gains = gains * 10 ** (4 * torch.rand(shape[0], 1, **options) - 3)
    gains = gains * (torch.rand(shape, **options) < torch.rand(shape[0], 1, **options))
    return student_logits - gains.scatter(-1, labels.unsqueeze(-1), 0.0)


def best_single_move(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the smallest change of full KL over moves that raise one margin, on a grid of sizes.

    Raising margin j by $m$ and no other changes $L_T$ by $t_j m + \log (1 - p_j (1 - e^{-m}))$.
    The grid of $m$ runs from $10^{-12}$ to 10 nats. In margin gains the problem is convex and its
    constraints are separate, so where no single margin helps, no safe move does.

    Args:
        student_logits: (N, K).
        teacher_logits: (N, K).
        labels: (N,).

    Returns:
        (N,); negative where a better safe prediction was found.

    Example:
        >>> p, t = torch.tensor([[0.5, 0.35, 0.15]]), torch.tensor([[0.4, 0.25, 0.35]])
        >>> (best_single_move(p.log(), t.log(), torch.tensor([0])) < 0).item()
        True
    """
    p, t = student_logits.softmax(-1), teacher_logits.softmax(-1)
    best = torch.full(labels.shape, math.inf, dtype=p.dtype)
    for size in torch.logspace(-12, 1, 14, dtype=torch.float64).tolist():
        change = t * size + torch.log1p(p * math.expm1(-size))
        change = change.scatter(-1, labels.unsqueeze(-1), math.inf)
        best = torch.minimum(best, change.amin(-1))
    return best


def descend_margins(
    student: Tensor, teacher: Tensor, protected: Sequence[bool], steps: int
) -> Tensor:
    r"""Find the closest prediction by projected gradient descent on the margin gains.

    In the gains $m_j$ full KL is convex with gradient $t - p'$ and curvature at most one half, so
    steps of 2 lower it. Gains of protected margins stay at zero or above.

    Args:
        student: (K,) probabilities, label first.
        teacher: (K,) probabilities, label first.
        protected: one flag for each wrong class.
        steps: number of steps.

    Returns:
        (K,) probabilities.

    Example:
        >>> p, t = torch.tensor([0.5, 0.35, 0.15]), torch.tensor([0.4, 0.25, 0.35])
        >>> descend_margins(p, t, [True, True], 200)
        tensor([0.5769, 0.2500, 0.1731])
    """
    least = torch.tensor([0.0 if flag else -math.inf for flag in protected], dtype=student.dtype)
    gains = torch.zeros_like(student)
    for _ in range(steps):
        ready = (student.log() - gains).softmax(-1)
        gains[1:] = torch.maximum(gains[1:] - 2.0 * (teacher - ready)[1:], least)
    return (student.log() - gains).softmax(-1)


def solve_imitation(student: np.ndarray, teacher: np.ndarray, keep: str) -> np.ndarray:
    r"""Solve one constrained imitation problem with the interior-point solver Clarabel.

    In $v_i = x_i / w_i$ minimise $-\sum_i t_i s_i$ with $s_i \le \log v_i$ (exponential cones),
    $\sum_i w_i v_i = 1$, and ``"margins"``: $v_j \le v_1$ for every $j$, with $w = p$;
    ``"label"``: $v_1 \ge p_1$, with $w = 1$. Where the solution has entries many decades away from
    $w$ the solver loses accuracy: it is for mild predictions, and for blocked ones of any kind.

    Args:
        student: (K,) probabilities, label first.
        teacher: (K,) probabilities, label first.
        keep: what must not get worse.

    Returns:
        (K,) probabilities.

    Raises:
        ValueError: for another word in keep.
        RuntimeError: if the solver reports no solution.

    Example:
        >>> p, t = np.array([0.5, 0.35, 0.15]), np.array([0.4, 0.25, 0.35])
        >>> (26 * solve_imitation(p, t, "margins")).round(4)
        array([15. ,  6.5,  4.5])
    """
    if keep not in ("margins", "label"):
        raise ValueError(f"keep must be 'margins' or 'label', got {keep!r}")
    count = len(student)
    if keep == "margins":
        scale, limit = student, np.zeros(count - 1)
        kept = np.hstack([-np.ones((count - 1, 1)), np.eye(count - 1)])
    else:
        scale, limit = np.ones(count), -student[:1]
        kept = -np.eye(count)[:1]
    return scale * maximise_logs(teacher, scale, kept, limit)[0]


def label_first(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Move the label's entry to the front, the others keep their order.

    Args:
        probabilities: (N, K).
        labels: (N,).

    Returns:
        (N, K).

    Example:
        >>> label_first(torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([1]))
        tensor([[0.3000, 0.2000, 0.5000]])
    """
    columns = torch.arange(probabilities.shape[-1])
    keys = torch.where(columns == labels.unsqueeze(-1), -1, columns)
    return probabilities.gather(-1, keys.argsort(-1))


def blocked_by_probabilities(p: Tensor, t: Tensor, labels: Tensor) -> Tensor:
    """Say whether p_j <= t_j for every wrong class, compared as they stand.

    Args:
        p: (..., K) probabilities of the student.
        t: (..., K) probabilities of the teacher.
        labels: (...).

    Returns:
        (...) bool.

    Example:
        >>> p, t = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> blocked_by_probabilities(p, t, torch.tensor(0))
        tensor(True)
    """
    return (p <= t).scatter(-1, labels.unsqueeze(-1), True).all(-1)


def lead_curve(
    classes: int, leads: Tensor, agreement: float, count: int, generator: torch.Generator
) -> Tensor:
    r"""Return the share of blocked students by their lead in log-odds over the teacher.

    Logits of wrong classes are standard Gaussian for both and correlate by ``agreement``; the
    teacher's confidence is 0.7.

    Args:
        classes: K.
        leads: (T,) values of $\operatorname{logit} \rho - \operatorname{logit} \tau$.
        agreement: correlation in [0, 1].
        count: number of pairs.
        generator: source of randomness.

    Returns:
        (T,) shares.
    """
    shape = (2, count, classes - 1)
    theirs, own = torch.randn(shape, generator=generator, dtype=torch.float64)
    own = agreement * theirs + math.sqrt(1 - agreement**2) * own
    needed = (own.log_softmax(-1) - theirs.log_softmax(-1)).amax(-1)  # D_inf(r || q)
    target = math.log(0.7 / 0.3)
    off = -torch.nn.functional.logsigmoid(-(leads.to(torch.float64) + target))
    gained = off + math.log(0.3)  # log of (1 - tau) / (1 - rho)
    return (needed.unsqueeze(-1) <= gained).to(torch.float64).mean(0)


def train_student(
    inputs: Tensor, labels: Tensor, steps: Sequence[int], ridge: float, step_size: float = 1.0
) -> list[Tensor]:
    """Train softmax regression on labels by gradient descent and return its logits on the way.

    Args:
        inputs: (N, D).
        labels: (N,).
        steps: increasing step counts at which logits are recorded.
        ridge: factor of half the squared norm of the weights.
        step_size: of plain gradient descent.

    Returns:
        (N, K) logits for each recorded step.
    """
    classes = int(labels.max()) + 1
    features = torch.cat([inputs, torch.ones_like(inputs[:, :1])], -1)
    targets = torch.nn.functional.one_hot(labels, classes).to(inputs.dtype)
    weights = inputs.new_zeros(features.shape[-1], classes)
    recorded, done = [], 0
    for until in steps:
        for _ in range(until - done):
            residual = (features @ weights).softmax(-1) - targets
            weights = weights - step_size * (features.mT @ residual / len(inputs) + ridge * weights)
        recorded.append(features @ weights)
        done = until
    return recorded


def draw_imitation(ax: Axes, student: Tensor, teacher: Tensor, least: float = 0.0) -> None:
    """Draw level lines of full KL, the safe set of a student, and the closest safe imitation.

    Args:
        ax: where to draw.
        student: (3,) probabilities, label first.
        teacher: (3,).
        least: the smallest probability of the label that is shown.
    """
    here = float(full_kl(student.log(), teacher.log()))
    simplex.draw(ax, ("1", "2", "3"), least)
    safe = simplex.safe_polygon(student)
    simplex.region(ax, safe, figures.colours["green"], r"safe set $\mathcal{S}(p)$", alpha=0.4)

    def loss(p: Tensor) -> Tensor:
        return full_kl(p.log(), teacher.log())

    levels = [here * factor for factor in (0.1, 0.3, 0.6, 1.5, 2.2)]
    soft = {"colors": figures.colours["sky"], "linewidths": 0.9, "least": least}
    simplex.contours(ax, loss, levels, **soft)
    hard = {"colors": figures.colours["blue"], "linewidths": 2.0, "least": least}
    simplex.contours(ax, loss, [here], **hard)
    best = safe_imitation(student.log(), teacher.log(), torch.tensor(0)).exp()
    if float(teacher[0]) >= least:
        simplex.point(ax, teacher, "$t$", marker="s")
    if float((best - student).abs().max()) > 1e-9:
        simplex.point(ax, best, "best", (8, 0), marker="*", markersize=11)
        simplex.point(ax, student, "$p$", (-10, -14))
    else:
        simplex.point(ax, student, "$p$", (-10, -14), marker="*", markersize=12)
