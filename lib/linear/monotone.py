"""Strong monotonicity: does one more example bring a learner closer to its teacher?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.linear.checks import check_count, check_nonzero
from lib.linear.geometry import angle
from lib.linear.risk import expected_risk, transfer_risk

_UNCHANGED = 1e-12  # radians; a smaller change of the angle is rounding
_HELD_OUT = 10_000

Learner = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Monotonicity:
    """How a learner's angle to the teacher changes with one more example; unpacks to (index, risk).

    Attributes:
        index: share of transfer sets on which the angle shrinks, the paper's m.
        risk: mean transfer risk after the first n examples.
        index_error: standard error of the index.
        risk_error: standard error of the risk.
        improved: the index once more, as one of three shares that sum to 1.
        worsened: share of transfer sets on which the angle grows.
        unchanged: share on which it stays, to 1e-12 rad.
        angles_before: (n_sets,) unsigned angles after n examples, radians.
        angles_after: (n_sets,) unsigned angles after n + 1 examples, radians.
    """

    index: float
    risk: float
    index_error: float
    risk_error: float
    improved: float
    worsened: float
    unchanged: float
    angles_before: Tensor
    angles_after: Tensor

    def __iter__(self) -> Iterator[float]:
        """Yield index and risk."""
        return iter((self.index, self.risk))

    def __getitem__(self, position: int) -> float:
        """Return index (0) or risk (1)."""
        return (self.index, self.risk)[position]


def monotonicity(
    learner: Learner, task, n: int, n_sets: int, generator: torch.Generator
) -> Monotonicity:
    r"""Estimate a learner's monotonicity index and its expected transfer risk.

    $$m = P\big[\bar\alpha(w_*, w([X, x])) < \bar\alpha(w_*, w(X))\big]$$

    for transfer sets X of n examples and one more example x. As in the paper the inequality is
    strict, so a learner that ignores the new example counts as not improved; changes of the angle
    below 1e-12 rad are rounding and count as unchanged. The risk is that of w(X). It is exact where
    the task is symmetric about its teacher (see `expected_risk`), and measured on 10,000 held-out
    inputs otherwise.

    **Source**: Phuong & Lampert, Section 5.3, Eq. 25.

    Args:
        learner: maps inputs (n_sets, n, d) and a teacher (d,) to weights (n_sets, d); called twice,
            on n and on n + 1 examples. One that draws random numbers draws new ones in each call.
        task: has `teacher` and `sample(n, generator)`, e.g. `PolynomialAngleTask`.
        n: number of examples, >= 1.
        n_sets: number of transfer sets, >= 1.
        generator: source of the transfer sets.

    Returns:
        A `Monotonicity`; `index, risk = monotonicity(...)` works too.

    Raises:
        ValueError: if a count is below 1, or the learner returns the wrong shape, zero weights or
            weights that are not finite.

    Example:
        By Lemma 6 one more example always helps the distilled student.

        >>> from lib.linear.limits import student_limit
        >>> from lib.linear.tasks import PolynomialAngleTask
        >>> generator = torch.Generator().manual_seed(0)
        >>> index, risk = monotonicity(student_limit, PolynomialAngleTask(9, 1.0), 3, 50, generator)
        >>> index
        1.0
    """
    n, n_sets = check_count("n", n), check_count("n_sets", n_sets)
    inputs = task.sample((n_sets, n + 1), generator)
    teacher = task.teacher.to(inputs.device)
    before = _learn(learner, inputs[:, :n], teacher)
    after = _learn(learner, inputs, teacher)
    angles_before, angles_after = angle(before, teacher), angle(after, teacher)
    change = angles_after - angles_before
    risks = _risks(before, teacher, task, generator)
    improved = float((change < -_UNCHANGED).double().mean())
    worsened = float((change > _UNCHANGED).double().mean())
    return Monotonicity(
        index=improved,
        risk=float(risks.mean()),
        index_error=math.sqrt(improved * (1 - improved) / n_sets),
        risk_error=float(risks.std(correction=0)) / math.sqrt(n_sets),
        improved=improved,
        worsened=worsened,
        unchanged=float((change.abs() <= _UNCHANGED).double().mean()),
        angles_before=angles_before,
        angles_after=angles_after,
    )


def _learn(learner: Learner, inputs: Tensor, teacher: Tensor) -> Tensor:
    """Call the learner and check what it returns."""
    weights = learner(inputs, teacher)
    expected = (inputs.shape[0], inputs.shape[-1])
    if not isinstance(weights, Tensor) or weights.shape != expected:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(
            f"learner must return weights of shape {expected} for inputs of shape "
            f"{tuple(inputs.shape)}, got {got}"
        )
    if not bool(torch.isfinite(weights).all()):
        raise ValueError("learner must return finite weights, got NaN or infinity")
    check_nonzero("weights returned by learner", weights)
    return weights


def _risks(weights: Tensor, teacher: Tensor, task, generator: torch.Generator) -> Tensor:
    """Return the transfer risk of every student: exact where the task allows, else measured."""
    if hasattr(task, "boundary_mass"):
        return expected_risk(angle(weights, teacher, signed=True), task)
    return transfer_risk(weights, teacher, task.sample(_HELD_OUT, generator))
