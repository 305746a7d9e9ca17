"""Newton's method on the optimality conditions of a bridge problem, its active sets being known."""

from __future__ import annotations

import numpy as np

from lib.implicit.groups import Groups

_ITERATIONS = 30


def newton_polish(
    groups: Groups,
    rows: np.ndarray,
    coordinates: np.ndarray,
    multipliers: np.ndarray,
    power: float,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Solve the optimality conditions on given active groups and active examples.

    $$|c_g|^{p-2} c_g = \sum_n \alpha_n \hat a_{n,g} \text{ for every group } g, \qquad
      \langle a_n, \beta \rangle = 1 \text{ for every } n$$

    The Newton systems are solved by least squares, so that more active examples than degrees of
    freedom, or non-unique multipliers, do no harm.

    **Source**: the Karush-Kuhn-Tucker conditions of min sum |c_g|^p / p such that the margins are
    one; Gunasekar et al. (2018), Theorem 2a.

    Args:
        groups: the m coordinates of the G active groups.
        rows: (R, D), the signed examples with margin one.
        coordinates: (m,), a start near the solution; no group may be zero.
        multipliers: (R,), a start.
        power: p in (0, 2].

    Returns:
        The coordinates (m,) and the multipliers (R,). The caller judges them.

    Example:
        min |b_1| such that 2 b_1 = 1:

        >>> from lib.implicit.groups import choose_groups
        >>> start = np.array([0.4]), np.array([0.4])
        >>> b, a = newton_polish(choose_groups(1, "signal"), np.array([[2.0]]), *start, power=1.0)
        >>> b.round(12), a.round(12)
        (array([0.5]), array([0.5]))
    """
    weight = groups.weight[groups.group]
    matrix = groups.coordinates(rows) * weight  # margins = matrix @ coordinates
    size, active = len(coordinates), len(rows)
    same = groups.group[:, None] == groups.group[None, :]
    best, best_error = (coordinates, multipliers), np.inf
    for _ in range(_ITERATIONS):
        length = groups.lengths(coordinates)[groups.group]
        if not np.all(np.isfinite(length)) or length.min() == 0:
            break
        scale = weight * length ** (power - 2)
        residual = np.concatenate(
            [scale * coordinates - matrix.T @ multipliers, matrix @ coordinates - 1]
        )
        error = float(np.abs(residual).max())
        if not error < best_error:
            break
        best, best_error = (coordinates, multipliers), error
        unit = coordinates / length
        curvature = np.diag(scale) + (power - 2) * scale[:, None] * np.outer(unit, unit) * same
        system = np.block([[curvature, -matrix.T], [matrix, np.zeros((active, active))]])
        step = np.linalg.lstsq(system, -residual, rcond=1e-13)[0]
        coordinates, multipliers = coordinates + step[:size], multipliers + step[size:]
    return best
