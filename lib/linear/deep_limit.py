"""Where a balanced deep student ends: exactly, and by the bounds of the proof of Theorem 2.

Along the flow of a balanced student the part of w outside the data span keeps its direction, and
its squared norm q grows as a fixed power of |w|^2 (Eq. 48). The part inside tends to the projection
w_hat. Together they fix the limit's norm nu, hence the limit:

    nu^2 = |w_hat|^2 + s^2 |w(0)|^(2/N) nu^(2 - 2/N),

with s the sine of the angle between w(0) and the data span. The paper bounds nu with s = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lib.linear.checks import check_count, check_nonzero, prepare, to_float64
from lib.linear.geometry import data_span, project

_NEWTON_STEPS = 60


def landing_norm(
    initial_norm: Tensor, limit_norm: Tensor, depth: int, sine: float | Tensor = 1.0
) -> Tensor:
    r"""Return the norm at which the flow of a balanced deep student ends.

    It is the only positive root nu of
    $$1 = \frac{|\hat w|^2}{\nu^2} + s^2 \Big(\frac{|w(0)|}{\nu}\Big)^{2/N}.$$
    The right-hand side is decreasing and convex in log nu, so Newton's method started on its left
    climbs to the root without overshooting.

    **Source**: Phuong & Lampert, Eq. 48 and 50, with equality; s = 1 is the paper's worst case.

    Args:
        initial_norm: (...), $|w(0)|$ >= 0.
        limit_norm: (...), $|\hat w|$ > 0.
        depth: N >= 1.
        sine: (...) or number in [0, 1], sine of the angle between w(0) and the data span.

    Returns:
        (...), nu >= limit_norm. All arguments broadcast.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        N = 2 is a quadratic equation: nu^2 = 2 + 1 * nu has the root 2.

        >>> landing_norm(torch.tensor(1.0), torch.tensor(2.0).sqrt(), 2)
        tensor(2.)
    """
    depth = check_count("depth", depth)
    start, limit, dtype = _norms(initial_norm, limit_norm)
    sine = torch.as_tensor(sine, dtype=torch.float64, device=start.device)
    _check_range("sine", sine, (sine >= 0) & (sine <= 1), "in [0, 1]")
    share = sine**2 * (start / limit) ** (2 / depth)
    y = (depth / 2 * torch.log(share)).clamp(min=0)
    for _ in range(_NEWTON_STEPS):
        inside, outside = torch.exp(-2 * y), share * torch.exp(-2 * y / depth)
        y = y + (inside + outside - 1) / (2 * inside + 2 * outside / depth)
    return (limit * torch.exp(y)).to(dtype)


def landing_distance(
    initial_norm: Tensor, limit_norm: Tensor, depth: int, sine: float | Tensor = 1.0
) -> Tensor:
    r"""Return the distance from the projection at which a balanced deep student ends.

    $$|w(\infty) - \hat w| = s\, |w(0)|^{1/N}\, \nu^{1 - 1/N}$$

    **Source**: Phuong & Lampert, Eq. 48, with the exact norm nu of `landing_norm`.

    Args:
        initial_norm: (...), $|w(0)|$ >= 0.
        limit_norm: (...), $|\hat w|$ > 0.
        depth: N >= 1.
        sine: (...) or number in [0, 1], sine of the angle between w(0) and the data span.

    Returns:
        (...), >= 0.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> distance = landing_distance(torch.tensor(1.0), torch.tensor(2.0).sqrt(), 2)
        >>> round(float(distance**2), 5)
        2.0
    """
    start, limit, dtype = _norms(initial_norm, limit_norm)
    nu = landing_norm(start, limit, depth, sine)
    return (sine * start ** (1 / depth) * nu ** (1 - 1 / depth)).to(dtype)


def landing_norm_bound(initial_norm: Tensor, limit_norm: Tensor, depth: int) -> Tensor:
    r"""Return the paper's bound on the norm at which a balanced deep student ends.

    $$K = |\hat w| \Big(1 - \big(|w(0)| / |\hat w|\big)^{2/N}\Big)^{-N / (2(N-1))}$$

    **Source**: Phuong & Lampert, Eq. 51 and 53.

    Args:
        initial_norm: (...), $|w(0)|$ >= 0.
        limit_norm: (...), $|\hat w|$ > 0.
        depth: N >= 2.

    Returns:
        (...), infinite where the initial norm is not below the limit's.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> landing_norm_bound(torch.tensor(1.0), torch.tensor(2.0), 2)  # 2 / (1 - 1/2)
        tensor(4.)
    """
    share, limit, dtype = _share(initial_norm, limit_norm, depth)
    return (limit * (1 - share) ** (-depth / (2 * (depth - 1)))).to(dtype)


def landing_distance_bound(initial_norm: Tensor, limit_norm: Tensor, depth: int) -> Tensor:
    r"""Return the paper's bound on the distance from the projection at which the student ends.

    $$\epsilon^2 = \frac{|\hat w|^{2 + 2/N}}{|\hat w|^{2/N} - |w(0)|^{2/N}} - |\hat w|^2,$$
    the inverse of `initial_norm_limit`.

    **Source**: Phuong & Lampert, the display before Eq. 54.

    Args:
        initial_norm: (...), $|w(0)|$ >= 0.
        limit_norm: (...), $|\hat w|$ > 0.
        depth: N >= 2.

    Returns:
        (...), infinite where the initial norm is not below the limit's.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> landing_distance_bound(torch.tensor(1.0), torch.tensor(2.0), 2)  # (8 / (2 - 1) - 4)^1/2
        tensor(2.)
    """
    share, limit, dtype = _share(initial_norm, limit_norm, depth)
    return (limit * torch.sqrt(share / (1 - share))).to(dtype)


def deep_student_limit(initial: Tensor, depth: int, inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the limit of the flow of a balanced deep student, if its loss tends to zero.

    $$w(\infty) = \hat w + |w(0)|^{1/N}\, \nu^{1 - 1/N}\, \frac{w(0) - P_X w(0)}{|w(0)|}$$
    with nu from `landing_norm`; N = 1 gives $\hat w + w(0) - P_X w(0)$.

    **Source**: ours, from Phuong & Lampert, Eq. 46 and 48; Theorem 2 bounds its distance to
    $\hat w$ by epsilon under condition 11a.

    Args:
        initial: (..., d), w(0), not zero unless N = 1.
        depth: N >= 1.
        inputs: (..., n, d), rows are examples.
        teacher: (..., d), w*, not orthogonal to all inputs. All leading dimensions broadcast.

    Returns:
        (..., d).

    Raises:
        ValueError: if shapes do not fit, or a vector is zero that must not be.

    Example:
        N = 2: the limit has w_1 = 4 and w_2^2 = |w|, so that w_2^4 = 16 + w_2^2.

        >>> x, w_star = torch.eye(1, 2, dtype=torch.float64), torch.tensor([4.0, 0.0]).double()
        >>> w = deep_student_limit(w_star.flip(0) / 4, 2, x, w_star)
        >>> bool(w[0] == 4), bool((w[1] ** 4 - 16 - w[1] ** 2).abs() < 1e-12)
        (True, True)
    """
    depth = check_count("depth", depth)
    (x, start, target), dtype = prepare(inputs, initial=initial, teacher=teacher)
    span = data_span(x)
    projection = project(span, target)
    check_nonzero("the teacher's projection on the inputs", projection)
    if depth > 1:
        check_nonzero("initial", start)
    outside = start - project(span, start)
    norm = torch.linalg.vector_norm(start, dim=-1)
    norm, outside_norm = norm.clamp(min=torch.finfo(norm.dtype).tiny), outside.norm(dim=-1)
    sine = (outside_norm / norm).clamp(max=1)
    nu = landing_norm(norm, projection.norm(dim=-1), depth, sine)
    gain = (nu / norm) ** (1 - 1 / depth)
    return (projection + gain.unsqueeze(-1) * outside).to(dtype)


def _share(initial_norm: Tensor, limit_norm: Tensor, depth: int) -> tuple:
    """(|w(0)| / |w_hat|)^(2/N) clipped to 1, the limit's norm in float64, the result's dtype."""
    depth = check_count("depth", depth, minimum=2)
    start, limit, dtype = _norms(initial_norm, limit_norm)
    return ((start / limit) ** (2 / depth)).clamp(max=1), limit, dtype


def _norms(initial_norm: Tensor, limit_norm: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both norms in float64, checked, and the dtype of the result."""
    (start, limit), dtype = to_float64(initial_norm=initial_norm, limit_norm=limit_norm)
    _check_range("initial_norm", start, start >= 0, ">= 0")
    _check_range("limit_norm", limit, limit > 0, "> 0")
    return start, limit, dtype


def _check_range(name: str, value: Tensor, allowed: Tensor, interval: str) -> None:
    """Raise ValueError unless every entry is allowed."""
    if not bool(allowed.all()):
        worst = float(value[~allowed].flatten()[0])
        raise ValueError(f"{name} must be {interval}, got {worst:.6g}")
