"""TPKD and its controls: surrogates whose gradient in the logits is a prescribed direction."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lib.distill.batch import Batch
from lib.distill.label import label_gradient
from lib.tpkd import confidence_direction
from lib.tpkd.directions import Directions, conditional_probabilities, directions_between
from lib.tpkd.projection import project


def surrogate(student: Tensor, direction: Tensor) -> Tensor:
    r"""Return a number per example whose gradient in the logits is the direction.

    $$\langle \operatorname{stopgrad}(v), z \rangle$$

    Its value means nothing.

    **Source**: Yuan & Tao, Section 5.1, Eq. 8.

    Args:
        student: (..., K) floating point.
        direction: (..., K).

    Returns:
        (...).

    Example:
        >>> import torch
        >>> surrogate(torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 3.0]))
        tensor(3.)
    """
    return (direction.detach() * student).sum(-1)


def safe_full_kl_direction(
    student: Tensor, teacher: Tensor, labels: Tensor, weight: float
) -> Tensor:
    r"""Return the label gradient plus the safe part of the gradient of full imitation.

    $$h + w\, \Pi_{\mathcal K_y}(p - t)$$

    In a blocked state the second term is 0. Unlike the other directions it needs no conditional
    probabilities: a teacher that is certain of the label will do.

    **Source**: Yuan & Tao, Appendix E.5.

    Args:
        student: (..., K) float32 or float64, finite.
        teacher: (..., K), -inf allowed.
        labels: (...) int64.
        weight: w >= 0.

    Returns:
        (..., K), in the student's dtype.

    Example:
        >>> import torch
        >>> teacher = torch.tensor([0.0, -torch.inf, -torch.inf])
        >>> safe_full_kl_direction(torch.zeros(3), teacher, torch.tensor(0), 1.0)
        tensor([-1.3333,  0.6667,  0.6667])
    """
    gap = student.double().softmax(-1) - teacher.double().softmax(-1)
    safe = project(gap, labels).to(student.dtype)
    return label_gradient(student, labels) + weight * safe


def tpkd_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    r"""Return the loss of TPKD as a surrogate.

    $$h + w d, \qquad w = 1/2$$

    The direction contains the label's gradient already.

    **Source**: Yuan & Tao, Eqs. 6 and 8.
    """
    return (surrogate(batch.student, _found(batch, options).update),)


def no_label_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    r"""Return the loss of the control without the CE gradient as a surrogate.

    $$w d, \qquad w = 1/2$$

    It vanishes once the student has the teacher's conditional probabilities.

    **Source**: Yuan & Tao, Table 5 and Appendix E.5.
    """
    return (surrogate(batch.student, options["weight"] * _found(batch, options).corrected),)


def full_kl_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    r"""Return the loss of the control with safe full imitation as a surrogate.

    $$h + w\, \Pi_{\mathcal K_y}(p - t), \qquad w = 1/2$$

    In a blocked state its gradient is that of CE.

    **Source**: Yuan & Tao, Table 5 and Appendix E.5.
    """
    student, weight = batch.student.detach(), options["weight"]
    direction = safe_full_kl_direction(student, batch.teacher, batch.labels, weight)
    return (surrogate(batch.student, direction),)


def no_projection_losses(
    batch: Batch, options: Mapping[str, object], step: int | None
) -> tuple[Tensor]:
    r"""Return the loss of the control without projection as a surrogate.

    $$h + w u, \qquad w = 1/2$$

    It is the gradient of $\operatorname{CE} + w \operatorname{KL}(q \| r)$.

    **Source**: Yuan & Tao, Table 5 and Appendix E.5.
    """
    found = _found(batch, options)
    direction = found.label + options["weight"] * found.conditional
    return (surrogate(batch.student, direction),)


def compensation_only_losses(
    batch: Batch, options: Mapping[str, object], step: int | None
) -> tuple[Tensor]:
    r"""Return the loss of the direction with only the compensation as a surrogate.

    $$h + w \ell a_0, \qquad w = 1/2$$

    It raises every margin alike.

    **Source**: Yuan & Tao, Section 5.2 and Appendix E.2.
    """
    found = _found(batch, options)
    push = confidence_direction(batch.labels, found.label.shape[-1], found.label.dtype)
    direction = found.label + options["weight"] * found.compensation.unsqueeze(-1) * push
    return (surrogate(batch.student, direction),)


def _found(batch: Batch, options: Mapping[str, object]) -> Directions:
    """The directions at the student's outputs, of a batch that has passed every check."""
    student = batch.student.detach()
    weight = torch.as_tensor(options["weight"], dtype=student.dtype, device=student.device)
    q = conditional_probabilities(batch.teacher, batch.labels)
    return directions_between(student, q, batch.labels, weight)
