"""The largest eigenvalues of a symmetric operator: Lanczos with thick restarts.

The basis is kept orthogonal in full, so an eigenvalue never appears twice by rounding, and most
calls end before the first restart. Convergence is looked at after every product: ARPACK looks once
in each restart. `benchmarks/stability_sharpness.py` compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_BASIS_ENTRIES = 2**27  # numbers a basis may hold: 1 GiB in float64
_CANCELLATION = 1e-4  # below this part of its length, a vector is made orthogonal once more


class ConvergenceError(RuntimeError):
    """No eigenvalue: the iteration ran out of products, or met NaN or infinity."""


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """Approximate eigenpairs of a symmetric operator.

    Attributes:
        values: (k,) Ritz values, descending, float64.
        vectors: (k, P) their vectors, orthonormal rows, float64.
        norm: the largest modulus of a Ritz value, a lower estimate of the operator's norm.
        products: how often the operator was applied.
    """

    values: Tensor
    vectors: Tensor
    norm: float
    products: int


class _Krylov:
    """An orthonormal basis V of a growing Krylov space, and the small matrix V H V^T.

    With `locked` rows, H is restricted to the vectors orthogonal to them. The row after the last
    of the basis is the direction that comes next; small[size - 1, size] is its coupling.
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        locked: Tensor,
        size: int,
        generator: torch.Generator,
    ):
        self.product, self.locked, self.generator = product, locked, generator
        self.dimension = locked.shape[1] - len(locked)
        self.capacity = min(size, self.dimension)
        self.vectors = locked.new_empty(self.capacity + 1, locked.shape[1])
        self.small = torch.zeros(self.capacity + 1, self.capacity + 1, dtype=torch.float64)
        self.size = self.kept = 0
        self.norm = 0.0

    def expand(self, floor: float) -> None:
        """Apply H to the next direction, which joins the basis; what is new in the image is next.

        A coupling below floor times the norm of H is rounding: the space is closed, and a random
        direction comes next.
        """
        new, basis = self.size, self.vectors[: self.size + 1]
        image = self._outside(self.product(basis[new]))
        length = float(torch.linalg.vector_norm(image))
        if not math.isfinite(length):
            raise ConvergenceError("a product with the operator holds NaN or infinity")
        first = 0 if new == self.kept else new - 1
        self.small[new, new] = (basis[new] @ image).item()
        rest = image - self.small[first : new + 1, new].to(image) @ basis[first:]
        for digits in range(1, 4):
            parts = basis @ rest
            self.small[new, new] += parts[new].item()
            rest = self._outside(rest - parts @ basis)
            coupling = float(torch.linalg.vector_norm(rest))
            if coupling >= _CANCELLATION**digits * length:
                break
        self.size, self.norm = new + 1, max(self.norm, length)
        if self.size == self.dimension:
            return
        if coupling <= floor * self.norm:
            self.vectors[self.size] = self.fresh_direction()
        else:
            self.vectors[self.size] = rest / coupling
            self.small[new, self.size] = self.small[self.size, new] = coupling

    def fresh_direction(self) -> Tensor:
        """A random unit vector orthogonal to the basis and to the locked rows."""
        basis = self.vectors[: self.size]
        length = self.vectors.shape[1]
        noise = torch.randn(length, generator=self.generator, dtype=torch.float64).to(basis)
        for _ in range(2):
            noise = self._outside(noise)
            noise = noise - (basis @ noise) @ basis
            noise = noise / noise.norm()
        return noise

    def _outside(self, vector: Tensor) -> Tensor:
        """A vector without its part in the locked rows."""
        return vector - (self.locked @ vector) @ self.locked if len(self.locked) else vector

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ritz values, descending, their coordinates (columns), and their residuals."""
        values, rotation = torch.linalg.eigh(self.small[: self.size, : self.size])
        self.norm = max(self.norm, float(values.abs().max()))
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
    basis_size: int | None = None,
) -> Eigenpairs:
    r"""Return the k largest (algebraic) eigenvalues of a symmetric operator, with eigenvectors.

    $$\lVert H v - \lambda v \rVert \le \tau \max(|\lambda|, \; 32 u \lVert H \rVert / \tau)$$

    holds for each pair by the recurrence's own estimate, with $\tau$ the tolerance and $u$ the
    precision of a product. A Krylov space sees one copy of a repeated eigenvalue, so for k > 1 a
    second run, among the vectors orthogonal to those found, looks for larger ones: it knows
    values to about the relative precision of the tolerance.

    **Source**: Wu and Simon (2000), thick-restart Lanczos for symmetric eigenvalue problems.

    Args:
        product: maps a vector (P,) float64 to its image (P,) float64.
        start: (P,) float64, not zero.
        k: how many, 1 <= k <= P.
        tol: the tolerance, at least 32 times `precision`.
        max_products: how many products may be used.
        precision: the relative rounding of a product, such as `torch.finfo(torch.float32).eps`.
        basis_size: how many vectors of length P to hold, at least k + 2; None takes 8 k + 24, or
            fewer where those would not fit into 1 GiB.

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
    size = start.numel()
    if basis_size is None:
        basis_size = max(min(_BASIS_ENTRIES // size, 8 * k + 24), 2 * k + 6)
    generator = torch.Generator().manual_seed(1)
    space = _Krylov(product, start.new_empty(0, size), basis_size, generator)
    space.vectors[0] = start / start.norm()
    found = _iterate(space, k, tol, max_products, precision)
    while 1 < k < size:
        space = _Krylov(product, found.vectors, basis_size, generator)
        space.vectors[0] = space.fresh_direction()
        hurdle = float(found.values[-1] + tol * found.values[-1].abs())
        other = _iterate(space, 1, tol, max_products - found.products, precision, hurdle)
        missed = float(other.values[0]) > hurdle
        found = _join(found, other, missed)
        if not missed:
            break
    return found


def _iterate(
    space: _Krylov,
    k: int,
    tol: float,
    max_products: int,
    precision: float,
    hurdle: float = -math.inf,
) -> Eigenpairs:
    """Expand a space until k pairs have converged; below the hurdle, until their values have.

    The error of a value is about the square of its residual.
    """
    worst = math.inf
    for products in range(1, max_products + 1):
        if space.size == space.capacity:
            space.restart(k + (space.capacity - k) // 2)
        space.expand(4 * precision)
        if space.size < min(k + 1, space.dimension):
            continue
        values, rotation, residuals = (part[..., :k] for part in space.ritz())
        target = torch.where(values > hurdle, tol, math.sqrt(tol))
        allowed = torch.clamp(target * values.abs(), min=32 * precision * space.norm)
        if bool((residuals <= allowed).all()):
            vectors = rotation.T.to(space.vectors) @ space.vectors[: space.size]
            return Eigenpairs(values.to(vectors), vectors, space.norm, products)
        worst = float((residuals / allowed).max())
    raise ConvergenceError(
        f"no convergence within max_products: the worst of {k} residuals is {worst:.3g} times "
        f"what tol={tol:g} allows; raise max_products or tol"
    )


def _join(found: Eigenpairs, other: Eigenpairs, missed: bool) -> Eigenpairs:
    """The pairs found, a missed one among them in place of the smallest."""
    values, vectors = found.values, found.vectors
    if missed:
        values, order = torch.cat([values[:-1], other.values]).sort(descending=True)
        vectors = torch.cat([vectors[:-1], other.vectors])[order]
    norm, products = max(found.norm, other.norm), found.products + other.products
    return Eigenpairs(values, vectors, norm, products)
