"""Fixed views of images: where each is cropped, and whether it is mirrored."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def fixed_views(
    n: int, views: int, padding: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw where each view of each image is cropped, and whether it is mirrored.

    **Source**: Yuan & Tao, Appendix E.1, with eight views and 4 pixels of padding; that every
    offset and both directions are equally likely is usual and ours.

    Args:
        n: number of images >= 1.
        views: V >= 1.
        padding: pixels on each side, >= 0.
        generator: on the CPU.

    Returns:
        Offsets (V, n, 2) int64 in [0, 2 padding], and flips (V, n) bool.

    Raises:
        ValueError: if a number is no integer or too small.

    Example:
        >>> offsets, flips = fixed_views(5, 8, 4, torch.Generator().manual_seed(0))
        >>> offsets.shape, flips.shape, bool((offsets <= 8).all())
        (torch.Size([8, 5, 2]), torch.Size([8, 5]), True)
    """
    for name, value, least in (("n", n, 1), ("views", views, 1), ("padding", padding, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    offsets = torch.randint(2 * padding + 1, (views, n, 2), generator=generator)
    return offsets, torch.randint(2, (views, n), generator=generator).bool()


def crop_and_flip(images: Tensor, offsets: Tensor, flips: Tensor, padding: int) -> Tensor:
    r"""Pad images, take a crop of the first size from each, and mirror some, all at once.

    $$x'_{i j} = \bar x_{i + a,\, j' + b}, \qquad j' = W - 1 - j \ \text{ if mirrored, else } j$$

    with $\bar x$ the image in a frame of zeros and (a, b) its offset.

    **Source**: Yuan & Tao, Appendix E.1.

    Args:
        images: (b, C, H, W), uint8 up to 255 or floating point.
        offsets: (b, 2) int64 in [0, 2 padding], rows and columns.
        flips: (b,) bool.
        padding: pixels on each side, >= 0.

    Returns:
        (b, C, H, W) in float32, or float64 if the images are; uint8 is divided by 255.

    Example:
        >>> image, flips = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([True])
        >>> crop_and_flip(image, torch.tensor([[1, 2]]), flips, padding=1)  # 2, 0 before the flip
        tensor([[[[0., 2.]]]])
    """
    height, width = images.shape[-2:]
    if images.dtype == torch.uint8:
        images = images.float() / 255
    images = images.to(torch.promote_types(images.dtype, torch.float32))
    padded = pad(images, (padding,) * 4)
    rows = offsets[:, :1] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(len(images), -1)
    columns = offsets[:, 1:] + torch.where(flips[:, None], width - 1 - columns, columns)
    example = torch.arange(len(images), device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[:, None, None]
    return padded[example, channel, rows[:, None, :, None], columns[:, None, None, :]]
