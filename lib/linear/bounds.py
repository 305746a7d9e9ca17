"""Bounds on the expected transfer risk: Theorem 3, its two corollaries, Theorem 13 and Lemma 14.

An angle tail is a function of theta, a float64 tensor of any shape with values in [0, pi/2], that
returns p(theta) = P[unsigned angle of an input to the teacher >= theta] in the same shape: the
`angle_tail` of a task, or what `empirical_angle_tail` makes of data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lib.linear.checks import as_tensor, check_broadcast, check_number

AngleTail = Callable[[Tensor], Tensor]

_RIGHT_ANGLE = math.pi / 2
_GRID = 1025  # candidates for beta in each zoom of the search
_ZOOMS = 4  # the last spacing is pi/2 / 1024 / 512^3
_FLOAT32_ROUNDING = 1e-6  # by which pi/2 may be passed in float32
_ROUNDING = 1e-14  # a tail that vanishes at beta may miss 0 by so much when beta is rounded


def risk_bound(
    angle_tail: AngleTail, n: int | Tensor, beta: float | Tensor | None = None
) -> Tensor:
    r"""Return the bound on the expected transfer risk for n < d examples.

    $$E[R] \le p(\beta) + p(\pi/2 - \beta)^n \quad \text{for any } \beta \in [0, \pi/2]$$

    Without a beta the bound is minimised over it: a grid with both end points, then finer grids
    around the best point, so that a tail with jumps does no harm. For n >= d the risk itself is 0.

    **Source**: Phuong & Lampert, Theorem 3, Eq. 16b.

    Args:
        angle_tail: p, see the module.
        n: (...) or integer, number of examples >= 1.
        beta: (...) or number in [0, pi/2], broadcast with n; None for the best one.

    Returns:
        (...) float64; above 1 it says nothing.

    Raises:
        ValueError: if n < 1, beta is outside [0, pi/2], or the tail is no probability.

    Example:
        >>> uniform = lambda theta: 1 - 2 * theta / torch.pi
        >>> risk_bound(uniform, 2, beta=torch.pi / 4)  # 1/2 + (1/2)^2
        tensor(0.7500, dtype=torch.float64)
    """
    return _bound(angle_tail, n, beta, torch.zeros((), dtype=torch.float64), sharp=False)


def sharp_risk_bound(
    angle_tail: AngleTail, n: int | Tensor, beta: float | Tensor | None = None
) -> Tensor:
    r"""Return the slightly smaller bound that the proof of Theorem 3 ends in.

    $$E[R] \le p(\beta) + (1 - p(\beta))\, p(\pi/2 - \beta)^n$$

    Unlike Eq. 16b it never exceeds 1.

    **Source**: Phuong & Lampert, Section 4.3, last line of the proof of Theorem 3.

    Args:
        angle_tail: p, see the module.
        n: (...) or integer, number of examples >= 1.
        beta: (...) or number in [0, pi/2], broadcast with n; None for the best one.

    Returns:
        (...) float64, in [0, 1].

    Raises:
        ValueError: if n < 1, beta is outside [0, pi/2], or the tail is no probability.

    Example:
        >>> uniform = lambda theta: 1 - 2 * theta / torch.pi
        >>> sharp_risk_bound(uniform, 2, beta=torch.pi / 4)  # 1/2 + 1/2 (1/2)^2
        tensor(0.6250, dtype=torch.float64)
    """
    return _bound(angle_tail, n, beta, torch.zeros((), dtype=torch.float64), sharp=True)


def approximate_risk_bound(
    angle_tail: AngleTail,
    n: int | Tensor,
    epsilon: float | Tensor,
    limit_norm: float | Tensor,
    beta: float | Tensor | None = None,
    *,
    tight: bool = False,
) -> Tensor:
    r"""Return the risk bound for a student that is only epsilon-close to the limit.

    $$E[R] \le p(\beta) + p(\pi/2 - \delta - \beta)^n, \quad \beta \in [0, \pi/2 - \delta],
      \qquad \delta = \sqrt{2 \pi \epsilon / \|\hat w\|}$$

    The theorem asks for epsilon <= ||w|| / 2, but above pi/8 ||w|| (about 0.393 ||w||) delta
    exceeds pi/2 and no beta is left.

    **Source**: Phuong & Lampert, Theorem 13, Eq. 55.

    Args:
        angle_tail: p, see `risk_bound`.
        n: (...) or integer, number of examples >= 1.
        epsilon: (...) or number >= 0, distance to the limit.
        limit_norm: (...) or number > 0, norm of the limit.
        beta: (...) or number in [0, pi/2 - delta]; None for the best one. All broadcast.
        tight: use the smallest delta that Lemma 14 could have had, `tight_angle`, in place of its
            square root. The bound holds with it too, for any epsilon <= ||w|| / 2.

    Returns:
        (...) float64.

    Raises:
        ValueError: if an argument is outside its range, or no admissible beta is left.

    Example:
        >>> uniform = lambda theta: 1 - 2 * theta / torch.pi
        >>> epsilon = torch.pi / 32  # delta = pi/4; then 3/4 + (3/4)^2
        >>> approximate_risk_bound(uniform, 2, epsilon, 1.0, beta=torch.pi / 8)
        tensor(1.3125, dtype=torch.float64)
    """
    delta = (tight_angle if tight else lemma14_angle)(epsilon, limit_norm)
    if bool((delta > _RIGHT_ANGLE * (1 + 1e-12)).any()):
        raise ValueError(
            f"epsilon must be <= pi/8 limit_norm, got delta up to {float(delta.max()):.4g} > pi/2: "
            "no beta in [0, pi/2 - delta] is left; use a smaller epsilon, or tight=True"
        )
    return _bound(angle_tail, n, beta, delta.clamp(max=_RIGHT_ANGLE), sharp=False)


def margin_risk_bound(angle_tail: AngleTail, n: int | Tensor, beta: float) -> Tensor:
    r"""Return the exponential bound for a distribution with an angular margin.

    $$E[R] \le \gamma^n, \qquad \gamma = p(\pi/2 - \beta) < 1 \ \text{ when } p(\beta) = 0$$

    **Source**: Phuong & Lampert, Corollary 4, Eq. 17.

    Args:
        angle_tail: p, see `risk_bound`.
        n: (...) or integer, number of examples >= 1.
        beta: angle in [0, pi/2] beyond which there is no mass.

    Returns:
        (...) float64, in [0, 1).

    Raises:
        ValueError: if p(beta) > 0 or p(pi/2 - beta) = 1: the corollary says nothing then.

    Example:
        >>> from lib.linear.tasks import MarginAngleTask
        >>> p = MarginAngleTask(10, torch.pi / 4).angle_tail  # uniform on [0, pi/4]
        >>> margin_risk_bound(p, 3, beta=3 * torch.pi / 8)  # (1/2)^3
        tensor(0.1250, dtype=torch.float64)
    """
    beta = torch.tensor(check_number("beta", beta, 0.0, _RIGHT_ANGLE), dtype=torch.float64)
    mass, gamma = _tail(angle_tail, beta), _tail(angle_tail, _RIGHT_ANGLE - beta)
    if float(mass) > _ROUNDING or float(gamma) >= 1:
        raise ValueError(
            f"beta must have p(beta) = 0 and p(pi/2 - beta) < 1, got p(beta) = {float(mass):.6g} "
            f"and p(pi/2 - beta) = {float(gamma):.6g} at beta = {float(beta):.6g}"
        )
    return gamma ** _counts(n)


def polynomial_risk_bound(kappa: float, n: int | Tensor, c: float = 1.0) -> Tensor:
    r"""Return the rate for a distribution whose angle tail is at most c (1 - 2 theta / pi)^kappa.

    $$E[R] \le c\, \frac{1 + (\log n)^\kappa}{n^\kappa}$$

    True for c <= 1. For c > 1 the proof would need c^n on its second term, and the statement is
    false: with angles uniform between 50 and 51 degrees a tail of c = (90/39)^kappa, kappa large,
    qualifies, the bound at n = 3 goes to 0 as kappa grows, and the risk does not depend on kappa.

    **Source**: Phuong & Lampert, Corollary 5, Eq. 18.

    Args:
        kappa: >= 0.
        n: (...) or integer, number of examples >= 1.
        c: > 0.

    Returns:
        (...) float64.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> polynomial_risk_bound(2.0, 1)
        tensor(1., dtype=torch.float64)
    """
    kappa = check_number("kappa", kappa, 0.0)
    c = check_number("c", c, 0.0, open_low=True)
    n = _counts(n)
    return c * (1 + torch.log(n) ** kappa) / n**kappa


def lemma14_angle(epsilon: float | Tensor, norm: float | Tensor) -> Tensor:
    r"""Return the paper's bound on the angle between w and any vector within epsilon of it.

    $$\alpha(w, v) \le \sqrt{2 \pi \epsilon / \|w\|} \quad \text{for } \epsilon \le \|w\| / 2$$

    **Source**: Phuong & Lampert, Lemma 14.

    Args:
        epsilon: (...) or number, in [0, norm / 2].
        norm: (...) or number > 0, the norm of w.

    Returns:
        (...) float64, radians.

    Raises:
        ValueError: if epsilon or norm is outside its range.

    Example:
        >>> lemma14_angle(torch.pi / 8, 1.0) / torch.pi
        tensor(0.5000, dtype=torch.float64)
    """
    return torch.sqrt(2 * math.pi * _relative_distance(epsilon, norm))


def tight_angle(epsilon: float | Tensor, norm: float | Tensor) -> Tensor:
    r"""Return the largest angle between w and a vector within epsilon of it.

    $$\max_{\|v - w\| \le \epsilon} \alpha(w, v) = \arcsin(\epsilon / \|w\|)$$

    It is attained where a line from the origin touches the ball: linear in epsilon where Lemma 14
    has a square root.

    **Source**: ours; compare Phuong & Lampert, Lemma 14.

    Args:
        epsilon: (...) or number, in [0, norm / 2].
        norm: (...) or number > 0, the norm of w.

    Returns:
        (...) float64, radians.

    Raises:
        ValueError: if epsilon or norm is outside its range.

    Example:
        >>> torch.rad2deg(tight_angle(0.5, 1.0))
        tensor(30.0000, dtype=torch.float64)
    """
    return torch.asin(_relative_distance(epsilon, norm))


def _relative_distance(epsilon: float | Tensor, norm: float | Tensor) -> Tensor:
    """Check the hypotheses of Lemma 14 and return epsilon / norm."""
    epsilon = as_tensor(epsilon).to(torch.float64)
    norm = as_tensor(norm).to(torch.float64)
    check_broadcast(epsilon=epsilon, norm=norm)
    if not bool(((norm > 0) & torch.isfinite(norm)).all()):
        raise ValueError(f"the norm must be positive and finite, got {float(norm.min()):.6g}")
    ratio = epsilon / norm
    if not bool(((ratio >= 0) & (ratio <= 0.5)).all()):
        raise ValueError(
            "epsilon must lie in [0, norm / 2], got epsilon / norm from "
            f"{float(ratio.min()):.6g} to {float(ratio.max()):.6g}"
        )
    return ratio


def _bound(
    angle_tail: AngleTail,
    n: int | Tensor,
    beta: float | Tensor | None,
    delta: Tensor,
    sharp: bool,
) -> Tensor:
    """p(beta) + p(pi/2 - delta - beta)^n, or its sharp form; minimised when beta is None."""
    n = _counts(n)
    last = _RIGHT_ANGLE - delta.to(n.device)

    def value(beta: Tensor, n: Tensor, last: Tensor) -> Tensor:
        near = _tail(angle_tail, beta)
        far = _tail(angle_tail, (last - beta).clamp(min=0)) ** n
        return near + (1 - near) * far if sharp else near + far

    check_broadcast(n=n, delta=last)
    if beta is None:
        return _minimise(value, *torch.broadcast_tensors(n, last))
    beta = as_tensor(beta, n.device).to(torch.float64)
    check_broadcast(n=n, delta=last, beta=beta)
    if not bool(((beta >= 0) & (beta <= last + _FLOAT32_ROUNDING)).all()):
        raise ValueError(
            f"beta must lie in [0, {float(last.min()):.6g}], got values from "
            f"{float(beta.min()):.6g} to {float(beta.max()):.6g}"
        )
    return value(torch.minimum(beta, last), n, last)


def _minimise(value: Callable, n: Tensor, last: Tensor) -> Tensor:
    """Minimise value(beta, n, last) over beta in [0, last] by grids that zoom in."""
    fractions = torch.linspace(0, 1, _GRID, dtype=torch.float64, device=n.device)
    low, high = torch.zeros_like(last), last
    best = torch.full_like(last, math.inf)
    for _ in range(_ZOOMS):
        beta = torch.lerp(low.unsqueeze(-1), high.unsqueeze(-1), fractions)
        values, index = value(beta, n.unsqueeze(-1), last.unsqueeze(-1)).min(-1)
        best = torch.minimum(best, values)
        low, high = (
            beta.gather(-1, (index + step).clamp(0, _GRID - 1).unsqueeze(-1)).squeeze(-1)
            for step in (-1, 1)
        )
    return best


def _tail(angle_tail: AngleTail, theta: Tensor) -> Tensor:
    """Evaluate an angle tail and check that it gives probabilities."""
    mass = as_tensor(angle_tail(theta), theta.device).to(torch.float64)
    if mass.shape != theta.shape or not bool(((mass >= -1e-9) & (mass <= 1 + 1e-9)).all()):
        raise ValueError(
            "angle_tail must map a tensor of angles to probabilities of the same shape, got shape "
            f"{tuple(mass.shape)} for {tuple(theta.shape)}, values from {float(mass.min()):.6g} to "
            f"{float(mass.max()):.6g}"
        )
    return mass.clamp(0, 1)


def _counts(n: int | Tensor) -> Tensor:
    """Check numbers of examples and return them in float64."""
    counts = torch.as_tensor(n)
    real = not (counts.is_complex() or counts.dtype == torch.bool)
    if not real or not bool(((counts >= 1) & (counts == counts.floor())).all()):
        raise ValueError(f"n must be an integer >= 1, or a tensor of them, got {n}")
    return counts.to(torch.float64)
