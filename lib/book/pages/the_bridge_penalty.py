"""What the chapter "What do deeper networks choose?" computes and draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lib.book import figures
from lib.implicit import bridge_penalty, direction_angle, stationarity


@dataclass(frozen=True)
class Limits:
    """The different limits of many starts on one data set, the least penalty first.

    Attributes:
        predictors: (K, D) float64, one trained predictor of each limit, at smallest margin one.
        counts: (K,) int64, how many starts ended there.
        penalties: (K,) float64, the bridge penalty of each.
        residuals: (K,) float64, the largest residual among the starts that ended there.
    """

    predictors: Tensor
    counts: Tensor
    penalties: Tensor
    residuals: Tensor


def gaussian_sets(
    dimension: int, n_examples: int, n_sets: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw Gaussian inputs with random labels, as a batch of data sets.

    Args:
        dimension: D >= n_examples, so that the sets are separable with probability 1.
        n_examples: N.
        n_sets: S.
        generator: source of randomness.

    Returns:
        Inputs (S, N, D) and labels (S, N), float64.

    Raises:
        ValueError: if there are more examples than dimensions.

    Example:
        >>> x, y = gaussian_sets(8, 3, 5, torch.Generator().manual_seed(0))
        >>> x.shape, sorted(set(y.flatten().tolist()))
        (torch.Size([5, 3, 8]), [-1.0, 1.0])
    """
    if n_examples > dimension:
        raise ValueError(
            f"n_examples must be at most dimension = {dimension}, got {n_examples}; more examples "
            "need not be separable"
        )
    shape = (n_sets, n_examples)
    inputs = torch.randn(*shape, dimension, generator=generator, dtype=torch.float64)
    heads = torch.randint(0, 2, shape, generator=generator)
    return inputs, 2.0 * heads.to(torch.float64) - 1


def residuals(run, inputs: Tensor, labels: Tensor, depth: int, domain: str) -> Tensor:
    """Return the residual of each last predictor of a batch of data sets, one start each.

    Args:
        run: a `Trajectory` whose leading dimension is S data sets.
        inputs: (S, N, D).
        labels: (S, N).
        depth: L; the power is 2 / L.
        domain: "signal" or "fourier".

    Returns:
        (S,) float64.

    Example:
        >>> from lib.implicit import DiagonalNetwork, log_time_flow
        >>> x, y = torch.tensor([[[3.0, 4.0]]]), torch.ones(1, 1)
        >>> run = log_time_flow(DiagonalNetwork(3), x, y, 20, torch.Generator().manual_seed(0))
        >>> bool(residuals(run, x, y, 3, "signal") < 1e-3)
        True
    """
    return torch.stack(
        [
            stationarity(one, x, y, 2 / depth, domain)
            for one, x, y in zip(run.predictor, inputs, labels, strict=True)
        ]
    )


def residuals_over_time(run, inputs: Tensor, labels: Tensor, depth: int, domain: str) -> Tensor:
    """Return the residual at every record of a batch of data sets; NaN before it separates them.

    Args:
        run: a `Trajectory` whose leading dimension is S data sets, with R records.
        inputs: (S, N, D).
        labels: (S, N).
        depth: L; the power is 2 / L.
        domain: "signal" or "fourier".

    Returns:
        (S, R) float64.

    Example:
        >>> from lib.implicit import DiagonalNetwork, log_time_flow
        >>> x, y = torch.tensor([[[3.0, 4.0]]]), torch.ones(1, 1)
        >>> start = [torch.tensor([[0.0, -1.0]]), *[torch.ones(1, 2)] * 2]
        >>> run = log_time_flow(DiagonalNetwork(3), x, y, 20, weights=start, records=2)
        >>> residuals_over_time(run, x, y, 3, "signal").shape
        torch.Size([1, 2])
    """
    result = torch.full_like(run.margin, torch.nan)
    for s, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        separates = run.margin[s] > 0
        directions = run.direction[s, separates]
        result[s, separates] = stationarity(directions, x, y, 2 / depth, domain)
    return result


def distinct_limits(
    predictors: Tensor,
    inputs: Tensor,
    labels: Tensor,
    power: float,
    domain: str,
    apart: float = 0.02,
) -> Limits:
    """Sort trained predictors into groups of one direction and judge each group.

    Args:
        predictors: (S, D), separators of the examples.
        inputs: (N, D).
        labels: (N,), -1 or +1.
        power: p in (0, 1).
        domain: "signal" or "fourier".
        apart: predictors at an angle (radians) below this count as one limit.

    Returns:
        The limits.

    Example:
        Two of three predictors agree.

        >>> x, y = torch.tensor([[3.0, 4.0]]), torch.ones(1)
        >>> ends = torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.0, 5.0]])
        >>> distinct_limits(ends, x, y, 2 / 3, "signal").counts
        tensor([2, 1])
    """
    predictors = predictors.to(torch.float64)
    rows = labels.unsqueeze(-1).to(torch.float64) * inputs.to(torch.float64)
    scaled = predictors / (predictors @ rows.mT).amin(-1, keepdim=True)
    penalties = bridge_penalty(scaled, power, domain)
    residual = stationarity(scaled, inputs, labels, power, domain)
    order = penalties.argsort().tolist()
    found: list[list[int]] = []
    for i in order:
        same = [g for g in found if float(direction_angle(scaled[i], scaled[g[0]])) < apart]
        if same:
            same[0].append(i)
        else:
            found.append([i])
    first = [group[0] for group in found]
    return Limits(
        predictors=scaled[first],
        counts=torch.tensor([len(group) for group in found]),
        penalties=penalties[first],
        residuals=torch.stack([residual[group].max() for group in found]),
    )


def draw_plane(ax, starts: Sequence[float]) -> None:
    r"""Draw the example in the plane: penalty, margin one, stationary points, paths for depth 3.

    The paths are the closed form $1 / r_d = 1 / r_d(0) - a_d \tau$ with a = (2, 1).

    Args:
        ax: where to draw.
        starts: ratios r_2(0) / r_1(0) of the starts.
    """
    side = torch.linspace(0, 1.25, 200, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    penalty = bridge_penalty(grid, 2 / 3, "signal")
    levels = [2 ** (-2 / 3), 1.0, 0.1 ** (2 / 3) + 0.8 ** (2 / 3)]
    ax.contour(side, side, penalty, levels=levels, colors="#999999", linewidths=0.9)
    ax.plot([0, 0.5], [1, 0], color="black", lw=2)
    for ratio in starts:
        r = np.array([0.3, 0.3 * ratio])
        end = min(1 / (2 * r[0]), 1 / r[1])
        time = end * (1 - np.geomspace(1, 0.02, 200))
        path = (1 / (1 / r[:, None] - np.array([[2.0], [1.0]]) * time)) ** 3
        name, style = ("blue", "-") if ratio < 2 else ("orange", "-.")
        ax.plot(*path, style, color=figures.colours[name], lw=1.4)
    ax.plot([0, 0.15], [0, 1.2], "--", color="black", lw=1.1)
    points = np.array([[0.5, 0], [0, 1], [0.1, 0.8]])
    ax.plot(*points.T, "o", ms=7, color=figures.colours["vermilion"], clip_on=False, zorder=5)
    for label, place in (("margin 1", (0.3, 0.45)), ("watershed", (0.16, 1.14))):
        ax.annotate(label, place, fontsize=9.5)
    ax.set(xlim=(0, 0.8), ylim=(0, 1.25), xlabel=r"$\beta_1$", ylabel=r"$\beta_2$")
