"""Data sets whose maximum-margin predictors are known, or known to be well determined."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lib.implicit.checks import choice, count, positive
from lib.implicit.spectrum import NORMS, multiplicity, norm_value, signal

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
    batch: tuple[int, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return random separable data together with their maximum-margin predictor.

    The optimum is drawn first and Gaussian data are then made to fit it: a predictor beta, k
    support vectors with multipliers $\alpha$ and a dual vector z with $z^\top \beta = \|\beta\|$,

    $$a_n^\top \beta = 1 \text{ for } n \le k, \qquad a_n^\top \beta > 1 \text{ for the others},
      \qquad \sum_{n \le k} \alpha_n a_n = z .$$

    Gaussian examples satisfy these linear equations after the smallest change. By convex duality
    beta is the optimum, and the only one, because its support has k coefficients with the moduli
    of z equal to one there and at most `inactive` elsewhere. Data drawn without such care have
    inactive moduli above 0.9 in 64 dimensions, and a network of depth two approaches its limit like
    T^{-(1 - inactive)} only.

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
    alpha = 0.5 + torch.rand(*batch, support, **options)
    beta, dual = _optimum(dimension, support, norm, inactive, batch, options)
    # scale the predictor so that the multipliers' sum is its norm, as duality asks
    beta = beta * (alpha.sum(-1) / norm_value(beta, norm)).unsqueeze(-1)
    wanted = torch.ones(*batch, n, **{k: v for k, v in options.items() if k != "generator"})
    wanted[..., support:] += 0.25 + torch.rand(*batch, n - support, **options)
    rows = torch.randn(*batch, n, dimension, **options) / math.sqrt(dimension)
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


def _optimum(
    dimension: int, support: int, norm: str, inactive: float, batch: tuple[int, ...], options: dict
) -> tuple[Tensor, Tensor]:
    """A random predictor, and the dual vector z of dual norm one with z.beta = |beta|."""
    if norm == "l2":
        beta = torch.randn(*batch, dimension, **options)
        return beta, beta / torch.linalg.vector_norm(beta, dim=-1, keepdim=True)
    size = dimension // 2 + 1 if norm == "fourier-l1" else dimension
    phases = torch.randn(*batch, size, **options)
    if norm == "fourier-l1":
        imaginary = torch.randn(*batch, size, **options)
        phases = torch.complex(phases, imaginary * (multiplicity(dimension, phases.device) > 1))
    phases = phases / phases.abs()
    order = torch.rand(*batch, size, **options).argsort(-1)
    active = order < support
    dual = torch.where(active, 1.0, inactive * torch.rand(*batch, size, **options)) * phases
    beta = active * (0.5 + torch.rand(*batch, size, **options)) * phases
    if norm == "l1":
        return beta, dual
    return signal(beta, dimension), signal(dual, dimension)
