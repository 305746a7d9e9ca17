"""Random students, teachers and labels that the tests of this room share."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    ),
]
STUDENT = torch.tensor([0.90, 0.07, 0.03], dtype=torch.float64).log()  # of Figure 1
TEACHER = torch.tensor([0.40, 0.25, 0.35], dtype=torch.float64).log()
LABEL = torch.tensor(0)


def random_states(
    seed: int, count: int, classes: int, scale: float = 3.0, zeros: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (count, classes) of student and teacher in float64, and labels (count,).

    `zeros` is the share of teacher logits that are -inf; one besides the label's stays finite.
    """
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (
        scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    labels = torch.randint(classes, (count,), generator=generator)
    if zeros:
        off = torch.rand(count, classes, generator=generator) < zeros
        off.scatter_(-1, ((labels + 1) % classes).unsqueeze(-1), False)
        teacher = teacher.masked_fill(off, -math.inf)
    return student, teacher, labels


def per_example(function, *columns: Tensor) -> Tensor:
    """Apply a function of lists and numbers to every example, and return float64."""
    rows = zip(*(column.tolist() for column in columns), strict=True)
    values = [function(*row) for row in rows]
    as_floats = [[float(x) for x in v] if isinstance(v, list) else float(v) for v in values]
    return torch.tensor(as_floats, dtype=torch.float64)
