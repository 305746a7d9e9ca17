"""The three convex maximum-margin problems, each by the solver that fits it.

Every function takes signed rows scaled to about one and returns a predictor and multipliers, near
the optimum but not yet judged; `lib.implicit.max_margin` polishes and certifies them.
"""

from __future__ import annotations

import clarabel
import numpy as np
from scipy import sparse
from scipy.optimize import linprog, nnls

from lib.implicit.groups import choose_groups

_LP_OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def largest_box_margin(rows: np.ndarray) -> float:
    r"""Return the largest margin of predictors with entries in [-1, 1].

    $$\max_{\|\beta\|_\infty \le 1} \min_n a_n^\top \beta,$$

    positive exactly when the examples are linearly separable.

    Args:
        rows: (N, D), signed examples.

    Returns:
        The margin, >= 0 up to rounding.

    Example:
        >>> largest_box_margin(np.array([[1.0, 2.0], [1.0, -1.0]]))
        1.0
    """
    n, d = rows.shape
    cost = np.zeros(d + 1)
    cost[-1] = -1
    matrix = np.hstack([-rows, np.ones((n, 1))])
    bounds = [(-1, 1)] * d + [(None, None)]
    result = linprog(cost, matrix, np.zeros(n), bounds=bounds, options=_LP_OPTIONS)
    return float(result.x[-1])


def solve_l2(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Solve min |beta|_2 such that all margins are at least one, as a least distance problem.

    With $u = \arg\min_{u \ge 0} \| [A^\top; s 1^\top] u - [0; 1] \|$ the multipliers are
    $\alpha = u / (s (1 - s\, 1^\top u))$ and $\beta = A^\top \alpha$. Any s > 0 will do; rounding
    asks for s |beta| near 1, so the problem is solved a second time with s = 1 / |beta|.

    **Source**: Lawson & Hanson, *Solving Least Squares Problems*, chapter 23 (LDP).

    Args:
        rows: (N, D), separable signed examples.

    Returns:
        The predictor (D,) and multipliers (N,) with predictor = rows.T @ multipliers.

    Example:
        >>> solve_l2(np.array([[2.0, 0.0]]))[0]
        array([0.5, 0. ])
    """
    n, d = rows.shape
    target = np.zeros(d + 1)
    target[-1] = 1
    border = 1.0
    for _ in range(2):
        found, _ = nnls(np.vstack([rows.T, np.full((1, n), border)]), target)
        residual = 1 - border * found.sum()
        multipliers = border * found / max(residual, 1e-300)
        border = 1 / max(np.linalg.norm(rows.T @ multipliers), 1e-300)
    support = multipliers > 0
    gram = rows[support] @ rows[support].T
    exact = np.linalg.lstsq(gram, np.ones(len(gram)), rcond=1e-14)[0]
    if np.all(exact >= 0):
        multipliers = np.zeros(n)
        multipliers[support] = exact
    return rows.T @ multipliers, multipliers


def solve_l1(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Solve min |beta|_1 such that all margins are at least one, as a linear program.

    $$\min\, 1^\top (\beta^+ + \beta^-) \quad \text{such that} \quad
      A (\beta^+ - \beta^-) \ge 1, \quad \beta^\pm \ge 0$$

    Args:
        rows: (N, D), separable signed examples.

    Returns:
        The predictor (D,) and multipliers (N,), whose sum is the norm at the optimum.

    Example:
        >>> solve_l1(np.array([[1.0, 2.0]]))[0]
        array([0. , 0.5])
    """
    n, d = rows.shape
    result = linprog(
        np.ones(2 * d), np.hstack([-rows, rows]), -np.ones(n), method="highs", options=_LP_OPTIONS
    )
    return result.x[:d] - result.x[d:], np.maximum(-result.ineqlin.marginals, 0)


def solve_fourier_l1(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Solve min |F beta|_1 such that all margins are at least one, as a second-order cone program.

    $$\min \sum_d c_d t_d \quad \text{such that} \quad
      \| (\mathrm{Re}\, \hat\beta_d, \mathrm{Im}\, \hat\beta_d) \| \le t_d, \quad
      \langle a_n, \beta \rangle \ge 1,$$

    over the half spectrum, c_d being 1 or 2. The coefficients are complex: replacing their moduli
    by |Re| + |Im| would be a linear program with another solution.

    Args:
        rows: (N, D), separable signed examples.

    Returns:
        The predictor (D,) and multipliers (N,), whose sum is the norm at the optimum.

    Example:
        >>> solve_fourier_l1(np.array([[1.0, 1.0, 1.0, 1.0]]))[0].round(6)
        array([0.25, 0.25, 0.25, 0.25])
    """
    n, dimension = rows.shape
    groups = choose_groups(dimension, "fourier")
    size, bounds = len(groups.group), len(groups.kept)
    matrix = groups.coordinates(rows) * groups.weight[groups.group]
    blocks = [sparse.hstack([sparse.csc_matrix((n, bounds)), sparse.csc_matrix(-matrix)])]
    cones = [clarabel.NonnegativeConeT(n)]
    for g in range(bounds):
        members = [g, *(bounds + np.flatnonzero(groups.group == g))]
        entries = (-np.ones(len(members)), (np.arange(len(members)), members))
        blocks.append(sparse.csc_matrix(entries, shape=(len(members), bounds + size)))
        cones.append(clarabel.SecondOrderConeT(len(members)))
    constraints = sparse.csc_matrix(sparse.vstack(blocks))
    offsets = np.zeros(constraints.shape[0])
    offsets[:n] = -1
    cost = np.concatenate([groups.weight, np.zeros(size)])
    nothing = sparse.csc_matrix((len(cost), len(cost)))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    solution = clarabel.DefaultSolver(nothing, cost, constraints, offsets, cones, settings).solve()
    predictor = groups.vector(np.array(solution.x)[bounds:])
    return predictor, np.maximum(np.array(solution.z)[:n], 0)
