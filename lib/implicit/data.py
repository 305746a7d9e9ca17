"""Data sets whose maximum-margin predictors are known, or known to be well determined."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lib.implicit.checks import choice, count, positive
from lib.implicit.spectrum import NORMS, multiplicity, signal

_SIGNED_ROWS = {
    "E1": ((2, -2, 1), (-2, 3, 0)),
    "E2": ((1, 2, -2, 2), (-1, -1, 3, 0)),
    "E3": ((-1, -1, -2, 0, -2), (3, 0, 0, -2, -2), (-1, 0, 3, 3, 1)),
    "E4": (
        (3, 0, -1, -2, 1, -1, 1, -2),
        (-2, 0, 3, 1, 0, -2, -2, -2),
        (0, -1, -1, 2, -1, 2, 0, -1),
        (3, -2, 1, -1, 1, 1, 2, 3),
    ),
}
WORKED_EXAMPLES = tuple(_SIGNED_ROWS)


def worked_example(name: str) -> tuple[Tensor, Tensor]:
    """Return a small integer data set on which the three limits are far apart.

    Labels alternate, +1 first. All optima are unique; no inactive dual coefficient exceeds 0.41.

    Args:
        name: "E1" (3 dimensions, 2 examples), "E2" (4, 2), "E3" (5, 3) or "E4" (8, 4).

    Returns:
        Inputs (N, D) and labels (N,), float64.

    Raises:
        ValueError: if the name is unknown.

    Example:
        >>> inputs, labels = worked_example("E1")
        >>> labels[:, None] * inputs
        tensor([[ 2., -2.,  1.],
                [-2.,  3.,  0.]], dtype=torch.float64)
    """
    rows = torch.tensor(_SIGNED_ROWS[choice("name", name, WORKED_EXAMPLES)], dtype=torch.float64)
    labels = torch.ones(len(rows), dtype=torch.float64)
    labels[1::2] = -1
    return labels.unsqueeze(-1) * rows, labels


def random_separable(
    dimension: int,
    n: int,
    generator: torch.Generator,
    norm: str = "l2",
    support: int | None = None,
    inactive: float = 0.4,
    noise: float = 1.0,
    batch: tuple[int, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return random separable data together with their maximum-margin predictor.

    The optimum is drawn first and Gaussian data are then made to fit it: a predictor beta, k
    support vectors with multipliers $\alpha_n$ in [1/2, 3/2], and a dual vector z of dual norm one
    with $z^\top \beta = \|\beta\|$,

    $$a_n^\top \beta = 1 \text{ for } n \le k, \qquad a_n^\top \beta \ge 5/4 \text{ for the others},
      \qquad \sum_{n \le k} \alpha_n a_n = z .$$

    Gaussian rows of length about `noise` satisfy these linear equations after the smallest change.
    By convex duality beta is the optimum. For "l1" and "fourier-l1" it has k active coefficients,
    where z has modulus one, and z is at most `inactive` elsewhere. Each support vector is given one
    active coefficient of its own before the noise is added: that makes the optimum unique and
    well conditioned. It matters for training, which at depth two approaches its limit like
    T^{-(1 - inactive)}: plain Gaussian data in 64 dimensions have inactive moduli above 0.9.

    **Source**: optimality conditions of the maximum-margin problem.

    Args:
        dimension: D >= 2.
        n: number of examples, >= 2.
        generator: source of randomness.
        norm: "l2", "l1" or "fourier-l1", the norm whose optimum is known.
        support: k, number of support vectors and, for the last two norms, of active coefficients
            (conjugate pairs count once); at most n and the number of coefficients, and for "l2" at
            most D; None for about an eighth of the dimension.
        inactive: largest modulus of z off the support, in [0, 1).
        noise: root mean square length of the Gaussian part of a row, > 0.
        batch: shape of a batch of independent data sets.

    Returns:
        Inputs (*batch, n, D), labels (*batch, n), both of them present, and the predictor
        (*batch, D) with smallest margin 1; float64.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> inputs, labels, beta = random_separable(64, 12, torch.Generator().manual_seed(0))
        >>> margins = labels * (inputs @ beta)
        >>> int((margins < 1 + 1e-9).sum()), bool((margins > 1 - 1e-9).all())
        (8, True)
    """
    choice("norm", norm, NORMS)
    dimension, n = count("dimension", dimension, 2), count("n", n, 2)
    size = dimension // 2 + 1 if norm == "fourier-l1" else dimension
    if support is None:
        support = max(1, min(n, size, dimension // 8))
    if count("support", support) > min(n, size):
        raise ValueError(
            f"support must be at most n = {n} and the {size} coefficients, got {support}"
        )
    if inactive != 0:
        positive("inactive", inactive, high=1 - 1e-9)
    options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    noise = positive("noise", noise)
    alpha = 0.5 + torch.rand(*batch, support, **options)
    base, beta, dual = _OPTIMA[norm](dimension, alpha, inactive, batch, options)
    extra = torch.rand(*batch, n - support, **options)
    wanted = torch.cat([torch.ones_like(alpha), 1.25 + extra], -1)
    rows = noise / math.sqrt(dimension) * torch.randn(*batch, n, dimension, **options)
    rows[..., :support, :] += base
    excess = wanted - (rows @ beta.unsqueeze(-1)).squeeze(-1)
    rows = rows + excess.unsqueeze(-1) * _over_square(beta).unsqueeze(-2)
    missing = dual - (alpha.unsqueeze(-2) @ rows[..., :support, :]).squeeze(-2)
    rows[..., :support, :] += _over_square(alpha).unsqueeze(-1) * missing.unsqueeze(-2)
    labels = torch.randint(0, 2, (*batch, n), generator=generator, device=generator.device)
    labels[..., 0], labels[..., 1] = 0, 1
    labels = 2.0 * labels.to(torch.float64) - 1
    return labels.unsqueeze(-1) * rows, labels, beta


def _over_square(vector: Tensor) -> Tensor:
    """v / |v|^2."""
    return vector / (vector**2).sum(-1, keepdim=True)


def _l2_optimum(
    dimension: int, alpha: Tensor, inactive: float, batch: tuple[int, ...], options: dict
) -> tuple[Tensor, Tensor, Tensor]:
    """Support vectors, predictor and dual vector: any direction, of length sum(alpha)."""
    dual = torch.randn(*batch, dimension, **options)
    dual = dual / torch.linalg.vector_norm(dual, dim=-1, keepdim=True)
    base = torch.randn(*batch, alpha.shape[-1], dimension, **options) / math.sqrt(dimension)
    return base, alpha.sum(-1, keepdim=True) * dual, dual


def _sparse_optimum(
    size: int, weight: Tensor, phases: Tensor, alpha: Tensor, inactive: float, options: dict
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in coefficients of moduli `alpha` / `weight` on the support, and given phases."""
    support = alpha.shape[-1]
    phases = phases / phases.abs()
    order = torch.rand(phases.shape, **options).argsort(-1)[..., :support]
    own = torch.nn.functional.one_hot(order, size).to(torch.float64)
    active = own.sum(-2)
    moduli = active + (1 - active) * inactive * torch.rand(phases.shape, **options)
    beta = (alpha.unsqueeze(-2) @ own).squeeze(-2) / weight
    return own / alpha.unsqueeze(-1) * phases.unsqueeze(-2), beta * phases, moduli * phases


def _l1_optimum(
    dimension: int, alpha: Tensor, inactive: float, batch: tuple[int, ...], options: dict
) -> tuple[Tensor, Tensor, Tensor]:
    """Support vectors along the active coordinates, with random signs."""
    signs = torch.randn(*batch, dimension, **options)
    return _sparse_optimum(dimension, torch.ones_like(signs), signs, alpha, inactive, options)


def _fourier_optimum(
    dimension: int, alpha: Tensor, inactive: float, batch: tuple[int, ...], options: dict
) -> tuple[Tensor, Tensor, Tensor]:
    """Support vectors along the active waves, with random phases."""
    weight = multiplicity(dimension, alpha.device)
    real, imaginary = torch.randn(2, *batch, len(weight), **options)
    phases = torch.complex(real, imaginary * (weight > 1))
    parts = _sparse_optimum(len(weight), weight, phases, alpha, inactive, options)
    return tuple(signal(part, dimension) for part in parts)


_OPTIMA = {"l2": _l2_optimum, "l1": _l1_optimum, "fourier-l1": _fourier_optimum}
