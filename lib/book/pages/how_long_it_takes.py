"""What the chapter "How long does it take?" computes: slopes, gains per step, crossings."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_slope(steps: Tensor, values: Tensor, decades: float) -> Tensor:
    r"""Return the least-squares slope of values against log(steps) over the last decades.

    $$\frac{\sum_r (x_r - \bar x)(v_r - \bar v)}{\sum_r (x_r - \bar x)^2}, \qquad x_r = \log t_r$$

    Args:
        steps: (R,), positive and increasing.
        values: (..., R).
        decades: how far back from the last step to look, in powers of ten, > 0.

    Returns:
        (...), float64.

    Raises:
        ValueError: if fewer than two records lie in the window, or the lengths differ.

    Example:
        >>> t = torch.logspace(0, 4, 41, dtype=torch.float64)
        >>> log_slope(t, 3 * t.log() + 1, decades=2)
        tensor(3.0000, dtype=torch.float64)
    """
    steps = torch.as_tensor(steps).double()
    if steps.ndim != 1 or values.shape[-1:] != steps.shape:
        raise ValueError(
            f"values must be (..., {len(steps)}) to match the steps, got {tuple(values.shape)}"
        )
    kept = steps >= steps[-1] / 10**decades * (1 - 1e-12)
    if int(kept.sum()) < 2:
        raise ValueError(
            f"decades must leave two records or more, got {int(kept.sum())} at decades={decades!r};"
            " look further back or record more often"
        )
    x = steps[kept].log()
    x = x - x.mean()
    return (values[..., kept] * x).sum(-1) / x.square().sum()


def dense_gain(predictor: Tensor, rows: Tensor, depth: int) -> float:
    r"""Return what a normalised step adds to log(1 / loss) in the end: dense network.

    $$g = \frac{L \gamma^2}{\max_n \big( \|a_n\|^2 + (L - 1) \langle a_n, u \rangle^2 \big)},
      \qquad u = \beta / \|\beta\|, \quad \gamma = 1 / \|\beta\|$$

    from balanced layers of rank one along the max-margin direction.

    Args:
        predictor: (D,) float64, the l2 max-margin predictor at smallest margin 1.
        rows: (N, D) float64, signed examples.
        depth: L >= 1.

    Returns:
        g in (0, 1].

    Raises:
        ValueError: if the depth is below 1, or the smallest margin is not 1.

    Example:
        >>> row = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
        >>> dense_gain(row[0] / 25, row, depth=1)
        1.0
    """
    if depth < 1:
        raise ValueError(f"depth must be 1 or more, got {depth!r}")
    along = _margins_at_one(predictor, rows)
    squared = predictor.square().sum()
    return float(depth / (squared * rows.square().sum(-1) + (depth - 1) * along**2).max())


def sparse_gain(predictor: Tensor, rows: Tensor, domain: str) -> float:
    r"""Return the same for a diagonal or a convolutional network of depth 2.

    $$g = \frac{1}{\|c\|_1 \, \max_n \sum_d |c_d| \, |a_{nd}|^2}$$

    with c the entries (domain "signal") or all D Fourier coefficients ("fourier") of the predictor,
    and the same transform of the examples; from layers balanced in every coordinate.

    Args:
        predictor: (D,) float64, the limit predictor at smallest margin 1.
        rows: (N, D) float64, signed examples.
        domain: "signal" or "fourier".

    Returns:
        g in (0, 1].

    Raises:
        ValueError: if the domain is unknown, or the smallest margin is not 1.

    Example:
        >>> row = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
        >>> sparse_gain(torch.tensor([0.5, 0.0], dtype=torch.float64), row, "signal")
        1.0
    """
    if domain not in ("signal", "fourier"):
        raise ValueError(f"domain must be 'signal' or 'fourier', got {domain!r}")
    _margins_at_one(predictor, rows)
    if domain == "fourier":
        predictor, rows = torch.fft.fft(predictor, norm="ortho"), torch.fft.fft(rows, norm="ortho")
    size = predictor.abs()
    return float(1 / (size.sum() * (size * rows.abs() ** 2).sum(-1).max()))


def _margins_at_one(predictor: Tensor, rows: Tensor) -> Tensor:
    """The margins (N,) of a predictor, whose smallest must be 1."""
    margins = rows @ predictor
    if not abs(float(margins.min()) - 1) < 1e-6:
        raise ValueError(
            f"predictor must have smallest margin 1, got {float(margins.min()):.4g}; divide by it"
        )
    return margins


def crossing(path: Tensor, angles: Tensor, target: float) -> float:
    """Return where along a path the angle last falls below a target, in logarithms of both.

    Args:
        path: (R,), positive and increasing, for example log(1 / loss).
        angles: (R,), positive.
        target: an angle between the largest after the last crossing and the last one.

    Returns:
        The position, interpolated linearly in the logarithms; NaN where the last angle is above the
        target.

    Raises:
        ValueError: if no angle is above the target.

    Example:
        >>> path = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
        >>> round(crossing(path, 1 / path, 0.1), 12)
        10.0
    """
    above = torch.nonzero(angles > target).flatten()
    if not len(above):
        raise ValueError(f"target must be below the first angle {float(angles[0]):.3g}")
    last = int(above[-1])
    if last == len(angles) - 1:
        return math.nan
    x, y = path[last : last + 2].double().log(), angles[last : last + 2].double().log()
    share = (math.log(target) - y[0]) / (y[1] - y[0])
    return float((x[0] + share * (x[1] - x[0])).exp())
