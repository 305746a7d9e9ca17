"""Angles between classifiers, and the span of a transfer set."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lib.linear.checks import check_broadcast, check_nonzero, prepare, to_float64


def angle(a: Tensor, b: Tensor, signed: bool = False) -> Tensor:
    r"""Return the angle between vectors, in radians.

    $$\bar\alpha(a, b) = \arccos \frac{|a^\top b|}{\|a\| \|b\|}, \qquad
      \alpha(a, b) = \arccos \frac{a^\top b}{\|a\| \|b\|}$$

    arccos loses half of the digits near 0, so the angle is taken from the chord between the unit
    vectors and the chord to the opposite one, 2 atan2(|a' - b'|, |a' + b'|) (Kahan): angles of
    1e-9 come out with 7 correct digits.

    **Source**: Phuong & Lampert, Eq. 14 (unsigned) and Eq. 21 (signed).

    Args:
        a: (..., d), non-zero.
        b: (..., d), non-zero; leading dimensions broadcast with those of a.
        signed: False for the angle between the lines, in [0, pi/2]; True for the angle between the
            vectors, in [0, pi].

    Returns:
        (...).

    Raises:
        ValueError: if a vector is zero, dimensions do not fit, or a value is NaN or infinite.

    Example:
        >>> a, b = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
        >>> torch.rad2deg(angle(a, b)), torch.rad2deg(angle(a, b, signed=True))
        (tensor(45.), tensor(135.))
    """
    (a, b), dtype = to_float64(a=a, b=b)
    if a.ndim < 1 or b.ndim < 1 or a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"a and b must have the same last dimension, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    check_broadcast(a=a, b=b)
    a, b = _unit("a", a), _unit("b", b)
    apart = torch.linalg.vector_norm(a - b, dim=-1)
    opposite = torch.linalg.vector_norm(a + b, dim=-1)
    if not signed:
        apart, opposite = torch.minimum(apart, opposite), torch.maximum(apart, opposite)
    return (2 * torch.atan2(apart, opposite)).to(dtype)


def _unit(name: str, vector: Tensor) -> Tensor:
    """Scale vectors to unit norm; by their largest entry first, so that no square overflows."""
    check_nonzero(name, vector)
    vector = vector / vector.abs().amax(-1, keepdim=True)
    return vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True)


class Span(NamedTuple):
    """The span of the rows of a matrix.

    Attributes:
        basis: (..., d, k) orthonormal columns that span it, the superfluous ones zero.
        rank: (...) int64, its dimension.
    """

    basis: Tensor
    rank: Tensor


def data_span(inputs: Tensor) -> Span:
    """Return an orthonormal basis of the span of the inputs, and its numerical rank.

    Rows are scaled to unit norm first (which leaves the span as it is), so that short examples
    count as much as long ones. A singular value counts when it exceeds max(n, d) eps times the
    largest. A QR factorisation of the tall side carries all of the precision; the small triangular
    factor alone decides the rank.

    Args:
        inputs: (..., n, d) float64, rows are examples.

    Returns:
        The `Span`, with k = min(n, d).

    Example:
        >>> data_span(torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0]]).double()).rank
        tensor(1)
    """
    n, d = inputs.shape[-2:]
    rows = _scale_rows(_scale_rows(inputs, torch.inf), 2)
    tall = rows if n >= d else rows.mT
    mode = "r" if n >= d else "reduced"
    columns, triangle = torch.linalg.qr(tall, mode=mode)
    values = torch.linalg.svdvals(triangle)
    kept = values > max(n, d) * torch.finfo(values.dtype).eps * values[..., :1]
    rank = kept.sum(-1)
    if n < d and bool(kept.all()):
        return Span(columns, rank)
    left, _, right = torch.linalg.svd(triangle)
    basis = right.mT if n >= d else columns @ left
    return Span(basis * kept.unsqueeze(-2), rank)


def _scale_rows(inputs: Tensor, order: float) -> Tensor:
    """Divide every row by its norm of the given order; zero rows stay zero."""
    norm = torch.linalg.vector_norm(inputs, ord=order, dim=-1, keepdim=True)
    return inputs / torch.where(norm > 0, norm, 1.0)


def project(span: Span, vector: Tensor) -> Tensor:
    """Project vectors onto a span; a span that is the whole space returns them unchanged.

    Args:
        span: of a batch of data sets.
        vector: (..., d) float64, leading dimensions broadcast.

    Returns:
        (..., d).

    Example:
        >>> plane = data_span(torch.eye(2, 3).double())
        >>> project(plane, torch.ones(3).double())
        tensor([1., 1., 0.], dtype=torch.float64)
    """
    dimension = span.basis.shape[-2]
    whole = (span.rank == dimension).unsqueeze(-1)
    if bool(whole.all()):
        return vector.expand(torch.broadcast_shapes(vector.shape, (*span.rank.shape, dimension)))
    coordinates = span.basis.mT @ vector.unsqueeze(-1)
    return torch.where(whole, vector, (span.basis @ coordinates).squeeze(-1))


def project_onto_span(inputs: Tensor, vector: Tensor) -> Tensor:
    r"""Project a vector onto the span of the inputs.

    $$P_X v = X^\top (X X^\top)^{-1} X v \text{ if } n < d, \quad P_X v = v \ \text{ if } n \ge d$$

    (inputs X are rows here, columns in the paper). Eq. 27 assumes a full-rank X. When inputs of
    full rank span the whole space, the vector comes back exactly as it is. Numerically
    rank-deficient inputs, e.g. with duplicates, are projected onto the span they really have, also
    when n >= d.

    **Source**: Phuong & Lampert, Eq. 27.

    Args:
        inputs: (..., n, d), rows are examples.
        vector: (..., d), leading dimensions broadcast with those of inputs.

    Returns:
        (..., d).

    Raises:
        ValueError: if shapes do not fit, or a value is NaN or infinite.

    Example:
        >>> x = torch.tensor([[1.0, 1.0, 0.0]])
        >>> project_onto_span(x, torch.tensor([1.0, 0.0, 5.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    (inputs, vector), dtype = prepare(inputs, vector=vector)
    return project(data_span(inputs), vector).to(dtype)
