"""A stiff one-step method for many flows at once, for right-hand sides whose stiffness is low rank.

The stages of an explicit-first-stage singly diagonally implicit Runge-Kutta method are equations
w = r + h gamma f(w), solved one after the other by Newton's method with whatever approximate
inverse the caller supplies; every member of the batch has its own step size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

_MOST_ITERATIONS = 15

# ESDIRK4(3)6L[2]SA: order 4, embedded order 3, L-stable, stiffly accurate, stage order 2.
DIAGONAL = Fraction(1, 4)
STAGES = (
    (),
    (Fraction(1, 4),),
    (Fraction(8611, 62500), Fraction(-1743, 31250)),
    (
        Fraction(5012029, 34652500),
        Fraction(-654441, 2922500),
        Fraction(174375, 388108),
    ),
    (
        Fraction(15267082809, 155376265600),
        Fraction(-71443401, 120774400),
        Fraction(730878875, 902184768),
        Fraction(2285395, 8070912),
    ),
    (
        Fraction(82889, 524892),
        Fraction(0),
        Fraction(15625, 83664),
        Fraction(69875, 102672),
        Fraction(-2260, 8211),
    ),
)
EMBEDDED = (
    Fraction(4586570599, 29645900160),
    Fraction(0),
    Fraction(178811875, 945068544),
    Fraction(814220225, 1159782912),
    Fraction(-3700637, 11593932),
    Fraction(61727, 225920),
)
ORDER = 4


@dataclass(frozen=True)
class LocalField:
    """A right-hand side f at given states, with an approximate inverse for Newton's method.

    Attributes:
        value: f(w), (B, p).
        solve: takes a right-hand side (B, p) and lengths (B,) to (I - h J)^{-1} of it, where J is
            f'(w) up to parts that are not stiff.
    """

    value: Tensor
    solve: Callable[[Tensor, Tensor], Tensor]


def runge_kutta_step(
    field: Callable[[Tensor], LocalField],
    state: Tensor,
    slope: Tensor,
    step: Tensor,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Make one step of a six-stage method of order four, with an error estimate of order three.

    $$w_i = w + h \sum_{j<i} a_{ij} k_j + h \gamma f(w_i), \qquad
      k_i = \frac{w_i - w - h \sum_{j<i} a_{ij} k_j}{h \gamma}, \qquad k_1 = f(w)$$

    The new state is the last stage. Slopes are taken from the stages rather than from f, whose
    stiff part would magnify what Newton's method left.

    **Source**: C. Kennedy, M. Carpenter, *Applied Numerical Mathematics* 44 (2003), implicit part of
    ARK4(3)6L[2]SA.

    Args:
        field: the right-hand side at states (B, p).
        state: (B, p).
        slope: (B, p), the right-hand side at the state, from the last step if there was one.
        step: (B,), step sizes > 0.
        tolerance: Newton's method ends when a correction is below a thousandth of this, relative
            to the length of the state.

    Returns:
        The new state (B, p), the slope there (B, p), and the length of the error estimate relative
        to that of the state (B,); infinite where Newton's method did not converge.

    Example:
        The step is exact for f = 1 (and t^2, t^3, which f = 1 and a second component would show).

        >>> one = lambda w: LocalField(torch.ones_like(w), lambda r, h: r)
        >>> state, step = torch.zeros(1, 1), torch.ones(1)
        >>> runge_kutta_step(one, state, torch.ones(1, 1), step, 1e-6)[0]
        tensor([[1.]])
    """
    h = step.unsqueeze(-1)
    diagonal = float(DIAGONAL) * h
    slopes, current = [slope], state
    failed = torch.zeros_like(step, dtype=torch.bool)
    for row in STAGES[1:]:
        known = state + h * sum(float(a) * k for a, k in zip(row, slopes, strict=True) if a)
        current, ok = _solve_stage(field, known, known + diagonal * slopes[-1], diagonal, tolerance)
        failed |= ~ok
        slopes.append((current - known) / diagonal)
    weights = (*STAGES[-1], DIAGONAL)
    error = sum(
        float(b - e) * k for b, e, k in zip(weights, EMBEDDED, slopes, strict=True) if b != e
    )
    length = torch.linalg.vector_norm(current, dim=-1).clamp(min=1e-300)
    relative = step * torch.linalg.vector_norm(error, dim=-1) / length
    failed |= ~torch.isfinite(relative)
    return current, slopes[-1], torch.where(failed, torch.inf, relative)


def _solve_stage(
    field: Callable[[Tensor], LocalField],
    known: Tensor,
    guess: Tensor,
    diagonal: Tensor,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Solve w = known + diagonal f(w) by Newton's method; say which members converged."""
    current = guess
    limit = 1e-3 * tolerance * torch.linalg.vector_norm(guess, dim=-1)
    for _ in range(_MOST_ITERATIONS):
        local = field(current)
        residual = current - known - diagonal * local.value
        correction = local.solve(residual, diagonal.squeeze(-1))
        current = current - correction
        size = torch.linalg.vector_norm(correction, dim=-1)
        done = size <= limit
        if bool((done | ~torch.isfinite(size)).all()):
            break
    return current, done
