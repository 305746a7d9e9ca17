"""The distillation loss of a linear student: soft labels, cross-entropy, gradient, Hessian.

With logits z_i = w*.x_i of the teacher and u_i = w.x_i of the student, p_i = sigma(z_i) and
q_i = 1 - p_i, the loss normalised to minimum 0 is a mean of Bernoulli divergences,

    L(w) = 1/n sum_i KL(p_i || sigma(u_i)) = 1/n sum_i [ A(u_i) - A(z_i) - p_i (u_i - z_i) ],

with the log-partition A(u) = log(1 + e^u). Written like this every term is a difference of nearly
equal numbers when the student is close to its teacher; the functions here never subtract them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lib.linear.checks import prepare

_SERIES_BELOW = 1e-2  # |u - z| below which the cumulant series is used; its error is < 1e-13 there
_EXPM1_BELOW = 30.0  # u - z below which log1p(p expm1(u - z)) is used; beyond, A(u) dominates


def logits(inputs: Tensor, weights: Tensor) -> Tensor:
    """Return the logits of linear classifiers, u_i = w.x_i.

    Args:
        inputs: (..., n, d).
        weights: (..., d), same dtype, leading dimensions broadcast with those of inputs.

    Returns:
        (..., n).

    Example:
        >>> logits(torch.eye(2), torch.tensor([3.0, -1.0]))
        tensor([ 3., -1.])
    """
    if weights.ndim == 1:
        return inputs @ weights
    if inputs.ndim == 2:
        return weights @ inputs.mT
    return (inputs @ weights.unsqueeze(-1)).squeeze(-1)


def soft_labels(inputs: Tensor, teacher: Tensor) -> Tensor:
    """Return the teacher's soft labels, y_i = sigma(w*.x_i).

    **Source**: Phuong & Lampert, Section 3.

    Args:
        inputs: (..., n, d), rows are examples.
        teacher: (..., d), leading dimensions broadcast with those of inputs.

    Returns:
        (..., n), in [0, 1].

    Raises:
        ValueError: if shapes do not fit, or a value is NaN or infinite.

    Example:
        >>> soft_labels(torch.zeros(1, 2), torch.ones(2))
        tensor([0.5000])
    """
    (inputs, teacher), dtype = prepare(inputs, teacher=teacher)
    return torch.sigmoid(logits(inputs, teacher)).to(dtype)


def cross_entropy(weights: Tensor, inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the distillation loss, normalised so that its minimum is 0.

    $$L^1(w) = \frac1n \sum_i \mathrm{KL}\big(\sigma(w_*^\top x_i) \,\|\, \sigma(w^\top x_i)\big)$$

    The result is never negative, is finite for logits of 1e4, and keeps its relative accuracy when
    student and teacher nearly agree.

    **Source**: Phuong & Lampert, Eq. 1 (and Eq. 26).

    Args:
        weights: (..., d), the student.
        inputs: (..., n, d), rows are examples.
        teacher: (..., d); all leading dimensions broadcast.

    Returns:
        (...), in nats, >= 0.

    Raises:
        ValueError: if shapes do not fit, or a value is NaN or infinite.

    Example:
        A student at 0 in front of a teacher logit of log 3: KL((3/4, 1/4) || (1/2, 1/2)).

        >>> x, w_star = torch.ones(1, 1).double(), torch.tensor([3.0]).double().log()
        >>> loss = cross_entropy(torch.zeros(1).double(), x, w_star)
        >>> torch.allclose(loss, (0.75 * w_star - 0.5 * torch.tensor(4.0).log()).squeeze())
        True
    """
    (inputs, weights, teacher), dtype = prepare(inputs, weights=weights, teacher=teacher)
    teacher_logits, difference = _logits_and_difference(weights, inputs, teacher)
    return bernoulli_divergence(teacher_logits, difference).mean(-1).to(dtype)


