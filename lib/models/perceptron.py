"""Small students of vectors and of small images, and their teachers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from lib.models.checks import check_rate
from lib.models.networks import convolutional, fully_connected
from lib.models.student import Student


def perceptron(
    inputs: int,
    widths: Sequence[int],
    classes: int,
    activation: str = "relu",
    *,
    generator: torch.Generator,
    input_dropout: float = 0.0,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Student:
    r"""Return a fully connected network in two parts, the last hidden layer and the head.

    $$f(x) = W_{L+1}\, \phi(W_L \cdots \phi(W_1 x + b_1) \cdots + b_L) + b_{L+1}$$

    The weights are those of `fully_connected` for the same generator; without hidden layers the
    network is a linear head.

    **Source**: ours; d-64-10 and d-128-10 on digits.

    Args:
        inputs: number of inputs, >= 1; inputs of more dimensions are flattened.
        widths: widths of the hidden layers, each >= 1; empty for a linear map.
        classes: number of outputs, >= 1.
        activation: "tanh", "relu", "elu", "softplus" or "hardtanh".
        generator: source of randomness; the weights are on its device.
        input_dropout: share of inputs dropped in training, in [0, 1).
        dropout: share of hidden units dropped in training, in [0, 1).
        dtype: dtype of the weights.

    Returns:
        The network, (b, ...) -> (b, classes), with `features` and `head`.

    Raises:
        ValueError: if a size is below 1, a word is unknown, or a share is outside [0, 1).

    Example:
        >>> student = perceptron(64, (128,), 10, generator=torch.Generator())
        >>> student.features(torch.zeros(5, 64)).shape, student(torch.zeros(5, 64)).shape
        (torch.Size([5, 128]), torch.Size([5, 10]))
    """
    rates = [check_rate("input_dropout", input_dropout), check_rate("dropout", dropout)]
    flatten, *layers, head = fully_connected(
        inputs, widths, classes, activation, generator=generator, dtype=dtype
    )
    body = [flatten, *_dropped(rates[0])]
    for layer in layers:
        body.append(layer)
        if not isinstance(layer, nn.Linear):
            body += _dropped(rates[1])
    return Student(nn.Sequential(*body), head)


def convnet(
    shape: tuple[int, int, int],
    channels: Sequence[int],
    classes: int,
    activation: str = "relu",
    *,
    generator: torch.Generator,
    pooling: str = "max",
    batch_norm: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Student:
    """Return a small convolutional network in two parts, the pooled blocks and the head.

    The weights are those of `convolutional` for the same generator.

    **Source**: ours.

    Args:
        shape: (C, H, W) of an input; every block halves H and W, rounding down.
        channels: channels of the blocks, one or more, each >= 1.
        classes: number of outputs, >= 1.
        activation: "tanh", "relu", "elu", "softplus" or "hardtanh".
        generator: source of randomness; the weights are on its device.
        pooling: "max" or "average".
        batch_norm: normalise each block after its activation.
        dtype: dtype of the weights.

    Returns:
        The network, (b, C, H, W) or (b, C H W) -> (b, classes), with `features` and `head`.

    Raises:
        ValueError: if a size is below 1, a word is unknown, or no pixel is left after pooling.

    Example:
        >>> student = convnet((1, 8, 8), (16, 32), 10, generator=torch.Generator())
        >>> student.features(torch.zeros(5, 1, 8, 8)).shape, student(torch.zeros(5, 64)).shape
        (torch.Size([5, 128]), torch.Size([5, 10]))
    """
    *body, head = convolutional(
        shape,
        channels,
        classes,
        activation,
        generator=generator,
        pooling=pooling,
        batch_norm=batch_norm,
        dtype=dtype,
    )
    return Student(nn.Sequential(*body), head)


def _dropped(rate: float) -> list[nn.Module]:
    """A layer that drops, where something is dropped."""
    return [nn.Dropout(rate)] if rate else []
