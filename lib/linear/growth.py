"""Laws to measure along a flow: growth outside the data span, and the rate of the loss."""

from __future__ import annotations

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

    The right-hand side of Eq. 49 follows from it; `lib.linear.deep_limit` has what it implies for
    t -> infinity.

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
