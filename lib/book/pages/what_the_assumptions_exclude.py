"""What the chapter "What the assumptions exclude" computes: networks and losses just outside."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor


def circulant(kernel: Tensor, flipped: bool = False) -> Tensor:
    r"""Return the matrix of one circular layer.

    $$h[d] = \frac{1}{\sqrt D} \sum_k w[k]\, x[(d + k) \bmod D] \quad \text{or, flipped,} \quad
      h[d] = \frac{1}{\sqrt D} \sum_k w[k]\, x[(d - k) \bmod D]$$

    **Source**: Gunasekar et al. (2018), Section 2: the first form, a cross-correlation.

    Args:
        kernel: (D,).
        flipped: True for the textbook convolution.

    Returns:
        (D, D), h = matrix @ x.

    Example:
        >>> circulant(torch.tensor([2.0, 4.0, 0.0, 0.0]))[0], circulant(torch.eye(4)[1], True)[1]
        (tensor([1., 2., 0., 0.]), tensor([0.5000, 0.0000, 0.0000, 0.0000]))
    """
    index = torch.arange(len(kernel))
    shift = index[:, None] - index if flipped else index - index[:, None]
    return kernel[shift % len(kernel)] / math.sqrt(len(kernel))


def layered_predictor(layers: Tensor, flipped: bool = False) -> Tensor:
    r"""Return the predictor of a convolutional network, layer by layer from its definition.

    $$\langle w_L, h_{L-1} \rangle = \langle \beta, x \rangle, \qquad
      \beta = C_1^\top \cdots C_{L-1}^\top w_L$$

    Args:
        layers: (L, D), the last row is the output layer.
        flipped: True for textbook convolutions, False for the paper's cross-correlations.

    Returns:
        (D,).

    Example:
        >>> layers = torch.tensor([[1.0, 2.0, 0.0, -1.0], [3.0, 0.0, 1.0, 2.0]])
        >>> 2 * layered_predictor(layers), 2 * layered_predictor(layers, flipped=True)
        (tensor([ 7.,  5., -1.,  1.]), tensor([ 1., -1.,  5.,  7.]))
    """
    predictor = layers[-1]
    for kernel in layers[:-1].flip(0):
        predictor = circulant(kernel, flipped).mT @ predictor
    return predictor


def unknowns_and_supports(predictors: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Count the real unknowns in the Fourier coefficients of predictors, and the support vectors.

    A coefficient counts above a thousandth of the largest: two unknowns if it is complex, one for
    d = 0 and d = D / 2. A support vector has a margin within 1 % of the smallest.

    Args:
        predictors: (B, D) float64, with positive margins.
        rows: (N, D) float64, signed examples.

    Returns:
        Unknowns (B,) and support vectors (B,), int64.

    Example:
        >>> one = torch.ones(1, 4, dtype=torch.float64)  # only the coefficient d = 0
        >>> unknowns_and_supports(one, torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]]).double())
        (tensor([1]), tensor([1]))
    """
    size = torch.fft.fft(predictors, norm="ortho").abs()
    margins = predictors @ rows.mT
    unknowns = (size > 1e-3 * size.amax(-1, keepdim=True)).sum(-1)
    return unknowns, (margins <= 1.01 * margins.amin(-1, keepdim=True)).sum(-1)


def fixed_multiples(network, weights, rows: Tensor, steps: int, factor: float) -> Tensor:
    r"""Return the log-loss after every step of gradient descent with a multiple of the safe step.

    $$w \leftarrow w + \frac{\text{factor}}{S(w)} \sum_n p_n \nabla m_n(w)$$

    **Source**: the bound S on the curvature is ours; the theorems ask for "a local Lipschitz
    constant" (Gunasekar et al., 2018, Theorem 2).

    Args:
        network: a layered network of `lib.implicit`.
        weights: its weights, no batch dimensions.
        rows: (N, D) float64, signed examples.
        steps: number of steps, >= 1.
        factor: multiple of the step 1 / (loss * S), > 0.

    Returns:
        (steps + 1,) logarithms of the exponential loss.

    Raises:
        ValueError: if steps or factor is not positive.

    Example:
        >>> from lib.implicit import DenseNetwork
        >>> row = torch.tensor([[1.0]], dtype=torch.float64)
        >>> fixed_multiples(DenseNetwork(1), (0 * row[0],), row, steps=3, factor=1.0)
        tensor([ 0., -1., -2., -3.], dtype=torch.float64)
    """
    if steps < 1 or not factor > 0:
        raise ValueError(f"steps and factor must be positive, got {steps!r} and {factor!r}")
    longest, losses = rows.norm(dim=-1).max(), []
    for step in range(steps + 1):
        margins = rows @ network.predictor(weights)
        losses.append(torch.logsumexp(-margins, -1))
        if step == steps:
            break
        steepest = network.gram(weights, rows).diagonal().max()
        size = factor / (steepest + network.curvature(weights) * longest)
        pull = network.adjoint(weights, torch.softmax(-margins, -1) @ rows)
        weights = tuple(layer + size * part for layer, part in zip(weights, pull, strict=True))
    return torch.stack(losses)


