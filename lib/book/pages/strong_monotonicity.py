"""What the chapter "Strong monotonicity" computes: learners of its own, and one in time."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.linear import Monotonicity, hard_target_flow, monotonicity


def average_learner(inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the mean of the inputs, each turned to the teacher's positive side.

    $$w = \frac1n \sum_i \operatorname{sign}(w_*^\top x_i)\, x_i$$

    It is the direction in which a student on hard labels leaves zero.

    Args:
        inputs: (..., n, d), rows are examples.
        teacher: (d,).

    Returns:
        (..., d).

    Example:
        >>> average_learner(torch.tensor([[1.0, 0.0], [-1.0, 2.0]]), torch.tensor([1.0, 0.0]))
        tensor([ 1., -1.])
    """
    signs = torch.where(inputs @ teacher >= 0, 1.0, -1.0)
    return (signs.unsqueeze(-1) * inputs).mean(-2)


def best_example_learner(inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the one example with the smallest angle to the teacher, turned to its side.

    A student can do this from soft labels: the cosine of the angle is the teacher's logit divided
    by the length of the input, up to a common factor.

    Args:
        inputs: (..., n, d), rows are examples, none zero.
        teacher: (d,).

    Returns:
        (..., d).

    Example:
        >>> inputs = torch.tensor([[0.0, 9.0], [-2.0, 1.0], [1.0, 1.0]])
        >>> best_example_learner(inputs, torch.tensor([1.0, 0.0]))
        tensor([ 2., -1.])
    """
    cosines = (inputs @ teacher) / torch.linalg.vector_norm(inputs, dim=-1)
    best = cosines.abs().argmax(-1, keepdim=True)
    chosen = inputs.gather(-2, best.unsqueeze(-1).expand(*best.shape, inputs.shape[-1]))
    return torch.where(cosines.gather(-1, best) >= 0, 1.0, -1.0) * chosen.squeeze(-2)


def support_counts(weights: Tensor, inputs: Tensor, teacher: Tensor) -> Tensor:
    """Return how many examples a maximum-margin classifier rests on.

    Args:
        weights: (..., d), of unit margin, see `lib.linear.hard_target_limit`.
        inputs: (..., n, d), rows are examples.
        teacher: (d,).

    Returns:
        (...) int64, examples with margin 1 to a relative 1e-7.

    Example:
        The second example is further out than the margin of the first.

        >>> inputs = torch.tensor([[1.0, 0.0], [3.0, 0.0]]).double()
        >>> support_counts(inputs[0], inputs, teacher=inputs[0])
        tensor(1)
    """
    signs = torch.where(inputs @ teacher >= 0, 1.0, -1.0)
    margins = signs * (inputs @ weights.unsqueeze(-1)).squeeze(-1)
    return (margins <= 1 + 1e-7).sum(-1)


def hard_targets_in_time(task, n: int, n_sets: int, times: Tensor, seed: int) -> list[Monotonicity]:
    """Measure the hard-target student at many times of one and the same training.

    The flow is followed once for n and once for n + 1 examples; every time then is a learner.

    **Source**: Phuong & Lampert, Section 5.3.

    Args:
        task: a task of `lib.linear`.
        n: number of examples, >= 1.
        n_sets: number of transfer sets, >= 1.
        times: (T,), increasing, > 0.
        seed: of the transfer sets; equal seeds give equal sets, also in `monotonicity`.

    Returns:
        A `Monotonicity` for each time.

    Raises:
        ValueError: if a time is not positive: weights at time 0 have no direction.

    Example:
        >>> from lib.linear import PolynomialAngleTask
        >>> task, times = PolynomialAngleTask(5, 1.0), torch.tensor([1.0, 10.0])
        >>> [round(m.improved + m.worsened + m.unchanged, 12)
        ...  for m in hard_targets_in_time(task, 2, 4, times, seed=0)]
        [1.0, 1.0]
    """
    if not bool((times > 0).all()):
        raise ValueError(f"times must be > 0, got {times.tolist()}")
    inputs = task.sample((n_sets, n + 1), torch.Generator().manual_seed(seed))
    paths = {size: hard_target_flow(inputs[:, :size], task.teacher, times) for size in (n, n + 1)}

    def at(position: int):
        return lambda examples, _: paths[examples.shape[-2]][:, position]

    return [
        monotonicity(at(k), task, n, n_sets, torch.Generator().manual_seed(seed))
        for k in range(len(times))
    ]
