"""Non-negative least squares for a batch of small problems at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

_TOLERANCE = 1e-13  # of a gradient entry, relative to the column's and the target's norm
_PATIENCE = 5  # settled points without a smaller residual before rounding is blamed


def nonnegative_least_squares(matrix: Tensor, target: Tensor, stop_below: float = 1e-12) -> Tensor:
    r"""Solve non-negative least squares problems by the active-set method, all in step.

    $$\min_{\lambda \ge 0} |A \lambda - b|$$

    Lawson and Hanson's method keeps a set of free variables. It frees the variable along which
    the residual falls fastest, solves the least squares problem on the free ones by QR, and goes
    back to the last feasible point on the way whenever a variable would become negative. Every
    problem of the batch takes one such step per iteration, until all have finished.

    **Source**: Lawson & Hanson, Solving Least Squares Problems, chapter 23 (algorithm NNLS).

    Args:
        matrix: (B, m, k) float64.
        target: (B, m) float64.
        stop_below: a problem is done once |A x - b| <= stop_below |b|, wherever it stands then.

    Returns:
        (B, k) float64, >= 0.

    Raises:
        RuntimeError: if a problem does not finish in 20 (k + 5) iterations.

    Example:
        >>> a = torch.eye(2, dtype=torch.float64)[None]
        >>> nonnegative_least_squares(a, torch.tensor([[2.0, -1.0]], dtype=torch.float64))
        tensor([[2., 0.]], dtype=torch.float64)
    """
    size = matrix.shape[-1]
    norms = torch.linalg.vector_norm(matrix, dim=-2)
    norms = torch.where(norms > 0, norms, 1.0)
    problems = _Problems.start(matrix / norms.unsqueeze(-2), target)
    solution = torch.zeros_like(norms)
    for _ in range(20 * (size + 5)):
        finished = problems.free_one(stop_below)
        if bool(finished.any()):
            solution[problems.index[finished]] = problems.values[finished]
            problems = problems.keep(~finished)
            if not len(problems.index):
                return solution / norms
        problems.step()
    raise RuntimeError(
        f"{len(problems.index)} of {len(matrix)} non-negative least squares problems did not "
        f"finish, the first is number {int(problems.index[0])}; its columns are nearly parallel"
    )


@dataclass
class _Problems:
    """The problems still at work, one a row."""

    index: Tensor  # number in the batch
    matrix: Tensor  # with columns of unit norm
    target: Tensor
    values: Tensor  # the current point, feasible
    free: Tensor  # which variables may be positive
    banned: Tensor  # which variables rounding has kept from entering at this point
    entering: Tensor  # the variable freed last, or -1
    settled: Tensor  # whether the point minimises the residual on the free variables
    best: Tensor  # smallest residual of a settled point
    stalled: Tensor  # settled points since

    @staticmethod
    def start(matrix: Tensor, target: Tensor) -> _Problems:
        """Put every problem at 0, with no free variable."""
        index = torch.arange(len(matrix), device=matrix.device)
        values = torch.zeros_like(matrix[:, 0])
        none = torch.zeros_like(values, dtype=torch.bool)
        best = torch.full_like(target[:, 0], torch.inf)
        settled = torch.ones_like(index, dtype=torch.bool)
        zero = torch.zeros_like(index)
        return _Problems(
            index, matrix, target, values, none, none.clone(), zero - 1, settled, best, zero
        )

    def keep(self, mask: Tensor) -> _Problems:
        """Return some of the problems."""
        return _Problems(*(getattr(self, field.name)[mask] for field in fields(self)))

    def free_one(self, stop_below: float) -> Tensor:
        """Free the steepest variable of every settled problem; say which are finished."""
        residual = self.target - (self.matrix @ self.values.unsqueeze(-1)).squeeze(-1)
        descent = (residual.unsqueeze(-2) @ self.matrix).squeeze(-2)
        descent = descent.masked_fill(self.free | self.banned, -torch.inf)
        steepest, entering = descent.max(-1)
        size = torch.linalg.vector_norm(residual, dim=-1)
        scale = torch.linalg.vector_norm(self.target, dim=-1)
        self.stalled = torch.where(size < self.best, 0, self.stalled + self.settled)
        self.best = torch.where(self.settled, torch.minimum(size, self.best), self.best)
        works = (size > stop_below * scale) & (steepest > _TOLERANCE * scale)
        works &= (self.free.sum(-1) < self.matrix.shape[-2]) & (self.stalled <= _PATIENCE)
        moves = self.settled & works
        self.free[moves.nonzero().squeeze(-1), entering[moves]] = True
        self.entering = torch.where(moves, entering, -1)
        return self.settled & ~moves

    def step(self) -> None:
        """Go to the least squares solution on the free variables, or as far as they stay >= 0."""
        goal = masked_least_squares(self.matrix, self.target, self.free)
        entered = self.entering.clamp(min=0).unsqueeze(-1)
        futile = (self.entering >= 0) & ~(goal.gather(-1, entered).squeeze(-1) > 0)
        rows, columns = futile.nonzero().squeeze(-1), self.entering[futile]
        self.free[rows, columns], self.banned[rows, columns] = False, True
        blocked = self.free & (goal <= 0) & ~futile.unsqueeze(-1)
        gap = torch.where(futile.unsqueeze(-1), 0.0, self.values - goal)
        ratio = torch.where(blocked, self.values / torch.where(blocked, gap, 1.0), torch.inf)
        fraction = ratio.amin(-1, keepdim=True).clamp(max=1)
        leaves = blocked & (ratio <= fraction)
        self.free &= ~leaves
        self.values = torch.where(self.free, self.values - fraction * gap, 0.0).clamp(min=0)
        self.settled = ~blocked.any(-1)
        self.banned &= ~(self.settled & ~futile).unsqueeze(-1)


def masked_least_squares(matrix: Tensor, target: Tensor, free: Tensor) -> Tensor:
    """Minimise |A x - b| over x that vanish where not free; free columns must be independent."""
    width = max(int(free.sum(-1).max()), 1)
    order = free.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :width]
    used = free.gather(-1, order)
    columns = matrix.gather(-1, order.unsqueeze(-2).expand(-1, matrix.shape[-2], -1))
    q, r = torch.linalg.qr(columns * used.unsqueeze(-2))
    r = r + torch.diag_embed((~used).to(r.dtype))
    right = (q.mT @ target.unsqueeze(-1)) * used.unsqueeze(-1)
    values = torch.linalg.solve_triangular(r, right, upper=True).squeeze(-1)
    return torch.zeros_like(free, dtype=matrix.dtype).scatter(-1, order, values * used)
