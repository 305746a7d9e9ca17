"""The implicit equations of the log-time flow, solved for weights and example shares together.

The flow w' = |w|^{2-L} J(w)^T p is stiff because the shares p react to margins of size e^E. With
the logits l of p as unknowns of their own,

    w = known + h |w|^{2-L} J(w)^T softmax(l),    l = log(-loss'(margins(w))),

both unknowns change little from one stage to the next, and Newton's method works however large the
margins are. Eliminating w leaves one system of N equations for each member (Woodbury). A constant
may be added to l; it is chosen to make the largest logit zero, so that differences keep their
digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lib.implicit.losses import log_slopes
from lib.implicit.packing import pack
from lib.implicit.runge_kutta import StageSolver
from lib.implicit.training import TrainingProblem

_MOST_ITERATIONS = 12
_JITTER = 1e-15  # relative; keeps the factorisation positive definite when rounding would not
_TINY_SHARE = 1e-20
_TRIALS = 4  # iterations after which a correction that grows ends the attempt


def initial_slope(problem: TrainingProblem, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the logits of the shares, (B, N), and the right-hand side of the flow, (B, p).

    $$\frac{dw}{d\tau} = \|w\|^{2-L}\, P'(w)^\top \sum_n p_n a_n, \qquad
      p_n \propto -\ell'(m_n)$$

    Args:
        problem: network and loss.
        rows: (B, N, D), signed examples.
        state: (B, p), packed weights.

    Returns:
        The logits and the slope.

    Example:
        >>> from lib.implicit import DiagonalNetwork
        >>> from lib.implicit.training import training_problem
        >>> x, y, w = torch.tensor([[[3.0]]]), torch.ones(1), torch.tensor([[[1.0]], [[2.0]]])
        >>> problem = training_problem(DiagonalNetwork(2), x, y, "exponential", w, None, 1.0, ())
        >>> initial_slope(problem, problem.rows, problem.start)[1]  # z (w_2, w_1)
        tensor([[6., 3.]], dtype=torch.float64)
    """
    network = problem.network.linearise(problem.unpack(state))
    logits = log_slopes(_margins(rows, network.predictor), problem.loss)
    pull = _combine(torch.softmax(logits, -1), rows)
    logits = logits - logits.amax(-1, keepdim=True)
    return logits, _speed(problem, state) * pack(network.adjoint(pull))


def stage_solver(problem: TrainingProblem, rows: Tensor, tolerance: float) -> StageSolver:
    """Return a solver of w = known + h f(w), whose memory is the logits of the shares.

    Newton's method leaves out the derivatives of P' and of |w|, which are not stiff.

    Args:
        problem: network and loss.
        rows: (B, N, D), signed examples.
        tolerance: corrections below a thousandth of it, relative to the length of the weights,
            end the iteration.

    Returns:
        The solver, for `runge_kutta_step`.

    Example:
        For two equal layers, one coordinate and one example it is w = 1 + h x w.

        >>> from lib.implicit import DiagonalNetwork
        >>> from lib.implicit.training import training_problem
        >>> x, y, w = torch.tensor([[[3.0]]]), torch.ones(1), torch.ones(2, 1, 1)
        >>> problem = training_problem(DiagonalNetwork(2), x, y, "exponential", w, None, 1.0, ())
        >>> solve = stage_solver(problem, problem.rows, 1e-6)
        >>> h, memory = torch.tensor([0.1]).double(), torch.zeros(1, 1).double()
        >>> solve(problem.start, h, problem.start, memory)[0]  # 1 / (1 - 0.3)
        tensor([[1.4286, 1.4286]], dtype=torch.float64)
    """

    def correct(
        known: Tensor, length: Tensor, state: Tensor, logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The corrections of state and logits."""
        network = problem.network.linearise(problem.unpack(state))
        margins = _margins(rows, network.predictor)
        scale = length.unsqueeze(-1) * _speed(problem, state)
        shares = torch.softmax(logits, -1)
        target = known + scale * pack(network.adjoint(_combine(shares, rows)))
        missing = target - state
        ones = torch.ones_like(margins)
        steepness = torch.sigmoid(margins) if problem.loss == "logistic" else ones
        moved = _margins(rows, network.pushforward(problem.unpack(missing)))
        right = log_slopes(margins, problem.loss) - logits - steepness * moved
        matrix = scale.unsqueeze(-1) * network.gram(rows)
        traded, change = _share_correction(matrix, shares, steepness, right)
        return missing + scale * pack(network.adjoint(_combine(traded, rows))), change

    def solve_stage(
        known: Tensor, length: Tensor, guess: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        state, logits = guess, memory
        limit = 1e-3 * tolerance * torch.linalg.vector_norm(guess, dim=-1)
        before = torch.full_like(limit, torch.inf)
        hopeless = torch.zeros_like(limit, dtype=torch.bool)
        for iteration in range(_MOST_ITERATIONS):
            correction, change = correct(known, length, state, logits)
            state, logits = state + correction, logits + change
            logits = logits - logits.amax(-1, keepdim=True)
            size = torch.linalg.vector_norm(correction, dim=-1)
            done = size <= limit
            if iteration >= _TRIALS:
                hopeless |= ~(size < before)
            before = size
            if bool((done | hopeless).all()):
                break
        return state, logits, done

    return solve_stage


def _share_correction(
    matrix: Tensor, shares: Tensor, steepness: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Solve Delta l = r - c * (M q) with q = (diag p - p p^T) Delta l; return q and Delta l.

    With q_n / p_n = Delta l_n - s and g = (c p)^{1/2} it is the positive definite system
    (1 + g M g) v = g (r - s) / c, q = g v, where s makes the sum of q zero.
    """
    root = (steepness * shares).sqrt()
    system = root.unsqueeze(-1) * matrix * root.unsqueeze(-2)
    size = torch.diagonal(system, dim1=-2, dim2=-1)
    size.add_(1 + _JITTER * size.sum(-1, keepdim=True))
    factor = torch.linalg.cholesky_ex(system)[0]
    sides = torch.stack([root * right / steepness, root / steepness], -1)
    first, second = (root.unsqueeze(-1) * torch.cholesky_solve(sides, factor)).unbind(-1)
    offset = first.sum(-1, keepdim=True) / second.sum(-1, keepdim=True)
    traded = first - offset * second
    direct = right - steepness * (matrix @ traded.unsqueeze(-1)).squeeze(-1)
    return traded, torch.where(shares > _TINY_SHARE, traded / shares + offset, direct)


def _margins(rows: Tensor, predictor: Tensor) -> Tensor:
    return (rows @ predictor.unsqueeze(-1)).squeeze(-1)


def _combine(weights: Tensor, rows: Tensor) -> Tensor:
    return (weights.unsqueeze(-2) @ rows).squeeze(-2)


def _speed(problem: TrainingProblem, state: Tensor) -> Tensor:
    """|w|^{2-L}, (B, 1)."""
    return torch.linalg.vector_norm(state, dim=-1, keepdim=True) ** (2 - problem.network.degree)
