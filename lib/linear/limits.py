"""What a linear student converges to: soft labels, hard labels, and the minimisers in between."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.linear.checks import as_tensor, check_nonzero, prepare, to_float64
from lib.linear.geometry import data_span, project, project_onto_span
from lib.linear.loss import logits
from lib.linear.nnls import nonnegative_least_squares

_KKT_TOLERANCE = 1e-6
_ROUNDS = 8  # attempts at a maximum-margin problem, each scaled by the solution of the last
_LARGEST_NORM = 1e5  # s |w| at which an attempt is broken off


def student_limit(inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the weights that gradient flow from zero on the teacher's soft labels tends to.

    $$\hat w = w_* \text{ if } n \ge d, \qquad
      \hat w = X^\top (X X^\top)^{-1} X w_* \text{ if } n < d$$

    It is the projection of the teacher onto the data span; see `project_onto_span` for inputs that
    are not of full rank.

    **Source**: Phuong & Lampert, Theorem 1, Eq. 6.

    Args:
        inputs: (..., n, d), rows are examples.
        teacher: (..., d), leading dimensions broadcast with those of inputs.

    Returns:
        (..., d).

    Raises:
        ValueError: if shapes do not fit, or a value is NaN or infinite.

    Example:
        >>> student_limit(torch.tensor([[3.0, 0.0]]), torch.tensor([2.0, 7.0]))
        tensor([2., 0.])
    """
    return project_onto_span(inputs, teacher)


def perturbed_student(
    inputs: Tensor, teacher: Tensor, delta: float | Tensor, generator: torch.Generator
) -> Tensor:
    r"""Return a minimiser of the distillation loss that gradient descent would not choose.

    $$w_\delta = \hat w + \delta\, \frac{\|\hat w\|}{\|q\|}\, q, \qquad X q = 0$$

    with q a Gaussian vector in the orthogonal complement of the data span. One q is drawn for every
    data set of the batch. A delta of shape (k, 1, ..., 1), with a dimension of size 1 for each
    batch dimension, scales the same q k times and gives a result of shape (k, ..., d).

    **Source**: Phuong & Lampert, Section 5.2.

    Args:
        inputs: (..., n, d), rows are examples, not spanning the whole space unless delta is 0.
        teacher: (..., d), leading dimensions broadcast with those of inputs.
        delta: number, or a tensor that broadcasts with the batch dimensions.
        generator: source of the Gaussian vector, on the device of the inputs.

    Returns:
        (..., d), with X w_delta = X w*.

    Raises:
        ValueError: if the inputs span the whole space (n >= d) and delta is not 0: there is one
            minimiser then.

    Example:
        >>> x, w_star = torch.tensor([[1.0, 0.0]]), torch.tensor([3.0, 4.0])
        >>> w = perturbed_student(x, w_star, torch.tensor([0.0, 2.0]), torch.Generator())
        >>> w.abs()  # (3, 0), and (3, +-6)
        tensor([[3., 0.],
                [3., 6.]])
    """
    (inputs, teacher), dtype = prepare(inputs, teacher=teacher)
    (delta,), _ = to_float64(delta=as_tensor(delta, inputs.device))
    span = data_span(inputs)
    limit = project(span, teacher)
    try:
        torch.broadcast_shapes(delta.shape, limit.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"delta of shape {tuple(delta.shape)} does not broadcast with the batch "
            f"{tuple(limit.shape[:-1])}; use shape (k, 1, ..., 1) for k values on every data set"
        ) from None
    whole = span.rank == inputs.shape[-1]
    if bool((whole & (delta != 0)).any()):
        raise ValueError(
            "delta must be 0 when the inputs span the whole space (n >= d), got "
            f"{delta.tolist()}: the minimiser is unique; use fewer examples"
        )
    options = {"generator": generator, "device": inputs.device, "dtype": inputs.dtype}
    direction = torch.randn(limit.shape, **options)
    for _ in range(2):  # the second pass removes what rounding left of the span
        direction = direction - project(span, direction)
    length = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    direction = direction / torch.where(whole.unsqueeze(-1), 1.0, length)
    size = torch.linalg.vector_norm(limit, dim=-1, keepdim=True)
    return (limit + delta.unsqueeze(-1) * size * direction).to(dtype)