def cross_entropy_gradient(weights: Tensor, inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the gradient of `cross_entropy` in the student's weights.

    $$\nabla L^1(w) = \frac1n \sum_i \big(\sigma(w^\top x_i) - \sigma(w_*^\top x_i)\big)\, x_i$$

    **Source**: Phuong & Lampert, Theorem 7, Eq. 28.

    Args:
        weights: (..., d), the student.
        inputs: (..., n, d), rows are examples.
        teacher: (..., d); all leading dimensions broadcast.

    Returns:
        (..., d), in the span of the inputs.

    Raises:
        ValueError: if shapes do not fit, or a value is NaN or infinite.

    Example:
        >>> x, w_star = torch.ones(1, 1), torch.tensor([3.0]).log()
        >>> cross_entropy_gradient(torch.zeros(1), x, w_star)  # 1/2 - 3/4
        tensor([-0.2500])
    """
    (inputs, weights, teacher), dtype = prepare(inputs, weights=weights, teacher=teacher)
    teacher_logits, difference = _logits_and_difference(weights, inputs, teacher)
    residual = sigmoid_difference(teacher_logits, difference)
    return (residual.unsqueeze(-2) @ inputs).squeeze(-2).div(inputs.shape[-2]).to(dtype)


def cross_entropy_hessian(weights: Tensor, inputs: Tensor) -> Tensor:
    r"""Return the Hessian of `cross_entropy`; the labels, hence the teacher, do not enter it.

    $$\nabla^2 L^1(w) = \frac1n \sum_i \sigma(w^\top x_i)\,\sigma(-w^\top x_i)\; x_i x_i^\top$$

    The paper's Eq. 32 leaves out the factor 1/n of the mean in Eq. 1.

    **Source**: Phuong & Lampert, proof of Theorem 9, Eq. 32.

    Args:
        weights: (..., d), the student.
        inputs: (..., n, d), rows are examples; leading dimensions broadcast.

    Returns:
        (..., d, d), symmetric and positive semi-definite.

    Raises:
        ValueError: if shapes do not fit, or a value is NaN or infinite.

    Example:
        >>> cross_entropy_hessian(torch.zeros(2), torch.eye(2))  # 1/2 * 1/4 * I
        tensor([[0.1250, 0.0000],
                [0.0000, 0.1250]])
    """
    (inputs, weights), dtype = prepare(inputs, weights=weights)
    curvature = sigmoid_slope(logits(inputs, weights)) / inputs.shape[-2]
    return (inputs.mT @ (curvature.unsqueeze(-1) * inputs)).to(dtype)


def bernoulli_divergence(teacher_logits: Tensor, difference: Tensor) -> Tensor:
    r"""Return KL(sigma(z) || sigma(z + delta)) without cancellation.

    Mirrored so that p = sigma(z) <= 1/2, it is the cumulant generating function of a centred
    Bernoulli variable, log(1 + p (e^delta - 1)) - p delta = sum_{k>=2} kappa_k delta^k / k!.
    For |delta| < 0.01 the first five terms of the series are used, for large delta the
    difference A(z + delta) - A(z) - p delta.

    **Source**: Phuong & Lampert, Eq. 26, the per-example loss l_i(u) with u = z + delta.

    Args:
        teacher_logits: (...) float64, z.
        difference: (...) float64, delta = u - z.

    Returns:
        (...), >= 0.

    Example:
        >>> z, delta = torch.tensor([0.0, 1e-8], dtype=torch.float64)  # delta^2 / 8
        >>> print(f"{float(bernoulli_divergence(z, delta)):.7g}")
        1.25e-17
    """
    mirror = 1 - 2 * (teacher_logits > 0).to(teacher_logits.dtype)
    z, delta = mirror * teacher_logits, mirror * difference
    p = torch.sigmoid(z)
    moderate = torch.log1p(p * torch.expm1(delta.clamp(max=_EXPM1_BELOW))) - p * delta
    large = logsigmoid(-z) - logsigmoid(-z - delta) - p * delta
    series = _cumulant_series(p, torch.sigmoid(-z), delta)
    value = torch.where(delta < _EXPM1_BELOW, moderate, large)
    return torch.where(delta.abs() < _SERIES_BELOW, series, value).clamp(min=0)


def _cumulant_series(p: Tensor, q: Tensor, delta: Tensor) -> Tensor:
    """Sum kappa_k delta^k / k! for k = 2..6, the cumulants of a Bernoulli(p) variable."""
    delta = delta.clamp(-_SERIES_BELOW, _SERIES_BELOW)
    pq, skew = p * q, q - p
    second, third, fourth = pq, pq * skew, pq * (1 - 6 * pq)
    fifth = pq * skew * (1 - 12 * pq)
    sixth = pq * (1 - 30 * pq + 120 * pq**2)
    tail = fourth / 24 + delta * (fifth / 120 + delta * sixth / 720)
    return delta**2 * (second / 2 + delta * (third / 6 + delta * tail))


def sigmoid_difference(teacher_logits: Tensor, difference: Tensor) -> Tensor:
    """Return sigma(z + delta) - sigma(z) without cancellation or overflow.

    For delta >= 0 it is sigma(u) sigma(-z) (1 - e^-delta) with u = z + delta; otherwise mirrored.

    Args:
        teacher_logits: (...) float64, z.
        difference: (...) float64, delta.

    Returns:
        (...), in [-1, 1], of the sign of delta.

    Example:
        >>> z, delta = torch.tensor([0.0, 4e-16], dtype=torch.float64)  # delta / 4
        >>> print(f"{float(sigmoid_difference(z, delta)):.7g}")
        1e-16
    """
    student_logits = teacher_logits + difference
    upper = torch.maximum(student_logits, teacher_logits)
    lower = torch.minimum(student_logits, teacher_logits)
    size = torch.sigmoid(upper) * torch.sigmoid(-lower) * -torch.expm1(-difference.abs())
    return torch.sign(difference) * size


def sigmoid_slope(student_logits: Tensor) -> Tensor:
    """Return the sigmoid's derivative sigma(u) sigma(-u), accurate for any |u|.

    Args:
        student_logits: (...).

    Returns:
        (...), in (0, 1/4]; it underflows to 0 beyond |u| of about 745.

    Example:
        >>> sigmoid_slope(torch.tensor(0.0))
        tensor(0.2500)
    """
    return torch.sigmoid(student_logits) * torch.sigmoid(-student_logits)


def _logits_and_difference(weights: Tensor, inputs: Tensor, teacher: Tensor):
    """Return z and u - z; the difference is taken on the weights, where it is exact when small."""
    return logits(inputs, teacher), logits(inputs, weights - teacher)
