"""The unitary Fourier transform of real vectors, and the norms that the limits are measured in.

For a real vector the coefficients come in conjugate pairs, so only d = 0, ..., floor(D/2) are kept
("half spectrum"); each stands for one or two of the D coefficients (`multiplicity`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lib.implicit.checks import choice, nonzero_predictor, positive, real

NORMS = ("l2", "l1", "fourier-l1")
DOMAINS = ("signal", "fourier")


def spectrum(vector: Tensor) -> Tensor:
    r"""Return the half spectrum of real vectors under the unitary Fourier transform.

    $$\hat v_d = \frac{1}{\sqrt D} \sum_k v_k\, e^{-2\pi i d k / D}, \qquad
      d = 0, \dots, \lfloor D/2 \rfloor$$

    **Source**: Gunasekar et al. (2018), Section 2.

    Args:
        vector: (..., D), real float.

    Returns:
        (..., D // 2 + 1), complex.

    Example:
        >>> spectrum(torch.tensor([1.0, 2.0, 0.0, -1.0]))
        tensor([1.0000+0.0000j, 0.5000-1.5000j, 0.0000+0.0000j])
    """
    return torch.fft.rfft(vector, norm="ortho")


def signal(coefficients: Tensor, dimension: int) -> Tensor:
    r"""Return the real vectors whose half spectrum is given.

    $$v_k = \frac{1}{\sqrt D} \sum_{d=0}^{D-1} \hat v_d\, e^{2\pi i d k / D}, \qquad
      \hat v_{D-d} = \bar{\hat v}_d$$

    Args:
        coefficients: (..., D // 2 + 1), complex.
        dimension: D.

    Returns:
        (..., D), real.

    Example:
        >>> signal(torch.tensor([2.0 + 0j, 0, 0]), 4)  # a constant
        tensor([1., 1., 1., 1.])
    """
    return torch.fft.irfft(coefficients, n=dimension, norm="ortho")


def multiplicity(dimension: int, device: torch.device | str | None = None) -> Tensor:
    """Return how many of the D coefficients each entry of a half spectrum stands for.

    It is 1 for d = 0 and, when D is even, for d = D / 2; it is 2 for the others.

    Args:
        dimension: D >= 1.
        device: where to put the result.

    Returns:
        (D // 2 + 1,), float64; the sum is D.

    Example:
        >>> multiplicity(4), multiplicity(5)
        (tensor([1., 2., 1.], dtype=torch.float64), tensor([1., 2., 2.], dtype=torch.float64))
    """
    twice = torch.full((dimension // 2 + 1,), 2.0, dtype=torch.float64, device=device)
    twice[0] = 1
    if dimension % 2 == 0:
        twice[-1] = 1
    return twice


def norm_value(vector: Tensor, norm: str) -> Tensor:
    r"""Return the norm whose ball a limit direction is the maximum-margin point of.

    $$\|\beta\|_2, \qquad \|\beta\|_1 = \sum_d |\beta_d|, \qquad
      \|F\beta\|_1 = \sum_{d=0}^{D-1} |\hat\beta_d|$$

    **Source**: Gunasekar et al. (2018), Theorems 1 and 2.

    Args:
        vector: (..., D), real.
        norm: "l2", "l1" or "fourier-l1".

    Returns:
        (...), float64.

    Raises:
        ValueError: if the norm is unknown or a value is not finite.

    Example:
        >>> norm_value(torch.tensor([1.0, 1.0, 1.0, 1.0]), "fourier-l1")
        tensor(2., dtype=torch.float64)
    """
    choice("norm", norm, NORMS)
    vector = real("vector", vector)
    if norm == "l2":
        return torch.linalg.vector_norm(vector, dim=-1)
    if norm == "l1":
        return vector.abs().sum(-1)
    return (multiplicity(vector.shape[-1], vector.device) * spectrum(vector).abs()).sum(-1)


def dual_norm_value(vector: Tensor, norm: str) -> Tensor:
    r"""Return the dual norm, the largest inner product with a vector of norm at most one.

    $$\|z\|_* = \max_{\|\beta\| \le 1} z^\top \beta: \qquad
      \|z\|_2, \qquad \max_d |z_d|, \qquad \max_d |\hat z_d|$$

    Args:
        vector: (..., D), real.
        norm: "l2", "l1" or "fourier-l1": the norm that this one is dual to.

    Returns:
        (...), float64.

    Raises:
        ValueError: if the norm is unknown or a value is not finite.

    Example:
        >>> dual_norm_value(torch.tensor([3.0, -4.0]), "l1")
        tensor(4., dtype=torch.float64)
    """
    choice("norm", norm, NORMS)
    vector = real("vector", vector)
    if norm == "l2":
        return torch.linalg.vector_norm(vector, dim=-1)
    return (vector if norm == "l1" else spectrum(vector)).abs().amax(-1)


def bridge_penalty(predictor: Tensor, power: float, domain: str) -> Tensor:
    r"""Return the bridge penalty of a predictor or of its Fourier coefficients.

    $$\sum_{d} |\beta_d|^p \qquad \text{or} \qquad \sum_{d=0}^{D-1} |\hat\beta_d|^p$$

    **Source**: Gunasekar et al. (2018), Theorem 2a and the lemma on diagonal networks, p = 2 / L.

    Args:
        predictor: (..., D), real.
        power: p in (0, 2].
        domain: "signal" or "fourier".

    Returns:
        (...), float64.

    Raises:
        ValueError: if an argument is out of range or not finite.

    Example:
        >>> bridge_penalty(torch.tensor([4.0, 9.0]), 0.5, "signal")
        tensor(5., dtype=torch.float64)
    """
    choice("domain", domain, DOMAINS)
    power = positive("power", power, high=2)
    predictor = real("predictor", predictor)
    if domain == "signal":
        return (predictor.abs() ** power).sum(-1)
    twice = multiplicity(predictor.shape[-1], predictor.device)
    return (twice * spectrum(predictor).abs() ** power).sum(-1)


def direction_angle(first: Tensor, second: Tensor) -> Tensor:
    r"""Return the angle between two vectors, accurate also where it is tiny.

    $$2 \arctan \frac{|a - b|}{|a + b|} \quad \text{for unit } a, b$$

    **Source**: W. Kahan, *How futile are mindless assessments of roundoff* (2006); the arc cosine
    loses every angle below 1e-8.

    Args:
        first: (..., D), non-zero.
        second: (..., D), non-zero; leading dimensions broadcast.

    Returns:
        (...), radians in [0, pi], float64.

    Raises:
        ValueError: if a vector is zero or not finite, or the lengths differ.

    Example:
        >>> direction_angle(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])) * 2 / torch.pi
        tensor(1., dtype=torch.float64)
    """
    second = nonzero_predictor(second, second.shape[-1])
    first = nonzero_predictor(first, second.shape[-1])
    first = first / torch.linalg.vector_norm(first, dim=-1, keepdim=True)
    second = second / torch.linalg.vector_norm(second, dim=-1, keepdim=True)
    apart = torch.linalg.vector_norm(first - second, dim=-1)
    return 2 * torch.atan2(apart, torch.linalg.vector_norm(first + second, dim=-1))
