"""What the chapter "Margins and the safe set" computes and draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lib.book import figures
from lib.book.pages import simplex
from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import full_kl, margins, weighted_label_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def literal_kl(student_logits: Tensor, teacher_logits: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return $\sum_j t_j \log (t_j / p_j)$ term by term from probabilities, and its largest term.

    In extended precision where the machine has it: for two nearly certain predictions the label's
    term is the logarithm of a ratio close to one.

    Args:
        student_logits: (..., K).
        teacher_logits: (..., K).

    Returns:
        The sum (...), and the largest modulus of a term (...), which sets the rounding error.

    Example:
        >>> student, teacher = torch.tensor([2.0, 1.0, 1.0]).log(), torch.zeros(3)
        >>> [round(float(v), 4) for v in literal_kl(student, teacher)]  # log(4/3) / 3 times 2, ...
        [0.0566, 0.1352]
    """
    p, t = (_extended_softmax(logits) for logits in (student_logits, teacher_logits))
    terms = t * np.log(t / p)
    results = terms.sum(-1), np.abs(terms).max(-1)
    return tuple(torch.as_tensor(result.astype(np.float64)) for result in results)


def literal_margins(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return $\operatorname{logit} \rho - \log r_j$ from probabilities, 0 at the label.

    Args:
        logits: (..., K).
        labels: (...) int64.

    Returns:
        (..., K).

    Example:
        >>> literal_margins(torch.tensor([2.0, 1.0, 1.0]).log(), torch.tensor(0)).exp()
        tensor([1., 2., 2.])
    """
    p, at = logits.softmax(-1), labels.unsqueeze(-1)
    others = p.scatter(-1, at, 0.0).sum(-1, keepdim=True)
    result = (p.gather(-1, at) / others).log() - (p / others).log()
    return result.scatter(-1, at, 0.0)


def prediction_pairs(
    classes: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw predictions before and after a step, the second half of the steps safe by construction.

    A step is Gaussian in the logits, of a size between 0.01 and 3. In the second half the label
    moves up by a little more than every competitor.

    Args:
        classes: K.
        count: N.
        generator: source of randomness.

    Returns:
        Logits before (N, K) and after (N, K), labels (N,).

    Example:
        >>> before, after, labels = prediction_pairs(5, 8, torch.Generator().manual_seed(0))
        >>> ((margins(after, labels) - margins(before, labels)).amin(-1) >= 0)[4:].all().item()
        True
    """
    before, _, labels = random_states(classes, count, generator)
    before, labels = _shuffled(before, labels, generator)
    step = _gaussian((count, classes), generator) * 0.01 * 300 ** _uniform((count, 1), generator)
    lift = step.amax(-1, keepdim=True) + 0.01 * _uniform((count, 1), generator) + 1e-6
    half = torch.arange(count).unsqueeze(-1) >= count // 2
    at = torch.nn.functional.one_hot(labels, classes).bool()
    return before, before + torch.where(half & at, lift, step), labels


def some_weighting_objects(
    before: Tensor, after: Tensor, labels: Tensor, weightings: int, generator: torch.Generator
) -> Tensor:
    r"""Say whether some $L_\omega$ rises: unit weights, one competitor alone, or random ones.

    Args:
        before: (N, K) logits.
        after: (N, K) logits.
        labels: (N,).
        weightings: how many random weightings are tried beside the others.
        generator: source of randomness.

    Returns:
        (N,) bool.

    Example:
        >>> before, after = torch.zeros(1, 3), torch.tensor([[1.0, -1.0, 1.5]])
        >>> some_weighting_objects(before, after, torch.tensor([0]), 0, torch.Generator())
        tensor([True])
    """
    alone = [torch.log1p((-margins(z, labels)).exp()) for z in (before, after)]  # omega = e_j
    rises = (alone[1] > alone[0]).any(-1)
    for _ in range(weightings):
        omega = -_uniform((before.shape[-1],), generator).log()
        losses = [weighted_label_loss(z, labels, omega) for z in (before, after)]
        rises = rises | (losses[1] > losses[0])
    plain = [weighted_label_loss(z, labels) for z in (before, after)]
    return rises | (plain[1] > plain[0])


def step_shares(
    classes: int, count: int, size: float, generator: torch.Generator
) -> tuple[float, float]:
    """Return how often a random step lowers cross-entropy, and how often it hides a lost margin.

    Students are mild random states; a step adds Gaussian noise to all logits.

    Args:
        classes: K.
        count: number of steps.
        size: deviation of the noise.
        generator: source of randomness.

    Returns:
        Share of steps that lower cross-entropy; share that lower it and some margin.
    """
    before, _, labels = random_states(classes, count, generator, "mild")
    after = before + size * _gaussian((count, classes), generator)
    return outcome_shares(before, after, labels)


def outcome_shares(before: Tensor, after: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the shares of steps that lower cross-entropy, and that lower it and some margin.

    Args:
        before: (N, K) logits.
        after: (N, K) logits.
        labels: (N,).

    Returns:
        Two shares.

    Example:
        >>> before, after = torch.zeros(1, 3), torch.tensor([[1.0, -1.0, 1.5]])
        >>> outcome_shares(before, after, torch.tensor([0]))
        (1.0, 1.0)
    """
    better = weighted_label_loss(after, labels) < weighted_label_loss(before, labels)
    worse = (margins(after, labels) < margins(before, labels)).any(-1)
    return float(better.double().mean()), float((better & worse).double().mean())


def missed_shares(
    classes: int, count: int, weightings: Sequence[int], generator: torch.Generator
) -> list[float]:
    """Return how many lost margins a finite set of positive weightings fails to notice.

    Random steps that lower cross-entropy and some margin are judged by the first m of a set of
    random weightings, exponentially distributed.

    Args:
        classes: K.
        count: number of random steps.
        weightings: increasing numbers m.
        generator: source of randomness.

    Returns:
        For each m, the share of those steps on which none of the m losses rises.
    """
    before, _, labels = random_states(classes, count, generator, "mild")
    after = before + 0.3 * _gaussian((count, classes), generator)
    better = weighted_label_loss(after, labels) < weighted_label_loss(before, labels)
    worse = (margins(after, labels) < margins(before, labels)).any(-1)
    kept = better & worse
    before, after, labels = before[kept], after[kept], labels[kept]
    omega = -_uniform((weightings[-1], 1, classes), generator).log()
    losses = [weighted_label_loss(z, labels, omega) for z in (before, after)]
    seen = (losses[1] > losses[0]).cummax(0).values
    return [1 - float(seen[m - 1].double().mean()) for m in weightings]


def draw_targets(axes: Sequence[Axes], student: Tensor, teacher: Tensor) -> None:
    """Draw the level lines of the three learning targets, one triangle each.

    Args:
        axes: three.
        student: (3,) probabilities, label first.
        teacher: (3,).
    """
    blue = figures.colours["blue"]
    options = {"colors": blue, "linewidths": 1.1}

    def conditional(p: Tensor) -> Tensor:
        r, q = p[:, 1:] / p[:, 1:].sum(-1, keepdim=True), teacher[1:] / teacher[1:].sum()
        return (q * (q / r).log()).sum(-1)

    targets = {
        "label fitting": (lambda p: -p[:, 0].log(), (0.1, 0.25, 0.5, 1.0, 2.0)),
        "full imitation": (lambda p: full_kl(p.log(), teacher.log()), (0.02, 0.08, 0.2, 0.4, 0.8)),
        "conditional learning": (conditional, (0.02, 0.08, 0.2, 0.4, 0.8)),
    }
    for ax, (name, (function, levels)) in zip(axes, targets.items(), strict=True):
        simplex.draw(ax, ("1", "2", "3"))
        simplex.contours(ax, function, levels, **options)
        simplex.point(ax, student, "$p$")
        simplex.point(ax, teacher, "$t$", marker="s")
        ax.set_title(name, loc="center", fontsize=11)
    top = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    foot = torch.cat([torch.zeros(1, dtype=torch.float64), teacher[1:] / teacher[1:].sum()])
    green = {"color": figures.colours["green"], "linewidth": 2.4}
    simplex.segment(axes[2], foot, top, **green)
    simplex.point(axes[0], top, marker="*", markersize=12, color=green["color"])
    simplex.point(axes[1], teacher, marker="s", color=green["color"])


def draw_safe_set(ax: Axes, student: Tensor, move: Tensor) -> None:
    """Draw the safe set, what cross-entropy would allow besides it, and one move.

    Args:
        ax: where to draw.
        student: (3,) probabilities, label first.
        move: (3,), a prediction with lower cross-entropy that gives back a margin.
    """
    rho = student[0]
    corner = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    left, right = torch.stack([rho, 1 - rho, 0 * rho]), torch.stack([rho, 0 * rho, 1 - rho])
    simplex.draw(ax, ("label", "class 2", "class 3"))
    hatched = {"alpha": 0.25, "hatch": "///", "linewidth": 0.8}
    label = "lower cross-entropy,\na margin given back"
    lower = torch.stack([corner, left, right])
    simplex.region(ax, lower, figures.colours["orange"], label, **hatched)
    safe = simplex.safe_polygon(student)
    simplex.region(ax, safe, "white", alpha=1.0)
    simplex.region(ax, safe, figures.colours["green"], r"safe set $\mathcal{S}(p)$", alpha=0.45)
    simplex.point(ax, student, "$p$", (-10, -14))
    simplex.point(ax, move, "$p'$", (8, -4), marker="D")


def draw_fan(ax: Axes, student: Tensor, weightings: Sequence[tuple[float, float]]) -> None:
    r"""Draw the level line through p of several $L_\omega$, and the safe set above all of them.

    Args:
        ax: where to draw.
        student: (3,) probabilities, label first.
        weightings: pairs $(\omega_2, \omega_3)$.
    """
    simplex.draw(ax, ("label", "class 2", "class 3"))
    safe = simplex.safe_polygon(student)
    simplex.region(ax, safe, figures.colours["green"], r"safe set $\mathcal{S}(p)$", alpha=0.45)
    styles = ("-", "--", "-.", ":", (0, (1, 1)))
    names = ("blue", "purple", "vermilion", "brown", "sky")
    for (two, three), style, name in zip(weightings, styles, names, strict=False):
        ends = _level_line(student, two, three)
        text = rf"$\omega = ({two:g}, {three:g})$"
        simplex.segment(ax, *ends, color=figures.colours[name], linestyle=style, label=text)
    simplex.point(ax, student, "$p$", (-3, -24))


def _level_line(p: Tensor, two: float, three: float) -> tuple[Tensor, Tensor]:
    """Where the line two p_2 + three p_3 = level p_1 meets the sides of the triangle."""
    level = float((two * p[1] + three * p[2]) / p[0])
    hits = [(two, level, 0.0)] if two else [(0.0, 1.0, 0.0)]
    hits += [(three, 0.0, level)] if three else [(0.0, 0.0, 1.0)]
    rows = [torch.tensor(row, dtype=torch.float64) for row in hits]
    return rows[0] / rows[0].sum(), rows[1] / rows[1].sum()


def _extended_softmax(logits: Tensor) -> np.ndarray:
    """Probabilities in numpy's widest floating point type."""
    shifted = logits.numpy().astype(np.longdouble)
    weights = np.exp(shifted - shifted.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _gaussian(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64).clamp(min=1e-300)


def _shuffled(first: Tensor, second: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(first), generator=generator)
    return first[order], second[order]
