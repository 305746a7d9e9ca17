r"""What the chapter "Data geometry" computes: one task measured, and its risk from a formula.

The teacher is the first unit vector, and an input at angle a to it is
$x = \nu (\cos a\, e_1 + \sin a\, u)$ with a unit vector $u$ orthogonal to $e_1$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.linear import angle, expected_risk, student_limit, transfer_risk

_PARTS = 20  # of the held-out inputs, for the standard error


@dataclass(frozen=True)
class Trial:
    """Distilled students of many transfer sets from one task.

    Attributes:
        angles: (n_sets,) angle of each student to the teacher, radians.
        cotangents: (n_sets,) sum of cot^2 of the examples' angles.
        risks: (n_sets,) exact transfer risk of each student.
        held_out: mean transfer risk counted on held-out inputs.
        held_out_error: its standard error over the choice of held-out inputs.
    """

    angles: Tensor
    cotangents: Tensor
    risks: Tensor
    held_out: float
    held_out_error: float


def run_trial(task, n: int, n_sets: int, n_held_out: int, generator: torch.Generator) -> Trial:
    """Distil one student on each of many transfer sets, and take its risk by two routes.

    **Source**: Phuong & Lampert, Section 5.1.

    Args:
        task: a task of `lib.linear`.
        n: examples in a transfer set, >= 1.
        n_sets: number of transfer sets, >= 1.
        n_held_out: number of held-out inputs, shared by all students, >= 20.
        generator: source of randomness.

    Returns:
        The `Trial`.

    Raises:
        ValueError: if there are fewer than 20 held-out inputs.

    Example:
        With n = d the student is the teacher.

        >>> from lib.linear import PolynomialAngleTask
        >>> task, generator = PolynomialAngleTask(4, 1.0), torch.Generator().manual_seed(0)
        >>> trial = run_trial(task, 4, 3, 20, generator)
        >>> trial.risks.tolist(), trial.held_out
        ([0.0, 0.0, 0.0], 0.0)
    """
    if n_held_out < _PARTS:
        raise ValueError(f"n_held_out must be at least {_PARTS}, got {n_held_out}")
    inputs, teacher = task.sample((n_sets, n), generator), task.teacher
    students = student_limit(inputs, teacher)
    angles = angle(students, teacher, signed=True)
    parts = task.sample(n_held_out, generator).tensor_split(_PARTS)
    counted = torch.stack([transfer_risk(students, teacher, part).mean() for part in parts])
    return Trial(
        angles=angles,
        cotangents=cotangent_sum(angle(inputs, teacher)),
        risks=expected_risk(angles, task),
        held_out=float(counted.mean()),
        held_out_error=float(counted.std()) / math.sqrt(_PARTS),
    )


def cotangent_sum(angles: Tensor) -> Tensor:
    r"""Return $\sum_i \cot^2 a_i$ over the examples of a transfer set.

    Args:
        angles: (..., n) radians, angles of the examples to the teacher, in (0, pi/2].

    Returns:
        (...), >= 0.

    Example:
        >>> cotangent_sum(torch.full((2,), torch.pi / 3, dtype=torch.float64))  # 1/3 + 1/3
        tensor(0.6667, dtype=torch.float64)
    """
    return torch.tan(angles).square().reciprocal().sum(-1)


def half_normal_moment(power: float) -> float:
    r"""Return $E|Z|^k$ of a standard normal variable.

    $$E|Z|^k = 2^{k/2}\, \Gamma\big(\tfrac{k+1}{2}\big) / \sqrt\pi$$

    Args:
        power: k > -1.

    Returns:
        The moment.

    Raises:
        ValueError: if the power is -1 or below, where the moment is infinite.

    Example:
        >>> round(half_normal_moment(2.0), 12)
        1.0
    """
    if not power > -1:
        raise ValueError(f"power must be above -1, got {power!r}: the moment is infinite")
    return 2 ** (power / 2) * math.gamma((power + 1) / 2) / math.sqrt(math.pi)


def limit_risk(kappa: float, n: int, dimension: int) -> float:
    r"""Return the mean risk of a distilled student for many examples and far more dimensions.

    $$E[R] \approx \frac{m_\kappa^2}{2} \Big(\frac{2}{\pi}\Big)^{\kappa/2}
      \frac{1}{(\kappa\, n \sqrt{d})^\kappa}, \qquad m_\kappa = E|Z|^\kappa,
      \qquad 1 \ll n \ll d$$

    **Source**: ours, derived in the chapter; the task is that of Phuong & Lampert, Section 5.1.

    Args:
        kappa: degree of the task's angular tail, > 0.
        n: number of examples, >= 1.
        dimension: d >= 2.

    Returns:
        The risk; an approximation, which may exceed 1 when n is small.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> math.isclose(limit_risk(2.0, 1, 2), 1 / (8 * math.pi))
        True
    """
    if not (kappa > 0 and n >= 1 and dimension >= 2):
        raise ValueError(
            f"kappa must be > 0, n >= 1 and dimension >= 2, got {kappa!r}, {n!r}, {dimension!r}"
        )
    moment = half_normal_moment(kappa)
    scale = kappa * n * math.sqrt(dimension)
    return moment**2 / 2 * (2 / math.pi) ** (kappa / 2) / scale**kappa