def hard_target_limit(inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the direction that gradient flow on the teacher's hard labels tends to.

    With labels y_i = 1 where w*.x_i >= 0 and -1 elsewhere it is the maximum-margin direction
    through the origin, given here with unit margin,

    $$\min |w|^2 \quad \text{such that } y_i\, w^\top x_i \ge 1 \text{ for all } i$$

    With z_i = y_i x_i this is a least distance problem, whose dual is a non-negative least squares
    problem: with E = [Z^T; s 1^T] and f the last unit vector, the residual r of
    min |E lambda - f| is parallel to (-s w, 1). Any s > 0 will do, but rounding asks for s |w| near
    1. The iterates w grow; where s |w| passes 1e5 the problem starts again with s = 1 / |w|. At the
    end w is computed afresh, as the shortest solution of z_i.w = 1 on the examples with
    lambda_i > 0, and accepted only if it meets the optimality conditions to 1e-6.

    **Source**: the hard-target learner of Phuong & Lampert, Section 5.3; its limit is due to Soudry
    et al. (2018). Method: Lawson & Hanson, chapter 23 (LDP).

    Args:
        inputs: (..., n, d), rows are examples, no zero row.
        teacher: (..., d), leading dimensions broadcast with those of inputs.

    Returns:
        (..., d), with smallest margin 1.

    Raises:
        ValueError: if an example is zero, or lies on the teacher's boundary and makes the labels
            inseparable.
        RuntimeError: if the optimality conditions are not met; names the data set.

    Example:
        >>> x = torch.tensor([[2.0, 0.0], [0.0, -4.0]])
        >>> hard_target_limit(x, torch.tensor([1.0, 1.0]))
        tensor([0.5000, 0.2500])
    """
    (inputs, teacher), dtype = prepare(inputs, teacher=teacher)
    signed, margin = _signed_examples(inputs, teacher)
    batch = signed.shape[:-2]
    signed, margin = signed.reshape(-1, *signed.shape[-2:]), margin.reshape(-1, margin.shape[-1])
    basis, rows = _reduce(signed)
    scale = torch.linalg.vector_norm(rows, dim=-1).amin(
        -1
    )  # 1 / |w| if it is the only one that counts
    weights = torch.zeros_like(rows[:, 0])
    todo = torch.arange(len(rows), device=rows.device)
    for _ in range(_ROUNDS):
        found, residual = _maximum_margin(rows[todo], scale[todo])
        weights[todo] = found
        norm = torch.linalg.vector_norm(found, dim=-1)
        scale[todo] = torch.where(norm > 0, 1 / norm, scale[todo])
        todo = todo[~(residual <= _KKT_TOLERANCE)]
        if not len(todo):
            break
    if len(todo):
        _raise_unsolved(int(todo[0]), batch, bool((margin[todo[0]] <= 0).any()))
    return (basis @ weights.unsqueeze(-1)).squeeze(-1).reshape(*batch, -1).to(dtype)


def hard_margin_residual(weights: Tensor, inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return how far weights are from the maximum-margin solution, by its optimality conditions.

    With z_i = y_i x_i and the best multipliers alpha >= 0 on the examples of margin z_i.w <= 2,
    found by non-negative least squares, it is the larger of the violation max_i (1 - z_i.w)_+ and
    the norm of

    $$\Big( \frac{w - \sum_i \alpha_i z_i}{|w|},\ \frac{\alpha_i (z_i^\top w - 1)_+}{|w|^2} \Big),$$

    that is of stationarity and complementary slackness. It vanishes at the solution only.

    **Source**: the Karush-Kuhn-Tucker conditions of the problem of `hard_target_limit`.

    Args:
        weights: (..., d), non-zero.
        inputs: (..., n, d), rows are examples.
        teacher: (..., d); all leading dimensions broadcast.

    Returns:
        (...), >= 0, without unit.

    Raises:
        ValueError: if shapes do not fit, weights or an example are zero, or a value is not finite.

    Example:
        >>> x, w_star = torch.tensor([[2.0, 0.0], [0.0, -4.0]]), torch.tensor([1.0, 1.0])
        >>> hard_margin_residual(torch.tensor([0.5, 0.25]), x, w_star) < 1e-7
        tensor(True)
    """
    (inputs, weights, teacher), dtype = prepare(inputs, weights=weights, teacher=teacher)
    check_nonzero("weights", weights)
    signed, _ = _signed_examples(inputs, teacher)
    batch = torch.broadcast_shapes(signed.shape[:-2], weights.shape[:-1])
    signed = signed.expand(*batch, *signed.shape[-2:]).reshape(-1, *signed.shape[-2:])
    weights = weights.expand(*batch, -1).reshape(-1, weights.shape[-1])
    excess = logits(signed, weights) - 1
    norm = torch.linalg.vector_norm(weights, dim=-1)[:, None]
    slackness = torch.diag_embed(excess.clamp(min=0) / norm**2)
    matrix = torch.cat([signed.mT / norm.unsqueeze(-1), slackness], -2)
    matrix = matrix * (excess <= 1).unsqueeze(-2)
    target = torch.cat([weights / norm, torch.zeros_like(excess)], -1)
    multipliers = nonnegative_least_squares(matrix, target)
    error = (matrix @ multipliers.unsqueeze(-1)).squeeze(-1) - target
    violation = (-excess).clamp(min=0).amax(-1)
    return (
        torch.maximum(violation, torch.linalg.vector_norm(error, dim=-1)).reshape(batch).to(dtype)
    )


def _signed_examples(inputs: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Return z_i = y_i x_i, (..., n, d), and |w*.x_i|, (..., n)."""
    check_nonzero("every row of inputs", inputs)
    scores = logits(inputs, teacher)
    signed = torch.where(scores >= 0, 1.0, -1.0).unsqueeze(-1) * inputs
    return signed, scores.abs()


def _reduce(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return (basis, coordinates) with rows = coordinates @ basis.mT and at most n coordinates."""
    n, d = rows.shape[-2:]
    if n >= d:
        return torch.eye(d, dtype=rows.dtype, device=rows.device), rows
    basis, triangle = torch.linalg.qr(rows.mT)
    return basis, triangle.mT


def _maximum_margin(rows: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Solve min |w| with rows @ w >= 1, (B, n, d) and (B,); return w and its KKT residual."""
    border = scale[:, None, None].expand(-1, 1, rows.shape[-2])
    matrix = torch.cat([rows.mT, border], -2)
    target = torch.zeros_like(matrix[..., 0])
    target[:, -1] = 1
    support = nonnegative_least_squares(matrix, target, stop_below=1 / _LARGEST_NORM) > 0
    return _polish(rows, support)


def _polish(rows: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shortest w with rows @ w = 1 on the support, and its KKT residual on all rows."""
    width = max(int(support.sum(-1).max()), 1)
    order = support.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :width]
    used = support.gather(-1, order)
    active = rows.gather(-2, order.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
    length = torch.linalg.vector_norm(active, dim=-1)
    q, r = torch.linalg.qr((active / length.unsqueeze(-1) * used.unsqueeze(-1)).mT)
    r = r + torch.diag_embed((~used).to(r.dtype))
    goal = (used / length).unsqueeze(-1)
    coordinates = torch.linalg.solve_triangular(r.mT, goal, upper=False)
    weights = (q @ coordinates).squeeze(-1)
    multipliers = torch.linalg.solve_triangular(r, coordinates, upper=True).squeeze(-1) / length
    square = (weights**2).sum(-1)
    violation = (1 - logits(rows, weights)).clamp(min=0).amax(-1)
    negative = (-multipliers).clamp(min=0).amax(-1) / square
    return weights, torch.maximum(violation, negative)


def _raise_unsolved(position: int, batch: torch.Size, on_boundary: bool) -> None:
    """Say which data set has no certified maximum-margin solution, and why that may be."""
    index = torch.unravel_index(torch.tensor(position), batch) if batch else ()
    name = f"inputs[{', '.join(str(int(i)) for i in index)}]" if batch else "inputs"
    if on_boundary:
        raise ValueError(
            f"the labels of {name} are not separable through the origin: inputs must have no "
            "example on the teacher's decision boundary (w*.x = 0) in this case; remove it"
        )
    raise RuntimeError(
        f"no maximum-margin solution of {name} meets its optimality conditions to "
        f"{_KKT_TOLERANCE:g}; the teacher's smallest margin there is too small for float64, or "
        "the lengths of the examples differ by too many powers of ten"
    )