def least_l1_of_parts(rows: Tensor) -> Tensor:
    r"""Solve the wrong Fourier problem: real and imaginary parts as if they were coefficients.

    $$\min_\beta \sum_{d} |\operatorname{Re} \hat\beta_d| + |\operatorname{Im} \hat\beta_d|
      \quad \text{such that} \quad \langle a_n, \beta \rangle \ge 1$$

    Args:
        rows: (N, D) float64, signed examples, separable.

    Returns:
        (D,) a minimiser.

    Raises:
        ValueError: if no predictor separates the examples.

    Example:
        In dimension 2 all coefficients are real, and nothing is wrong yet.

        >>> least_l1_of_parts(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
        tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    a = rows.numpy()
    dimension = a.shape[1]
    transform = np.fft.fft(np.eye(dimension), norm="ortho")
    parts = np.concatenate([transform.real, transform.imag])
    size = len(parts)
    cost = np.concatenate([np.zeros(dimension), np.ones(size)])
    upper = np.block(
        [
            [parts, -np.eye(size)],
            [-parts, -np.eye(size)],
            [-a, np.zeros((len(a), size))],
        ]
    )
    limits = np.concatenate([np.zeros(2 * size), -np.ones(len(a))])
    found = linprog(cost, A_ub=upper, b_ub=limits, bounds=(None, None), method="highs")
    if not found.success:
        raise ValueError(f"rows must be separable through the origin; {found.message}")
    return torch.from_numpy(found.x[:dimension])


def relu_slopes(
    inputs: Tensor, labels: Tensor, width: int, steps: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    r"""Train a two-layer ReLU network and return its slope at every training input.

    $$f(x) = \sum_j v_j \max(0, u_j^\top x), \qquad
      \nabla f(x) = \sum_{j : u_j^\top x > 0} v_j u_j$$

    Full-batch descent on the logarithm of the exponential loss, with steps 0.1 / (1 + |w|^2)^(1/2).

    Args:
        inputs: (N, D) float64.
        labels: (N,), -1 or +1.
        width: number of hidden units.
        steps: number of steps.
        generator: draws the initial weights, standard deviation 0.1.

    Returns:
        Slopes (N, D), and margins (N,) after training.

    Example:
        Units that see one input only learn its direction.

        >>> x = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
        >>> slope, margin = relu_slopes(x, torch.ones(1), 8, 50, torch.Generator().manual_seed(0))
        >>> bool(margin > 0), bool(slope[0, 0] > 10 * slope[0, 1].abs())
        (True, True)
    """
    options = {"generator": generator, "dtype": torch.float64}
    hidden = 0.1 * torch.randn(width, inputs.shape[-1], **options)
    output = 0.1 * torch.randn(width, **options)
    for _ in range(steps):
        active = (inputs @ hidden.mT).clamp(min=0)
        shares = torch.softmax(-labels * (active @ output), -1) * labels
        gate = (active > 0).to(inputs.dtype) * shares[:, None]
        to_hidden = output[:, None] * (gate.mT @ inputs)
        step = 0.1 / (1 + hidden.square().sum() + output.square().sum()).sqrt()
        output, hidden = output + step * (shares @ active), hidden + step * to_hidden
    active = (inputs @ hidden.mT > 0).to(inputs.dtype)
    slopes = (active * output) @ hidden
    return slopes, labels * (slopes * inputs).sum(-1)
