"""Gradient flows of linear students, direct and deep, from soft and from hard labels.

All of them run in reduced coordinates: whatever provably stays constant is not integrated. Every
function takes a batch of transfer sets and solves all members together (`lib.linear.integrate`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lib.linear.checks import check_count, prepare
from lib.linear.factors import check_factors, end_to_end, reduce_factors
from lib.linear.fields import (
    direct_field,
    direct_jacobian,
    factor_field,
    factor_jacobian,
    hard_field,
    induced_field,
    induced_jacobian,
    output_vectors,
    unpack,
)
from lib.linear.geometry import data_span
from lib.linear.integrate import Field, integrate
from lib.linear.loss import logits

LARGEST_SYSTEM = 3000
_RTOL = 1e-10
_ATOL = 1e-14  # of a direct student, whose vector may start at zero
_DEEP_ATOL = 1e-30  # of a deep one: near the saddle at zero small vectors decide what follows


def gradient_flow(
    inputs: Tensor, teacher: Tensor, times: Tensor, initial: Tensor | None = None
) -> Tensor:
    r"""Follow the gradient flow of a directly parameterised student (N = 1) on soft labels.

    $$w'(\tau) = -\nabla L^1(w(\tau)) = \frac1n \sum_i
      \big( \sigma(w_*^\top x_i) - \sigma(w(\tau)^\top x_i) \big)\, x_i$$

    The component of w(0) orthogonal to the inputs is kept exactly, only the at most min(n, d)
    coordinates in their span are integrated (relative tolerance 1e-10).

    **Source**: Phuong & Lampert, Eq. 3 with N = 1; Theorem 1 gives the limit from w(0) = 0.

    Args:
        inputs: (..., n, d), rows are examples.
        teacher: (..., d), w*.
        times: (T,), increasing, >= 0.
        initial: (..., d), w(0); zero when None. All leading dimensions broadcast.

    Returns:
        (..., T, d), w at each time.

    Raises:
        ValueError: if shapes do not fit, values are not finite or times do not increase.
        RuntimeError: if the integrator gives up (see `lib.linear.integrate.integrate`).

    Example:
        Two orthogonal inputs, one teacher logit 0: the first coordinate converges, the second
        never moves.

        >>> x, w_star = torch.eye(2, dtype=torch.float64), torch.tensor([2.0, 0.0]).double()
        >>> trajectory = gradient_flow(x, w_star, torch.tensor([0.0, 1000.0]))
        >>> torch.allclose(trajectory, torch.stack([0 * w_star, w_star]))
        True
    """
    return _direct_flow(False, inputs, teacher, times, initial)


def hard_target_flow(
    inputs: Tensor, teacher: Tensor, times: Tensor, initial: Tensor | None = None
) -> Tensor:
    r"""Follow the same flow on hard labels 1{w*.x >= 0}, the ordinary logistic regression.

    $$w' = \frac1n \sum_i \big( 1\{w_*^\top x_i \ge 0\} - \sigma(w^\top x_i) \big)\, x_i$$

    On separable data |w| grows like log t and w / |w| tends to the maximum-margin direction.

    **Source**: Phuong & Lampert, Section 5.3; Soudry et al. (2018) for the limit.

    Args:
        inputs: (..., n, d), rows are examples.
        teacher: (..., d), w*; only the signs of its logits matter.
        times: (T,), increasing, >= 0.
        initial: (..., d), w(0); zero when None. All leading dimensions broadcast.

    Returns:
        (..., T, d), w at each time.

    Raises:
        ValueError: if shapes do not fit, values are not finite or times do not increase.
        RuntimeError: if the integrator gives up.

    Example:
        One example x = 1: w' = 1 / (1 + e^w), so that w + e^w = t + 1.

        >>> one, t = torch.ones(1, 1, dtype=torch.float64), torch.tensor([1.0, 1e5])
        >>> w = hard_target_flow(one, one[0], t)[:, 0]
        >>> torch.allclose(w + w.exp(), t.double() + 1)
        True
    """
    return _direct_flow(True, inputs, teacher, times, initial)


def deep_gradient_flow(
    factors: Sequence[Tensor], inputs: Tensor, teacher: Tensor, times: Tensor
) -> Tensor:
    r"""Follow the gradient flow of the weight matrices of a deep linear student (N >= 2).

    $$W_j'(\tau) = -\frac{\partial L}{\partial W_j}
      = -(W_N \cdots W_{j+1})^\top\, \nabla L^1(w)^\top\, (W_{j-1} \cdots W_1)^\top$$

    The matrices need not be balanced. Only the directions that move are integrated
    (`lib.linear.factors.reduce_factors`): for balanced matrices min(n, d) + N - 1 numbers, for
    generic ones with N = 2 about min(n, d)^2, for generic ones with N >= 3 all of the hidden
    layers.

    **Source**: Phuong & Lampert, Eq. 3; Theorem 2 gives the limit.

    Args:
        factors: (W_1, ..., W_N), W_j of shape (..., h_j, h_{j-1}) with h_0 = d and h_N = 1.
        inputs: (..., n, d), rows are examples.
        teacher: (..., d), w*. All leading dimensions broadcast.
        times: (T,), increasing, >= 0.

    Returns:
        (..., T, d), the end-to-end vector w at each time.

    Raises:
        ValueError: if there are fewer than two matrices, shapes do not fit, values are not finite,
            times do not increase, or more than 3000 coupled unknowns remain.
        RuntimeError: if the integrator gives up.

    Example:
        d = n = 1, x = 1, W_1 = W_2 = 1: by symmetry both stay equal, and end at sqrt(w*).

        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> w = deep_gradient_flow((one, one), one, 4 * one[0], torch.tensor([1e4]))
        >>> torch.allclose(w, 4 * one)
        True
    """
    matrices, _ = check_factors(factors)
    product = end_to_end(factors)
    batch, (x, target, _), dtype = _flat_problem(inputs, teacher, product, "product of factors")
    matrices = [_flatten(matrix, 2, batch) for matrix in matrices]
    basis = data_span(x).basis
    reduced = reduce_factors(matrices, basis)
    if reduced.unknowns > LARGEST_SYSTEM:
        raise ValueError(
            f"factors leave {reduced.unknowns} coupled unknowns, the implicit integrator takes at "
            f"most {LARGEST_SYSTEM}; use a smaller width, fewer examples or balanced factors"
        )
    shapes = [tuple(matrix.shape[-2:]) for matrix in reduced.factors]
    state = torch.cat([matrix.flatten(1) for matrix in reduced.factors], dim=1)
    data = (x @ basis, (target[:, None] @ basis)[:, 0])
    path = _solve(factor_field(shapes), factor_jacobian(shapes), state, times, data, _DEEP_ATOL)
    above = output_vectors(unpack(path, shapes))
    path = above[0] @ basis.mT + above[1] @ reduced.remainder.mT
    return path.reshape(*batch, *path.shape[1:]).to(dtype)


def end_to_end_flow(
    initial: Tensor, depth: int, inputs: Tensor, teacher: Tensor, times: Tensor
) -> Tensor:
    r"""Follow the flow that a balanced deep student induces on its end-to-end vector.

    $$w' = -|w|^{2(N-1)/N} \big( \nabla L^1(w) + (N-1)\, P_w \nabla L^1(w) \big),
      \qquad P_w = \frac{w w^\top}{|w|^2}$$

    It equals `deep_gradient_flow` from any `balanced_factors` with the product `initial`, at the
    cost of min(n, d) + 1 unknowns. The zero vector stays where it is.

    **Source**: Phuong & Lampert, Lemma 12 (Arora, Cohen and Hazan 2018, Claim 2).

    Args:
        initial: (..., d), w(0).
        depth: N >= 1; N = 1 is `gradient_flow`.
        inputs: (..., n, d), rows are examples.
        teacher: (..., d), w*. All leading dimensions broadcast.
        times: (T,), increasing, >= 0.

    Returns:
        (..., T, d), w at each time.

    Raises:
        ValueError: if shapes do not fit, values are not finite, depth < 1 or times do not increase.
        RuntimeError: if the integrator gives up.

    Example:
        x = (1, 0), w* = (4, 0), N = 2, w(0) = (0, 1): Eq. 48 makes w_2^2 = |w|, the limit has
        w_1 = 4, hence w_2^4 = 16 + w_2^2.

        >>> x, w_star = torch.eye(1, 2, dtype=torch.float64), torch.tensor([4.0, 0.0]).double()
        >>> w = end_to_end_flow(w_star.flip(0) / 4, 2, x, w_star, torch.tensor([1e4]))[0]
        >>> bool((w[0] - 4).abs() < 1e-8), bool((w[1] ** 4 - 16 - w[1] ** 2).abs() < 1e-6)
        (True, True)
    """
    if check_count("depth", depth) == 1:
        return gradient_flow(inputs, teacher, times, initial)
    batch, (x, target, start), dtype = _flat_problem(inputs, teacher, initial)
    basis, inside, outside = _split(x, start)
    height = torch.linalg.vector_norm(outside, dim=-1, keepdim=True)
    direction = outside / torch.where(height > 0, height, 1.0)
    state = torch.cat([inside, height], dim=-1)
    data = (x @ basis, (target[:, None] @ basis)[:, 0])
    path = _solve(induced_field(depth), induced_jacobian(depth), state, times, data, _DEEP_ATOL)
    path = path[..., :-1] @ basis.mT + path[..., -1:] * direction[:, None]
    return path.reshape(*batch, *path.shape[1:]).to(dtype)


def _direct_flow(
    hard: bool, inputs: Tensor, teacher: Tensor, times: Tensor, initial: Tensor | None
) -> Tensor:
    """Flow of a directly parameterised student on soft or hard labels."""
    if initial is None:
        initial = torch.zeros_like(teacher)
    batch, (x, target, start), dtype = _flat_problem(inputs, teacher, initial)
    basis, inside, outside = _split(x, start)
    if hard:
        field, labels = hard_field, torch.where(logits(x, target) >= 0, 1.0, -1.0).to(x)
    else:
        field, labels = direct_field, (target[:, None] @ basis)[:, 0]
    path = _solve(field, direct_jacobian, inside, times, (x @ basis, labels), _ATOL)
    path = path @ basis.mT + outside[:, None]
    return path.reshape(*batch, *path.shape[1:]).to(dtype)


def _solve(
    field: Field,
    jacobian: Field,
    state: Tensor,
    times: Tensor,
    data: tuple[Tensor, ...],
    atol: float,
) -> Tensor:
    """Integrate reduced states (B, m): (B, T, m)."""
    return integrate(
        field, jacobian, state, times, data, rtol=_RTOL, atol=atol, normwise=True
    ).states


def _split(x: Tensor, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Basis of the data span, coordinates of vectors in it, and what is left outside."""
    basis = data_span(x).basis
    inside = (vector[:, None] @ basis)[:, 0]
    outside = vector - (inside[:, None] @ basis.mT)[:, 0]
    return basis, inside, outside


def _flat_problem(
    inputs: Tensor, teacher: Tensor, initial: Tensor, name: str = "initial"
) -> tuple[torch.Size, tuple[Tensor, Tensor, Tensor], torch.dtype]:
    """Check inputs, teacher and initial vector, and give them one flat batch dimension."""
    vectors = {"teacher": teacher, name: initial}
    (x, target, start), dtype = prepare(inputs, **vectors)
    batch = torch.broadcast_shapes(x.shape[:-2], target.shape[:-1], start.shape[:-1])
    flat = (_flatten(x, 2, batch), _flatten(target, 1, batch), _flatten(start, 1, batch))
    return batch, flat, dtype


def _flatten(tensor: Tensor, dimensions: int, batch: torch.Size) -> Tensor:
    """Expand the leading dimensions to batch and merge them into one."""
    tail = tensor.shape[-dimensions:]
    return tensor.expand(*batch, *tail).reshape(-1, *tail)
