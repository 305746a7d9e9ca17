"""A batch of outputs that has passed every check, in the precision of the computation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lib.tpkd.checks import prepare

_MAY_BE_ZERO = ("teacher_logits",)


@dataclass(frozen=True)
class Batch:
    """Logits (..., K) and labels (...) with common leading dimensions, in float32 or float64.

    Attributes:
        student: differentiable.
        labels: int64.
        teacher: without gradient, -inf allowed; None if not given.
        frozen: logits of the student before training, without gradient; None if not given.
        auxiliary: logits of the student's second head, differentiable; None if not given.
        student_shape: of the student's logits before they were expanded.
    """

    student: Tensor
    labels: Tensor
    teacher: Tensor | None
    frozen: Tensor | None
    auxiliary: Tensor | None
    student_shape: torch.Size


def prepare_batch(
    student_logits: Tensor,
    teacher_logits: Tensor | None,
    labels: Tensor,
    *,
    frozen_logits: Tensor | None = None,
    auxiliary_logits: Tensor | None = None,
    conditional: bool = False,
) -> Batch:
    """Check everything that is given and bring it to one shape and precision.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real, -inf allowed; None if the method needs none.
        labels: (...) integer, in [0, K).
        frozen_logits: (..., K) real and finite, or None.
        auxiliary_logits: (..., K) real and finite, or None.
        conditional: True if the teacher must give some class besides the label a probability.

    Returns:
        A `Batch`: float64 if one of the logits is, else float32.

    Raises:
        ValueError: if an argument does not fit, or if there is no example.

    Example:
        >>> batch = prepare_batch(torch.zeros(2, 3, dtype=torch.float16), None, torch.tensor(0))
        >>> batch.student.dtype, batch.labels
        (torch.float32, tensor([0, 0]))
    """
    optional = {
        "teacher_logits": teacher_logits,
        "frozen_logits": frozen_logits,
        "auxiliary_logits": auxiliary_logits,
    }
    named = {"student_logits": student_logits}
    named |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    if conditional:
        checked = prepare(labels, zeros=_MAY_BE_ZERO, compute=None, **named)
        labels = checked.labels
    else:
        checked = prepare(None, labelled=False, zeros=_MAY_BE_ZERO, compute=None, **named)
        labels = prepare(labels, compute=None, student_logits=checked.logits[0]).labels
    if labels.numel() == 0:
        raise ValueError(
            f"student_logits must hold at least one example for a mean, got shape "
            f"{tuple(student_logits.shape)} with labels {tuple(labels.shape)}"
        )
    shape = (*labels.shape, student_logits.shape[-1])
    found = {name: tensor.expand(shape) for name, tensor in zip(named, checked.logits, strict=True)}
    fixed = {
        name: found[name].detach() if name in found else None
        for name in ("teacher_logits", "frozen_logits")
    }
    return Batch(
        student=found["student_logits"],
        labels=labels,
        teacher=fixed["teacher_logits"],
        frozen=fixed["frozen_logits"],
        auxiliary=found.get("auxiliary_logits"),
        student_shape=student_logits.shape,
    )
