"""What the chapter "One theorem for all of them" computes: maps, two numbers, a second route."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.func import jacrev

from lib.book import figures
from lib.implicit import (
    ConvolutionalNetwork,
    DenseNetwork,
    DiagonalNetwork,
    HomogeneousNetwork,
    signal,
    spectrum,
)


def shared_weight(weights: Tensor) -> Tensor:
    r"""Return $u \odot v^2$ for weights (2 D,), first u, then v.

    Args:
        weights: (2 D,).

    Returns:
        (D,).

    Example:
        >>> shared_weight(torch.tensor([2.0, 3.0]))
        tensor([18.])
    """
    first, second = weights.chunk(2)
    return first * second**2


def shared_weight_bound(weights: Tensor) -> Tensor:
    r"""Return a bound on the curvature of a margin of a unit example under `shared_weight`.

    The second derivatives of $u v^2$ are the matrix with rows (0, 2 v) and (2 v, 2 u), whose norm
    is at most $2 |u| + 2 |v|$.

    Args:
        weights: (..., 2 D).

    Returns:
        (...).

    Example:
        >>> shared_weight_bound(torch.tensor([2.0, -3.0]))
        tensor(10.)
    """
    first, second = weights.abs().chunk(2, -1)
    return (2 * first + 2 * second).amax(-1)


def gated_pairs(weights: Tensor) -> Tensor:
    r"""Return $s_g v_g$ for pairs g of coordinates; weights are D / 2 gates, then D numbers.

    Args:
        weights: (3 D / 2,), D even.

    Returns:
        (D,).

    Example:
        >>> gated_pairs(torch.tensor([2.0, 1.0, 1.0]))
        tensor([2., 2.])
    """
    count = len(weights) // 3
    return weights[:count].repeat_interleave(2) * weights[count:]


def running_sums(weights: Tensor) -> Tensor:
    r"""Return $\beta_d = \sum_{k \le d} u_k v_k$ for weights (2 D,), first u, then v.

    Args:
        weights: (2 D,).

    Returns:
        (D,).

    Example:
        >>> running_sums(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([ 3., 11.])
    """
    first, second = weights.chunk(2)
    return (first * second).cumsum(0)


def cycle(weights: Tensor) -> Tensor:
    r"""Return $w_d w_{d+1}$, the last times the first, for weights (D,).

    Args:
        weights: (D,).

    Returns:
        (D,).

    Example:
        >>> cycle(torch.tensor([1.0, 2.0, 3.0]))
        tensor([2., 6., 3.])
    """
    return weights * weights.roll(-1)


def power_difference(degree: int) -> HomogeneousNetwork:
    r"""Return the network $\beta = u^\nu - v^\nu$ with weights (2 D,).

    Args:
        degree: $\nu \ge 2$.

    Returns:
        A `HomogeneousNetwork`.

    Example:
        >>> power_difference(3).predictor(torch.tensor([2.0, 1.0]))
        tensor([7.])
    """

    def powers(weights: Tensor) -> Tensor:
        first, second = weights.chunk(2)
        return first**degree - second**degree

    return HomogeneousNetwork(powers, degree)


def eleven_maps() -> dict[str, tuple[object, str]]:
    """Return the maps of the chapter's table: name -> (network, name of its data set).

    Returns:
        Five networks of the earlier chapters, then six other maps.

    Example:
        >>> len(eleven_maps())
        11
    """
    return {
        "dense, depth 3": (DenseNetwork(3), "E2"),
        "convolutional, depth 2": (ConvolutionalNetwork(2), "E2"),
        "convolutional, depth 3": (ConvolutionalNetwork(3), "E2"),
        "diagonal, depth 2": (DiagonalNetwork(2), "E2"),
        "diagonal, depth 3": (DiagonalNetwork(3), "E2"),
        "squares": (power_difference(2), "E2"),
        "cubes": (power_difference(3), "E2"),
        "shared": (HomogeneousNetwork(shared_weight, 3, 8, shared_weight_bound), "E2"),
        "groups": (HomogeneousNetwork(gated_pairs, 2, 12), "E4"),
        "sums": (HomogeneousNetwork(running_sums, 2, 16), "E4"),
        "cycle": (HomogeneousNetwork(cycle, 2, 3), "E1"),
    }


def nearest_least_norm(network, inputs: Tensor, labels: Tensor, weights) -> Tensor:
    r"""Return the predictor of the least-norm weights that a solver finds from given weights.

    $$\min_w \|w\|^2 \quad \text{such that} \quad \langle a_n, P(w) \rangle \ge 1$$

    solved by sequential quadratic programming (SLSQP), which stops at a local solution.

    **Source**: the problem of Gunasekar et al. (2018), Theorem 3.

    Args:
        network: a network of `lib.implicit`.
        inputs: (N, D).
        labels: (N,), -1 or +1.
        weights: weights of a separator, where the solver starts once they are scaled to margin one.

    Returns:
        (D,), float64.

    Raises:
        RuntimeError: if the solver does not converge.

    Example:
        >>> data = torch.tensor([[3.0, 4.0]]), torch.ones(1)
        >>> nearest_least_norm(DenseNetwork(2), *data, [torch.eye(2), torch.ones(2)]) * 25
        tensor([3.0000, 4.0000], dtype=torch.float64)
    """
    rows, shapes = _signed(inputs, labels), _shapes(weights)
    start = _flat(weights)
    smallest = (rows @ network.predictor(_unflat(start, shapes))).min()
    found = _solve(network, rows, start / smallest ** (1 / network.degree), shapes)
    if found is None:
        raise RuntimeError("the solver did not converge from these weights; train longer first")
    return network.predictor(_unflat(found, shapes))


def least_norm_values(
    network, inputs: Tensor, labels: Tensor, n_starts: int, generator: torch.Generator
) -> list[float]:
    """Return the different values of |w|^2 at the local solutions found from random weights.

    Args:
        network: a `HomogeneousNetwork` with its number of parameters.
        inputs: (N, D).
        labels: (N,), -1 or +1.
        n_starts: number of Gaussian starts of the solver.
        generator: source of randomness.

    Returns:
        Increasing values, those within one part in a thousand counted once.

    Raises:
        RuntimeError: if the solver converges from no start.

    Example:
        >>> network = HomogeneousNetwork(cycle, 2, 3)
        >>> data = torch.ones(1, 3), torch.ones(1)  # best: equal weights, w^2 = 1/3
        >>> least_norm_values(network, *data, 3, torch.Generator().manual_seed(0))
        [1.0]
    """
    values: list[float] = []
    for found in _solutions(network, inputs, labels, n_starts, generator):
        value = round(float(found @ found), 9)
        if not values or value > values[-1] * 1.001:
            values.append(value)
    return values


def least_norm_predictor(
    network, inputs: Tensor, labels: Tensor, n_starts: int, generator: torch.Generator
) -> Tensor:
    """Return the predictor of the shortest weights found from random starts of the solver.

    Args:
        network: a `HomogeneousNetwork` with its number of parameters.
        inputs: (N, D).
        labels: (N,), -1 or +1.
        n_starts: number of Gaussian starts.
        generator: source of randomness.

    Returns:
        (D,), float64.

    Raises:
        RuntimeError: if the solver converges from no start.

    Example:
        >>> network = HomogeneousNetwork(gated_pairs, 2, 3)  # one group: the Euclidean norm
        >>> data = torch.tensor([[3.0, 4.0]]), torch.ones(1)
        >>> (25 * least_norm_predictor(network, *data, 3, torch.Generator().manual_seed(0))).round()
        tensor([3., 4.], dtype=torch.float64)
    """
    return network.predictor(_solutions(network, inputs, labels, n_starts, generator)[0])


def balanced_weights(network, predictor: Tensor):
    r"""Return weights of least norm for a predictor: equal moduli in all layers.

    $$|w_{l,d}| = |\beta_d|^{1/L} \quad\text{or}\quad |\hat w_{l,d}| = |\hat\beta_d|^{1/L}$$

    with signs or phases in the first layer; for dense networks $W_l = \|\beta\|^{1/L} e_1 e_1^\top$
    behind a first layer that turns $e_1$ to $\beta$.

    Args:
        network: a `DenseNetwork`, `DiagonalNetwork` or `ConvolutionalNetwork`.
        predictor: (..., D) float64, no zero coordinate or coefficient.

    Returns:
        The layers.

    Example:
        >>> balanced_weights(DiagonalNetwork(2), torch.tensor([-4.0, 9.0]))
        [tensor([-2.,  3.]), tensor([2., 3.])]
    """
    depth = network.depth
    if isinstance(network, DenseNetwork):
        length = predictor.norm(dim=-1, keepdim=True)
        size = (length ** (1 / depth)).unsqueeze(-1)
        unit = torch.zeros_like(predictor)
        unit[..., 0] = 1
        first = (predictor / length).unsqueeze(-1) * unit.unsqueeze(-2) * size
        middle = unit.unsqueeze(-1) * unit.unsqueeze(-2) * size
        return [first, *[middle] * (depth - 2), unit * size.squeeze(-1)]
    fourier = isinstance(network, ConvolutionalNetwork)
    c = spectrum(predictor) if fourier else predictor
    even = c.abs() ** (1 / depth)
    layers = [c / even ** (depth - 1), *[even] * (depth - 1)]
    if not fourier:
        return layers
    return [signal(layer.to(c.dtype), predictor.shape[-1]) for layer in layers]


def draw_shared_weight(ax, starts: Tensor, grows: Tensor) -> None:
    """Draw the plane of the weights of u v^2: paths, the curve of predictor 1, the circle.

    Args:
        ax: where to draw.
        starts: (S, 2) starts in the upper half plane.
        grows: (S,) bool, which of them reach a loss of zero.
    """
    grey = "#777777"
    for (u, v), good in zip(starts.tolist(), grows.tolist(), strict=True):
        constant = v * v - 2 * u * u
        end = 2.2 if good else -((-constant / 2) ** 0.5)
        along = np.linspace(u, end, 300)
        height = np.sqrt(np.maximum(constant + 2 * along**2, 0))
        name, style = ("blue", "-") if good else ("orange", "-.")
        ax.plot(along, height, style, color=figures.colours[name], lw=1.4)
        ax.plot(u, v, "o", ms=4, color=figures.colours[name])
    curve = np.linspace(0.12, 2.2, 200)
    ax.plot(curve, curve**-0.5, color="black", lw=2)
    turn = np.linspace(0, np.pi, 200)
    radius = (3 * 2 ** (-2 / 3)) ** 0.5
    ax.plot(radius * np.cos(turn), radius * np.sin(turn), color="black", lw=0.9)
    ax.plot([0, 1.6], [0, 1.6 * 2**0.5], "--", color="black", lw=1.3)
    ax.plot([0, -1.6], [0, 1.6 * 2**0.5], ":", color=grey, lw=1.3)
    ax.plot(2 ** (-1 / 3), 2 ** (1 / 6), "*", ms=13, color=figures.colours["vermilion"])
    ax.annotate("$u v^2 = 1$", (1.62, 0.86), fontsize=10)
    ax.annotate("stuck", (-1.25, 0.3), color="#9a6200", fontsize=10)
    ax.set(xlim=(-1.5, 2.1), ylim=(-0.08, 2.1), aspect="equal")
    ax.set(xlabel="weight $u$", ylabel="weight $v$, used twice")


def _solutions(
    network, inputs: Tensor, labels: Tensor, n_starts: int, generator: torch.Generator
) -> list[Tensor]:
    """Local solutions from Gaussian starts, the shortest first."""
    rows = _signed(inputs, labels)
    starts = torch.randn(n_starts, network.parameters, generator=generator, dtype=torch.float64)
    tried = [_solve(network, rows, start, None) for start in starts]
    found = sorted((w for w in tried if w is not None), key=lambda w: float(w @ w))
    if not found:
        raise RuntimeError(f"the solver converged from none of {n_starts} starts; try more")
    return found


def _solve(network, rows: Tensor, start: Tensor, shapes) -> Tensor | None:
    """SLSQP from packed weights; None where it ends at no point that satisfies the constraints."""

    def margins(flat: Tensor) -> Tensor:
        return rows @ network.predictor(_unflat(flat, shapes))

    constraint = {
        "type": "ineq",
        "fun": lambda w: margins(torch.from_numpy(w)).numpy() - 1,
        "jac": lambda w: jacrev(margins)(torch.from_numpy(w)).numpy(),
    }
    options = {"maxiter": 500, "ftol": 1e-14}
    found = minimize(
        lambda w: (w @ w, 2 * w),
        start.numpy(),
        jac=True,
        method="SLSQP",
        constraints=constraint,
        options=options,
    )
    end = torch.from_numpy(found.x)
    feasible = bool(torch.isfinite(end).all()) and float(margins(end).min()) >= 1 - 1e-8
    return end if feasible and found.status in (0, 8) else None


def _signed(inputs: Tensor, labels: Tensor) -> Tensor:
    return labels.unsqueeze(-1).to(torch.float64) * inputs.to(torch.float64)


def _flat(weights) -> Tensor:
    layers = [weights] if isinstance(weights, Tensor) else list(weights)
    return torch.cat([layer.detach().to(torch.float64).flatten() for layer in layers])


def _shapes(weights) -> list[tuple[int, ...]] | None:
    return None if isinstance(weights, Tensor) else [tuple(layer.shape) for layer in weights]


def _unflat(flat: Tensor, shapes: list[tuple[int, ...]] | None):
    if shapes is None:
        return flat
    parts = flat.split([int(np.prod(shape)) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
