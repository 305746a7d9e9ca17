"""Data partitioning: each example imitates the teacher or the student before training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lib.distill.batch import Batch
from lib.tpkd.checks import at_label
from lib.tpkd.divergence import divergence


def teacher_chosen(teacher: Tensor, frozen: Tensor, labels: Tensor | None) -> Tensor:
    r"""Say for each example whether the teacher is more confident than the frozen student.

    $$m = \mathbb 1[t_y > p^0_y] \text{ with labels (DP-S)}, \qquad
      m = \mathbb 1[\max_k t_k > \max_k p^0_k] \text{ without (DP-U)}$$

    The choice is hard, at unit temperature; a tie goes to the frozen student.

    **Source**: Roth et al. (2024), released code.

    Args:
        teacher: (..., K) float32 or float64, -inf allowed.
        frozen: (..., K), finite.
        labels: (...) int64, or None.

    Returns:
        (...) bool.

    Example:
        >>> sure, unsure = torch.tensor([2.0, 0.0, 0.0]), torch.zeros(3)
        >>> teacher_chosen(sure, unsure, None), teacher_chosen(sure, unsure, torch.tensor(1))
        (tensor(True), tensor(False))
    """
    logs = [logits.log_softmax(-1) for logits in (teacher, frozen)]
    if labels is None:
        first, second = (log.amax(-1) for log in logs)
    else:
        first, second = (at_label(log, labels) for log in logs)
    return first > second


def partition_loss(student: Tensor, teacher: Tensor, frozen: Tensor, chosen: Tensor) -> Tensor:
    r"""Return the divergence from the target chosen for each example.

    $$L = \operatorname{KL}(\tilde t \| p), \qquad \tilde t = m\,t + (1 - m)\,p^0, \qquad
      \nabla_z L = p - \tilde t$$

    **Source**: Roth et al. (2024), released code.

    Args:
        student: (..., K) float32 or float64, finite.
        teacher: (..., K), -inf allowed.
        frozen: (..., K), finite.
        chosen: (...) bool, True where the target is the teacher's.

    Returns:
        (...) >= 0.

    Example:
        >>> teacher = torch.tensor([0.0, 0.0, -torch.inf])
        >>> partition_loss(torch.zeros(3), teacher, torch.ones(3), torch.tensor(False))
        tensor(0.)
    """
    logs = [logits.log_softmax(-1) for logits in (teacher, frozen)]
    return divergence(torch.where(chosen.unsqueeze(-1), *logs), student.log_softmax(-1))


def dp_u_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    """Return the loss of DP-U: `partition_loss` with the choice that needs no label."""
    chosen = teacher_chosen(batch.teacher, batch.frozen, None)
    return (partition_loss(batch.student, batch.teacher, batch.frozen, chosen),)


def dp_s_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    """Return the loss of DP-S: `partition_loss` with the choice at the label."""
    chosen = teacher_chosen(batch.teacher, batch.frozen, batch.labels)
    return (partition_loss(batch.student, batch.teacher, batch.frozen, chosen),)
