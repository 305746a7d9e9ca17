"""The convex problem behind two chapters of Part III, given to an interior-point solver."""

from __future__ import annotations

import clarabel
import numpy as np
from scipy import sparse


def maximise_logs(
    weights: np.ndarray, scale: np.ndarray, rows: np.ndarray, limit: np.ndarray
) -> tuple[np.ndarray, float]:
    r"""Solve $\max \sum_i w_i \log v_i$ under $\langle c, v \rangle = 1$ and $A v \le b$.

    Clarabel gets $\min -\sum_i w_i s_i$ with $s_i \le \log v_i$ as exponential cones.

    Args:
        weights: (n,) w, positive.
        scale: (n,) c, positive.
        rows: (m, n) A.
        limit: (m,) b.

    Returns:
        The optimum v (n,), and its value with the opposite sign.

    Raises:
        RuntimeError: if the solver reports no solution.

    Example:
        >>> half, free = np.array([0.5, 0.5]), np.zeros((1, 2))
        >>> v, value = maximise_logs(half, np.ones(2), free, np.ones(1))
        >>> bool(abs(v - 0.5).max() < 1e-6), bool(abs(value - np.log(2)) < 1e-8)
        (True, True)
    """
    count, index = len(weights), np.arange(len(weights))
    logs = np.zeros((3 * count, 2 * count))
    logs[3 * index, count + index] = -1.0
    logs[3 * index + 2, index] = -1.0
    linear = np.vstack([scale[None], rows])
    matrix = sparse.csc_matrix(np.vstack([np.hstack([linear, np.zeros_like(linear)]), logs]))
    right = np.concatenate([[1.0], limit, np.tile([0.0, 1.0, 0.0], count)])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(len(rows))]
    cones += [clarabel.ExponentialConeT()] * count
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    cost = np.concatenate([np.zeros(count), -weights])
    empty = sparse.csc_matrix((2 * count, 2 * count))
    solution = clarabel.DefaultSolver(empty, cost, matrix, right, cones, settings).solve()
    if "Solved" not in str(solution.status):
        raise RuntimeError(f"Clarabel ended with {solution.status}")
    return np.array(solution.x[:count]), float(solution.obj_val)
