"""A stiff one-step method for many differential equations at once.

The stages of an explicit-first-stage singly diagonally implicit Runge-Kutta method are equations
w = r + h gamma f(w), solved one after the other by the caller, who knows what makes f stiff. Every
member of the batch has its own step size.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

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


# takes known (B, p), length (B,), guess (B, p), memory (B, q) to solution, memory and success (B,)
StageSolver = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def runge_kutta_step(
    solve_stage: StageSolver, state: Tensor, slope: Tensor, memory: Tensor, step: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Make one step of a six-stage method of order four, with an error estimate of order three.

    $$w_i = w + h \sum_{j<i} a_{ij} k_j + h \gamma f(w_i), \qquad
      k_i = \frac{w_i - w - h \sum_{j<i} a_{ij} k_j}{h \gamma}, \qquad k_1 = f(w)$$

    The new state is the last stage. Slopes are taken from the stages rather than from f, whose
    stiff part would magnify what is left of the stage equations.

    **Source**: C. Kennedy, M. Carpenter, *Applied Numerical Mathematics* 44 (2003), the implicit
    part of ARK4(3)6L[2]SA.

    Args:
        solve_stage: solves w = known + length f(w) for a batch, given a guess and whatever it
            remembers of the last solution.
        state: (B, p).
        slope: (B, p), the right-hand side at the state, from the last step if there was one.
        memory: (B, q), what `solve_stage` remembers.
        step: (B,), step sizes > 0.

    Returns:
        The new state (B, p), the slope there (B, p), the new memory (B, q), and the length of the
        error estimate relative to that of the state (B,), infinite where a stage was not solved.

    Example:
        For f(w) = w a step of one gives e, up to the order.

        >>> def solve_stage(known, length, guess, memory):
        ...     return known / (1 - length.unsqueeze(-1)), memory, length > 0
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> state, *_ = runge_kutta_step(solve_stage, one, one, one, torch.full((1,), 0.1))
        >>> abs(float(state) - 1.1051709) < 1e-6
        True
    """
    h = step.unsqueeze(-1)
    diagonal = float(DIAGONAL) * step
    slopes, current = [slope], state
    solved = torch.ones_like(step, dtype=torch.bool)
    for row in STAGES[1:]:
        known = state + h * sum(float(a) * k for a, k in zip(row, slopes, strict=True) if a)
        guess = known + diagonal.unsqueeze(-1) * slopes[-1]
        current, memory, good = solve_stage(known, diagonal, guess, memory)
        solved &= good
        slopes.append((current - known) / diagonal.unsqueeze(-1))
    weights = (*STAGES[-1], DIAGONAL)
    error = sum(
        float(b - e) * k for b, e, k in zip(weights, EMBEDDED, slopes, strict=True) if b != e
    )
    length = torch.linalg.vector_norm(current, dim=-1).clamp(min=1e-300)
    relative = step * torch.linalg.vector_norm(error, dim=-1) / length
    solved &= torch.isfinite(relative)
    return current, slopes[-1], memory, torch.where(solved, relative, torch.inf)
