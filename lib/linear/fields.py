"""Right-hand sides of the flows and their Jacobians, in reduced coordinates.

The shapes are those of `lib.linear.integrate`: a field takes states (B, S, m), where S sub-steps
of each of B members are evaluated together; a Jacobian takes a state (B, m). The data of a member
is its design (n, r), the inputs in an orthonormal basis of their span, and the teacher (r,) in the
same basis, or the signs (n,) of the teacher's logits when the labels are hard.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lib.linear.integrate import Field
from lib.linear.loss import sigmoid_difference, sigmoid_slope


def soft_gradient(states: Tensor, design: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the gradient of the distillation loss at many states.

    $$\nabla L^1(w) = \frac1n \sum_i \big(\sigma(w^\top x_i) - \sigma(w_*^\top x_i)\big)\, x_i$$

    **Source**: Phuong & Lampert, Eq. 28.

    Args:
        states: (B, S, r) float64.
        design: (B, n, r).
        teacher: (B, r).

    Returns:
        (B, S, r).

    Example:
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> soft_gradient(0 * one, one, one[0] * 0)
        tensor([[[0.]]], dtype=torch.float64)
    """
    difference = (states - teacher[:, None]) @ design.mT
    residual = sigmoid_difference(teacher[:, None] @ design.mT, difference)
    return residual @ design / design.shape[-2]


def hard_gradient(states: Tensor, design: Tensor, signs: Tensor) -> Tensor:
    r"""Return the gradient of the logistic loss with labels +-1 at many states.

    $$\nabla L(w) = -\frac1n \sum_i s_i\, \sigma(-s_i w^\top x_i)\, x_i$$

    Args:
        states: (B, S, r) float64.
        design: (B, n, r).
        signs: (B, n), +1 or -1.

    Returns:
        (B, S, r).

    Example:
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> hard_gradient(0 * one, one, one[0])
        tensor([[[-0.5000]]], dtype=torch.float64)
    """
    signs = signs[:, None]
    residual = -signs * torch.sigmoid(-signs * (states @ design.mT))
    return residual @ design / design.shape[-2]


def hessian(state: Tensor, design: Tensor) -> Tensor:
    r"""Return the Hessian of either loss; the labels do not enter it.

    $$\nabla^2 L^1(w) = \frac1n \sum_i \sigma(w^\top x_i)\,\sigma(-w^\top x_i)\; x_i x_i^\top$$

    **Source**: Phuong & Lampert, Eq. 32 (where the factor 1/n is missing).

    Args:
        state: (B, r) float64.
        design: (B, n, r).

    Returns:
        (B, r, r).

    Example:
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> hessian(0 * one[0], one)
        tensor([[[0.2500]]], dtype=torch.float64)
    """
    slope = sigmoid_slope(state[:, None] @ design.mT) / design.shape[-2]
    return (design.mT * slope) @ design


def direct_field(states: Tensor, design: Tensor, teacher: Tensor) -> Tensor:
    """Return minus `soft_gradient`: the flow of a directly parameterised student."""
    return -soft_gradient(states, design, teacher)


def hard_field(states: Tensor, design: Tensor, signs: Tensor) -> Tensor:
    """Return minus `hard_gradient`."""
    return -hard_gradient(states, design, signs)


def direct_jacobian(state: Tensor, design: Tensor, labels: Tensor) -> Tensor:
    """Return minus `hessian`, the Jacobian of both `direct_field` and `hard_field`."""
    return -hessian(state, design)


