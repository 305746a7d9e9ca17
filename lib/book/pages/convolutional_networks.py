"""Data with a known limit, and starts, for the chapters on convolutional and diagonal networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from lib.implicit import ConvolutionalNetwork, DiagonalNetwork, multiplicity, signal, spectrum

_LARGEST_CONDITION = 3.0
_IMBALANCE, _SPREAD = 0.3, 0.1


@dataclass(frozen=True)
class PlantedSets:
    """Random separable data sets whose limit direction was drawn before the examples.

    Attributes:
        inputs: (n_sets, N, D) float64, rows are examples.
        labels: (n_sets, N), -1 or +1.
        optimum: (n_sets, D), the predictor of least norm with margin one.
        dual: (n_sets, D), the combination z of signed examples that certifies it.
        tried: how many data sets were drawn to keep n_sets.
    """

    inputs: Tensor
    labels: Tensor
    optimum: Tensor
    dual: Tensor
    tried: int


def planted_sets(
    dimension: int,
    n_examples: int,
    n_sets: int,
    domain: str,
    generator: torch.Generator,
    inactive: float = 0.4,
) -> PlantedSets:
    r"""Draw data sets around a drawn optimum, so that its direction is known without a solver.

    A sparse predictor $\beta$ and multipliers $\alpha$ come first, with the dual vector z: on the
    support the signs (or phases) of $\beta$, elsewhere of modulus at most `inactive`. Gaussian rows
    are then moved to the nearest ones (in Frobenius norm) with

    $$A \beta = 1, \qquad A^\top \alpha = z,$$

    which are the optimality conditions: least l1 norm of $\beta$ ("signal"), or of its Fourier
    coefficients ("fourier"), with all margins at least one. The support has N coordinates, or N / 2
    complex coefficients: as many real numbers as margins. Sets whose rows determine these numbers
    badly (condition number above 3) are drawn again.

    **Source**: optimality conditions of Gunasekar et al. (2018), Theorem 2 and the lemma on
    diagonal networks; the construction is ours.

    Args:
        dimension: D >= 3.
        n_examples: N; even, and at most D - 2, for "fourier"; at most D for "signal".
        n_sets: number of data sets.
        domain: "signal" or "fourier".
        generator: source of randomness.
        inactive: largest modulus of z off the support, in [0, 1).

    Returns:
        The sets; labels alternate in random order, and label times input is a row of A.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> sets = planted_sets(6, 2, 5, "signal", torch.Generator().manual_seed(0))
        >>> margins = sets.labels * (sets.inputs @ sets.optimum.unsqueeze(-1)).squeeze(-1)
        >>> bool(torch.allclose(margins, torch.ones(5, 2, dtype=torch.float64)))
        True
    """
    if domain not in ("signal", "fourier"):
        raise ValueError(f"domain must be 'signal' or 'fourier', got {domain!r}")
    size = n_examples if domain == "signal" else n_examples // 2
    most = dimension if domain == "signal" else (dimension - 1) // 2
    if not 1 <= size <= most or (domain == "fourier" and n_examples % 2):
        raise ValueError(
            f"n_examples must be in 1..{dimension} (signal), or even and in 2..{2 * most} "
            f"(fourier), got {n_examples} for dimension {dimension} and domain {domain!r}"
        )
    if not 0 <= inactive < 1:
        raise ValueError(f"inactive must be in [0, 1), got {inactive!r}")
    kept, tried = [], 0
    while len(kept) < n_sets:
        tried += 1
        *one, condition = _one_set(dimension, n_examples, size, domain, inactive, generator)
        if condition <= _LARGEST_CONDITION:
            kept.append(one)
    rows, optimum, dual = (torch.stack(parts) for parts in zip(*kept, strict=True))
    order = torch.rand(rows.shape[:-1], generator=generator).argsort(-1)
    labels = 2.0 * (order % 2).double() - 1
    return PlantedSets(labels.unsqueeze(-1) * rows, labels, optimum, dual, tried)


def near_identity(
    network: DiagonalNetwork | ConvolutionalNetwork,
    dimension: int,
    n_starts: int,
    scale: float,
    generator: torch.Generator,
    output: float | None = None,
) -> tuple[Tensor, ...]:
    """Draw starts whose hidden layers are close to a multiple of the identity.

    A diagonal layer is `scale` in every coordinate; a kernel is one tap of height scale sqrt(D),
    so that its Fourier coefficients are all `scale`. Both get 10 % Gaussian noise, and the output
    layer is Gaussian and a thousand times smaller: the network starts as almost the zero
    predictor, with no coordinate or coefficient of its hidden layers near zero.

    Args:
        network: a `DiagonalNetwork` or `ConvolutionalNetwork`.
        dimension: D.
        n_starts: how many.
        scale: size of the hidden layers, > 0.
        generator: source of randomness.
        output: standard deviation of the output layer; scale / 1000 when None.

    Returns:
        L layers of shape (n_starts, D), float64.

    Raises:
        ValueError: if scale is not positive.

    Example:
        >>> first, second = near_identity(DiagonalNetwork(2), 3, 5, 0.1, torch.Generator())
        >>> first.shape, bool((first > 0).all()), bool(second.abs().max() < 1e-3)
        (torch.Size([5, 3]), True, True)
    """
    if not scale > 0:
        raise ValueError(f"scale must be > 0, got {scale!r}")
    one = torch.ones(dimension, dtype=torch.float64)
    if not isinstance(network, DiagonalNetwork):
        one = signal(torch.ones(dimension // 2 + 1, dtype=torch.complex128), dimension)
    options = {"generator": generator, "dtype": torch.float64}
    noise = torch.randn(network.depth, n_starts, dimension, **options)
    hidden = [scale * (one + _SPREAD * layer) for layer in noise[:-1]]
    return (*hidden, (scale / 1000 if output is None else output) * noise[-1])


def largest_inactive(direction: Tensor, optimum: Tensor, domain: str) -> Tensor:
    """Return the largest coefficient where the optimum has none, relative to the largest of all.

    Args:
        direction: (..., D), a trained predictor.
        optimum: (..., D), a sparse predictor.
        domain: "signal" for the entries or "fourier" for the Fourier coefficients.

    Returns:
        (...), in [0, 1]; 0 where the optimum uses every coefficient.

    Example:
        >>> largest_inactive(torch.tensor([4.0, -1.0]), torch.tensor([1.0, 0.0]), "signal")
        tensor(0.2500)
    """
    if domain == "fourier":
        direction, optimum = spectrum(direction), spectrum(optimum)
    size, target = direction.abs(), optimum.abs()
    unused = target <= 1e-9 * target.amax(-1, keepdim=True)
    return torch.where(unused, size, 0.0).amax(-1) / size.amax(-1)


def last_quarter_change(phases: Tensor) -> Tensor:
    """Return by how much phases move over the last quarter of equally spaced records.

    The records are unwrapped along the run, so that a step from just below pi to just above -pi
    counts as small, and the change is the largest distance between two records.

    Args:
        phases: (..., R, F), radians, R >= 4.

    Returns:
        (..., F), radians.

    Example:
        >>> turning = torch.tensor([[9.0], [9.0], [9.0], [3.1], [-3.1]], dtype=torch.float64)
        >>> last_quarter_change(turning) - (2 * torch.pi - 6.2) < 1e-12
        tensor([True])
    """
    late = phases[..., -max(2, phases.shape[-2] // 4 + 1) :, :]
    late = np.unwrap(late.numpy(), axis=-2)
    return torch.from_numpy(late.max(-2) - late.min(-2))


def cartesian_l1(signed: Tensor) -> tuple[Tensor, float]:
    r"""Solve the wrong problem: the l1 norm of real and imaginary parts instead of moduli.

    $$\min_\beta \sum_{d=0}^{D-1} |\operatorname{Re} \hat\beta_d| + |\operatorname{Im} \hat\beta_d|
      \quad \text{such that} \quad \langle a_n, \beta \rangle \ge 1$$

    It is a linear program, and not what convolutional networks minimise.

    Args:
        signed: (N, D), signed examples that a predictor separates.

    Returns:
        The predictor (D,) and its cost.

    Example:
        A constant example is answered by a constant, whose coefficient is real: both costs agree.

        >>> predictor, cost = cartesian_l1(torch.ones(1, 4, dtype=torch.float64))
        >>> predictor, cost
        (tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64), 0.5)
    """
    size = signed.shape[-1]
    half, twice = spectrum(torch.eye(size, dtype=torch.float64)).T, multiplicity(size)
    parts = torch.view_as_real(half).movedim(-1, 0).flatten(0, 1).numpy()
    ones, margins = np.eye(len(parts)), signed.numpy()
    above = np.block(
        [[parts, -ones], [-parts, -ones], [-margins, np.zeros((len(margins), len(parts)))]]
    )
    limits = np.concatenate([np.zeros(2 * len(parts)), -np.ones(len(margins))])
    cost = np.concatenate([np.zeros(size), twice.numpy(), twice.numpy()])
    answer = linprog(cost, above, limits, bounds=(None, None))
    return torch.from_numpy(answer.x[:size]), float(answer.fun)


def _one_set(
    dimension: int, n: int, size: int, domain: str, inactive: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Rows (N, D), optimum and dual (D,), and how badly the rows determine what is active."""
    uniform = _uniform(generator)
    half = dimension if domain == "signal" else dimension // 2 + 1
    first, last = (0, half) if domain == "signal" else (1, (dimension - 1) // 2 + 1)
    support = first + torch.randperm(last - first, generator=generator)[:size]
    phase, radius = _phases(dimension, half, domain, generator)
    dual = inactive * radius * phase
    dual[support] = phase[support]
    coefficients = torch.zeros_like(phase)
    coefficients[support] = (0.5 + uniform(size)) * phase[support]
    if domain == "fourier":
        dual, optimum = signal(dual, dimension), signal(coefficients, dimension)
    else:
        optimum = coefficients
    optimum = optimum / torch.linalg.vector_norm(optimum)
    multipliers = 1 + _IMBALANCE * (2 * uniform(n) - 1)
    multipliers = multipliers * (dual @ optimum) / multipliers.sum()
    rows = torch.randn(n, dimension, generator=generator, dtype=torch.float64)
    rows = _nearest_rows(rows, optimum, multipliers, dual)
    active = rows if domain == "signal" else spectrum(rows)
    active = active[:, support]
    if domain == "fourier":
        active = torch.view_as_real(active).flatten(-2)
    return rows, optimum, dual, float(torch.linalg.cond(active))


def _phases(
    dimension: int, half: int, domain: str, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Signs, or phases where a coefficient is complex, and radii uniform in the ball."""
    uniform = _uniform(generator)
    sign = 2 * torch.randint(2, (half,), generator=generator).double() - 1
    if domain == "signal":
        return sign, uniform(half)
    phase = torch.polar(torch.ones(half, dtype=torch.float64), 2 * torch.pi * uniform(half))
    single = multiplicity(dimension) == 1
    return torch.where(single, sign.to(phase.dtype), phase), uniform(half).sqrt()


def _nearest_rows(rows: Tensor, optimum: Tensor, multipliers: Tensor, dual: Tensor) -> Tensor:
    """The nearest matrix with A beta = 1 and A^T alpha = z, where sum alpha = z^T beta."""
    across = rows @ optimum - 1
    down = rows.mT @ multipliers - dual
    length, weight = optimum @ optimum, multipliers @ multipliers
    both = torch.outer(multipliers, optimum) * (multipliers @ across) / (length * weight)
    return (
        rows
        - torch.outer(across, optimum) / length
        - torch.outer(multipliers, down) / weight
        + both
    )


def _uniform(generator: torch.Generator) -> Callable[..., Tensor]:
    """A function that draws uniform numbers in [0, 1) of a given shape."""
    return lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)
