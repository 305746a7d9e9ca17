"""What the chapter "How fast does the student learn?" computes: risks for every size at once."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.linear import expected_risk

_ANGLES_AT_ONCE = 2000  # the nodes of their quadratures fit into a cache


def nested_angles(inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the student's angle to the teacher after 1, 2, ..., n of the examples.

    $$\cos\bar\alpha(w_*, \hat w_k) = \|Q_k^\top w_*\| / \|w_*\|$$

    with $Q_k$ the first k columns of the Q of one QR factorisation, so that n students cost as much
    as one. For k = d the angle is exactly 0.

    **Source**: Phuong & Lampert, Theorem 1 and the identity in the proof of Lemma 6.

    Args:
        inputs: (..., n, d) float64 of full rank, n <= d, rows are examples in the order of arrival.
        teacher: (d,) float64, non-zero.

    Returns:
        (..., n) float64, in [0, pi/2].

    Raises:
        ValueError: if n > d, or shapes do not fit.

    Example:
        The first example lies at 45 degrees, the first two at 0.

        >>> x = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
        >>> torch.rad2deg(nested_angles(x, torch.tensor([1.0, 0.0], dtype=torch.float64)))
        tensor([45.0000,  0.0000], dtype=torch.float64)
    """
    n, d = inputs.shape[-2:]
    if n > d or teacher.shape != (d,):
        raise ValueError(
            f"inputs must be (..., n, d) with n <= d and teacher (d,), got {tuple(inputs.shape)} "
            f"and {tuple(teacher.shape)}; with n >= d the student is the teacher"
        )
    columns, _ = torch.linalg.qr(inputs.mT)
    parts = (columns.mT @ teacher) ** 2
    learnt = parts.cumsum(-1)
    outside = (
        teacher.square().sum() - learnt[..., -1:] if n < d else torch.zeros_like(parts[..., :1])
    )
    later = parts.flip(-1).cumsum(-1).flip(-1) - parts
    return torch.atan2((later + outside).clamp(min=0).sqrt(), learnt.sqrt())


def risk_curves(
    task, largest: int, n_sets: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw transfer sets and return the students' angles and exact risks for n = 1, ..., largest.

    Args:
        task: a task with `sample`, `teacher` and what `expected_risk` needs.
        largest: the largest n, in [1, d].
        n_sets: number of independent transfer sets, each grown one example at a time.
        generator: source of randomness.

    Returns:
        Angles in radians and risks, both (n_sets, largest) float64.

    Raises:
        ValueError: if largest is above d.

    Example:
        >>> from lib.linear import MarginAngleTask
        >>> task = MarginAngleTask(3, torch.pi / 4)  # the wedge makes one example enough
        >>> risk_curves(task, 2, 1, torch.Generator().manual_seed(0))[1]
        tensor([[0., 0.]], dtype=torch.float64)
    """
    angles = nested_angles(task.sample((n_sets, largest), generator), task.teacher)
    parts = [expected_risk(part, task) for part in angles.flatten().split(_ANGLES_AT_ONCE)]
    return angles, torch.cat(parts).view_as(angles)