def induced_field(depth: int) -> Field:
    r"""Return the flow of the end-to-end vector of a balanced student.

    $$w' = -|w|^{p}\, \big( \nabla L^1(w) + (N - 1)\, P_w \nabla L^1(w) \big), \qquad p = 2 - 2/N$$

    States are (z, o): r coordinates in the data span and one along the fixed direction of the part
    of w outside it, in which the gradient vanishes.

    **Source**: Phuong & Lampert, Lemma 12.

    Args:
        depth: N >= 2.

    Returns:
        The field, on states (B, S, r + 1).

    Example:
        w = 4, N = 2, x = 1, w* = 0: w' = -4 (2 g) with g = sigma(4) - 1/2.

        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> w, g = torch.tensor([[[4.0, 0.0]]]).double(), torch.sigmoid(4 * one) - 0.5
        >>> torch.allclose(induced_field(2)(w, one, 0 * one[0])[..., :1], -8 * g)
        True
    """
    power = 2.0 - 2.0 / depth

    def field(states: Tensor, design: Tensor, teacher: Tensor) -> Tensor:
        gradient = soft_gradient(states[..., :-1], design, teacher)
        gradient = torch.nn.functional.pad(gradient, (0, 1))
        norm, unit = polar(states)
        along = (unit * gradient).sum(-1, keepdim=True)
        return -(norm**power) * (gradient + (depth - 1) * along * unit)

    return field


def induced_jacobian(depth: int) -> Field:
    """Return the Jacobian of `induced_field`.

    Args:
        depth: N >= 2.

    Returns:
        The Jacobian, on a state (B, r + 1).

    Example:
        >>> w = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> float(induced_jacobian(3)(w, one, one[0]).norm())  # the origin is a flat saddle
        0.0
    """
    power = 2.0 - 2.0 / depth

    def jacobian(state: Tensor, design: Tensor, teacher: Tensor) -> Tensor:
        pad = torch.nn.functional.pad
        gradient = pad(soft_gradient(state[:, None, :-1], design, teacher)[:, 0], (0, 1))
        curvature = pad(hessian(state[:, :-1], design), (0, 1, 0, 1))
        norm, unit = polar(state)
        along = (unit * gradient).sum(-1)[:, None, None]
        row, column = unit[:, None, :], unit[:, :, None]
        identity = torch.eye(state.shape[-1], dtype=state.dtype, device=state.device)
        turn = along * ((power - 2.0) * column * row + identity) + column * gradient[:, None, :]
        first = power * gradient[:, :, None] * row + (depth - 1) * turn
        second = curvature + (depth - 1) * column * (row @ curvature)
        norm = norm[:, None]
        return -(norm ** (power - 1.0)) * first - norm**power * second

    return jacobian


def polar(vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return norms and unit vectors; the zero vector gets the unit vector 0.

    Args:
        vector: (..., m).

    Returns:
        (..., 1) and (..., m).

    Example:
        >>> polar(torch.tensor([3.0, 4.0]))
        (tensor([5.]), tensor([0.6000, 0.8000]))
    """
    norm = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return norm, vector / torch.where(norm > 0, norm, 1.0)


def unpack(states: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Split flat states into matrices.

    Args:
        states: (..., m), the matrices row by row, one after the other.
        shapes: (rows, columns) of each.

    Returns:
        A list of (..., rows, columns).

    Example:
        >>> [tuple(w.shape) for w in unpack(torch.zeros(7, 8), [(3, 2), (1, 2)])]
        [(7, 3, 2), (7, 1, 2)]
    """
    parts = states.split([rows * columns for rows, columns in shapes], dim=-1)
    return [part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True)]


def output_vectors(matrices: Sequence[Tensor]) -> list[Tensor]:
    r"""Return what the layers above make of each hidden layer.

    $$a_j = (W_N \cdots W_{j+1})^\top, \qquad a_N = 1, \quad a_0 = w$$

    Args:
        matrices: (W_1, ..., W_N), W_j of shape (..., s_j, s_{j-1}), s_N = 1.

    Returns:
        [a_0, ..., a_N], a_j of shape (..., s_j).

    Example:
        >>> output_vectors((torch.eye(2), torch.tensor([[3.0, 4.0]])))[0]
        tensor([3., 4.])
    """
    vectors = [torch.ones_like(matrices[-1][..., :, 0])]
    for matrix in reversed(matrices):
        vectors.insert(0, (vectors[0].unsqueeze(-2) @ matrix).squeeze(-2))
    return vectors


