"""The largest eigenvalues of a symmetric operator: Lanczos with thick restarts.

The basis is kept orthogonal in full, so an eigenvalue never appears twice by rounding, and it is
as large as memory allows, so most calls end before the first restart. That needs fewer products
than ARPACK with a small basis, which looks at convergence once in each restart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_BASIS_ENTRIES = 2**27  # numbers a basis may hold: 1 GiB in float64
_BASIS_SIZE = 64
_CANCELLATION = 1e-4  # below this part of its length, a vector is made orthogonal once more


class ConvergenceError(RuntimeError):
    """No eigenvalue: the iteration ran out of products, or met NaN or infinity."""


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """Approximate eigenpairs of a symmetric operator.

    Attributes:
        values: (k,) Ritz values, descending, float64.
        vectors: (k, P) their vectors, orthonormal rows, float64.
        residuals: (k,) lengths of H v - lambda v, as the recurrence estimates them.
        norm: the largest modulus of a Ritz value, a lower estimate of the operator's norm.
        products: how often the operator was applied.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    norm: float
    products: int


class _Krylov:
    """An orthonormal basis V of a growing Krylov space, and the small matrix V H V^T."""

    def __init__(self, product: Callable[[Tensor], Tensor], start: Tensor, size: int, floor: float):
        self.product, self.floor = product, floor
        self.dimension = start.numel()
        self.vectors = start.new_empty(size + 1, self.dimension)
        self.vectors[0] = start / start.norm()
        self.small = torch.zeros(size + 1, size + 1, dtype=torch.float64)
        self.size = self.kept = 0
        self.generator = torch.Generator().manual_seed(1)

    def expand(self) -> None:
        """Apply H to the last vector and append what is new in the image."""
        new, basis = self.size, self.vectors[: self.size + 1]
        image = self.product(basis[new])
        length = float(image.norm())
        if not math.isfinite(length):
            raise ConvergenceError("a product with the operator holds NaN or infinity")
        first = 0 if new == self.kept else new - 1
        rest = image - self.small[first:new, new].to(image) @ basis[first:new]
        passes = 0
        while passes == 0 or (passes < 3 and float(rest.norm()) < _CANCELLATION**passes * length):
            parts = basis @ rest
            self.small[new, new] += parts[new].item()
            rest = rest - parts @ basis
            passes += 1
        self.size += 1
        scale = max(length, float(self.small[: self.size, : self.size].abs().max()))
        coupling = float(rest.norm())
        if coupling <= self.floor * scale or self.size == self.dimension:
            coupling, rest = 0.0, self.fresh_direction()
        self.small[new, self.size] = self.small[self.size, new] = coupling
        self.vectors[self.size] = rest / rest.norm()

    def fresh_direction(self) -> Tensor:
        """A random vector orthogonal to the basis; where that is the whole space, any vector."""
        basis = self.vectors[: self.size]
        noise = torch.randn(self.dimension, generator=self.generator, dtype=torch.float64)
        noise = noise.to(basis)
        if self.size < self.dimension:
            for _ in range(2):
                noise = noise - (basis @ noise) @ basis
        return noise

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ritz values, descending, their coordinates (columns), and their residuals."""
        values, rotation = torch.linalg.eigh(self.small[: self.size, : self.size])
        rotation = rotation.flip(1)
        return values.flip(0), rotation, self.small[self.size - 1, self.size] * rotation[-1].abs()

    def restart(self, keep: int) -> None:
        """Shrink the basis to the first Ritz vectors and the direction that comes next."""
        values, rotation, _ = self.ritz()
        coupling = self.small[self.size - 1, self.size] * rotation[-1, :keep]
        top = rotation[:, :keep].T.to(self.vectors) @ self.vectors[: self.size]
        self.vectors[keep] = self.vectors[self.size].clone()
        self.vectors[:keep] = top
        self.small.zero_()
        self.small[range(keep), range(keep)] = values[:keep]
        self.small[:keep, keep] = self.small[keep, :keep] = coupling
        self.size = self.kept = keep


def largest_eigenpairs(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    k: int = 1,
    tol: float = 1e-4,
    max_products: int = 1000,
    precision: float = torch.finfo(torch.float64).eps,
) -> Eigenpairs:
    r"""Return the k largest (algebraic) eigenvalues of a symmetric operator, with eigenvectors.

    $$\lVert H v - \lambda v \rVert \le \tau \max(|\lambda|, \; 32 u \lVert H \rVert / \tau)$$

    holds for each pair by the recurrence's own estimate, with $\tau$ the tolerance and $u$ the
    precision of a product. One vector starts the space: of a repeated eigenvalue it sees one copy,
    unless the space closes early; `lib.stability.sharpness` looks for the others.

    **Source**: Wu and Simon (2000), thick-restart Lanczos for symmetric eigenvalue problems.

    Args:
        product: maps a vector (P,) float64 to its image (P,) float64.
        start: (P,) float64, not zero.
        k: how many, 1 <= k <= P.
        tol: the tolerance, at least 32 times `precision`.
        max_products: how many products may be used.
        precision: the relative rounding of a product, such as `torch.finfo(torch.float32).eps`.

    Returns:
        The pairs, as `Eigenpairs`.

    Raises:
        ConvergenceError: if the products run out, or one holds NaN or infinity.

    Example:
        >>> curvatures = torch.tensor([-9.0, 1.0, 2.0, 3.0], dtype=torch.float64)
        >>> pairs = largest_eigenpairs(lambda v: curvatures * v, torch.ones(4).double(), k=2)
        >>> [round(value, 6) for value in pairs.values.tolist()]
        [3.0, 2.0]
    """
    capacity = min(max(_BASIS_ENTRIES // start.numel(), 8), _BASIS_SIZE)
    capacity = min(max(capacity, 2 * k + 6), start.numel())
    space = _Krylov(product, start, capacity, 4 * precision)
    for products in range(1, max_products + 1):
        if space.size == capacity < start.numel():
            space.restart(k + (capacity - k) // 2)
        space.expand()
        values, rotation, residuals = space.ritz()
        norm = float(values.abs().max())
        allowed = torch.clamp(tol * values.abs(), min=32 * precision * norm)
        if space.size >= min(k + 1, start.numel()) and bool((residuals <= allowed)[:k].all()):
            vectors = rotation[:, :k].T.to(start) @ space.vectors[: space.size]
            return Eigenpairs(
                values[:k].to(start), vectors, residuals[:k].to(start), norm, products
            )
    worst = float((residuals / allowed)[:k].max())
    raise ConvergenceError(
        f"no {k} converged eigenvalues after max_products={max_products}: the worst residual is "
        f"{worst:.3g} times what tol={tol:g} allows; raise max_products or tol"
    )
