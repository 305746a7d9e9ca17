"""What the chapter "The flows, up close" computes: other solvers, optimisers, leaving times."""

from __future__ import annotations

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.special import expit
from torch import Tensor

from lib.linear import cross_entropy_gradient, project_onto_span

_GRID = 0.2  # relative half-width of the window in which a crossing is looked for


def outside_share(path: Tensor, inputs: Tensor) -> Tensor:
    r"""Return the share of weights outside the data span, $|w - P_X w| / |w|$.

    **Source**: the quantity of Phuong & Lampert, Lemma 11 and Eq. 49 (there squared).

    Args:
        path: (..., T, d), weights along a trajectory, not zero.
        inputs: (..., n, d), rows are examples.

    Returns:
        (..., T), in [0, 1].

    Example:
        >>> outside_share(torch.tensor([[4.0, 3.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([0.6000])
    """
    spanned = project_onto_span(inputs.unsqueeze(-3), path)
    return (path - spanned).norm(dim=-1) / path.norm(dim=-1)


def full_gradient_flow(inputs: Tensor, teacher: Tensor, times: Tensor) -> Tensor:
    r"""Follow a direct student from zero with SciPy's LSODA, in all d coordinates.

    $$w' = \frac1n \sum_i \big(\sigma(w_*^\top x_i) - \sigma(w^\top x_i)\big)\, x_i$$

    Nothing is reduced to the data span here, so that staying in it is a result.

    **Source**: Phuong & Lampert, Eq. 3 with N = 1.

    Args:
        inputs: (n, d), rows are examples.
        teacher: (d,).
        times: (T,), increasing, > 0.

    Returns:
        (T, d), float64.

    Raises:
        RuntimeError: if the solver gives up.

    Example:
        >>> x, w_star = torch.eye(2).double(), torch.tensor([2.0, 0.0]).double()
        >>> path = full_gradient_flow(x, w_star, torch.tensor([1000.0]))
        >>> torch.allclose(path[0], w_star)
        True
    """
    x, labels = inputs.numpy(), expit((inputs @ teacher).numpy())

    def field(_: float, w: np.ndarray) -> np.ndarray:
        return (labels - expit(x @ w)) @ x / len(x)

    times = times.double().numpy()
    solution = solve_ivp(
        field, (0, times[-1]), np.zeros(x.shape[1]), "LSODA", times, rtol=1e-10, atol=1e-13
    )
    if not solution.success:
        raise RuntimeError(f"LSODA stopped: {solution.message}")
    return torch.from_numpy(solution.y.T)


def optimise(
    optimiser: torch.optim.Optimizer, weights: Tensor, inputs: Tensor, teacher: Tensor, steps: int
) -> Tensor:
    """Let an optimiser of PyTorch minimise the distillation loss of a direct student.

    Args:
        optimiser: over `[weights]`.
        weights: (d,), changed in place.
        inputs: (n, d), rows are examples.
        teacher: (d,).
        steps: number of full-batch steps, >= 1.

    Returns:
        The final weights, (d,).

    Example:
        >>> w = torch.zeros(1, dtype=torch.float64)
        >>> x, w_star = torch.ones(1, 1).double(), torch.ones(1).double()
        >>> end = optimise(torch.optim.SGD([w], lr=1.0), w, x, w_star, 500)
        >>> torch.allclose(end, w_star)
        True
    """
    for _ in range(steps):
        weights.grad = cross_entropy_gradient(weights, inputs, teacher)
        optimiser.step()
    return weights.detach()


def leaving_time(start_norm: Tensor, end_norm: Tensor, depth: int, slope: Tensor) -> Tensor:
    r"""Return how long a balanced student takes from one norm to a larger one near zero.

    Started along $-g$, $g = \nabla L^1(0)$, and with a constant gradient, $r = |w|$ obeys
    $r' = N |g|\, r^{2 - 2/N}$, so that
    $$t = \frac{1}{2 |g|} \log \frac{r_1}{r_0} \ (N = 2), \qquad
      t = \frac{r_0^{2/N - 1} - r_1^{2/N - 1}}{(N - 2)\, |g|} \ (N \ne 2).$$

    **Source**: ours, from Phuong & Lampert, Lemma 12, linearised at zero.

    Args:
        start_norm: (...), r_0 > 0 (or >= 0 for N = 1).
        end_norm: (...), r_1 >= r_0.
        depth: N >= 1.
        slope: (...), |g| > 0.

    Returns:
        (...).

    Example:
        A direct student covers the way at speed |g|.

        >>> one = torch.tensor(1.0)
        >>> leaving_time(0 * one, 3 * one, 1, 2 * one), leaving_time(one, 4 * one, 4, one)
        (tensor(1.5000), tensor(0.2500))
    """
    if depth == 2:
        return torch.log(end_norm / start_norm) / (2 * slope)
    power = 2 / depth - 1
    return (start_norm**power - end_norm**power) / ((depth - 2) * slope)


def crossing_window(guess: float, points: int = 21) -> Tensor:
    """Return times around a guess, in which a crossing is to be found.

    Args:
        guess: a time > 0.
        points: how many.

    Returns:
        (points,), from 0.8 to 1.2 times the guess.

    Example:
        >>> crossing_window(10.0, 3)
        tensor([ 8., 10., 12.], dtype=torch.float64)
    """
    return guess * torch.linspace(1 - _GRID, 1 + _GRID, points, dtype=torch.float64)


def crossing_time(times: Tensor, norms: Tensor, level: float) -> float:
    """Return when an increasing norm reaches a level, by interpolation of the logarithms.

    Args:
        times: (T,), increasing.
        norms: (T,), increasing, > 0.
        level: a norm between the first and the last.

    Returns:
        The time.

    Raises:
        ValueError: if the level is not reached within the times.

    Example:
        >>> crossing_time(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 4.0]), 2.0)
        1.0
    """
    low, high = float(norms[0]), float(norms[-1])
    if not low <= level <= high:
        raise ValueError(
            f"level must lie between {low:.3g} and {high:.3g}, got {level:.3g}; give other times"
        )
    return float(np.interp(np.log(level), norms.double().log().numpy(), times.numpy()))