def factor_field(shapes: Sequence[tuple[int, int]]) -> Field:
    r"""Return the gradient flow of weight matrices, on flat states.

    $$W_j' = -a_j\, b_{j-1}^\top, \qquad b_0 = \nabla L^1(w), \quad b_j = W_j b_{j-1}$$

    **Source**: Phuong & Lampert, Eq. 3.

    Args:
        shapes: (rows, columns) of W_1, ..., W_N.

    Returns:
        The field, on states (B, S, m).

    Example:
        >>> states, one = torch.ones(1, 1, 2, dtype=torch.float64), torch.ones(1, 1, 1).double()
        >>> factor_field([(1, 1), (1, 1)])(states, one, one[0])  # the product 1 is the teacher
        tensor([[[-0., -0.]]], dtype=torch.float64)
    """

    def field(states: Tensor, design: Tensor, teacher: Tensor) -> Tensor:
        matrices = unpack(states, shapes)
        above = output_vectors(matrices)
        below = soft_gradient(above[0], design, teacher)
        slopes = []
        for j, matrix in enumerate(matrices):
            slopes.append((-above[j + 1].unsqueeze(-1) * below.unsqueeze(-2)).flatten(-2))
            below = (matrix @ below.unsqueeze(-1)).squeeze(-1)
        return torch.cat(slopes, dim=-1)

    return field


def factor_jacobian(shapes: Sequence[tuple[int, int]]) -> Field:
    r"""Return the Jacobian of `factor_field`: minus the Hessian of the loss in the matrices.

    With $B_j = W_j \cdots W_1$, $b_j = B_j \nabla L^1(w)$, H the Hessian in w, and for $j < k$ the
    product $M = W_{j+1}^\top \cdots W_{k-1}^\top$,
    $$-\frac{\partial W'_{j,pq}}{\partial W_{k,PQ}} = a_{j,p}\, a_{k,P}\, (B_{j-1} H
      B_{k-1}^\top)_{qQ} + M_{pQ}\, a_{k,P}\, b_{j-1,q},$$
    without the second term for $j = k$, and symmetric.

    Args:
        shapes: (rows, columns) of W_1, ..., W_N.

    Returns:
        The Jacobian, on a state (B, m).

    Example:
        At the teacher, W_1 = W_2 = 1, only H = sigma(1) sigma(-1) is left.

        >>> state, one = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 1, 1).double()
        >>> value = factor_jacobian([(1, 1), (1, 1)])(state, one, one[0])
        >>> bool(torch.allclose(value, -torch.sigmoid(one) * torch.sigmoid(-one)))
        True
    """

    def jacobian(state: Tensor, design: Tensor, teacher: Tensor) -> Tensor:
        matrices = unpack(state, shapes)
        above = output_vectors(matrices)
        gradient = soft_gradient(above[0][:, None], design, teacher)[:, 0]
        curvature = hessian(above[0], design)
        inner = [
            torch.eye(shapes[0][1], dtype=state.dtype, device=state.device).expand_as(curvature)
        ]
        for matrix in matrices[:-1]:
            inner.append(matrix @ inner[-1])
        rows = [
            torch.cat(
                [
                    _block(j, k, matrices, above, inner, gradient, curvature)
                    for k in range(len(shapes))
                ],
                dim=-1,
            )
            for j in range(len(shapes))
        ]
        return -torch.cat(rows, dim=-2)

    return jacobian


def _block(j, k, matrices, above, inner, gradient, curvature) -> Tensor:
    """Second derivative in W_{j+1} and W_{k+1}, (B, m_j, m_k); the indices count from 0."""
    if j > k:
        return _block(k, j, matrices, above, inner, gradient, curvature).mT
    a_j, a_k = above[j + 1], above[k + 1]
    middle = inner[j] @ curvature @ inner[k].mT
    block = torch.einsum("bp,bP,bqQ->bpqPQ", a_j, a_k, middle)
    if j < k:
        between = torch.eye(matrices[j].shape[-2], dtype=a_j.dtype, device=a_j.device)
        for matrix in matrices[j + 1 : k]:
            between = between @ matrix.mT
        between = between.expand(len(a_j), *between.shape[-2:])
        b_j = (inner[j] @ gradient[..., None])[..., 0]
        block = block + torch.einsum("bpQ,bP,bq->bpqPQ", between, a_k, b_j)
    return block.flatten(3, 4).flatten(1, 2)
