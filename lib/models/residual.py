"""Residual networks for small images."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from lib.models.checks import check_generator, check_size
from lib.models.student import Student


class BasicBlock(nn.Module):
    r"""Two 3 x 3 convolutions and a shortcut without weights.

    $$y = \operatorname{ReLU}\bigl(\operatorname{BN}(W_2 * \operatorname{ReLU}(
      \operatorname{BN}(W_1 * x))) + S(x)\bigr)$$

    S takes every `stride`-th pixel and appends channels of zeros where channels are missing.

    **Source**: He et al. (2016), Section 4.2, shortcuts of option A.

    Args:
        before: channels of the input.
        after: channels of the output, >= `before`.
        stride: of the first convolution, 1 or 2.

    Example:
        >>> BasicBlock(4, 8, 2)(torch.zeros(1, 4, 6, 6)).shape
        torch.Size([1, 8, 3, 3])
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.missing = after - before
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)

    def forward(self, images: Tensor) -> Tensor:
        """Return the output, (b, after, H', W')."""
        inner = relu(self.first_norm(self.first(images)))
        shortcut = images[..., :: self.stride, :: self.stride]
        shortcut = pad(shortcut, (0, 0, 0, 0, 0, self.missing))
        return relu(self.second_norm(self.second(inner)) + shortcut)


def residual(
    depth: int,
    classes: int,
    width: int = 16,
    *,
    generator: torch.Generator,
    channels: int = 3,
) -> Student:
    r"""Return a residual network of depth 6n + 2 for small images.

    A 3 x 3 convolution, three stages of n basic blocks with `width`, 2 `width` and 4 `width`
    channels, of which the last two halve the image, the mean over pixels, and a linear head.
    Weights of convolutions are normal with variance $2 / m$ for m inputs of a unit; the head is
    uniform on $[-1/\sqrt m, 1/\sqrt m]$.

    **Source**: He et al. (2016), Section 4.2; the head's weights as in PyTorch.

    Args:
        depth: number of layers with weights: 8, 14, 20, 32, 44, 56, ...
        classes: number of outputs, >= 1.
        width: channels of the first stage, >= 1.
        generator: source of randomness; the weights are on its device.
        channels: channels of an image, >= 1.

    Returns:
        The network, (b, channels, H, W) -> (b, classes), with `features` (b, 4 `width`) and `head`.

    Raises:
        ValueError: if a size is below 1 or `depth` is not of the form 6n + 2.

    Example:
        >>> network = residual(20, 10, generator=torch.Generator())
        >>> sum(parameter.numel() for parameter in network.parameters())  # "0.27 M" in the paper
        269722
    """
    depth, width = check_size("depth", depth), check_size("width", width)
    classes, channels = check_size("classes", classes), check_size("channels", channels)
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"depth must be 6n + 2 for n >= 1, that is 8, 14, 20, ..., got {depth}")
    device = check_generator(generator).device
    with torch.device("meta"):
        layers = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
        for stage in range(3):
            for block in range(depth // 6):
                after = width << stage
                layers.append(BasicBlock(before, after, 2 if stage and not block else 1))
                before = after
        body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        student = Student(body, nn.Linear(before, classes))
    student.to_empty(device=device)
    _fill(student, generator)
    return student


@torch.no_grad()
def _fill(student: Student, generator: torch.Generator) -> None:
    """Draw the weights, reset the normalisations."""
    for module in student.body.modules():
        if isinstance(module, nn.Conv2d):
            spread = math.sqrt(2 / (9 * module.in_channels))
            module.weight.normal_(0, spread, generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
            module.reset_running_stats()
    bound = 1 / math.sqrt(student.head.in_features)
    for parameter in student.head.parameters():
        parameter.uniform_(-bound, bound, generator=generator)
