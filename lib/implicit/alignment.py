"""Checks of a trained network that hold for every homogeneous parametrisation."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.implicit.checks import signed_examples
from lib.implicit.losses import example_weights
from lib.implicit.packing import Weights, pack


def misalignment(
    network: object, weights: Weights, inputs: Tensor, labels: Tensor, loss: str = "exponential"
) -> Tensor:
    r"""Return how far the weights are from pointing along the negative gradient of the loss.

    $$1 - \cos\big(w, -\nabla_w \mathcal L(w)\big), \qquad
      -\nabla_w \mathcal L \propto P'(w)^\top \sum_n p_n a_n$$

    It tends to zero where the weights converge in direction to a stationary point of
    min |w|^2 such that the margins are at least one. It is small near such points, too, that the
    flow will leave again: see `stability_numbers`.

    **Source**: Gunasekar et al. (2018), Theorem 3.

    Args:
        network: any of the networks.
        weights: its weights, with batch dimensions ... .
        inputs: (..., N, D), rows are examples.
        labels: (..., N), -1 or +1.
        loss: "exponential" or "logistic".

    Returns:
        (...), float64, in [0, 2].

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> from lib.implicit import DiagonalNetwork
        >>> w = torch.tensor([[1.0], [1.0]])  # balanced, as at the limit
        >>> misalignment(DiagonalNetwork(2), w, torch.ones(1, 1), torch.ones(1)).abs() < 1e-12
        tensor(True)
    """
    rows = signed_examples(inputs, labels)
    weights = network.validate(weights, rows.shape[-1])
    local = network.linearise(weights)
    margins = (rows @ local.predictor.unsqueeze(-1)).squeeze(-1)
    pull = (example_weights(margins, loss).unsqueeze(-2) @ rows).squeeze(-2)
    gradient, flat = pack(local.adjoint(pull)), pack(weights)
    unit = flat / torch.linalg.vector_norm(flat, dim=-1, keepdim=True)
    along = gradient / torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return ((unit - along) ** 2).sum(-1) / 2


def slackness(
    predictor: Tensor, inputs: Tensor, labels: Tensor, loss: str = "exponential"
) -> Tensor:
    r"""Return how much of the gradient comes from examples beyond the smallest margin.

    $$\sum_n p_n\, \frac{m_n - \min_k m_k}{\min_k m_k}$$

    the complementary slackness of Theorem 3's conditions; it tends to zero.

    **Source**: Gunasekar et al. (2018), Theorem 3.

    Args:
        predictor: (..., D), separates the examples.
        inputs: (..., N, D), rows are examples.
        labels: (..., N), -1 or +1.
        loss: "exponential" or "logistic", whose gradient's shares p are taken at this predictor.

    Returns:
        (...), float64, >= 0.

    Raises:
        ValueError: if an argument does not fit, or the predictor does not separate the examples.

    Example:
        >>> x, y = torch.eye(2), torch.ones(2)
        >>> slackness(torch.tensor([5.0, 5.0]), x, y)
        tensor(0., dtype=torch.float64)
    """
    rows = signed_examples(inputs, labels)
    margins = (rows @ predictor.to(rows.dtype).unsqueeze(-1)).squeeze(-1)
    smallest = margins.amin(-1, keepdim=True)
    if not bool((smallest > 0).all()):
        raise ValueError(
            "predictor must give every example a positive margin, got smallest margin "
            f"{float(smallest.min()):.3g}; train longer or check the labels"
        )
    return (example_weights(margins, loss) * (margins / smallest - 1)).sum(-1)
