"""What the chapter on approximate distillation computes: worst students, and a uniform bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lib.linear import expected_risk

_RIGHT_ANGLE = math.pi / 2
_GRID = 8193  # candidates for beta


def worst_student(limit: Tensor, teacher: Tensor, ratio: float | Tensor) -> Tensor:
    r"""Return the vector within ratio |w_hat| of w_hat that makes the largest angle to the teacher.

    $$\cos\tau\, \big( \cos\tau\, \hat w - \sin\tau\, \|\hat w\|\, e \big), \qquad
      \sin\tau = \epsilon / \|\hat w\|$$

    with e the unit vector along the part of the teacher orthogonal to w_hat: the ball touches the
    line through this point in the plane of both, on the side away from the teacher. Its angle to
    w_hat is tau.

    **Source**: ours, the case of equality of Lemma 14 with the best constant.

    Args:
        limit: (..., d) float64, w_hat, non-zero and not parallel to the teacher.
        teacher: (d,) float64, non-zero.
        ratio: (...) or number, epsilon / |w_hat| in [0, 1).

    Returns:
        (..., d), at distance epsilon from w_hat.

    Raises:
        ValueError: if ratio is outside [0, 1), or the limit is parallel to the teacher.

    Example:
        >>> w_hat, w_star = torch.tensor([2.0, 0.0]).double(), torch.tensor([1.0, 1.0]).double()
        >>> worst_student(w_hat, w_star, 0.5)  # at 30 degrees below the axis
        tensor([ 1.5000, -0.8660], dtype=torch.float64)
    """
    ratio = torch.as_tensor(ratio, dtype=torch.float64)
    if not bool(((ratio >= 0) & (ratio < 1)).all()):
        raise ValueError(f"ratio must lie in [0, 1), got {ratio.tolist()}; from 1 on 0 is included")
    norm = torch.linalg.vector_norm(limit, dim=-1, keepdim=True)
    along = (limit * teacher).sum(-1, keepdim=True) / norm**2
    across = teacher - along * limit
    length = torch.linalg.vector_norm(across, dim=-1, keepdim=True)
    if bool((length <= 1e-12 * torch.linalg.vector_norm(teacher)).any()):
        raise ValueError(
            "limit must not be parallel to the teacher: no side is the worst; use n < d"
        )
    sine = ratio.unsqueeze(-1)
    cosine = (1 - sine**2).sqrt()
    return cosine * (cosine * limit - sine * norm * across / length)


def worst_risk(angles: Tensor, relative_norms: Tensor, epsilon: float, task) -> Tensor:
    r"""Return the largest risk of a student within epsilon |w*| of w_hat, on a symmetric task.

    The worst student stands at angle alpha + arcsin(epsilon |w*| / |w_hat|), and anywhere once
    epsilon |w*| reaches |w_hat|; then its risk can be 1.

    **Source**: ours.

    Args:
        angles: (...) float64, angles of w_hat to the teacher, in [0, pi/2].
        relative_norms: (...) float64, |w_hat| / |w*|, > 0.
        epsilon: >= 0, in units of |w*|.
        task: symmetric under rotations about the teacher, see `lib.linear.expected_risk`.

    Returns:
        (...) float64, in [0, 1].

    Raises:
        ValueError: if epsilon is negative or a norm is not positive.

    Example:
        >>> from lib.linear import PolynomialAngleTask
        >>> angles, norms = torch.tensor([0.0, 0.0]).double(), torch.tensor([1.0, 0.25]).double()
        >>> worst_risk(angles, norms, 0.5, PolynomialAngleTask(2, 1.0))  # 30 degrees of 180; 1
        tensor([0.1667, 1.0000], dtype=torch.float64)
    """
    if epsilon < 0 or not bool((relative_norms > 0).all()):
        raise ValueError(f"epsilon must be >= 0 and norms > 0, got epsilon = {epsilon!r}")
    ratio = epsilon / relative_norms
    turned = (angles + torch.asin(ratio.clamp(max=1))).clamp(max=math.pi)
    return torch.where(ratio >= 1, 1.0, expected_risk(turned, task))


def uniform_delta(beta: float | Tensor, epsilon: float) -> Tensor:
    r"""Return the delta with sin(delta) sin(beta + delta) = epsilon.

    $$\delta(\beta) = \tfrac12 \big( \arccos(\cos\beta - 2\epsilon) - \beta \big)$$

    **Source**: ours, the repair of Phuong & Lampert, Theorem 13.

    Args:
        beta: (...) or number, in [0, arccos(epsilon)].
        epsilon: in [0, 1], in units of |w*|.

    Returns:
        (...) float64, radians.

    Raises:
        ValueError: if beta or epsilon is outside its range.

    Example:
        >>> torch.rad2deg(uniform_delta(0.0, 0.25))  # sin(delta)^2 = 1/4
        tensor(30.0000, dtype=torch.float64)
    """
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must lie in [0, 1], in units of |w*|, got {epsilon!r}")
    beta = torch.as_tensor(beta, dtype=torch.float64)
    last = math.acos(epsilon)
    if not bool(((beta >= 0) & (beta <= last + 1e-12)).all()):
        raise ValueError(f"beta must lie in [0, arccos(epsilon) = {last:.6g}], got {beta.tolist()}")
    return ((torch.arccos((torch.cos(beta) - 2 * epsilon).clamp(-1, 1)) - beta) / 2).clamp(min=0)


def uniform_risk_bound(
    angle_tail: Callable[[Tensor], Tensor], n: int | Tensor, epsilon: float
) -> Tensor:
    r"""Return a risk bound for students within epsilon |w*| of w_hat, whatever the transfer set.

    $$E[R] \le \min_\beta\; p(\beta) + p\big(\pi/2 - \delta(\beta) - \beta\big)^n,
      \qquad \beta \in [0, \arccos\epsilon]$$

    with the delta of `uniform_delta`. Unlike in Theorem 13, delta does not depend on the norm of
    w_hat, and epsilon may exceed half of it. The minimum is searched on a grid; every point of the
    grid is a valid bound.

    **Source**: ours, the repair of Phuong & Lampert, Theorem 13, Eq. 55.

    Args:
        angle_tail: p, maps angles to probabilities of the same shape.
        n: (...) or integer, number of examples >= 1.
        epsilon: in [0, 1], in units of |w*|.

    Returns:
        (...) float64; above 1 it says nothing.

    Raises:
        ValueError: if n < 1 or epsilon is outside [0, 1].

    Example:
        No error, no change: 1/2 + (1/2)^2 is the best bound for a uniform angle and n = 2.

        >>> uniform_risk_bound(lambda theta: 1 - 2 * theta / math.pi, 2, 0.0)
        tensor(0.7500, dtype=torch.float64)
    """
    n = torch.as_tensor(n, dtype=torch.float64)
    if bool((n < 1).any()):
        raise ValueError(f"n must be at least 1, got {n.tolist()}")
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must lie in [0, 1], in units of |w*|, got {epsilon!r}")
    beta = torch.linspace(0, math.acos(epsilon), _GRID, dtype=torch.float64)
    last = (_RIGHT_ANGLE - uniform_delta(beta, epsilon) - beta).clamp(min=0)
    return (angle_tail(beta) + angle_tail(last) ** n.unsqueeze(-1)).amin(-1)
