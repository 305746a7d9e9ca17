"""The weight matrices of a deep linear student, and the few of their directions that move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from lib.linear.checks import check_count, check_nonzero, check_number, to_float64

_RANK_TOLERANCE = 1e-13  # a direction counts when it exceeds this share of the layer's norm


def balanced_factors(
    vector: Tensor, depth: int, generator: torch.Generator, width: int | None = None
) -> tuple[Tensor, ...]:
    r"""Draw weight matrices that are balanced and whose product is a given vector.

    $$W_j = |v|^{1/N}\, u_j u_{j-1}^\top, \qquad u_0 = v / |v|, \quad u_N = 1,$$
    with independent random unit vectors $u_1, \dots, u_{N-1}$. Then $W_N \cdots W_1 = v^\top$ and
    $W_{j+1}^\top W_{j+1} = |v|^{2/N} u_j u_j^\top = W_j W_j^\top$. Up to the choice of the $u_j$ no
    others exist: balanced matrices with a one-row last factor all have rank one.

    **Source**: Phuong & Lampert, Eq. 11c.

    Args:
        vector: (..., d), not zero, the end-to-end weights v.
        depth: N >= 1; with N = 1 the only matrix is the vector itself.
        generator: source of the unit vectors.
        width: number of hidden units of each layer, >= 1; d when None.

    Returns:
        (W_1, ..., W_N) of shapes (..., width, d), (..., width, width), ..., (..., 1, width).

    Raises:
        ValueError: if the vector is zero, has NaN or infinite entries, or depth or width is < 1.

    Example:
        >>> v = torch.tensor([3.0, 4.0], dtype=torch.float64)
        >>> factors = balanced_factors(v, 3, torch.Generator().manual_seed(0), width=5)
        >>> [tuple(w.shape) for w in factors]
        [(5, 2), (5, 5), (1, 5)]
        >>> torch.allclose(end_to_end(factors), v), balancedness(factors).item() < 1e-14
        (True, True)
    """
    (target,), dtype = to_float64(vector=vector)
    if target.ndim < 1:
        raise ValueError("vector must have shape (..., d), got a single number; use vector[None]")
    check_nonzero("vector", target)
    depth = check_count("depth", depth)
    width = target.shape[-1] if width is None else check_count("width", width)
    largest = target.abs().amax(-1, keepdim=True)  # first, so that no square over- or underflows
    relative = torch.linalg.vector_norm(target / largest, dim=-1, keepdim=True)
    norm = largest * relative
    units = [target / largest / relative]
    for _ in range(depth - 1):
        shape = (*target.shape[:-1], width)
        draw = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
        draw = draw.to(target.device)
        units.append(draw / torch.linalg.vector_norm(draw, dim=-1, keepdim=True))
    units.append(torch.ones_like(norm))
    scale = (norm ** (1.0 / depth)).unsqueeze(-1)
    return tuple(
        (scale * after.unsqueeze(-1) * before.unsqueeze(-2)).to(dtype)
        for before, after in pairwise(units)
    )


def end_to_end(factors: Sequence[Tensor]) -> Tensor:
    r"""Multiply the weight matrices to the weights of the linear student.

    $$w^\top = W_N W_{N-1} \cdots W_1$$

    **Source**: Phuong & Lampert, Section 3.

    Args:
        factors: (W_1, ..., W_N), W_j of shape (..., h_j, h_{j-1}) with h_0 = d and h_N = 1.

    Returns:
        (..., d).

    Raises:
        ValueError: if the shapes do not chain, or an entry is NaN or infinite.

    Example:
        >>> end_to_end((torch.eye(2), torch.tensor([[3.0, 4.0]])))
        tensor([3., 4.])
    """
    matrices, dtype = check_factors(factors)
    return _product(matrices).to(dtype)


def balancedness(factors: Sequence[Tensor]) -> Tensor:
    r"""Measure by how much weight matrices miss the balance condition.

    $$\max_{j < N}\ \max_{a, b}\ \big| W_{j+1}^\top W_{j+1} - W_j W_j^\top \big|_{ab}$$

    Gradient flow keeps each of these differences constant, whatever its value.

    **Source**: Phuong & Lampert, Eq. 11c.

    Args:
        factors: (W_1, ..., W_N), W_j of shape (..., h_j, h_{j-1}) with h_N = 1.

    Returns:
        (...), >= 0; 0 for a single matrix.

    Raises:
        ValueError: if the shapes do not chain, or an entry is NaN or infinite.

    Example:
        >>> balancedness((torch.eye(2), torch.tensor([[2.0, 0.0]])))  # diag(4, 0) - diag(1, 1)
        tensor(3.)
    """
    matrices, dtype = check_factors(factors)
    gaps = [
        (after.mT @ after - before @ before.mT).abs().amax((-2, -1))
        for before, after in pairwise(matrices)
    ]
    none = matrices[0].new_zeros(matrices[0].shape[:-2])
    return reduce(torch.maximum, gaps, none).to(dtype)


def initial_norm_limit(
    epsilon: float | Tensor, limit_norm: float | Tensor, depth: int
) -> float | Tensor:
    r"""Return the initial norm below which the student ends within epsilon of its limit.

    $$\min\Big\{ |\hat w|,\ \epsilon^N \big( \epsilon^2 |\hat w|^{-2/N} + |\hat w|^{2 - 2/N}
      \big)^{-N/2} \Big\} = |\hat w| \big( 1 + |\hat w|^2 / \epsilon^2 \big)^{-N/2}$$

    The second form is the one computed: it never overflows, and shows that the first entry of the
    minimum is never the smaller one. The inverse is
    `lib.linear.deep_limit.landing_distance_bound`.

    **Source**: Phuong & Lampert, Eq. 11a, right-hand side.

    Args:
        epsilon: (...) or a number, the distance to reach, > 0.
        limit_norm: (...) or a number, $|\hat w|$, > 0.
        depth: N >= 1.

    Returns:
        (...), the bound on $|w(0)|$; a float when both arguments are numbers.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        With epsilon = |w_hat| the bound is |w_hat| / 2^(N/2).

        >>> round(initial_norm_limit(3.0, 3.0, 2), 12)
        1.5
        >>> initial_norm_limit(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0]), 1)
        tensor([2.4000, 2.4000])
    """
    depth = check_count("depth", depth)
    if not isinstance(epsilon, Tensor) and not isinstance(limit_norm, Tensor):
        epsilon = check_number("epsilon", epsilon, 0.0, open_low=True)
        limit_norm = check_number("limit_norm", limit_norm, 0.0, open_low=True)
        return limit_norm * (epsilon / math.hypot(epsilon, limit_norm)) ** depth
    given = {"epsilon": epsilon, "limit_norm": limit_norm}
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    _, dtype = to_float64(**tensors)
    device = next(iter(tensors.values())).device
    given = {name: torch.as_tensor(value, device=device) for name, value in given.items()}
    (distance, norm), _ = to_float64(**given)
    for name, value in (("epsilon", distance), ("limit_norm", norm)):
        if bool((value <= 0).any()):
            raise ValueError(f"{name} must be > 0, got {float(value.min()):.6g}")
    return (norm * (distance / torch.hypot(distance, norm)) ** depth).to(dtype)


def check_factors(factors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], torch.dtype]:
    """Return weight matrices in float64 with one common batch shape, or raise ValueError.

    Args:
        factors: (W_1, ..., W_N), W_j of shape (..., h_j, h_{j-1}) with h_N = 1.

    Returns:
        The matrices, and the dtype of results (see `lib.linear.checks.to_float64`).

    Raises:
        ValueError: if there are none, the shapes do not chain, or an entry is NaN or infinite.

    Example:
        >>> check_factors((torch.eye(2), torch.ones(1, 3)))
        Traceback (most recent call last):
        ValueError: factors[1] must have 2 columns, one for each row of factors[0], got shape (1, 3)
    """
    names = {f"factors[{j}]": matrix for j, matrix in enumerate(factors)}
    if not names:
        raise ValueError("factors must hold at least one matrix, got none")
    matrices, dtype = to_float64(**names)
    for name, matrix in zip(names, matrices, strict=True):
        if matrix.ndim < 2 or 0 in matrix.shape[-2:]:
            raise ValueError(
                f"{name} must be a matrix (..., rows, columns), got shape {tuple(matrix.shape)}"
            )
    for j in range(1, len(matrices)):
        rows = matrices[j - 1].shape[-2]
        if matrices[j].shape[-1] != rows:
            raise ValueError(
                f"factors[{j}] must have {rows} columns, one for each row of factors[{j - 1}], "
                f"got shape {tuple(matrices[j].shape)}"
            )
    if matrices[-1].shape[-2] != 1:
        raise ValueError(
            f"factors[{len(matrices) - 1}] must have one row, the student's output, "
            f"got shape {tuple(matrices[-1].shape)}"
        )
    try:
        batch = torch.broadcast_shapes(*(matrix.shape[:-2] for matrix in matrices))
    except RuntimeError:
        shapes = ", ".join(str(tuple(matrix.shape)) for matrix in matrices)
        raise ValueError(f"the leading dimensions of factors do not broadcast: {shapes}") from None
    return tuple(matrix.expand(*batch, *matrix.shape[-2:]) for matrix in matrices), dtype


@dataclass(frozen=True)
class ReducedFactors:
    r"""The part of a deep linear student that gradient flow can change.

    The end-to-end vector at any time is ``basis @ z + remainder @ a`` with the reduced matrices'
    product $z = \tilde W_1^\top \cdots \tilde W_N^\top$ and
    $a = \tilde W_2^\top \cdots \tilde W_N^\top$.

    Attributes:
        factors: $\tilde W_j = U_j^\top W_j U_{j-1}$, (..., s_j, s_{j-1}) with s_N = 1.
        basis: U_0, (..., d, s_0), orthonormal columns spanning the data, or zero columns.
        remainder: (..., d, s_1), the constant part of W_1 outside the data span, transposed.
    """

    factors: tuple[Tensor, ...]
    basis: Tensor
    remainder: Tensor

    @property
    def unknowns(self) -> int:
        """Number of entries of the reduced matrices."""
        return sum(matrix.shape[-2] * matrix.shape[-1] for matrix in self.factors)


def reduce_factors(factors: Sequence[Tensor], basis: Tensor) -> ReducedFactors:
    r"""Find the directions of each layer that gradient flow uses; the others stay constant.

    With $S_0$ the data span and $S_N = \mathbb R$, let $S_1, \dots, S_{N-1}$ be the smallest
    subspaces such that $W_j S_{j-1} \subseteq S_j$ and $W_{j+1}^\top S_{j+1} \subseteq S_j$. The
    gradient of $W_j$ is an outer product of a vector in $S_j$ and one in $S_{j-1}$, so these
    inclusions last for ever, and so does every entry of $W_j$ outside $S_j \otimes S_{j-1}$.
    Balanced matrices have $\dim S_j = 1$; generic ones with $N = 2$ have
    $\dim S_1 = \min(h_1, \dim S_0 + 1)$.

    **Source**: ours; it extends the argument of Phuong & Lampert, Lemma 11, to every layer.

    Args:
        factors: (W_1, ..., W_N), N >= 2, W_j of shape (..., h_j, h_{j-1}) with h_0 = d, h_N = 1.
        basis: (..., d, r), orthonormal columns (or zero columns) that span the data.

    Returns:
        A `ReducedFactors`. Members of a batch with smaller subspaces get zero columns.

    Raises:
        ValueError: if there are fewer than two matrices or shapes do not fit.

    Example:
        >>> v = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
        >>> factors = balanced_factors(v, 4, torch.Generator().manual_seed(0), width=50)
        >>> plane = torch.eye(3, 2, dtype=torch.float64)
        >>> reduce_factors(factors, plane).unknowns  # (1 x 2) + 1 + 1 + 1 instead of 5200
        5
    """
    matrices, _ = check_factors(factors)
    if len(matrices) < 2:
        raise ValueError("factors must hold at least two matrices, got 1; a single one is not deep")
    output = torch.ones_like(matrices[-1][..., :1, :1])
    empty = [matrix[..., :0] for matrix in matrices[:-1]]
    spaces = _close([basis, *empty, output], matrices)
    reduced = tuple(
        after.mT @ matrix @ before
        for matrix, before, after in zip(matrices, spaces[:-1], spaces[1:], strict=True)
    )
    first = matrices[0].mT
    constant = first - basis @ (basis.mT @ first)
    return ReducedFactors(reduced, basis, constant @ spaces[1])


def _close(spaces: list[Tensor], matrices: tuple[Tensor, ...]) -> list[Tensor]:
    """Enlarge the bases of the hidden layers until no matrix leads out of them."""
    grown = True
    while grown:
        grown = False
        for j in range(1, len(matrices)):
            scales = [m.norm(dim=(-2, -1), keepdim=True) for m in (matrices[j - 1], matrices[j])]
            scales = [torch.where(scale > 0, scale, 1.0) for scale in scales]
            below = matrices[j - 1] @ spaces[j - 1] / scales[0]
            above = matrices[j].mT @ spaces[j + 1] / scales[1]
            wider = _append(spaces[j], torch.cat([below, above], dim=-1))
            grown |= wider.shape[-1] > spaces[j].shape[-1]
            spaces[j] = wider
    return spaces


def _append(basis: Tensor, columns: Tensor) -> Tensor:
    """Add the directions of columns that are not in the span of basis; zero columns go last.

    At least one column stays, a zero one where there is no direction at all.
    """
    for _ in range(2):  # twice is enough for orthogonality to machine precision
        columns = columns - basis @ (basis.mT @ columns)
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    fresh = left * (values > _RANK_TOLERANCE).unsqueeze(-2)
    joined = torch.cat([basis, fresh], dim=-1)
    used = joined.square().sum(-2) > 0.5
    order = torch.argsort(used.to(torch.int8), dim=-1, descending=True, stable=True)
    joined = torch.gather(joined, -1, order.unsqueeze(-2).expand_as(joined))
    return joined[..., : max(int(used.sum(-1).max()), 1)]


def _product(matrices: Sequence[Tensor]) -> Tensor:
    """W_N ... W_1 as a vector (..., d)."""
    row = matrices[-1]
    for matrix in reversed(matrices[:-1]):
        row = row @ matrix
    return row.squeeze(-2)
