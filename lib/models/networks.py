"""Small networks for full-batch training: fully connected and convolutional."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

ACTIVATIONS = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "hardtanh": nn.Hardtanh,
}
INITIALISATIONS = ("default", "xavier")
POOLINGS = {"max": nn.MaxPool2d, "average": nn.AvgPool2d}


def fully_connected(
    inputs: int,
    widths: Sequence[int],
    outputs: int,
    activation: str = "tanh",
    *,
    generator: torch.Generator,
    batch_norm: bool = False,
    initialisation: str = "default",
    gains: Sequence[float] | None = None,
    bias: bool = True,
    output_bias: bool = True,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    r"""Return a fully connected network with explicit randomness.

    $$f(x) = W_{L+1}\, \phi(W_L \cdots \phi(W_1 x + b_1) \cdots + b_L) + b_{L+1}$$

    With "default", weights and biases of a layer with m inputs are uniform on
    $[-1/\sqrt m, 1/\sqrt m]$, as in PyTorch. With "xavier", weights are normal with standard
    deviation $g \sqrt{2 / (m + m')}$ for m' outputs and a gain g, and biases are 0.

    **Source**: Cohen et al. (2021), the authors' code: 3072-200-200-10 on CIFAR-10; the Chebyshev
    network is 1-100-1 with "xavier", gains 1.9 and 1, and no output bias.

    Args:
        inputs: number of inputs, >= 1; inputs of more dimensions are flattened.
        widths: widths of the hidden layers, each >= 1; empty for a linear map.
        outputs: number of outputs, >= 1.
        activation: "tanh", "relu", "elu", "softplus" or "hardtanh".
        generator: source of randomness; the weights are on its device.
        batch_norm: normalise each hidden layer after its activation.
        initialisation: "default" or "xavier".
        gains: one gain a weight layer, for "xavier"; None for 1.
        bias: whether hidden layers have biases.
        output_bias: whether the last layer has one; never where `bias` is False.
        dtype: dtype of the weights.

    Returns:
        The network, (n, ...) -> (n, outputs).

    Raises:
        ValueError: if a size is below 1, a word is unknown, or `gains` does not fit.

    Example:
        >>> network = fully_connected(64, (100, 100), 10, generator=torch.Generator())
        >>> sum(parameter.numel() for parameter in network.parameters())
        17610
    """
    sizes = [_size("inputs", inputs), *_sizes("widths", widths, 0), _size("outputs", outputs)]
    nonlinearity = ACTIVATIONS[_choice("activation", activation, tuple(ACTIVATIONS))]
    gains = _gains(
        gains, len(sizes) - 1, _choice("initialisation", initialisation, INITIALISATIONS)
    )
    options = {"device": _device(generator), "dtype": _dtype(dtype)}
    layers: list[nn.Module] = [nn.Flatten()]
    for index, (before, after) in enumerate(pairwise(sizes)):
        last = index == len(sizes) - 2
        biased = bias and (output_bias or not last)
        layer = nn.utils.skip_init(nn.Linear, before, after, bias=biased, **options)
        _fill(layer, before, after, generator, None if gains is None else gains[index])
        layers.append(layer)
        if not last:
            layers.append(nonlinearity())
            if batch_norm:
                layers.append(nn.BatchNorm1d(after, **options))
    return nn.Sequential(*layers)


def convolutional(
    shape: tuple[int, int, int],
    channels: Sequence[int],
    outputs: int,
    activation: str = "relu",
    *,
    generator: torch.Generator,
    pooling: str = "max",
    batch_norm: bool = False,
    dtype: torch.dtype = torch.float32,
) -> nn.Sequential:
    r"""Return a small convolutional network with explicit randomness.

    A block is a 3 x 3 convolution with stride 1 and padding 1, the activation, batch normalisation
    where asked for, and 2 x 2 pooling; a linear layer reads the last block. Weights and biases are
    uniform on $[-1/\sqrt m, 1/\sqrt m]$ for m inputs of a unit, as in PyTorch.

    **Source**: Cohen et al. (2021), the authors' code: two blocks of 32 channels.

    Args:
        shape: (C, H, W) of an input; every block halves H and W, rounding down.
        channels: channels of the blocks, one or more, each >= 1.
        outputs: number of outputs, >= 1.
        activation: "tanh", "relu", "elu", "softplus" or "hardtanh".
        generator: source of randomness; the weights are on its device.
        pooling: "max" or "average".
        batch_norm: normalise each block after its activation.
        dtype: dtype of the weights.

    Returns:
        The network, (n, C, H, W) -> (n, outputs); a flat input (n, C H W) works too.

    Raises:
        ValueError: if a size is below 1, a word is unknown, or no pixel is left after pooling.

    Example:
        >>> network = convolutional((3, 32, 32), (32, 32), 10, generator=torch.Generator())
        >>> sum(parameter.numel() for parameter in network.parameters())
        30634
    """
    before, height, width = _shape(shape)
    nonlinearity = ACTIVATIONS[_choice("activation", activation, tuple(ACTIVATIONS))]
    pool = POOLINGS[_choice("pooling", pooling, tuple(POOLINGS))]
    channels, outputs = _sizes("channels", channels, 1), _size("outputs", outputs)
    options = {"device": _device(generator), "dtype": _dtype(dtype)}
    layers: list[nn.Module] = [nn.Flatten(), nn.Unflatten(1, (before, height, width))]
    for after in channels:
        layer = nn.utils.skip_init(nn.Conv2d, before, after, 3, padding=1, **options)
        _fill(layer, 9 * before, 9 * after, generator, None)
        layers += [layer, nonlinearity()]
        if batch_norm:
            layers.append(nn.BatchNorm2d(after, **options))
        layers.append(pool(2))
        before, height, width = after, height // 2, width // 2
        if min(height, width) < 1:
            raise ValueError(f"shape {tuple(shape)} is too small for {len(channels)} poolings")
    head = nn.utils.skip_init(nn.Linear, before * height * width, outputs, **options)
    _fill(head, before * height * width, outputs, generator, None)
    return nn.Sequential(*layers, nn.Flatten(), head)


def _fill(
    layer: nn.Module, before: int, after: int, generator: torch.Generator, gain: float | None
) -> None:
    """Draw the weights of a layer: uniform as PyTorch does, or Xavier normal where a gain is."""
    with torch.no_grad():
        if gain is None:
            bound = 1 / math.sqrt(before)
            for parameter in layer.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
            return
        layer.weight.normal_(0, gain * math.sqrt(2 / (before + after)), generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()


def _gains(gains: Sequence[float] | None, layers: int, initialisation: str) -> list[float] | None:
    if initialisation == "default":
        if gains is not None:
            raise ValueError("gains must be None for initialisation 'default'; use 'xavier'")
        return None
    try:
        checked = [1.0] * layers if gains is None else [float(gain) for gain in gains]
    except (TypeError, ValueError, RuntimeError):
        checked = []
    if len(checked) != layers or not all(math.isfinite(gain) and gain > 0 for gain in checked):
        raise ValueError(f"gains must be {layers} finite numbers > 0, one a layer, got {gains!r}")
    return checked


def _shape(shape: tuple[int, int, int]) -> list[int]:
    sizes = _sizes("shape", shape, 3)
    if len(sizes) != 3:
        raise ValueError(f"shape must be (channels, height, width), got {tuple(shape)}")
    return sizes


def _sizes(name: str, values: Sequence[int], minimum: int) -> list[int]:
    if isinstance(values, str | Tensor) or not isinstance(values, Sequence):
        raise ValueError(f"{name} must be a sequence of integers >= 1, got {values!r}")
    if len(values) < minimum:
        raise ValueError(f"{name} must hold at least {minimum} integers, got {list(values)}")
    return [_size(f"{name}[{index}]", value) for index, value in enumerate(values)]


def _size(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
    return int(value)


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def _device(generator: torch.Generator) -> torch.device:
    if not isinstance(generator, torch.Generator):
        raise ValueError(
            f"generator must be a torch.Generator, got {type(generator).__name__}; "
            "use torch.Generator().manual_seed(0)"
        )
    return generator.device


def _dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    return dtype
