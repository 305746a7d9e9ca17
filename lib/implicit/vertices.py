"""The global minimum of the bridge problem in the signal domain, by listing vertices."""

from __future__ import annotations

from itertools import combinations
from math import comb

import torch
from torch import Tensor

from lib.implicit.checks import positive, signed_examples
from lib.implicit.spectrum import bridge_penalty

_MOST_SYSTEMS = 200_000
_TOLERANCE = 1e-9


def margin_vertices(inputs: Tensor, labels: Tensor) -> Tensor:
    r"""Return the vertices of the predictors with margins of at least one, cut by sign.

    A vertex has some s non-zero coordinates S and s examples R of margin one that fix them,

    $$A_{RS}\, \beta_S = 1, \qquad \beta_{S^c} = 0, \qquad A \beta \ge 1 .$$

    $|\beta_d|^p$ is concave for p <= 1 where the sign of $\beta_d$ is fixed, so every local minimum
    of the bridge problem in the signal domain is one of them.

    **Source**: concavity in each orthant; Gunasekar et al. (2018), lemma on diagonal networks, for
    the problem.

    Args:
        inputs: (N, D), rows are examples; the number of systems, at most 200,000, is
            sum_s C(D, s) C(N, s).
        labels: (N,), -1 or +1.

    Returns:
        (V, D), float64, without repetitions; none when the examples are not separable.

    Raises:
        ValueError: if an argument does not fit or there are too many systems.

    Example:
        >>> margin_vertices(torch.tensor([[3.0, 4.0]]), torch.tensor([1]))
        tensor([[0.0000, 0.2500],
                [0.3333, 0.0000]], dtype=torch.float64)
    """
    rows = signed_examples(inputs, labels)
    n, d = rows.shape
    systems = sum(comb(d, s) * comb(n, s) for s in range(1, min(n, d) + 1))
    if systems > _MOST_SYSTEMS:
        raise ValueError(
            f"inputs of shape {(n, d)} give {systems} systems to solve, more than {_MOST_SYSTEMS}; "
            "use fewer examples or dimensions"
        )
    found = [_vertices_of_size(rows, size) for size in range(1, min(n, d) + 1)]
    vertices = torch.cat(found)
    if not len(vertices):
        return vertices
    rounded = (vertices / vertices.abs().amax().clamp(min=1e-300) * 1e9).round()
    _, place = rounded.unique(dim=0, return_inverse=True)
    first = torch.full((int(place.max()) + 1,), len(place))
    first = first.scatter_reduce(0, place.cpu(), torch.arange(len(place)), "amin")
    return vertices[first.to(vertices.device)]


def bridge_minimum(inputs: Tensor, labels: Tensor, power: float) -> Tensor:
    r"""Return the global minimiser of the bridge problem in the signal domain.

    $$\arg\min_\beta \sum_d |\beta_d|^p \quad \text{such that} \quad
      y_n \langle x_n, \beta \rangle \ge 1 \text{ for all } n$$

    It is the best of `margin_vertices`. Diagonal networks of depth L = 2 / p >= 3 may converge to
    other stationary points.

    **Source**: as `margin_vertices`.

    Args:
        inputs: (N, D), rows are examples; small, see `margin_vertices`.
        labels: (N,), -1 or +1.
        power: p in (0, 1].

    Returns:
        (D,), float64.

    Raises:
        ValueError: if an argument does not fit, or the examples are not separable.

    Example:
        >>> bridge_minimum(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), 2 / 3)
        tensor([0.0000, 0.2500], dtype=torch.float64)
    """
    power = positive("power", power, high=1)
    vertices = margin_vertices(inputs, labels)
    if not len(vertices):
        raise ValueError(
            "the examples must be linearly separable through the origin: no predictor gives every "
            "one of them a positive margin; remove examples or change labels"
        )
    return vertices[bridge_penalty(vertices, power, "signal").argmin()]


def _vertices_of_size(rows: Tensor, size: int) -> Tensor:
    """The feasible vertices with `size` non-zero coordinates, (V, D)."""
    n, d = rows.shape
    device = rows.device
    examples = torch.tensor(list(combinations(range(n), size)), device=device)
    coordinates = torch.tensor(list(combinations(range(d), size)), device=device)
    systems = rows[examples[:, None, :, None], coordinates[None, :, None, :]].flatten(0, 1)
    values = torch.linalg.svdvals(systems)
    regular = values[:, -1] > 1e-12 * values[:, 0]
    places = coordinates.repeat(len(examples), 1)[regular]
    ones = torch.ones(len(places), size, dtype=rows.dtype, device=device)
    solutions = torch.linalg.solve(systems[regular], ones)
    vertices = rows.new_zeros(len(places), d).scatter(1, places, solutions)
    return vertices[(vertices @ rows.mT >= 1 - _TOLERANCE).all(-1)]
