"""The laws of the flows: growth outside the data span, its bounds, and the rate of the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.linear.checks import check_count, check_number, prepare, to_float64
from lib.linear.geometry import data_span
from lib.linear.integrate import check_times

_SPAN_TOLERANCE = 1e-12


@dataclass(frozen=True)
class OrthogonalGrowth:
    """Both sides of the growth law, relative to the first state of a trajectory.

    Attributes:
        measured: (..., T), log q(t) / q(0), q the squared norm outside the data span.
        predicted: (..., T), (N - 1) / N times log |w(t)|^2 / |w(0)|^2.
    """

    measured: Tensor
    predicted: Tensor


def orthogonal_growth(trajectory: Tensor, inputs: Tensor, depth: int) -> OrthogonalGrowth:
    r"""Return both sides of the law by which the component outside the data span grows.

    $$\log \frac{q(t)}{q(0)} = \frac{N - 1}{N} \log \frac{|w(t)|^2}{|w(0)|^2},
      \qquad q = |w - P_X w|^2$$

    **Source**: Phuong & Lampert, Eq. 48; it holds for balanced students.

    Args:
        trajectory: (..., T, d), end-to-end vectors; the first one is the reference.
        inputs: (..., n, d), rows are examples; leading dimensions broadcast.
        depth: N >= 1.

    Returns:
        An `OrthogonalGrowth`.

    Raises:
        ValueError: if shapes do not fit, values are not finite, or the first state lies in the
            data span, so that there is nothing to grow.

    Example:
        >>> w = torch.tensor([[0.0, 1.0], [4.0, 3.0]], dtype=torch.float64)
        >>> growth = orthogonal_growth(w, torch.tensor([[1.0, 0.0]]), depth=2)
        >>> torch.allclose(growth.measured[1].exp(), torch.tensor(9.0).double())
        True
        >>> torch.allclose(growth.predicted[1].exp(), torch.tensor(5.0).double())
        True
    """
    depth = check_count("depth", depth)
    if trajectory.ndim < 2:
        raise ValueError(f"trajectory must have shape (..., T, d), got {tuple(trajectory.shape)}")
    if inputs.ndim > 2:
        inputs = inputs.unsqueeze(-3)
    (x, path), dtype = prepare(inputs, trajectory=trajectory)
    basis = data_span(x).basis
    outside = path.unsqueeze(-1)
    for _ in range(2):  # the second time removes the rounding of the first
        outside = outside - basis @ (basis.mT @ outside)
    height = torch.linalg.vector_norm(outside.squeeze(-1), dim=-1)
    norm = torch.linalg.vector_norm(path, dim=-1)
    if bool((height[..., 0] <= _SPAN_TOLERANCE * norm[..., 0]).any()):
        raise ValueError(
            "trajectory must start outside the span of inputs, got a start inside it; "
            "nothing grows there (n >= d spans everything)"
        )
    measured = 2.0 * (height / height[..., :1]).log()
    predicted = 2.0 * (depth - 1) / depth * (norm / norm[..., :1]).log()
    return OrthogonalGrowth(measured.to(dtype), predicted.to(dtype))


def norm_bound(initial_norm: float, limit_norm: float, depth: int) -> float:
    r"""Bound the norm that a balanced student reaches in the limit.

    $$\limsup_{t \to \infty} |w(t)| \le |\hat w| \Big( 1 -
      \frac{|w(0)|^{2/N}}{|\hat w|^{2/N}} \Big)^{-\frac{N}{2(N-1)}}$$

    **Source**: Phuong & Lampert, Eq. 53.

    Args:
        initial_norm: $|w(0)|$, > 0 and < limit_norm.
        limit_norm: $|\hat w|$, > 0.
        depth: N >= 2.

    Returns:
        The bound, a float.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> round(norm_bound(1.0, 2.0, 2), 12)  # 2 / (1 - 1/2)
        4.0
    """
    share = _initial_share(initial_norm, limit_norm, depth)
    return limit_norm * (1.0 - share) ** (-depth / (2.0 * (depth - 1)))


def orthogonal_bound(initial_norm: float, limit_norm: float, depth: int) -> float:
    r"""Bound the distance to the projected teacher that a balanced student keeps in the limit.

    $$\limsup_{t \to \infty} |w(t) - \hat w|^2 \le
      \frac{|\hat w|^{2 + 2/N}}{|\hat w|^{2/N} - |w(0)|^{2/N}} - |\hat w|^2
      = |\hat w|^2\, \frac{x}{1 - x}, \qquad x = \Big( \frac{|w(0)|}{|\hat w|} \Big)^{2/N}$$

    Set equal to epsilon and solved for |w(0)| it is `lib.linear.factors.initial_norm_limit`.

    **Source**: Phuong & Lampert, the display before Eq. 54.

    Args:
        initial_norm: $|w(0)|$, > 0 and < limit_norm.
        limit_norm: $|\hat w|$, > 0.
        depth: N >= 2.

    Returns:
        The bound on the distance (not its square), a float.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> orthogonal_bound(0.5, 1.0, 2)  # x = 1/2
        1.0
    """
    share = _initial_share(initial_norm, limit_norm, depth)
    return limit_norm * math.sqrt(share / (1.0 - share))


def orthogonal_limit(
    initial_norm: float, initial_orthogonal: float, limit_norm: float, depth: int
) -> float:
    r"""Return the exact size outside the data span in which a balanced student ends.

    If the loss goes to zero, w ends at $\hat w$ plus a vector of norm $\sqrt q$ outside the span,
    and the growth law fixes q as the only positive solution of
    $$q = q(0)\, \Big( \frac{|\hat w|^2 + q}{|w(0)|^2} \Big)^{(N-1)/N}.$$
    No smallness of w(0) is needed.

    **Source**: Phuong & Lampert, Eq. 48, in the limit (the solution is ours).

    Args:
        initial_norm: $|w(0)|$, > 0.
        initial_orthogonal: $\sqrt{q(0)}$, in [0, initial_norm].
        limit_norm: $|\hat w|$, >= 0.
        depth: N >= 1.

    Returns:
        The limit of $\sqrt{q(t)}$, a float.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        |w(0)| = 1 outside the span, |w_hat|^2 = 2, N = 2: q^2 = 2 + q.

        >>> round(orthogonal_limit(1.0, 1.0, 2**0.5, 2) ** 2, 12)
        2.0
    """
    initial_norm = check_number("initial_norm", initial_norm, 0.0, open_low=True)
    start = check_number("initial_orthogonal", initial_orthogonal, 0.0, initial_norm)
    limit_norm = check_number("limit_norm", limit_norm, 0.0)
    power = 1.0 - 1.0 / check_count("depth", depth)
    if start == 0.0:
        return 0.0
    scaled = (limit_norm / initial_norm) ** 2  # everything in units of |w(0)|^2
    share = (start / initial_norm) ** 2
    value = max(1.0, scaled)
    while value < share * (scaled + value) ** power:
        value *= 2.0
    for _ in range(200):  # Newton from above: the difference is convex, so it decreases to the root
        grown = share * (scaled + value) ** power
        change = (value - grown) / (1.0 - power * grown / (scaled + value))
        value -= change
        if abs(change) <= 1e-15 * value:
            break
    return initial_norm * math.sqrt(value)


def measured_rate(times: Tensor, losses: Tensor, tail: float = 0.5, floor: float = 1e-14) -> Tensor:
    r"""Measure the exponential rate at which a loss decays: minus the slope of log L(t).

    A least-squares line through the last states, to be compared with the rate c that restricted
    strong convexity guarantees, $L(t) \le L(0) e^{-ct}$ (and with 2c: Eq. 36 and 39 give
    $L' \le -2cL$).

    **Source**: Phuong & Lampert, proof of Theorem 1.

    Args:
        times: (T,), increasing, >= 0.
        losses: (..., T), >= 0.
        tail: the share of the resolved states that enter, in (0, 1].
        floor: states with a loss below this share of the first one are rounding and are left out.

    Returns:
        (...), the rate.

    Raises:
        ValueError: if shapes do not fit, a loss is negative or not finite, or fewer than two
            states remain.

    Example:
        >>> t = torch.linspace(0, 30, 31, dtype=torch.float64)
        >>> round(measured_rate(t, 5 * torch.exp(-2 * t)).item(), 12)
        2.0
    """
    tail = check_number("tail", tail, 0.0, 1.0, open_low=True)
    floor = check_number("floor", floor, 0.0, 1.0, open_high=True)
    (losses,), dtype = to_float64(losses=losses)
    times = check_times(times).to(losses.device)
    if losses.ndim < 1 or losses.shape[-1] != len(times):
        raise ValueError(
            f"losses must have shape (..., {len(times)}), one value for each time, "
            f"got {tuple(losses.shape)}"
        )
    if bool((losses < 0).any()):
        raise ValueError(f"losses must be >= 0, got {float(losses.min())}")
    resolved = (losses > floor * losses[..., :1]).cumprod(-1)
    count = resolved.sum(-1, keepdim=True)
    kept = (tail * count).ceil().clamp_min(2)
    position = torch.arange(len(times), device=losses.device)
    weight = (resolved * (position >= count - kept)).to(losses.dtype)
    if bool((weight.sum(-1) < 2).any()):
        raise ValueError(
            f"losses must hold two states above floor={floor:g} times the first one; "
            "give earlier times"
        )
    return _weighted_slope(times, losses.clamp_min(1e-300).log(), weight).neg().to(dtype)


def _weighted_slope(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Slope of the weighted least-squares line, over the last dimension."""
    weight = weight / weight.sum(-1, keepdim=True)
    x = x - (weight * x).sum(-1, keepdim=True)
    return (weight * x * y).sum(-1) / (weight * x * x).sum(-1)


def _initial_share(initial_norm: float, limit_norm: float, depth: int) -> float:
    """(|w(0)| / |w_hat|)^(2/N), below 1."""
    limit_norm = check_number("limit_norm", limit_norm, 0.0, open_low=True)
    initial_norm = check_number(
        "initial_norm", initial_norm, 0.0, limit_norm, open_low=True, open_high=True
    )
    return (initial_norm / limit_norm) ** (2.0 / check_count("depth", depth, minimum=2))
