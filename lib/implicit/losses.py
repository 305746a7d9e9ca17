"""The two losses on margins, in logarithms: margins of a thousand underflow every exponential."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from lib.implicit.checks import choice

LOSSES = ("exponential", "logistic")
_TAIL = 30.0  # beyond this margin log(1 + e^{-m}) is e^{-m} to the last bit of its logarithm


def log_loss(margins: Tensor, loss: str = "exponential") -> Tensor:
    r"""Return the logarithm of the training loss.

    $$\log \sum_n e^{-m_n} \qquad \text{or} \qquad \log \sum_n \log(1 + e^{-m_n})$$

    **Source**: Gunasekar et al. (2018), Section 2; the logistic loss is their conjecture.

    Args:
        margins: (..., N).
        loss: "exponential" or "logistic".

    Returns:
        (...).

    Raises:
        ValueError: if the loss is unknown.

    Example:
        >>> log_loss(torch.tensor([1e4])), log_loss(torch.tensor([1e4]), "logistic")
        (tensor(-10000.), tensor(-10000.))
    """
    if choice("loss", loss, LOSSES) == "exponential":
        return torch.logsumexp(-margins, -1)
    near = softplus(-margins.clamp(max=_TAIL)).log()
    return torch.logsumexp(torch.where(margins > _TAIL, -margins, near), -1)


def log_slopes(margins: Tensor, loss: str = "exponential") -> Tensor:
    r"""Return the logarithm of how fast the loss falls with every margin.

    $$-m_n \qquad \text{or} \qquad -\log(1 + e^{m_n})$$

    Args:
        margins: (..., N).
        loss: "exponential" or "logistic".

    Returns:
        (..., N).

    Raises:
        ValueError: if the loss is unknown.

    Example:
        >>> log_slopes(torch.zeros(1), "logistic").exp()
        tensor([0.5000])
    """
    choice("loss", loss, LOSSES)
    return -margins if loss == "exponential" else logsigmoid(-margins)


def example_weights(margins: Tensor, loss: str = "exponential") -> Tensor:
    r"""Return each example's share of the gradient.

    $$p_n = \frac{-\ell'(m_n)}{\sum_k -\ell'(m_k)}, \qquad
      p = \operatorname{softmax}(-m) \text{ for the exponential loss}$$

    Args:
        margins: (..., N).
        loss: "exponential" or "logistic".

    Returns:
        (..., N), in the simplex.

    Raises:
        ValueError: if the loss is unknown.

    Example:
        >>> example_weights(torch.tensor([1000.0, 1000.0]))
        tensor([0.5000, 0.5000])
    """
    return torch.softmax(log_slopes(margins, loss), -1)
